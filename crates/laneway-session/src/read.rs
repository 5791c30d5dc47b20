//! Reads: distributions at chosen places, from passes that leave no state.

use crate::turn::{Cancel, Source, TurnError};

/// One read and everything that is needed to answer it.
pub struct Read {
    /// Token ids that all branches follow; computed once, and reused from lanes that hold them. At least one, unless
    /// every pass of the model goes over the whole sequence.
    pub prompt: Vec<u32>,
    /// What is read, each on its own after the prompt; at least one.
    pub branches: Vec<Branch>,
    /// Told the outcome, once.
    pub answer: Box<dyn FnOnce(Result<ReadAnswer, TurnError>) + Send>,
    /// Stops the read between two steps, also while it is queued.
    pub cancel: Cancel,
    /// Milliseconds after submission at which the read fails; none waits for ever.
    pub deadline_ms: Option<u64>,
    /// Where the read comes from, for the metrics.
    pub source: Source,
    /// Keeps what is cached of it apart from that of other namespaces; 0 for all alike.
    pub namespace: u64,
}

impl Read {
    /// Tokens to compute when nothing is cached.
    pub(crate) fn work(&self) -> u64 {
        let passes = |branch: &Branch| match branch.kind {
            BranchKind::Causal => 1,
            BranchKind::Canvas { passes } => u64::from(passes),
        };
        let work = self.branches.iter().map(|branch| (branch.tokens.len() as u64).saturating_mul(passes(branch)));
        work.fold(self.prompt.len() as u64, u64::saturating_add)
    }
}

/// Tokens that follow the prompt, and the places in them where logits are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Token ids, at least one; for a canvas all of it.
    pub tokens: Vec<u32>,
    /// How they are run.
    pub kind: BranchKind,
    /// Where, ascending by row; at least one.
    pub slots: Vec<Slot>,
}

/// How a branch is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchKind {
    /// One token after the other: a slot's row predicts the token after it.
    Causal,
    /// A canvas: a slot's row predicts its own token. After the first pass of several, each slot holds the likeliest of
    /// its labels, and a model that conditions on its last prediction does so.
    Canvas {
        /// Passes, from 1; the last one is read.
        passes: u32,
    },
}

/// A place of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index into the branch's tokens.
    pub row: usize,
    /// Tokens whose logits are wanted, at least one.
    pub labels: Vec<u32>,
}

/// What a read yielded.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadAnswer {
    /// Logits by branch, slot and label.
    pub logits: Vec<Vec<Vec<f32>>>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose K/V was reused.
    pub cached_tokens: usize,
    /// Tokens computed, prompt and branches, all passes.
    pub computed_tokens: usize,
    /// From submission to start.
    pub queue_ms: u64,
    /// From start to end.
    pub read_ms: u64,
}

/// Whether an endpoint for reads of a canvas can be offered by a stage of a split model (L27): the whole model, a
/// canvas, and one lane.
pub fn systemone_runnable(
    has_canvas: bool,
    has_input_boundary: bool,
    has_output_boundary: bool,
    lane_count: usize,
) -> bool {
    has_canvas && !has_input_boundary && !has_output_boundary && lane_count == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L27: two flags of boundaries, one of the canvas, and lane counts of 1 and not 1.
    #[test]
    fn one_row_of_the_truth_table_is_runnable() {
        for row in 0..16_usize {
            let flag = |bit: usize| row >> bit & 1 == 1;
            let lanes: &[usize] = if flag(3) { &[1] } else { &[0, 2] };
            for &lane_count in lanes {
                let runnable = systemone_runnable(flag(0), flag(1), flag(2), lane_count);
                assert_eq!(runnable, row == 0b1001, "row {row}, {lane_count} lanes");
            }
        }
    }
}
