/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// No adapter answers to the request.
    #[error("there is no graphics adapter `{wanted}`; found: {found}")]
    NoAdapter {
        /// What was asked for.
        wanted: String,
        /// Names of the adapters there are.
        found: String,
    },
    /// The adapter refused a device.
    #[error("adapter {adapter} gives no device: {reason}")]
    NoDevice {
        /// The adapter's name.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// burn could not take over the device.
    #[error("tensor library refused the device: {0}")]
    Tensors(String),
    /// The device was lost or reports an error; it must be opened anew.
    #[error("device lost: {0}")]
    Lost(String),
}
