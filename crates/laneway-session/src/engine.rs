//! The contract between the scheduler and a loaded model.

use std::future::Future;

use crate::Sampling;

/// What a loaded model offers to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Refuses limits that are zero or do not fit the 32-bit numbers of a [`StepPlan`].
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
        Ok(self)
    }

    /// Positions one turn can have at most: the context, or all pages if those are fewer.
    pub fn turn_positions(&self) -> usize {
        self.context_length.min(self.pages.saturating_mul(self.page_positions))
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
    /// The lane.
    pub lane: usize,
}

/// The work of one step: rows of a lane are adjacent, with consecutive positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The rows, at most `max_rows`.
    pub rows: Vec<Row>,
    /// Page table of every lane up to its last row; empty for lanes without rows.
    pub tables: Vec<Vec<u32>>,
    /// Indices of rows whose logits are sampled, ascending, at most one a lane.
    pub samples: Vec<u32>,
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
}
