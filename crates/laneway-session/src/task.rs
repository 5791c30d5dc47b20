//! What a lane works on: a turn or a read.

use crate::EngineLimits;
use crate::gate::Gates;
use crate::intake::{Ticket, Work};
use crate::reading::Reading;
use crate::run::Run;
use crate::transfer::Target;
use crate::turn::{Cancel, FinishReason, TurnError};

pub(crate) enum Task {
    Turn(Box<Run>),
    Read(Box<Reading>),
}

impl Task {
    pub fn new(now: u64, ticket: Ticket) -> Self {
        let namespace = ticket.namespace;
        match ticket.work {
            Work::Turn(turn, outlet) => Self::Turn(Box::new(Run::new(now, namespace, *turn, outlet))),
            Work::Read(read, outlet) => Self::Read(Box::new(Reading::new(now, namespace, *read, outlet))),
        }
    }

    /// Where its prefix is looked up and kept.
    pub fn namespace(&self) -> u64 {
        match self {
            Self::Turn(run) => run.namespace,
            Self::Read(reading) => reading.namespace,
        }
    }

    /// Finds the gate that a turn names; false if there is none of that name.
    pub fn resolve_gate(&mut self, gates: &Gates) -> bool {
        let Self::Turn(run) = self else { return true };
        let Some(id) = run.gate_id else { return true };
        run.gate = gates.find(&id);
        run.gate.is_some()
    }

    /// Whether nothing of what it computes is kept.
    pub fn is_one_shot(&self) -> bool {
        matches!(self, Self::Turn(run) if run.target == Target::OneShot)
    }

    /// It leaves the queue.
    pub fn start(&mut self, now: u64) {
        match self {
            Self::Turn(run) => run.start(now),
            Self::Read(reading) => reading.start(now),
        }
    }

    /// Whether it had a lane before and lost it for want of pages.
    pub fn is_preempted(&self) -> bool {
        matches!(self, Self::Turn(run) if run.was_admitted())
    }

    /// When it was handed in.
    pub fn submitted(&self) -> u64 {
        match self {
            Self::Turn(run) => run.submitted(),
            Self::Read(reading) => reading.submitted,
        }
    }

    /// Its model is being loaded.
    pub fn tell_loading(&mut self) {
        if let Self::Turn(run) = self {
            run.tell_loading();
        }
    }

    pub fn cancel(&self) -> &Cancel {
        match self {
            Self::Turn(run) => &run.cancel,
            Self::Read(reading) => &reading.cancel,
        }
    }

    /// Why it must not go on, if so.
    pub fn interrupted(&self, now: u64) -> Option<TurnError> {
        let deadline_at = match self {
            Self::Turn(run) => run.deadline_at,
            Self::Read(reading) => reading.deadline_at,
        };
        if self.cancel().is_cancelled() {
            return Some(TurnError::Cancelled);
        }
        deadline_at.is_some_and(|at| now >= at).then_some(TurnError::DeadlineExceeded)
    }

    /// Why it can never run on an engine, if so.
    pub fn refused(&self, limits: &EngineLimits) -> Option<TurnError> {
        match self {
            Self::Turn(run) => run.refused(limits),
            Self::Read(reading) => reading.refused(limits),
        }
    }

    /// The tokens it begins with: prompt and, of a turn, what was generated.
    pub fn tokens(&self) -> &[u32] {
        match self {
            Self::Turn(run) => &run.tokens,
            Self::Read(reading) => &reading.prompt,
        }
    }

    /// Positions to claim pages for at admission, when a turn is provided with at most `new_tokens` of those to come.
    pub fn reservation(&self, limits: &EngineLimits, new_tokens: usize) -> usize {
        match self {
            Self::Turn(run) => run.reservation(limits, new_tokens),
            Self::Read(reading) => reading.reservation(),
        }
    }

    /// Leading tokens that may come from another task: a turn without a canvas needs a row to sample from.
    pub fn reusable(&self, limits: &EngineLimits) -> usize {
        let encoded = limits.encoded(self.tokens().len());
        match self {
            Self::Turn(_) if limits.canvas.is_none() => encoded.saturating_sub(1),
            Self::Turn(_) | Self::Read(_) => encoded,
        }
    }

    /// It got a lane that holds `cached` of its tokens.
    pub fn admitted(&mut self, now: u64, limits: &EngineLimits, cached: usize) {
        self.start(now);
        match self {
            Self::Turn(run) => run.admitted(now, limits, cached),
            Self::Read(reading) => reading.admitted(cached),
        }
    }

    /// Tells the caller the end; that of a read has no reason.
    pub fn finish(&mut self, now: u64, result: Result<FinishReason, TurnError>) {
        match self {
            Self::Turn(run) => run.finish(now, result),
            Self::Read(reading) => reading.finish(now, result.map(|_| ())),
        }
    }
}
