use laneway_files::FileError;

/// Why a network cannot be built on a device.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file lacks a tensor or has one of another shape.
    #[error(transparent)]
    File(#[from] FileError),
    /// The device has too little memory.
    #[error("{what} needs {needed_bytes} bytes, but the device offers {available_bytes}")]
    OutOfMemory {
        /// What was to be stored.
        what: String,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes the device can give.
        available_bytes: u64,
    },
    /// The layers cannot be computed apart from the others.
    #[error("layers {} to {} cannot be a stage: {reason}", layers.start, layers.end)]
    Stage {
        /// The layers asked for.
        layers: std::ops::Range<usize>,
        /// Why not.
        reason: String,
    },
    /// The device refused an allocation or a kernel.
    #[error("device error: {0}")]
    Device(String),
}
