use laneway_engine::OpenError;
use laneway_files::FileError;
use laneway_session::{EngineError, SubmitError, TurnError};
use wasm_bindgen::JsValue;

/// Why a call was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The bytes are no model file that can be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The model does not open on the browser's device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The service takes no turn.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The turn failed.
    #[error(transparent)]
    Turn(#[from] TurnError),
    /// A step outside a turn failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A prompt names a token that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens the model has.
        vocab: usize,
    },
    /// More steps were asked for than the context has positions.
    #[error("{steps} steps do not fit a context of {limit} positions")]
    Steps {
        /// Steps asked for.
        steps: usize,
        /// Positions there are.
        limit: usize,
    },
    /// Another call on the same model has not ended.
    #[error("the model is busy with another call")]
    Busy,
    /// The device was lost in an earlier call.
    #[error("the device was lost, load the model again")]
    Gone,
    /// The module panicked and cannot be used any more.
    #[error("internal error, start a new worker: {0}")]
    Panicked(String),
    /// A measurement failed.
    #[cfg(feature = "measure")]
    #[error("{0}")]
    Measure(String),
}

impl From<WebError> for JsValue {
    fn from(error: WebError) -> Self {
        js_sys::Error::new(&error.to_string()).into()
    }
}
