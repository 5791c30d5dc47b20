use laneway_kernels::GpuError;
use laneway_model::ModelError;

/// Why a model cannot be opened on a device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file does not make a network.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No usable graphics device.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The stages are not all layers once, in order.
    #[error(
        "stages cannot begin with layers {firsts:?} of {layers}: the first begins with 0, each later one after that"
    )]
    Stages {
        /// First layers of the stages.
        firsts: Vec<usize>,
        /// Layers of the model.
        layers: usize,
    },
    /// Model and pages are larger than the memory there is.
    #[error(
        "model needs {needed_bytes} bytes on {device} ({weight_bytes} for weights, {kv_bytes} for {lanes} lanes of \
         {context_length} positions), but only {available_bytes} are available; fewer lanes or a shorter context need less"
    )]
    TooLarge {
        /// The device.
        device: String,
        /// Weights and pages together.
        needed_bytes: u64,
        /// The file's tensors.
        weight_bytes: u64,
        /// Pages for all lanes.
        kv_bytes: u64,
        /// Lanes asked for.
        lanes: usize,
        /// Positions asked for.
        context_length: usize,
        /// What the device can give.
        available_bytes: u64,
    },
}
