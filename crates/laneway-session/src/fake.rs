//! A deterministic engine without weights, for tests of schedulers and drivers.
//!
//! What it predicts is a hash of all that a row can see through its page table, so that a wrong page, position, order,
//! block or conditioning shows as a wrong answer. [`continuation`], [`canvases`] and [`logits`] say what is right.

mod engine;
mod faults;
mod hash;
mod sheet;
mod text;

pub use engine::FakeEngine;
pub use faults::{Fault, Faults};
pub use sheet::{canvases, logits};
pub use text::{FakeDecoder, text};

/// Tokens a [`FakeEngine`] can sample: 0 to 63.
pub const VOCABULARY: u32 = 64;

/// The token that ends an answer.
pub const EOS: u32 = 0;

/// The tokens that follow `prompt`, up to and with [`EOS`], at most `max_tokens`.
pub fn continuation(seed: u64, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    up_to_eos(endless(seed, prompt, max_tokens))
}

/// The `count` tokens that follow `prompt` when nothing ends the answer.
pub fn endless(seed: u64, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        tokens.push(hash::token(hash::visible(seed, tokens.iter().map(|token| Some(u64::from(*token))))));
    }
    tokens.split_off(prompt.len())
}

/// The tokens up to and with the first [`EOS`].
pub fn up_to_eos(mut tokens: Vec<u32>) -> Vec<u32> {
    if let Some(end) = tokens.iter().position(|token| *token == EOS) {
        tokens.truncate(end + 1);
    }
    tokens
}
