//! The text side.

use super::EOS;
use crate::{Decoded, Decoder, StopReason};

/// The text a [`FakeDecoder`] makes of tokens.
pub fn text(tokens: &[u32]) -> String {
    tokens.iter().filter(|token| **token != EOS).map(|token| format!("{token} ")).collect()
}

/// Writes tokens as numbers; ends at [`EOS`] and at a stop token, which takes the place of a stop string.
#[derive(Clone, Debug, Default)]
pub struct FakeDecoder {
    /// The token that ends the answer like a stop string.
    pub stop: Option<u32>,
    /// Whether [`EOS`] is a token like any other.
    pub endless: bool,
}

impl Decoder for FakeDecoder {
    fn token(&mut self, token: u32) -> Decoded {
        let stop = match token {
            EOS if !self.endless => Some(StopReason::Eos),
            token if self.stop == Some(token) => Some(StopReason::StopString),
            _ => None,
        };
        let text = if stop.is_some() { String::new() } else { text(&[token]) };
        Decoded { text, reasoning: false, stop }
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}
