//! How a diffusion model writes: what its canvas is, and how it is revised.

use crate::engine::Block;

/// What a canvas model offers to the scheduler; constant while it is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CanvasLimits {
    /// Positions that are revised together.
    pub length: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// What an undecided position holds.
    pub noise: Noise,
    /// What a canvas sees beside itself.
    pub context: CanvasContext,
    /// Whether position `i` is predicted by row `i - 1`.
    pub shift: bool,
    /// Whether a pass reads the prediction of the one before.
    pub is_conditioned: bool,
    /// Fills a canvas after its end.
    pub pad: u32,
    /// How canvases are revised unless a turn says otherwise.
    pub denoising: Denoising,
}

/// What an undecided position of a canvas holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Any token; every position may change in every pass.
    Uniform,
    /// A mask token; a decided position stays.
    Masked {
        /// The mask.
        mask: u32,
    },
}

/// What a canvas sees beside itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanvasContext {
    /// Pages that were written causally: a finished canvas is encoded again, token after token.
    Causal,
    /// Pages written block by block; blocks start at multiples of their length, and the prompt's last one holds the
    /// first positions of the answer.
    Blocks,
    /// No pages: every pass goes over prompt and answer as one block.
    Whole,
}

/// How a canvas is revised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Denoising {
    /// Passes over a canvas at most, from 1.
    pub max_steps: u32,
    /// Temperature of the first pass.
    pub t_max: f32,
    /// Temperature that the last pass comes close to: pass `s`, counted down from `max_steps`, has
    /// `t_min + (t_max - t_min) * s / max_steps`. Where it is 0 the likeliest token is the candidate.
    pub t_min: f32,
    /// Which positions take their candidate in a pass.
    pub selection: Selection,
    /// When a canvas is finished before its last pass.
    pub stop: Stop,
}

/// Which positions take their candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// The most certain ones, as long as the entropies of those before add up to no more than this many nats.
    EntropyBound(f32),
    /// As many as bring all to an end in the passes left, the most confident first.
    Schedule(Confidence),
    /// All with at least this confidence (a probability), and the most confident one in any case.
    Threshold {
        /// The measure.
        confidence: Confidence,
        /// The least value.
        least: f32,
        /// Positions to take at least.
        at_least: u32,
    },
}

/// How sure a prediction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// Probability of the candidate.
    Probability,
    /// Probability of the likeliest token less that of the second.
    Margin,
    /// The negative entropy.
    Entropy,
}

/// When a canvas is finished before its last pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// Once no position is undecided.
    Decided,
    /// Once the likeliest tokens equal those of so many passes before, and the mean entropy is below a bound in nats.
    Stable {
        /// Passes.
        passes: u32,
        /// Mean entropy.
        entropy: f32,
    },
}

impl CanvasLimits {
    /// Whether a final token sees only what comes before it.
    pub(crate) fn is_causal(&self) -> bool {
        self.context == CanvasContext::Causal
    }

    /// Whether every pass goes over the whole sequence.
    pub(crate) fn is_whole(&self) -> bool {
        self.context == CanvasContext::Whole
    }

    /// Leading tokens of a sequence that are encoded before a canvas is revised.
    pub(crate) fn encoded(&self, tokens: usize) -> usize {
        match self.context {
            CanvasContext::Causal => tokens,
            CanvasContext::Blocks => tokens - tokens % self.length.max(1),
            CanvasContext::Whole => 0,
        }
    }

    /// Where the canvas that follows `tokens` starts: where they end, or at the block that holds the last of them.
    pub(crate) fn start(&self, tokens: usize) -> usize {
        match self.context {
            CanvasContext::Blocks => self.encoded(tokens),
            CanvasContext::Causal | CanvasContext::Whole => tokens,
        }
    }

    /// Positions whose K/V can only be kept or lost together.
    pub(crate) fn grain(&self) -> usize {
        match self.context {
            CanvasContext::Blocks => self.length,
            CanvasContext::Causal | CanvasContext::Whole => 1,
        }
    }

    /// The block of a position that is encoded.
    pub(crate) fn encoded_block(&self, position: usize) -> Option<Block> {
        let start = (position - position % self.grain()) as u32;
        (self.context == CanvasContext::Blocks).then_some(Block {
            start,
            len: self.length as u32,
            is_conditioned: false,
        })
    }

    /// The block of a position of a canvas that covers `from..end`.
    pub(crate) fn revised_block(&self, position: usize, from: usize, end: usize, is_conditioned: bool) -> Block {
        let (start, end) = match self.context {
            CanvasContext::Causal | CanvasContext::Whole => (from, end),
            CanvasContext::Blocks => {
                let start = position - position % self.length;
                (start, end.min(start + self.length))
            }
        };
        Block { start: start as u32, len: (end - start) as u32, is_conditioned }
    }

    /// Names a field that no canvas can work with, and its value.
    pub(crate) fn fault(&self, max_rows: usize, positions: usize) -> Option<(&'static str, usize)> {
        let Self { length, vocabulary, noise, context, shift, is_conditioned, .. } = *self;
        if length == 0 || length > max_rows || length > positions {
            return Some(("canvas.length", length));
        }
        if vocabulary == 0 {
            return Some(("canvas.vocabulary", 0));
        }
        if let Noise::Masked { mask } = noise
            && mask >= vocabulary
        {
            return Some(("canvas.noise", mask as usize));
        }
        // The row before a canvas is in the same step only where the whole sequence is.
        if shift && context != CanvasContext::Whole {
            return Some(("canvas.shift", 1));
        }
        // Rows of a prompt have no prediction of an earlier pass.
        if is_conditioned && context != CanvasContext::Causal {
            return Some(("canvas.is_conditioned", 1));
        }
        (self.denoising.max_steps == 0).then_some(("canvas.denoising.max_steps", 0))
    }
}
