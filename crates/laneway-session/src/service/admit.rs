//! Who of those that wait gets the next lane.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::{Command, Job, Model, Service};
use crate::action::{Action, EngineCall};
use crate::scheduler::Scheduler;

/// Commands, from the front on, of which one may start; who stands behind them is not looked at.
const WINDOW: usize = 32;

/// Cached tokens that being overtaken once is worth.
const AGING: u64 = 4096;

impl<K: PartialEq + Clone> Service<K> {
    /// Starts turns and reads that are for the loaded model and have room, up to one that the engine is told of.
    pub(super) fn admit(&mut self, now: u64) -> Option<Action<K>> {
        loop {
            let lane = self.start_next(now)?;
            if let Some((sampling, prompt)) = self.model.as_ref()?.scheduler.begin(lane) {
                return Some(Action::Engine(EngineCall::Begin { lane, sampling, prompt }));
            }
        }
    }

    /// Starts the first that fits, in the order in which they are tried; returns its lane.
    fn start_next(&mut self, now: u64) -> Option<usize> {
        let Model { settings, scheduler } = self.model.as_mut()?;
        let version = scheduler.version();
        if !scheduler.has_room() || self.elected == Some(version) {
            return None;
        }
        let is_eligible =
            |command: &&Command<K>| command.request.settings == *settings && matches!(command.job, Job::Task(_));
        let count = self.queue.iter().take(WINDOW).take_while(is_eligible).count();
        for index in order(&self.queue, count, scheduler, self.config.max_overtaken) {
            let Command { request, job: Job::Task(task), overtaken } = self.queue.remove(index)? else {
                return None;
            };
            match scheduler.admit(now, task) {
                Ok(lane) => {
                    self.idle_timeout_ms = request.idle_timeout_ms.unwrap_or(self.idle_timeout_ms);
                    self.queue.iter_mut().take(index).for_each(|passed| passed.overtaken += 1);
                    self.metrics.update(|m| m.overtaken += u64::from(index > 0));
                    return Some(lane);
                }
                Err(task) => self.queue.insert(index, Command { request, job: Job::Task(task), overtaken }),
            }
        }
        self.elected = Some(version);
        None
    }

    /// Ends those that can never run on the model that was loaded.
    pub(super) fn refuse(&mut self, now: u64) {
        let Some(model) = &self.model else { return };
        let limits = *model.scheduler.limits();
        let mut index = 0;
        while let Some(command) = self.queue.get_mut(index) {
            let error = match &command.job {
                Job::Task(task) if command.request.settings == model.settings => task.refused(&limits),
                _ => None,
            };
            let Some(error) = error else {
                index += 1;
                continue;
            };
            if let Job::Task(task) = &mut command.job {
                task.finish(now, Err(task.interrupted(now).unwrap_or(error)));
            }
            self.idle_timeout_ms = command.request.idle_timeout_ms.unwrap_or(self.idle_timeout_ms);
            self.queue.remove(index);
        }
    }

    pub(super) fn push_back(&mut self, command: Command<K>) {
        self.queue.push_back(command);
        self.elected = None;
    }
}

/// The first `count` in the order in which they are tried: by what is cached of them, and how often they were
/// overtaken, then by arrival. One that was overtaken too often or lost its lane is alone; those whose beginning a
/// running one is about to leave in the cache wait for it.
fn order<K>(queue: &VecDeque<Command<K>>, count: usize, scheduler: &Scheduler, max_overtaken: u32) -> Vec<usize> {
    let Some(Command { job: Job::Task(first), overtaken, .. }) = queue.front().filter(|_| count > 0) else {
        return Vec::new();
    };
    if *overtaken >= max_overtaken || first.is_preempted() {
        return vec![0];
    }
    let score = |command: &Command<K>| match &command.job {
        Job::Task(task) => scheduler.cached(task) as u64 + AGING * u64::from(command.overtaken),
        Job::Preload(_) => 0,
    };
    let is_ready = |command: &Command<K>| match &command.job {
        Job::Task(task) => !scheduler.is_being_prefilled(task),
        Job::Preload(_) => true,
    };
    let mut order: Vec<usize> = (0..count).filter(|index| is_ready(&queue[*index])).collect();
    order.sort_by_cached_key(|index| Reverse(score(&queue[*index])));
    order
}
