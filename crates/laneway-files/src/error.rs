use crate::Format;

/// The result of everything that reads a weight file.
pub type Result<T, E = FileError> = std::result::Result<T, E>;

/// Why a weight file or its configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The content is something else than the expected kind of file.
    #[error("expected {expected}, but the content {found}")]
    NotAModel { expected: &'static str, found: String },
    /// The file ends before a structure does.
    #[error("truncated: {what} needs {needed} bytes, {available} are left")]
    Truncated { what: &'static str, needed: u64, available: u64 },
    /// A tensor's data lies outside the file.
    #[error("offset past end: data ends at byte {end} of a data section of {available} bytes")]
    PastEnd { end: u64, available: u64 },
    /// A tensor's data does not start at a multiple of the file's alignment.
    #[error("offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned { offset: u64, alignment: u64 },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
    /// A key or tensor name occurs twice.
    #[error("{what} `{name}` occurs twice")]
    Duplicate { what: &'static str, name: String },
    /// A number lies outside what this crate accepts.
    #[error("{what} is {value}, expected {min} to {max}")]
    OutOfRange { what: String, value: u64, min: u64, max: u64 },
    /// A value makes no sense for a model.
    #[error("{what} {reason}")]
    Invalid { what: String, reason: String },
    /// The container's version is not known.
    #[error("GGUF version {version} is not supported (supported: 2, 3){hint}")]
    UnsupportedVersion { version: u32, hint: &'static str },
    /// The model family is not known.
    #[error("architecture `{found}` is not supported (supported: {supported})")]
    UnsupportedArchitecture { found: String, supported: &'static str },
    /// A tensor's element format is not known.
    #[error("format {found} is not supported (supported: {})", Format::supported())]
    UnsupportedFormat { found: String },
    /// The model uses something that its family's network here does not compute.
    #[error("{what} `{found}` is not supported (supported: {supported})")]
    UnsupportedFeature { what: String, found: String, supported: &'static str },
    /// A required metadata key or configuration field is absent.
    #[error("`{0}` is missing")]
    MissingKey(String),
    /// A metadata key or configuration field has another type.
    #[error("`{key}` should be {expected}")]
    WrongType { key: String, expected: &'static str },
    /// A tensor that the network needs is absent.
    #[error("tensor `{0}` is missing")]
    MissingTensor(String),
    /// A tensor has another shape than the network needs (row-major).
    #[error("tensor `{name}` should have shape {expected:?}, found {found:?}")]
    WrongShape { name: String, expected: Vec<usize>, found: Vec<usize> },
    /// Bytes and elements handed to a decoder do not belong together.
    #[error("{bytes} bytes of {format} do not decode to {elements} elements")]
    WrongLength { format: &'static str, bytes: usize, elements: usize },
    /// An error inside one tensor's description or data.
    #[error("tensor `{name}`: {source}")]
    InTensor { name: String, source: Box<FileError> },
    /// JSON that cannot be read.
    #[error("{what}: {source}")]
    Json { what: &'static str, source: serde_json::Error },
    /// The operating system could not read a file.
    #[cfg(not(target_arch = "wasm32"))]
    #[error("{}: {source}", path.display())]
    Io { path: std::path::PathBuf, source: std::io::Error },
}

impl FileError {
    pub(crate) fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), reason: reason.into() }
    }

    pub(crate) fn in_tensor(self, name: &str) -> Self {
        Self::InTensor { name: name.to_owned(), source: Box::new(self) }
    }
}

/// Checks `min <= value <= max` and converts to `usize`; every `max` used fits 32 bits.
pub(crate) fn within(what: &str, value: u64, min: u64, max: u64) -> Result<usize> {
    let refused = || FileError::OutOfRange { what: what.to_owned(), value, min, max };
    if value < min || value > max {
        return Err(refused());
    }
    usize::try_from(value).map_err(|_| refused())
}
