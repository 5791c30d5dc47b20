//! The contract between the scheduler and a loaded model.

use std::future::Future;

use crate::Sampling;
use crate::canvas::{CanvasContext, CanvasLimits};

/// What a loaded model offers to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineLimits {
    /// Turns that can run at the same time.
    pub lanes: usize,
    /// KV pages shared by all lanes.
    pub pages: usize,
    /// Token positions a page holds.
    pub page_positions: usize,
    /// Positions a single sequence may have.
    pub context_length: usize,
    /// Rows a step may have; bounds a prefill chunk.
    pub max_rows: usize,
    /// Steps that may be submitted and not yet collected: 1 on the cpu, 2 on a gpu.
    pub depth: usize,
    /// Page tables beside those of the lanes: branches of a read that a step can have beyond the first. May be 0.
    pub branches: usize,
    /// Bytes of K and V of one position as [`Engine::read_page`] gives them; 0 if pages cannot be moved.
    pub row_bytes: usize,
    /// How answers are written, by a model that revises a canvas; none for one that predicts the next token.
    pub canvas: Option<CanvasLimits>,
}

/// An engine announced a limit that no turn can run under.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("engine limit {field} is {value}, which is out of range")]
pub struct InvalidLimits {
    /// Name of the field of [`EngineLimits`].
    pub field: &'static str,
    /// Its value.
    pub value: usize,
}

impl EngineLimits {
    /// Refuses limits that are zero or do not fit the 32-bit numbers of a [`StepPlan`], and canvases that cannot work:
    /// longer than a step or the context, of an empty vocabulary, shifted where the row before is in another step, or
    /// conditioned where the prompt is part of the block.
    pub fn validate(self) -> Result<Self, InvalidLimits> {
        let fields = [
            ("lanes", self.lanes),
            ("pages", self.pages),
            ("page_positions", self.page_positions),
            ("context_length", self.context_length),
            ("max_rows", self.max_rows),
            ("depth", self.depth),
        ];
        for (field, value) in fields {
            if value == 0 || u32::try_from(value).is_err() {
                return Err(InvalidLimits { field, value });
            }
        }
        if u32::try_from(self.lanes.saturating_add(self.branches)).is_err() {
            return Err(InvalidLimits { field: "branches", value: self.branches });
        }
        let fault = self.canvas.and_then(|canvas| canvas.fault(self.max_rows, self.turn_positions()));
        fault.map_or(Ok(self), |(field, value)| Err(InvalidLimits { field, value }))
    }

    /// Positions one turn can have at most: the context, or all pages if those are fewer, or all rows of a step where
    /// every pass goes over the whole sequence.
    pub fn turn_positions(&self) -> usize {
        let positions = self.context_length.min(self.pages.saturating_mul(self.page_positions));
        match self.canvas {
            Some(CanvasLimits { context: CanvasContext::Whole, .. }) => positions.min(self.max_rows),
            _ => positions,
        }
    }

    /// Tokens an answer to a prompt can have at most; a canvas is there as a whole or not at all.
    pub fn answer_room(&self, prompt: usize) -> usize {
        let limit = self.turn_positions();
        let end = self.canvas.map_or(limit, |canvas| {
            let start = canvas.start(prompt);
            let length = canvas.length.max(1);
            start.saturating_add(limit.saturating_sub(start) / length * length)
        });
        end.saturating_sub(prompt)
    }

    /// Leading tokens of a sequence that are encoded before anything is decoded, revised or read.
    pub(crate) fn encoded(&self, tokens: usize) -> usize {
        self.canvas.map_or(tokens, |canvas| canvas.encoded(tokens))
    }

    /// Positions whose K/V can only be kept or lost together.
    pub(crate) fn grain(&self) -> usize {
        self.canvas.map_or(1, |canvas| canvas.grain())
    }
}

/// The token of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A token the scheduler knows.
    Known(u32),
    /// The token that was sampled last on this lane, perhaps not read back yet.
    Sampled,
}

/// One token position to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The input token.
    pub token: Token,
    /// Its position in the lane's sequence; K/V is written there.
    pub position: u32,
    /// The lane, or `lanes + n` for the `n`th further branch of a read.
    pub lane: usize,
    /// The block it belongs to; none for a row that sees itself and what comes before it.
    pub block: Option<Block>,
}

/// Consecutive positions of a lane that see each other in both directions; all its rows are in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First position.
    pub start: u32,
    /// Number of positions.
    pub len: u32,
    /// Whether the rows read what the last step with drafts of this lane's block predicted.
    pub is_conditioned: bool,
}

/// How the rows of a step are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pass {
    /// Tokens that are final.
    #[default]
    Encode,
    /// A canvas that is being revised.
    Denoise,
}

/// Makes page `to` equal to page `from`, for a lane or branch that goes on from a partly used page. No copy of a step
/// reads a page that another one of it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The page to read.
    pub from: u32,
    /// The page to overwrite.
    pub to: u32,
}

/// A row of which single logits are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRow {
    /// Index into the rows.
    pub row: u32,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// A row whose distribution over the vocabulary is wanted in short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draft {
    /// Index into the rows.
    pub row: u32,
    /// Divides the logits, over 0.
    pub temperature: f32,
    /// Picks the candidate: the first token whose cumulative probability reaches it; 0 to 1.
    pub draw: f32,
}

/// The work of one step: rows of a lane are adjacent, with consecutive positions.
///
/// A step either samples tokens, reads labels, or drafts a canvas; a pass over a read's canvas that the next pass is
/// conditioned on reads labels and drafts all its rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// Copies to make before anything is computed.
    pub copies: Vec<PageCopy>,
    /// How all rows are run.
    pub pass: Pass,
    /// The rows, at most `max_rows`.
    pub rows: Vec<Row>,
    /// Page table of every lane, and of every branch after them, up to its last row; empty for those without rows.
    pub tables: Vec<Vec<u32>>,
    /// Indices of rows whose logits are sampled, ascending, at most one a lane.
    pub samples: Vec<u32>,
    /// Rows of which single logits are wanted, ascending.
    pub labels: Vec<LabelRow>,
    /// Rows whose distributions are wanted in short, ascending.
    pub drafts: Vec<Draft>,
}

/// One row's distribution over the vocabulary in short; natural logs, after division by the temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafted {
    /// The likeliest token, the lowest on ties.
    pub argmax: u32,
    /// Its log probability.
    pub argmax_logprob: f32,
    /// Log probability of the second likeliest.
    pub second_logprob: f32,
    /// Entropy in nats.
    pub entropy: f32,
    /// The token that the draw picked.
    pub sampled: u32,
    /// Its log probability.
    pub sampled_logprob: f32,
}

/// A token that the engine sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The lane.
    pub lane: usize,
    /// The token.
    pub token: u32,
    /// Its natural-log probability.
    pub logprob: f32,
    /// The most probable tokens with their log probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// What a step yielded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// One entry for each of [`StepPlan::samples`], in that order.
    pub sampled: Vec<Sampled>,
    /// For each of [`StepPlan::labels`] the logits of its tokens.
    pub labels: Vec<Vec<f32>>,
    /// One entry for each of [`StepPlan::drafts`].
    pub drafts: Vec<Drafted>,
}

/// A failure of the engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// This step failed and counted no sample; the engine stays usable and the step may be repeated.
    #[error("step failed: {0}")]
    Step(String),
    /// The engine must be rebuilt, for example because the device was lost.
    #[error("engine lost: {0}")]
    Lost(String),
}

/// One loaded model on one device.
pub trait Engine {
    /// What this engine offers; constant while it lives.
    fn limits(&self) -> EngineLimits;

    /// Starts a turn on a lane that no submitted step touches, with all its prompt ids (for penalties).
    ///
    /// The lane may already hold K/V of a prefix of the prompt. A turn that was preempted begins
    /// again with the tokens it has generated appended to `prompt`.
    fn begin(&mut self, lane: usize, sampling: &Sampling, prompt: &[u32]) -> Result<(), EngineError>;

    /// Enqueues a step; returns at once on a gpu, computes on the cpu. Steps take effect in this order.
    fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError>;

    /// Waits for the oldest submitted step.
    fn collect(&mut self) -> impl Future<Output = Result<StepOutcome, EngineError>>;

    /// The first `positions` positions of a page, `positions * row_bytes` bytes, as all submitted steps leave them: K
    /// `[position][layer][kv head][value]`, then V in the same order, little-endian.
    ///
    /// # Errors
    /// Also when [`EngineLimits::row_bytes`] is 0.
    fn read_page(&mut self, page: u32, positions: usize) -> impl Future<Output = Result<Vec<u8>, EngineError>> {
        let _ = (page, positions);
        async { Err(EngineError::Step("pages cannot be read".to_owned())) }
    }

    /// Overwrites the first `positions` positions of a page that no submitted step touches with what
    /// [`Engine::read_page`] gave; the rest becomes undefined.
    ///
    /// # Errors
    /// A content of another length changes nothing.
    fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<(), EngineError> {
        let _ = (page, positions, content);
        Err(EngineError::Step("pages cannot be written".to_owned()))
    }
}
