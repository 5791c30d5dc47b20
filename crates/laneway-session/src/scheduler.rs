//! Continuous batching: which rows the next step computes, and what its outcome means.

mod batch;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::engine::{EngineError, EngineLimits, InvalidLimits, Row, StepOutcome, StepPlan, Token};
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::run::Run;
use crate::turn::{FinishReason, TurnError};

/// The turns that run on one engine.
pub(crate) struct Scheduler {
    limits: EngineLimits,
    reserved_tokens: usize,
    metrics: Arc<Metrics>,
    lanes: Lanes,
    active: Vec<Option<Active>>,
    /// Lanes of ended turns that a submitted step may still write to; whether to keep their pages.
    closing: Vec<(usize, bool)>,
    in_flight: VecDeque<Step>,
    preempted: Vec<Run>,
    prefilled_last: bool,
    stalled: bool,
    counter: u64,
}

struct Active {
    run: Box<Run>,
    /// Positions that are submitted or written.
    planned: usize,
    /// Tokens known at admission; positions from here on are decode steps.
    goal: usize,
    /// A step with several lanes failed: the next one has this lane alone, to find the culprit.
    suspect: bool,
    admitted: u64,
    stepped: u64,
}

struct Step {
    parts: Vec<Part>,
}

/// Adjacent rows of one lane in a step.
struct Part {
    lane: usize,
    from: usize,
    rows: usize,
    sampled: bool,
    /// Cleared when the turn ended or went back before the outcome was known.
    valid: bool,
}

impl Scheduler {
    /// A scheduler that reserves pages for `reserved_tokens` new tokens of a turn at most.
    pub fn new(limits: EngineLimits, reserved_tokens: usize, metrics: Arc<Metrics>) -> Result<Self, InvalidLimits> {
        let limits = limits.validate()?;
        Ok(Self {
            lanes: Lanes::new(&limits),
            active: (0..limits.lanes).map(|_| None).collect(),
            closing: Vec::new(),
            in_flight: VecDeque::new(),
            preempted: Vec::new(),
            prefilled_last: false,
            stalled: false,
            counter: 0,
            limits,
            reserved_tokens,
            metrics,
        })
    }

    pub fn running(&self) -> usize {
        self.active.iter().flatten().count()
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Positions a turn can have.
    pub fn limit(&self) -> usize {
        self.limits.turn_positions()
    }

    /// Gives the turn a lane and pages, or gives it back unchanged when there are none now.
    pub fn admit(&mut self, now: u64, mut run: Box<Run>) -> Result<usize, Box<Run>> {
        let limit = self.limit();
        // Running turns that lack a page go before new ones.
        if self.stalled && self.running() > 0 {
            return Err(run);
        }
        let positions = run.reservation(limit, self.reserved_tokens);
        let Some(claim) = self.lanes.claim(&run.tokens, positions) else {
            return Err(run);
        };
        run.start(now);
        run.admitted(now, limit, claim.cached);
        self.counter += 1;
        self.active[claim.lane] = Some(Active {
            planned: claim.cached,
            goal: run.tokens.len(),
            suspect: false,
            admitted: self.counter,
            stepped: 0,
            run,
        });
        self.publish();
        Ok(claim.lane)
    }

    /// The turn on a lane.
    pub fn run(&self, lane: usize) -> Option<&Run> {
        self.active.get(lane)?.as_ref().map(|active| &*active.run)
    }

    /// The engine's answer to the start of a turn.
    pub fn begun(&mut self, now: u64, lane: usize, result: Result<(), EngineError>) {
        if let Err(error) = result {
            self.end(now, lane, Err(TurnError::Engine(error.to_string())));
            self.settle();
        }
    }

    /// Ends turns that were cancelled or are out of time.
    pub fn sweep(&mut self, now: u64) {
        for lane in 0..self.active.len() {
            let error = self.run(lane).and_then(|run| run.interrupted(now));
            if let Some(error) = error {
                self.end(now, lane, Err(error));
            }
        }
        self.settle();
    }

    /// The next step, if there is one to submit.
    pub fn plan(&mut self) -> Option<StepPlan> {
        if self.in_flight.len() >= self.limits.depth {
            return None;
        }
        let parts = self.choose();
        if parts.is_empty() {
            return None;
        }
        let mut plan = StepPlan { tables: vec![Vec::new(); self.limits.lanes], ..StepPlan::default() };
        self.counter += 1;
        for part in &parts {
            let Some(active) = &mut self.active[part.lane] else {
                continue;
            };
            let end = part.from + part.rows;
            active.planned = end;
            active.stepped = self.counter;
            plan.tables[part.lane] = self.lanes.table(part.lane, end);
            plan.rows.extend((part.from..end).map(|position| Row {
                token: active.run.tokens.get(position).map_or(Token::Sampled, |t| Token::Known(*t)),
                position: position as u32,
                lane: part.lane,
            }));
            if part.sampled {
                plan.samples.push(plan.rows.len() as u32 - 1);
            }
        }
        self.in_flight.push_back(Step { parts });
        self.publish();
        Some(plan)
    }

    /// Turns that lost their lane for want of pages, the youngest first; they go before all that wait.
    pub fn take_preempted(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.preempted)
    }

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

    /// Ends every turn.
    pub fn fail_all(&mut self, now: u64, error: &TurnError) {
        for lane in 0..self.active.len() {
            self.end(now, lane, Err(error.clone()));
        }
        while let Some(mut run) = self.preempted.pop() {
            run.finish(now, Err(error.clone()));
        }
        self.settle();
    }

    fn apply(&mut self, now: u64, step: Step, outcome: StepOutcome) {
        let alone = step.parts.len() == 1;
        let mut samples = outcome.sampled.into_iter();
        for part in step.parts {
            let sample = if part.sampled { samples.next() } else { None };
            let Some(active) = self.active[part.lane].as_mut().filter(|_| part.valid) else {
                continue;
            };
            active.suspect &= !alone;
            let end = part.from + part.rows;
            let written = active.run.tokens.get(part.from..end).unwrap_or_default();
            self.lanes.commit(part.lane, written);
            let result = if let Some(error) = active.run.interrupted(now) {
                Some(Err(error))
            } else {
                active.run.progress(now, end);
                match sample {
                    Some(sample) => active.run.accept(now, sample).map(Ok),
                    // A turn that asks for no token ends with its prompt.
                    None => (end == active.goal).then_some(Ok(FinishReason::Length)),
                }
            };
            if let Some(result) = result {
                self.end(now, part.lane, result);
            }
        }
        self.settle();
    }

    fn fail_step(&mut self, now: u64, step: Step, reason: &str) {
        let alone = step.parts.len() == 1;
        for part in step.parts.iter().filter(|part| part.valid) {
            if alone {
                self.end(now, part.lane, Err(TurnError::Engine(reason.to_owned())));
            } else if let Some(active) = &mut self.active[part.lane] {
                active.planned = part.from;
                active.suspect = true;
            }
        }
        self.settle();
    }

    fn end(&mut self, now: u64, lane: usize, result: Result<FinishReason, TurnError>) {
        let Some(mut active) = self.active[lane].take() else {
            return;
        };
        self.invalidate(lane);
        self.closing.push((lane, !matches!(result, Err(TurnError::Engine(_)))));
        active.run.finish(now, result);
    }

    fn invalidate(&mut self, lane: usize) {
        let parts = self.in_flight.iter_mut().flat_map(|step| &mut step.parts);
        parts.filter(|part| part.lane == lane).for_each(|part| part.valid = false);
    }

    /// Frees lanes of ended turns that no submitted step touches any more.
    fn settle(&mut self) {
        for (lane, keep) in std::mem::take(&mut self.closing) {
            if self.is_busy(lane) {
                self.closing.push((lane, keep));
            } else if keep {
                self.lanes.park(lane);
            } else {
                self.lanes.clear(lane);
            }
        }
        self.publish();
    }

    fn publish(&self) {
        let stats = self.lanes.stats();
        self.metrics.update(|m| m.lanes = stats);
    }
}

impl Step {
    fn fits(&self, outcome: &StepOutcome) -> bool {
        let lanes = self.parts.iter().filter(|part| part.sampled).map(|part| part.lane);
        lanes.eq(outcome.sampled.iter().map(|sampled| sampled.lane))
    }
}
