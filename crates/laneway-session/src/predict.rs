//! How long a turn will wait for a lane.

use std::collections::VecDeque;

/// Weight of the newest sample.
const ALPHA: f64 = 0.25;

/// Samples of which the slow end counts.
const RECENT: usize = 64;

/// Knows what is to be done and how long that has taken so far.
#[derive(Debug, Default)]
pub(crate) struct Predictor {
    /// Milliseconds a token, as an average that forgets.
    average: f64,
    recent: VecDeque<f64>,
    /// Tokens of turns that wait or run.
    work: u64,
    concurrency: usize,
    timeout_ms: u64,
}

impl Predictor {
    pub fn set(&mut self, concurrency: usize, timeout_ms: u64) {
        (self.concurrency, self.timeout_ms) = (concurrency, timeout_ms);
    }

    pub fn add(&mut self, work: u64) {
        self.work = self.work.saturating_add(work);
    }

    pub fn remove(&mut self, work: u64) {
        self.work = self.work.saturating_sub(work);
    }

    /// A turn took this long for so many tokens.
    pub fn sample(&mut self, elapsed_ms: u64, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let sample = elapsed_ms as f64 / tokens as f64;
        self.average = if self.recent.is_empty() { sample } else { self.average + ALPHA * (sample - self.average) };
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(sample);
    }

    /// Until all that was taken is done: the average or the slow end, whichever is more, over the turns that run at
    /// once.
    pub fn wait_ms(&self) -> u64 {
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let slow = sorted.get((sorted.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
        (self.average.max(slow) * self.work as f64 / self.concurrency.max(1) as f64) as u64
    }

    /// Whether one more would wait no longer than it may.
    pub fn admits(&self) -> bool {
        self.timeout_ms == 0 || self.wait_ms() <= self.timeout_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S6
    #[test]
    fn the_wait_follows_work_speed_and_lanes() {
        let mut predictor = Predictor::default();
        predictor.add(100);
        assert_eq!((predictor.wait_ms(), predictor.admits()), (0, true));
        predictor.set(2, 100);
        predictor.sample(40, 10);
        assert_eq!((predictor.wait_ms(), predictor.admits()), (200, false));
        predictor.remove(60);
        assert_eq!((predictor.wait_ms(), predictor.admits()), (80, true));
        // Faster turns count a quarter each, the slow ones as long as they are among the last 64.
        (0..63).for_each(|_| predictor.sample(10, 10));
        assert_eq!(predictor.wait_ms(), 20);
        predictor.sample(0, 0);
        (0..4).for_each(|_| predictor.sample(80, 10));
        assert_eq!(predictor.wait_ms(), 160);
        predictor.remove(1000);
        assert_eq!(predictor.wait_ms(), 0);
    }
}
