use std::sync::Arc;

use laneway_session::{Decoded, Decoder, StopReason};
use laneway_text::{Detokenizer, StopMatcher, Tokenizer};

/// Turns generated tokens into text that is safe to send: whole characters, nothing of a stop string.
pub struct TextDecoder {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl TextDecoder {
    /// A decoder for one answer that ends before any of `stops`.
    pub fn new(tokenizer: Arc<Tokenizer>, detokenizer: Detokenizer, stops: Vec<String>) -> Self {
        Self { tokenizer, detokenizer, stops: StopMatcher::new(stops) }
    }
}

impl Decoder for TextDecoder {
    fn token(&mut self, token: u32) -> Decoded {
        if self.tokenizer.end_of_generation().contains(&token) {
            return Decoded { stop: Some(StopReason::Eos), ..Decoded::default() };
        }
        let piece = self.detokenizer.push(&self.tokenizer, token).unwrap_or_default();
        let step = self.stops.push(&piece);
        Decoded { text: step.text, reasoning: false, stop: step.hit.map(|_| StopReason::StopString) }
    }

    fn finish(&mut self) -> String {
        let rest = self.detokenizer.finish().unwrap_or_default();
        let mut text = self.stops.push(&rest).text;
        text.push_str(&self.stops.finish().text);
        text
    }
}
