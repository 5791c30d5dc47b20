//! Continuous batching: which rows the next step computes, and what its outcome means.

mod batch;
mod build;
mod outcome;
mod transfer;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Sampling;
use crate::engine::{EngineError, EngineLimits, InvalidLimits};
use crate::lanes::{LaneConfig, Lanes};
use crate::metrics::Metrics;
use crate::observer::Observer;
use crate::reading::Group;
use crate::run::Run;
use crate::service::ServiceConfig;
use crate::task::Task;
use crate::transfer::{Kept, Session, TransferError};
use crate::turn::{FinishReason, TurnError};

/// Pages that a task may find soon, from which on it waits for them.
const WORTH_WAITING: usize = 2;

/// The turns and reads that run on one engine.
pub(crate) struct Scheduler {
    limits: EngineLimits,
    reserved_tokens: usize,
    metrics: Arc<Metrics>,
    lanes: Lanes,
    active: Vec<Option<Active>>,
    closing: Vec<Closing>,
    in_flight: VecDeque<Step>,
    transfers: VecDeque<transfer::Transfer>,
    /// Whether a step was done since the last page was moved.
    may_transfer: bool,
    /// Whether the first transfer's page is with the engine.
    is_moving: bool,
    /// What transfers are told that are left when the scheduler goes.
    farewell: TransferError,
    preempted: Vec<Run>,
    encoded_last: bool,
    stalled: bool,
    counter: u64,
}

struct Active {
    task: Task,
    /// Positions that are submitted to be encoded or decoded, or written.
    planned: usize,
    /// Positions to encode; what follows is decoded, revised or read.
    goal: usize,
    /// A step with several lanes failed: the next one has this lane alone, to find the culprit.
    suspect: bool,
    admitted: u64,
    stepped: u64,
}

/// A lane of an ended task that a submitted step may still write to.
struct Closing {
    lane: usize,
    /// Whether what is written can be reused.
    keep: bool,
    since: u64,
}

struct Step {
    parts: Vec<Part>,
    /// Tokens of each of the plan's labels.
    labels: Vec<usize>,
    /// Drafts the plan asks for.
    drafts: usize,
}

/// What a step does for one lane.
struct Part {
    lane: usize,
    from: usize,
    rows: usize,
    work: Work,
    /// Cleared when the task ended or went back before the outcome was known.
    valid: bool,
}

enum Work {
    /// Tokens of the timeline; whether one is sampled after the last of them.
    Encode { sampled: bool },
    /// A pass over a turn's canvas; always alone in its step.
    Revise,
    /// A pass over branches of a read; always alone in its step.
    Read(Group),
}

impl Scheduler {
    /// A scheduler for one engine.
    pub fn new(limits: EngineLimits, config: &ServiceConfig, metrics: Arc<Metrics>) -> Result<Self, InvalidLimits> {
        let limits = limits.validate()?;
        let lanes = LaneConfig {
            max_active: if config.safe_mode { 1 } else { limits.lanes },
            max_idle: config.idle_lanes,
            min_prefix_tokens: config.min_prefix_tokens,
            max_prefixes: config.max_prefixes,
        };
        Ok(Self {
            lanes: Lanes::new(&limits, lanes),
            active: (0..limits.lanes).map(|_| None).collect(),
            closing: Vec::new(),
            in_flight: VecDeque::new(),
            transfers: VecDeque::new(),
            may_transfer: true,
            is_moving: false,
            farewell: TransferError::ShuttingDown,
            preempted: Vec::new(),
            encoded_last: false,
            stalled: false,
            counter: 0,
            limits,
            reserved_tokens: config.reserved_tokens,
            metrics,
        })
    }

    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.lanes.observe(observer);
    }

    /// Forgets all prefixes that nothing uses.
    pub fn clear_cache(&mut self) {
        self.lanes.clear_cache();
        self.publish();
    }

    /// Leading tokens that a turn would find.
    pub fn peek(&self, namespace: u64, tokens: &[u32]) -> usize {
        self.lanes.peek(namespace, tokens, tokens.len())
    }

    /// The sequences in the prefix cache.
    pub fn sessions(&self) -> Vec<Session> {
        self.lanes.sessions()
    }

    /// Notes from now on which sequences are left behind.
    pub fn note_all_kept(&mut self) {
        self.lanes.note_all_kept();
    }

    /// Those left behind since the last call.
    pub fn take_kept(&mut self) -> Vec<Kept> {
        self.lanes.take_kept()
    }

    pub fn running(&self) -> usize {
        self.active.iter().flatten().count()
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// Whether a lane is free, pages apart.
    pub fn has_room(&self) -> bool {
        self.lanes.has_room()
    }

    /// Is the same as long as a task that was not admitted would not be admitted again.
    pub fn version(&self) -> (u64, bool) {
        (self.lanes.version(), self.stalled && self.running() > 0)
    }

    /// Tokens of a task that need not be computed.
    pub fn cached(&self, task: &Task) -> usize {
        self.lanes.peek(task.namespace(), task.tokens(), task.reusable(&self.limits))
    }

    /// Whether a running task is computing a beginning that it shares with this one, so long that it is better to wait
    /// until it is in the cache than to compute it beside.
    pub fn is_being_prefilled(&self, task: &Task) -> bool {
        let (reusable, cached) = (task.reusable(&self.limits), self.cached(task));
        let is_ahead = |(lane, active): (usize, &Active)| {
            if active.task.namespace() != task.namespace() || active.task.is_one_shot() {
                return false;
            }
            let end = active.goal.min(reusable);
            let (theirs, own) = (active.task.tokens().get(..end), task.tokens().get(..end));
            let (Some(theirs), Some(own)) = (theirs, own) else { return false };
            let shared = theirs.iter().zip(own).take_while(|(a, b)| a == b).count();
            let shared = self.lanes.cacheable(shared);
            self.lanes.written(lane) < shared && shared >= cached + WORTH_WAITING * self.limits.page_positions
        };
        let mut running = self.active.iter().enumerate().filter_map(|(lane, active)| Some((lane, active.as_ref()?)));
        running.any(is_ahead)
    }

    /// Gives the task a lane and pages, or gives it back unchanged when there are none now.
    pub fn admit(&mut self, now: u64, mut task: Task) -> Result<usize, Task> {
        // Running turns that lack a page go before new ones.
        if self.stalled && self.running() > 0 {
            return Err(task);
        }
        let positions = task.reservation(&self.limits, self.reserved_tokens);
        let Some(claim) = self.lanes.claim(task.namespace(), task.tokens(), task.reusable(&self.limits), positions)
        else {
            return Err(task);
        };
        if task.is_one_shot() {
            self.lanes.mark_one_shot(claim.lane);
        }
        task.admitted(now, &self.limits, claim.cached);
        let is_hit = claim.cached > 0;
        self.metrics.update(|m| {
            m.prefix_hits += u64::from(is_hit);
            m.prefix_misses += u64::from(!is_hit);
        });
        self.counter += 1;
        self.active[claim.lane] = Some(Active {
            planned: claim.cached,
            goal: self.limits.encoded(task.tokens().len()),
            suspect: false,
            admitted: self.counter,
            stepped: 0,
            task,
        });
        self.publish();
        Ok(claim.lane)
    }

    /// What an engine is told of a turn that got a lane; reads sample nothing.
    pub fn begin(&self, lane: usize) -> Option<(Sampling, Vec<u32>)> {
        match &self.active.get(lane)?.as_ref()?.task {
            Task::Turn(run) => Some((run.sampling.clone(), run.tokens.clone())),
            Task::Read(_) => None,
        }
    }

    /// The engine's answer to the start of a turn.
    pub fn begun(&mut self, now: u64, lane: usize, result: Result<(), EngineError>) {
        let result = match result {
            Err(error) => Err(TurnError::Engine(error.to_string())),
            Ok(()) if self.is_complete(lane) => Ok(FinishReason::Length),
            Ok(()) => return,
        };
        self.end(now, lane, result);
        self.settle(now);
    }

    /// Ends tasks that were cancelled or are out of time.
    pub fn sweep(&mut self, now: u64) {
        for lane in 0..self.active.len() {
            let error = self.active[lane].as_ref().and_then(|active| active.task.interrupted(now));
            if let Some(error) = error {
                self.end(now, lane, Err(error));
            }
        }
        self.settle(now);
    }

    /// Turns that lost their lane for want of pages, the youngest first; they go before all that wait.
    pub fn take_preempted(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.preempted)
    }

    /// Ends every task.
    pub fn fail_all(&mut self, now: u64, error: &TurnError) {
        // Who hears of a turn's end may panic, and then the rest ends with the scheduler.
        self.farewell = TransferError::from_turn(error);
        for lane in 0..self.active.len() {
            self.end(now, lane, Err(error.clone()));
        }
        while let Some(mut run) = self.preempted.pop() {
            run.finish(now, Err(error.clone()));
        }
        self.settle(now);
        self.fail_transfers();
    }

    /// Whether a turn is encoded and asks for no token; a turn without a canvas ends with its prompt's last step.
    fn is_complete(&self, lane: usize) -> bool {
        let active = self.active[lane].as_ref().filter(|active| active.planned >= active.goal);
        active.is_some_and(|active| matches!(&active.task, Task::Turn(run) if !run.wants_sample(0)))
    }

    fn end(&mut self, now: u64, lane: usize, result: Result<FinishReason, TurnError>) {
        let Some(mut active) = self.active[lane].take() else {
            return;
        };
        self.invalidate(lane);
        if let Task::Read(reading) = &mut active.task
            && let Some(group) = reading.group.take()
        {
            self.join(group);
        }
        let keep = !matches!(result, Err(TurnError::Engine(_)));
        self.closing.push(Closing { lane, keep, since: now });
        active.task.finish(now, result);
    }

    /// Gives back the pages of branches that no step touches any more.
    fn join(&mut self, group: Group) {
        let forks = group.members.into_iter().filter_map(|member| member.fork);
        forks.for_each(|fork| self.lanes.join(fork));
    }

    fn invalidate(&mut self, lane: usize) {
        let parts = self.in_flight.iter_mut().flat_map(|step| &mut step.parts);
        parts.filter(|part| part.lane == lane).for_each(|part| part.valid = false);
    }

    /// Frees lanes of ended tasks that no submitted step touches any more.
    fn settle(&mut self, now: u64) {
        for closing in std::mem::take(&mut self.closing) {
            if self.is_busy(closing.lane) {
                self.closing.push(closing);
            } else if closing.keep {
                self.lanes.park(closing.lane, now.saturating_sub(closing.since));
            } else {
                self.lanes.discard(closing.lane);
            }
        }
        self.publish();
    }

    fn publish(&self) {
        self.metrics.publish(self.lanes.stats(), self.lanes.rows());
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.fail_transfers();
    }
}
