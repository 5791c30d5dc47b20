/// Why stored bytes were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes start with something else.
    #[error("not a {expected}")]
    NotOurs {
        /// What was expected.
        expected: &'static str,
    },
    /// The version is not known.
    #[error("{what} version {found} is not supported (supported: {supported})")]
    Version {
        /// Whose version.
        what: &'static str,
        /// The version found.
        found: u32,
        /// The newest one supported.
        supported: u32,
    },
    /// The bytes end too early.
    #[error("truncated: {what} needs {needed} bytes, {available} are left")]
    Truncated {
        /// What is cut off.
        what: &'static str,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// Bytes follow the end.
    #[error("{bytes} or more bytes follow the end")]
    Trailing {
        /// How many were seen.
        bytes: u64,
    },
    /// A digest does not match its content.
    #[error("the digest of the {what} does not match")]
    Digest {
        /// Whose digest.
        what: &'static str,
    },
    /// A value makes no sense.
    #[error("{what} {reason}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// How.
        reason: &'static str,
    },
    /// The bytes could not be read or written.
    #[error("input or output failed")]
    Io(#[from] std::io::Error),
}

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is not one or two names of `a-z 0-9 - .`.
    #[error("key `{key}` is not one or two names of a-z, 0-9, `-` and `.`")]
    Key {
        /// The key.
        key: String,
    },
    /// No space or quota is left; nothing was stored.
    #[error("no space left")]
    Full,
    /// Another process owns the directory.
    #[error("`{path}` is in use by another process")]
    Owned {
        /// The directory.
        path: String,
    },
    /// The store failed.
    #[error("{action} `{key}` failed")]
    Failed {
        /// What was tried.
        action: &'static str,
        /// On which object.
        key: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
