//! Which lanes the next step has, and with which rows.

use super::{Active, Part, Scheduler, Work};
use crate::reading::Group;
use crate::task::Task;

impl Scheduler {
    /// The rows of the next step; when nothing can run for want of pages, turns give way until something can.
    pub(super) fn choose(&mut self) -> Vec<Part> {
        loop {
            self.stalled = false;
            let parts = self.runnable();
            let is_stuck = parts.is_empty() && self.stalled && self.in_flight.is_empty();
            if !is_stuck || !self.preempt() {
                return parts;
            }
        }
    }

    /// What is to be encoded, or what follows it, in turn when there are both.
    fn runnable(&mut self) -> Vec<Part> {
        let alone = self.lane_to_try_alone().map(|lane| self.alone(lane)).unwrap_or_default();
        if !alone.is_empty() {
            return alone;
        }
        let encodes = self.lanes_by(|a, _| a.planned < a.goal, |a| a.admitted);
        if !encodes.is_empty() && !self.encoded_last {
            return self.encode(&encodes);
        }
        let parts = self.advance();
        if parts.is_empty() && !encodes.is_empty() { self.encode(&encodes) } else { parts }
    }

    /// Rows of prompts and finished canvases; blocks are in one piece.
    fn encode(&mut self, lanes: &[usize]) -> Vec<Part> {
        self.encoded_last = true;
        let mut left = self.limits.max_rows;
        let mut parts = Vec::new();
        for &lane in lanes {
            let Some(active) = &self.active[lane] else {
                continue;
            };
            let rows = (active.goal - active.planned).min(left);
            let rows = rows - rows % self.limits.grain();
            if rows == 0 {
                break;
            }
            left -= rows;
            let from = active.planned;
            let is_last = self.limits.canvas.is_none() && from + rows == active.goal;
            let sampled = is_last && matches!(&active.task, Task::Turn(run) if run.wants_sample(0));
            parts.push(Part { lane, from, rows, work: Work::Encode { sampled }, valid: true });
        }
        parts
    }

    /// All decodes together, or a pass of one turn's canvas or of one read: whatever was stepped longest ago.
    fn advance(&mut self) -> Vec<Part> {
        self.encoded_last = false;
        let has_canvas = self.limits.canvas.is_some();
        let decodes = self.lanes_by(|a, pending| !has_canvas && a.can_decode(pending), |a| a.stepped);
        let passes = self.lanes_by(|a, _| a.can_pass(has_canvas), |a| a.stepped);
        let stepped = |lane: &usize| self.active[*lane].as_ref().map_or(0, |active| active.stepped);
        let decode_first = match (decodes.first(), passes.first()) {
            (Some(decode), Some(pass)) => stepped(decode) <= stepped(pass),
            (decode, _) => decode.is_some(),
        };
        let mut parts = if decode_first { self.decode(&decodes) } else { Vec::new() };
        for lane in passes {
            if parts.is_empty() {
                parts = self.pass(lane);
            }
        }
        if parts.is_empty() && !decode_first {
            parts = self.decode(&decodes);
        }
        parts
    }

    fn decode(&mut self, lanes: &[usize]) -> Vec<Part> {
        let mut parts = Vec::new();
        for &lane in lanes.iter().take(self.limits.max_rows) {
            let Some(active) = &self.active[lane] else {
                continue;
            };
            let from = active.planned;
            if self.lanes.grow(lane, from) {
                parts.push(Part { lane, from, rows: 1, work: Work::Encode { sampled: true }, valid: true });
            } else {
                self.stalled = true;
            }
        }
        parts
    }

    /// The next pass of a turn's canvas or of a read, unless a step of the lane is in the way.
    fn pass(&mut self, lane: usize) -> Vec<Part> {
        let Some(active) = &self.active[lane] else {
            return Vec::new();
        };
        match (&active.task, self.limits.canvas) {
            (Task::Turn(run), Some(canvas)) if !self.is_busy(lane) => {
                let from = canvas.start(run.tokens.len());
                if self.lanes.grow(lane, from + canvas.length - 1) {
                    return vec![Part { lane, from, rows: canvas.length, work: Work::Revise, valid: true }];
                }
                self.stalled = true;
                Vec::new()
            }
            (Task::Read(_), _) if !self.is_read(lane) => self.read(lane),
            _ => Vec::new(),
        }
    }

    fn read(&mut self, lane: usize) -> Vec<Part> {
        let kept = match self.active[lane].as_mut().map(|active| &mut active.task) {
            Some(Task::Read(reading)) => reading.group.take(),
            _ => None,
        };
        let Some(group) = kept.or_else(|| self.gather(lane)) else {
            return Vec::new();
        };
        let from = self.active[lane].as_ref().map_or(0, |active| active.goal);
        let rows = group.rows(self.limits.max_rows);
        vec![Part { lane, from, rows, work: Work::Read(group), valid: true }]
    }

    /// The next branches of a read: one on the lane's own pages, and beside it as many as pages and rows allow.
    fn gather(&mut self, lane: usize) -> Option<Group> {
        let active = self.active[lane].as_ref()?;
        let Task::Read(reading) = &active.task else {
            return None;
        };
        let base = active.goal;
        let mut unread = reading.unread();
        let first = unread.next()?;
        let mut group = Group::new(reading.kind(first), base);
        group.members.push(reading.member(first, base, None));
        let mut left = self.limits.max_rows.saturating_sub(reading.end(first) - base);
        for branch in unread {
            let end = reading.end(branch);
            if end - base > left {
                break;
            }
            let Some(fork) = self.lanes.fork(lane, base, end) else {
                break;
            };
            left -= end - base;
            group.members.push(reading.member(branch, base, Some(fork)));
        }
        Some(group)
    }

    fn alone(&mut self, lane: usize) -> Vec<Part> {
        self.encoded_last = false;
        match &self.active[lane] {
            Some(active) if active.planned < active.goal => self.encode(&[lane]),
            Some(active) if active.can_pass(self.limits.canvas.is_some()) => self.pass(lane),
            _ => self.decode(&[lane]),
        }
    }

    fn lane_to_try_alone(&self) -> Option<usize> {
        let suspects = self.lanes_where(|active| active.suspect);
        suspects.into_iter().find(|&lane| !self.is_busy(lane))
    }

    /// Lanes without suspicion that match, in the order of a key.
    fn lanes_by(&self, matches: impl Fn(&Active, usize) -> bool, key: impl Fn(&Active) -> u64) -> Vec<usize> {
        let mut lanes: Vec<(u64, usize)> = (0..self.active.len())
            .filter_map(|lane| {
                let active = self.active[lane].as_ref().filter(|active| !active.suspect)?;
                matches(active, self.pending(lane)).then(|| (key(active), lane))
            })
            .collect();
        lanes.sort_unstable();
        lanes.into_iter().map(|(_, lane)| lane).collect()
    }

    fn lanes_where(&self, matches: impl Fn(&Active) -> bool) -> Vec<usize> {
        let matches = |lane: &usize| self.active[*lane].as_ref().is_some_and(&matches);
        (0..self.active.len()).filter(matches).collect()
    }

    /// Samples of a lane that are submitted and not read back.
    fn pending(&self, lane: usize) -> usize {
        let parts = self.in_flight.iter().flat_map(|step| &step.parts);
        parts.filter(|part| part.lane == lane && part.valid && part.is_sampled()).count()
    }

    /// Whether a submitted step touches the lane.
    pub(super) fn is_busy(&self, lane: usize) -> bool {
        self.in_flight.iter().any(|step| step.parts.iter().any(|part| part.lane == lane))
    }

    /// Whether a submitted step has branches of the lane's read.
    fn is_read(&self, lane: usize) -> bool {
        let parts = self.in_flight.iter().flat_map(|step| &step.parts);
        parts.filter(|part| part.lane == lane).any(|part| matches!(part.work, Work::Read(_)))
    }

    /// Sends the turn admitted last back to the queue; its pages stay reusable as long as nobody needs them.
    ///
    /// A read has all its pages and ends by itself. A turn whose canvas is under revision has those of the canvas and can
    /// run, so whoever gives way is between two canvases.
    fn preempt(&mut self) -> bool {
        let turns = self.lanes_where(|active| matches!(active.task, Task::Turn(_)));
        let admitted = |lane: &usize| self.active[*lane].as_ref().map(|active| active.admitted);
        let last = turns.into_iter().max_by_key(admitted);
        let Some((lane, active)) = last.and_then(|lane| Some((lane, self.active[lane].take()?))) else {
            return false;
        };
        self.lanes.park(lane, 0);
        if let Task::Turn(run) = active.task {
            self.preempted.push(*run);
            self.metrics.update(|m| m.preempted += 1);
        }
        true
    }
}

impl Active {
    /// Whether the next token can be sampled while `pending` samples are not read back.
    fn can_decode(&self, pending: usize) -> bool {
        match &self.task {
            Task::Turn(run) => {
                self.planned >= self.goal && self.planned < run.tokens.len() + pending && run.wants_sample(pending)
            }
            Task::Read(_) => false,
        }
    }

    /// Whether a canvas can be revised, or a branch read.
    fn can_pass(&self, has_canvas: bool) -> bool {
        let passes = match &self.task {
            Task::Turn(run) => has_canvas && run.wants_sample(0),
            Task::Read(_) => true,
        };
        passes && self.planned >= self.goal
    }
}

impl Part {
    pub(super) fn is_sampled(&self) -> bool {
        matches!(self.work, Work::Encode { sampled: true })
    }
}
