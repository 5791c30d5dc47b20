//! What stands in for a network: hashes of what a row sees.

use super::VOCABULARY;
use crate::canvas::{CanvasLimits, Noise};
use crate::engine::{Block, Draft, Drafted, Pass};

/// All that is visible, in order; none where nothing was ever written.
pub(super) fn visible(seed: u64, entries: impl Iterator<Item = Option<u64>>) -> u64 {
    entries.fold(seed ^ 0x9e37_79b9_7f4a_7c15, |hash, entry| fold(hash, entry.unwrap_or(u64::MAX)))
}

/// The token that a hash samples.
pub(super) fn token(hash: u64) -> u32 {
    ((hash ^ (hash >> 32)) % u64::from(VOCABULARY)) as u32
}

/// What a row of a block writes: it has seen the whole block, and which pass it was.
pub(super) fn block_entry(pass: Pass, offset: usize, tokens: &[u32], memory: Option<u64>) -> u64 {
    let start = 1 << 40 | offset as u64 | u64::from(pass == Pass::Denoise) << 32;
    let hash = tokens.iter().fold(start, |hash, token| fold(hash, u64::from(*token)));
    fold(hash, memory.unwrap_or(u64::MAX))
}

/// What a row of a block predicts from.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// Everything.
    pub all: u64,
    /// What comes before the block, and the position.
    pub before: u64,
    /// The row's own token.
    pub token: u32,
}

impl Seen {
    /// `entries` are those of all positions up to the end of the block.
    pub fn new(block: Block, position: usize, token: u32, entries: &[Option<u64>]) -> Self {
        let at = |hash| fold(hash, position as u64);
        let before = &entries[..block.start as usize];
        Self { all: at(visible(1, entries.iter().copied())), before: at(visible(2, before.iter().copied())), token }
    }
}

/// The logit of a label, -4 to 4.
pub(super) fn logit(hash: u64, token: u32) -> f32 {
    unit(fold(hash, u64::from(token) + 1)) * 8.0 - 4.0
}

/// One row in short. Without masks most of the prediction depends on what is before the block, so that a canvas comes
/// to rest; a token that agrees with it is certain.
pub(super) fn drafted(seen: Seen, draft: &Draft, canvas: &CanvasLimits) -> Drafted {
    let mask = match canvas.noise {
        Noise::Masked { mask } => Some(mask),
        Noise::Uniform => None,
    };
    let unmasked = |token: u32| if Some(token) == mask { (token + 1) % VOCABULARY } else { token };
    let jitter = unit(fold(seen.all, 3));
    let hash = if mask.is_some() || seen.all.is_multiple_of(32) { seen.all } else { seen.before };
    let argmax = unmasked(token(hash));
    let entropy = match mask {
        Some(_) => 0.02 + 0.5 * jitter,
        None if seen.token == argmax => 0.0005 * jitter,
        None => 0.03 + 0.2 * jitter,
    };
    let drawn = fold(seen.all, u64::from(draft.draw.to_bits()) | u64::from(draft.temperature.to_bits()) << 32);
    let sampled = if drawn.is_multiple_of(4) { unmasked(token(drawn >> 3)) } else { argmax };
    let argmax_logprob = -entropy;
    let sampled_logprob = if sampled == argmax { argmax_logprob } else { -2.0 - jitter };
    Drafted { argmax, argmax_logprob, second_logprob: argmax_logprob - 0.5, entropy, sampled, sampled_logprob }
}

/// What a conditioned pass is told of the drafts before.
pub(super) fn memory<'a>(drafts: impl Iterator<Item = (&'a Draft, &'a Drafted)>) -> u64 {
    drafts.fold(5, |hash, (draft, drafted)| {
        let hash = fold(hash, u64::from(drafted.argmax));
        fold(hash, u64::from(drafted.entropy.to_bits()) << 32 | u64::from(draft.temperature.to_bits()))
    })
}

fn fold(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
}

fn unit(hash: u64) -> f32 {
    ((hash ^ (hash >> 29)) & 0xff_ffff) as f32 / (1 << 24) as f32
}
