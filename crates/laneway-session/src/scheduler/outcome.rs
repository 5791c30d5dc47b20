//! What the outcome of a step means.

use super::{Part, Scheduler, Step, Work};
use crate::engine::{Drafted, EngineError, Sampled, StepOutcome};
use crate::reading::Group;
use crate::task::Task;
use crate::turn::{FinishReason, TokenLogprob, TurnError};

type Ending = Option<Result<FinishReason, TurnError>>;

impl Scheduler {
    /// The engine refused the step planned last.
    pub fn refused(&mut self, now: u64, error: EngineError) {
        if let Some(step) = self.in_flight.pop_back() {
            // Earlier steps stay valid; only what was planned in this one is taken back.
            self.fail_step(now, step, &error.to_string());
        }
    }

    /// The oldest submitted step is done.
    pub fn collected(&mut self, now: u64, result: Result<StepOutcome, EngineError>) {
        let Some(step) = self.in_flight.pop_front() else {
            return;
        };
        self.may_transfer = true;
        self.metrics.update(|m| m.steps += 1);
        let reason = match result {
            Ok(outcome) if step.fits(&outcome) => return self.apply(now, step, outcome),
            Ok(_) => "the outcome does not fit the step".to_owned(),
            Err(error) => error.to_string(),
        };
        // Later steps of these lanes were built on this one.
        step.parts.iter().for_each(|part| self.invalidate(part.lane));
        self.fail_step(now, step, &reason);
    }

    fn apply(&mut self, now: u64, step: Step, outcome: StepOutcome) {
        let alone = step.parts.len() == 1;
        let StepOutcome { sampled, mut labels, drafts } = outcome;
        let mut samples = sampled.into_iter();
        for part in step.parts {
            let sample = if part.is_sampled() { samples.next() } else { None };
            let Part { lane, from, rows, work, valid } = part;
            if let Some(active) = self.active[lane].as_mut().filter(|_| valid) {
                active.suspect &= !alone;
                self.lanes.stepped(lane);
            } else {
                self.discard(work);
                continue;
            }
            let ending = match work {
                Work::Encode { .. } => self.encoded(now, lane, from..from + rows, sample),
                Work::Revise => self.revised(now, lane, &drafts),
                Work::Read(group) => self.read_back(now, lane, group, std::mem::take(&mut labels)),
            };
            if let Some(result) = ending {
                self.end(now, lane, result);
            }
        }
        self.settle(now);
    }

    fn encoded(&mut self, now: u64, lane: usize, span: std::ops::Range<usize>, sample: Option<Sampled>) -> Ending {
        let active = self.active[lane].as_mut()?;
        let (end, rows) = (span.end, span.len());
        let prefilled = if span.start < active.goal { rows as u64 } else { 0 };
        self.metrics.update(|m| {
            m.prefill_rows += prefilled;
            m.decode_rows += rows as u64 - prefilled;
        });
        self.lanes.commit(lane, active.task.tokens().get(span).unwrap_or_default());
        if let Some(error) = active.task.interrupted(now) {
            return Some(Err(error));
        }
        match &mut active.task {
            Task::Turn(run) => {
                // The canvas that is made final was reported when its text was told.
                if self.limits.canvas.is_none() || run.is_prefilling() {
                    run.progress(now, end);
                }
                let accepted = sample.map(|Sampled { token, logprob, top, .. }| TokenLogprob { token, logprob, top });
                match accepted {
                    Some(_) if !run.may_go_on() => Some(Err(TurnError::Refused)),
                    Some(token) => match run.accept(now, token) {
                        // The last one is told of, too, but its answer changes nothing any more.
                        ending if !run.may_have_gone_on() && ending.is_none() => Some(Err(TurnError::Refused)),
                        ending => ending.map(Ok),
                    },
                    // A turn that asks for no token ends with its prompt.
                    None => (end == active.goal && !run.wants_sample(0)).then_some(Ok(FinishReason::Length)),
                }
            }
            Task::Read(reading) => {
                reading.computed(rows);
                None
            }
        }
    }

    fn revised(&mut self, now: u64, lane: usize, drafts: &[Drafted]) -> Ending {
        let active = self.active[lane].as_mut()?;
        if let Some(error) = active.task.interrupted(now) {
            return Some(Err(error));
        }
        let Task::Turn(run) = &mut active.task else {
            return None;
        };
        if !run.may_go_on() {
            return Some(Err(TurnError::Refused));
        }
        let ending = run.revise(now, drafts);
        active.goal = self.limits.encoded(run.tokens.len());
        ending
    }

    fn read_back(&mut self, now: u64, lane: usize, mut group: Group, labels: Vec<Vec<f32>>) -> Ending {
        let limits = self.limits;
        let interrupted = self.active[lane].as_ref()?.task.interrupted(now);
        let Some(Task::Read(reading)) = self.active[lane].as_mut().map(|active| &mut active.task) else {
            return None;
        };
        let taken = interrupted.map_or_else(|| reading.take(&mut group, &limits, labels), Err);
        let is_complete = reading.unread().next().is_none();
        if taken == Ok(false) {
            reading.group = Some(group);
            return None;
        }
        self.join(group);
        match taken {
            Ok(_) => is_complete.then_some(Ok(FinishReason::Stop)),
            Err(error) => Some(Err(error)),
        }
    }

    fn fail_step(&mut self, now: u64, step: Step, reason: &str) {
        let alone = step.parts.len() == 1;
        for part in step.parts {
            if part.valid && alone {
                self.end(now, part.lane, Err(TurnError::Engine(reason.to_owned())));
            } else if let Some(active) = self.active[part.lane].as_mut().filter(|_| part.valid) {
                active.planned = part.from;
                active.suspect = true;
                self.lanes.failed(part.lane, part.from);
            }
            self.discard(part.work);
        }
        self.settle(now);
    }

    fn discard(&mut self, work: Work) {
        if let Work::Read(group) = work {
            self.join(group);
        }
    }
}

impl Step {
    fn fits(&self, outcome: &StepOutcome) -> bool {
        let lanes = self.parts.iter().filter(|part| part.is_sampled()).map(|part| part.lane);
        lanes.eq(outcome.sampled.iter().map(|sampled| sampled.lane))
            && self.labels.iter().copied().eq(outcome.labels.iter().map(Vec::len))
            && self.drafts == outcome.drafts.len()
    }
}
