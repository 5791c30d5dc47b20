//! Which positions take their candidate in a pass.

use super::{Candidate, Canvas};
use crate::canvas::{Confidence, Noise, Selection};

impl Canvas {
    /// For each candidate whether it is taken; of equal ones the lower position goes first.
    pub(super) fn select(&self, candidates: &[Candidate]) -> Vec<bool> {
        let is_last = self.passes.saturating_add(1) >= self.max_steps();
        if is_last && matches!(self.noise, Noise::Masked { .. }) {
            return vec![true; candidates.len()];
        }
        match self.denoising.selection {
            Selection::EntropyBound(bound) => within(candidates, bound),
            Selection::Schedule(confidence) => best(candidates, confidence, self.quota()),
            Selection::Threshold { confidence, least, at_least } => {
                let mut taken = best(candidates, confidence, (at_least as usize).max(1));
                for (taken, candidate) in taken.iter_mut().zip(candidates) {
                    *taken |= confidence.of(candidate) >= least;
                }
                taken
            }
        }
    }

    /// Positions that the schedule takes in the next pass: the remainder of the division goes first.
    ///
    /// Uniform noise decides anew in every pass, so there the earlier passes' share is included.
    fn quota(&self) -> usize {
        let free = self.tokens.len() - self.fixed;
        let (steps, pass) = (self.max_steps() as usize, self.passes as usize);
        let (each, rest) = (free / steps, free % steps);
        match self.noise {
            Noise::Masked { .. } => each + usize::from(pass < rest),
            Noise::Uniform => each * (pass + 1) + rest.min(pass + 1),
        }
    }
}

impl Confidence {
    fn of(self, candidate: &Candidate) -> f32 {
        let draft = &candidate.draft;
        match self {
            Self::Probability => candidate.logprob.exp(),
            Self::Margin => draft.argmax_logprob.exp() - draft.second_logprob.exp(),
            Self::Entropy => -draft.entropy,
        }
    }
}

/// The most certain ones, while the entropies of those before add up to no more than the bound.
fn within(candidates: &[Candidate], bound: f32) -> Vec<bool> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|&a, &b| candidates[a].draft.entropy.total_cmp(&candidates[b].draft.entropy));
    let mut taken = vec![false; candidates.len()];
    let mut before = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        // The comparison is false for a bound that is not a number.
        taken[index] = rank == 0 || before <= f64::from(bound);
        before += f64::from(candidates[index].draft.entropy.max(0.0));
    }
    taken
}

fn best(candidates: &[Candidate], confidence: Confidence, count: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|&a, &b| confidence.of(&candidates[b]).total_cmp(&confidence.of(&candidates[a])));
    let mut taken = vec![false; candidates.len()];
    order.into_iter().take(count).for_each(|index| taken[index] = true);
    taken
}
