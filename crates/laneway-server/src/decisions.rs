//! What a model can decide.

use std::sync::Arc;

use laneway_decisions::{Reader, ReaderOptions, Readout};
use laneway_session::canvas::CanvasLimits;
use laneway_session::systemone_runnable;
use laneway_text::{ChatTemplate, Tokenizer};

use crate::tokenizer::Origin;

/// The reader of a model with this text side, or why it answers no decisions.
pub fn reader(
    tokenizer: &Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    origin: Origin,
    canvas: Option<CanvasLimits>,
    lanes: usize,
) -> Result<Arc<Reader>, String> {
    if origin == Origin::Ids {
        return Err("it has no tokenizer".to_owned());
    }
    // No stage boundaries: a model is always whole here.
    if canvas.is_some() && !systemone_runnable(true, false, false, lanes) {
        return Err(format!("a canvas is read on exactly one lane, and it has {lanes}"));
    }
    let readout = canvas.map_or(Readout::Autoregressive, Readout::Canvas);
    let reader = Reader::new(tokenizer.clone(), template, readout, ReaderOptions::default());
    reader.map(Arc::new).map_err(|error| error.to_string())
}
