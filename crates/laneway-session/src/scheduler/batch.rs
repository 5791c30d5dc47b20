//! Which lanes the next step has, and with which rows.

use super::{Active, Part, Scheduler};

impl Scheduler {
    /// The rows of the next step: all decodes or some prefill, in turn when there are both.
    pub(super) fn choose(&mut self) -> Vec<Part> {
        self.stalled = false;
        if let Some(lane) = self.lane_to_try_alone() {
            return self.alone(lane);
        }
        let prefills = self.lanes_by(|a, _| a.planned < a.goal, |a| a.admitted);
        let decodes = self.lanes_by(Active::can_decode, |a| a.stepped);
        if !prefills.is_empty() && (decodes.is_empty() || !self.prefilled_last) {
            return self.prefill(&prefills);
        }
        let mut parts = self.decode(&decodes);
        if parts.is_empty() && !prefills.is_empty() {
            return self.prefill(&prefills);
        }
        while parts.is_empty() && self.stalled && self.in_flight.is_empty() {
            self.preempt();
            parts = self.decode(&decodes);
        }
        parts
    }

    fn prefill(&mut self, lanes: &[usize]) -> Vec<Part> {
        self.prefilled_last = true;
        let mut left = self.limits.max_rows;
        let mut parts = Vec::new();
        for &lane in lanes {
            let Some(active) = &self.active[lane] else {
                continue;
            };
            let rows = (active.goal - active.planned).min(left);
            if rows == 0 {
                break;
            }
            left -= rows;
            let from = active.planned;
            let sampled = from + rows == active.goal && active.run.wants_sample(0);
            parts.push(Part { lane, from, rows, sampled, valid: true });
        }
        parts
    }

    fn decode(&mut self, lanes: &[usize]) -> Vec<Part> {
        self.prefilled_last = false;
        self.stalled = false;
        let mut parts = Vec::new();
        for &lane in lanes.iter().take(self.limits.max_rows) {
            let Some(active) = &self.active[lane] else {
                continue;
            };
            let from = active.planned;
            if self.lanes.grow(lane, from) {
                parts.push(Part { lane, from, rows: 1, sampled: true, valid: true });
            } else {
                self.stalled = true;
            }
        }
        parts
    }

    fn alone(&mut self, lane: usize) -> Vec<Part> {
        let prefilling = self.active[lane].as_ref().is_some_and(|a| a.planned < a.goal);
        if prefilling { self.prefill(&[lane]) } else { self.decode(&[lane]) }
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
        parts.filter(|part| part.lane == lane && part.valid && part.sampled).count()
    }

    /// Whether a submitted step touches the lane.
    pub(super) fn is_busy(&self, lane: usize) -> bool {
        self.in_flight.iter().any(|step| step.parts.iter().any(|part| part.lane == lane))
    }

    /// Sends the turn admitted last back to the queue; its pages stay reusable as long as nobody needs them.
    fn preempt(&mut self) {
        let last = self.lanes_by(|_, _| true, |active| active.admitted).pop();
        let Some((lane, active)) = last.and_then(|lane| Some((lane, self.active[lane].take()?))) else {
            return;
        };
        self.lanes.park(lane);
        self.preempted.push(*active.run);
        self.metrics.update(|m| m.preempted += 1);
    }
}

impl Active {
    fn can_decode(&self, pending: usize) -> bool {
        self.planned >= self.goal && self.planned < self.run.tokens.len() + pending && self.run.wants_sample(pending)
    }
}
