//! Which prefixes are worth storing, and which stored ones go first.

use std::ops::Range;

/// Which lengths of a timeline are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRule {
    /// Shorter prefixes are not stored.
    pub min_tokens: usize,
    /// Tokens left off the end, where the next turn may tokenise differently.
    pub trim_tokens: usize,
    /// Stored lengths are multiples of this, 0 for any length.
    pub align_tokens: usize,
    /// Distance of checkpoints while a session grows.
    pub interval_tokens: usize,
    /// Longer prompts get no checkpoint of their shared beginning.
    pub cold_max_tokens: usize,
    /// Pages are cut at multiples of this, so that growing prefixes share them.
    pub page_tokens: usize,
}

impl Default for LengthRule {
    fn default() -> Self {
        Self {
            min_tokens: 512,
            trim_tokens: 32,
            align_tokens: 2048,
            interval_tokens: 10_000,
            cold_max_tokens: 30_000,
            page_tokens: 256,
        }
    }
}

impl LengthRule {
    /// How much of a timeline to store: trimmed and aligned, or all of it where nothing would be left.
    pub fn store_len(&self, tokens: usize) -> usize {
        let trimmed = tokens.saturating_sub(self.trim_tokens);
        let aligned = match self.align_tokens {
            0 => trimmed,
            align => trimmed / align * align,
        };
        if aligned == 0 { tokens } else { aligned }
    }

    /// How much of a new prompt to store: up to `shared`, the last user turn before the first answer, or as much as
    /// [`LengthRule::store_len`] says; nothing for prompts that are too long or prefixes that are too short.
    pub fn cold_len(&self, prompt_tokens: usize, shared: Option<usize>) -> Option<usize> {
        let len = shared.filter(|&len| len <= prompt_tokens).unwrap_or_else(|| self.store_len(prompt_tokens));
        (prompt_tokens <= self.cold_max_tokens && len >= self.min_tokens && len > 0).then_some(len)
    }

    /// The distance of continued checkpoints: the interval, rounded up to the alignment.
    pub fn interval(&self) -> usize {
        self.interval_tokens.max(1).next_multiple_of(self.align_tokens.max(1))
    }

    /// The token ranges of the pages that cover `tokens` tokens.
    pub fn pages(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> {
        let step = self.page_tokens.max(1);
        (0..tokens).step_by(step).map(move |start| start..tokens.min(start.saturating_add(step)))
    }
}

/// Where the next checkpoint of a growing session is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    interval: usize,
    last: usize,
    before: usize,
}

impl Schedule {
    /// A schedule with nothing stored yet.
    pub fn new(rule: &LengthRule) -> Self {
        Self { interval: rule.interval(), last: 0, before: 0 }
    }

    /// The position to store for a session that is at `position`: a multiple of the interval beyond the last one.
    pub fn due(&self, position: usize) -> Option<usize> {
        let due = position / self.interval * self.interval;
        (due > self.last).then_some(due)
    }

    /// Notes that a checkpoint at `position`, continued or cold, is being stored.
    pub fn begin(&mut self, position: usize) {
        self.before = self.last;
        self.last = self.last.max(position);
    }

    /// Takes the last [`Schedule::begin`] back, because it came to nothing.
    pub fn failed(&mut self) {
        self.last = self.before;
    }
}

/// What a stored checkpoint is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionRule {
    /// After this long without use, in milliseconds, hits count half.
    pub half_life_ms: u64,
    /// Fewer decayed hits than this count as none.
    pub hits_floor: f64,
}

impl Default for EvictionRule {
    fn default() -> Self {
        Self { half_life_ms: 6 * 60 * 60 * 1000, hits_floor: 0.01 }
    }
}

impl EvictionRule {
    /// Tokens per byte, times one more than the hits that still count.
    pub fn score(&self, hits: u32, idle_ms: u64, tokens: usize, bytes: u64) -> f64 {
        let decayed = f64::from(hits) * (-(idle_ms as f64) / self.half_life_ms.max(1) as f64).exp2();
        let counted = if decayed < self.hits_floor { 0.0 } else { decayed };
        (counted + 1.0) * tokens as f64 / bytes.max(1) as f64
    }
}

/// What a budget must have room for to take `bytes`: one per cent more.
pub(crate) fn with_margin(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(trim_tokens: usize, align_tokens: usize) -> LengthRule {
        LengthRule { trim_tokens, align_tokens, ..LengthRule::default() }
    }

    /// G58: the values of the original's tests.
    #[test]
    fn stored_lengths_are_trimmed_and_aligned() {
        assert_eq!(rule(32, 2048).store_len(11_011), 10_240);
        assert_eq!(rule(32, 2048).store_len(1_695), 1_695);
        assert_eq!(rule(0, 1000).store_len(3_500), 3_000);
        assert_eq!(rule(0, 0).store_len(3_500), 3_500);
        assert_eq!(rule(32, 0).store_len(10), 10);
        assert_eq!(rule(32, 2048).store_len(0), 0);
    }

    /// G57, G59: a cold checkpoint ends at the shared beginning, and only of prompts of a fitting length.
    #[test]
    fn a_cold_checkpoint_ends_with_the_shared_beginning() {
        let rule = LengthRule::default();
        assert_eq!(rule.cold_len(9_000, Some(700)), Some(700));
        assert_eq!(rule.cold_len(9_000, Some(511)), None);
        assert_eq!(rule.cold_len(9_000, Some(512)), Some(512));
        assert_eq!(rule.cold_len(9_000, None), Some(8_192));
        assert_eq!(rule.cold_len(9_000, Some(9_001)), Some(8_192));
        assert_eq!(rule.cold_len(30_000, Some(700)), Some(700));
        assert_eq!(rule.cold_len(30_001, Some(700)), None);
        assert_eq!(rule.cold_len(511, None), None);
    }

    /// G60: multiples of the rounded interval, strictly beyond the last, and a failure gives the place back.
    #[test]
    fn continued_checkpoints_are_due_at_absolute_multiples() {
        let rule = LengthRule::default();
        assert_eq!(rule.interval(), 10_240);
        let mut schedule = Schedule::new(&rule);
        assert_eq!(schedule.due(10_239), None);
        assert_eq!(schedule.due(10_240), Some(10_240));
        assert_eq!(schedule.due(20_479), Some(10_240));
        schedule.begin(10_240);
        assert_eq!(schedule.due(20_479), None);
        assert_eq!(schedule.due(20_480), Some(20_480));
        schedule.begin(20_480);
        assert_eq!(schedule.due(20_480), None);
        schedule.failed();
        assert_eq!(schedule.due(20_480), Some(20_480));
    }

    /// G60: a cold checkpoint at the same place suppresses the continued one.
    #[test]
    fn a_cold_checkpoint_counts_for_the_schedule() {
        let mut schedule = Schedule::new(&LengthRule::default());
        schedule.begin(10_240);
        assert_eq!(schedule.due(10_241), None);
        schedule.begin(9_000);
        assert_eq!(schedule.due(10_241), None);
    }

    /// G66: hits halve every six hours, too few count as none, and size divides.
    #[test]
    fn the_score_decays_with_idle_time() {
        let rule = EvictionRule::default();
        let hour = 60 * 60 * 1000;
        assert_eq!(rule.score(0, 0, 100, 50), 2.0);
        assert_eq!(rule.score(3, 0, 100, 50), 8.0);
        assert_eq!(rule.score(4, 6 * hour, 100, 50), 6.0);
        assert_eq!(rule.score(4, 12 * hour, 100, 50), 4.0);
        assert_eq!(rule.score(1, 6 * 7 * hour, 100, 50), 2.0);
        assert!(rule.score(1, 6 * 6 * hour, 100, 50) > 2.0);
        assert_eq!(rule.score(u32::MAX, u64::MAX, 100, 0), 100.0);
    }

    /// G65: one per cent on top.
    #[test]
    fn the_margin_is_one_per_cent() {
        assert_eq!(with_margin(1000), 1010);
        assert_eq!(with_margin(1090), 1100);
        assert_eq!(with_margin(u64::MAX), u64::MAX);
    }

    /// L109: the pages of a longer timeline start with those of a shorter one, but for its tail.
    #[test]
    fn growing_timelines_share_their_page_cuts() {
        let rule = LengthRule::default();
        let short: Vec<_> = rule.pages(700).collect();
        let long: Vec<_> = rule.pages(1700).collect();
        assert_eq!(short, [0..256, 256..512, 512..700]);
        assert_eq!(short[..2], long[..2]);
        assert_eq!(long.last(), Some(&(1536..1700)));
    }
}
