//! Tokenizers, requests and models of the tests of this folder.

// Each test file uses a part.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use laneway_decisions::{PartLogits, Plan, ReadPart, Reader, ReaderOptions, Readout};
use laneway_protocol::systemone::{DecisionRequest, Reading};
use laneway_session::Branch;
use laneway_session::canvas::{CanvasContext, CanvasLimits, Confidence, Denoising, Noise, Selection, Stop};
use laneway_text::{ChatTemplate, Tokenizer, TokenizerSource};
use serde_json::Value;

/// Every byte a token, and the tokens of `words`, in the byte-level alphabet, with the merges that lead to them.
pub fn byte_level(words: &[&str]) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| written(byte).to_string()).collect();
    let mut merges = Vec::new();
    for word in words {
        let letters: Vec<char> = word.bytes().map(written).collect();
        for end in 2..=letters.len() {
            let (left, right) = (letters[..end - 1].iter().collect::<String>(), letters[end - 1]);
            let merge = format!("{left} {right}");
            if !merges.contains(&merge) {
                merges.push(merge);
            }
            let whole = format!("{left}{right}");
            if !tokens.contains(&whole) {
                tokens.push(whole);
            }
        }
    }
    let mut token_types = vec![1; tokens.len()];
    let specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    tokens.extend(specials.map(String::from));
    token_types.extend([3; 3]);
    let eos = tokens.len() as u32 - 1;
    let source = TokenizerSource {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        merges,
        token_types: Some(token_types),
        eos: Some(eos),
        ..Default::default()
    };
    Tokenizer::new(source).unwrap()
}

/// GPT-2's printable stand-in for a byte.
fn written(byte: u8) -> char {
    let is_printable = |byte: &u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_printable(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !is_printable(byte)).count();
    char::from_u32(256 + before as u32).unwrap()
}

/// Words that a canvas needs as tokens.
pub const CANVAS_WORDS: [&str; 4] = [" yes", " no", "yes", "no"];

pub fn reader(tokenizer: Tokenizer, readout: Readout, options: ReaderOptions) -> Reader {
    let template = ChatTemplate::of_tokenizer(&tokenizer).unwrap();
    Reader::new(Arc::new(tokenizer), Some(template), readout, options).unwrap()
}

pub fn limits(length: usize, vocabulary: u32) -> CanvasLimits {
    CanvasLimits {
        length,
        vocabulary,
        noise: Noise::Uniform,
        context: CanvasContext::Causal,
        shift: false,
        is_conditioned: true,
        pad: 0,
        denoising: Denoising {
            max_steps: 1,
            t_max: 1.0,
            t_min: 1.0,
            selection: Selection::Schedule(Confidence::Entropy),
            stop: Stop::Decided,
        },
    }
}

pub fn request(body: Value) -> DecisionRequest {
    DecisionRequest::from_json(body.to_string().as_bytes()).unwrap()
}

/// A model: the logit of a label in a row of a branch after a prompt.
pub trait Model: Fn(&[u32], &Branch, usize, u32) -> f32 {}
impl<F: Fn(&[u32], &Branch, usize, u32) -> f32> Model for F {}

pub fn run(parts: &[ReadPart], model: &impl Model) -> Vec<PartLogits> {
    let branch = |prompt: &[u32], branch: &Branch| {
        let slot = |slot: &laneway_session::Slot| {
            slot.labels.iter().map(|label| model(prompt, branch, slot.row, *label)).collect()
        };
        branch.slots.iter().map(slot).collect()
    };
    parts.iter().map(|part| part.branches.iter().map(|it| branch(&part.prompt, it)).collect()).collect()
}

/// Runs a plan to its end.
pub fn readings(plan: &Plan, model: &impl Model) -> Vec<Reading> {
    let mut logits = run(plan.parts(), model);
    if let Some(more) = plan.more(&logits) {
        logits.extend(run(&more, model));
    }
    plan.readings(&logits).unwrap()
}

/// Pseudo-random logits that depend on all that a model sees.
pub fn hashed(prompt: &[u32], branch: &Branch, row: usize, label: u32) -> f32 {
    (hash((prompt, &branch.tokens, row, label)) % 2000) as f32 / 200.0 - 5.0
}

pub fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

pub fn probabilities(reading: &Reading) -> &[f64] {
    reading.distribution().probabilities()
}

#[track_caller]
pub fn assert_close(measured: &[f64], expected: &[f64], tolerance: f64) {
    let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance;
    let all = measured.len() == expected.len() && measured.iter().zip(expected).all(is_close);
    assert!(all, "{measured:?} is not {expected:?}");
}
