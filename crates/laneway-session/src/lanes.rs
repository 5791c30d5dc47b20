//! Lanes: which pages each holds and which tokens those contain; what outlives a turn is in the prefix cache.

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
mod transfer;

use std::sync::Arc;

use crate::EngineLimits;
use crate::engine::PageCopy;
use crate::observer::{CacheEvent, LaneEvent, Observer, PrefixEvent};
use crate::pages::{Page, PagePool};
use crate::prefix::PrefixCache;
use crate::transfer::Kept;

pub(crate) use transfer::Held;

/// Counts of lanes and pages at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Lanes that a turn or read holds.
    pub active: usize,
    /// Lanes that were used and are ready for the next turn; what they computed is in the prefix cache.
    pub idle: usize,
    /// Lanes that were used and given up, because the engine failed on them or too many were idle.
    pub free: usize,
    /// Lanes that were ever used: `active + idle + free`.
    pub high_water: usize,
    /// Pages that are held, by turns or by the prefix cache.
    pub pages_used: usize,
    /// Of those, pages that only the prefix cache holds: they are given up when a turn needs them.
    pub pages_cached: usize,
    /// Pages in all.
    pub pages_total: usize,
    /// Sequences in the prefix cache, each with all that leads to it.
    pub prefixes: usize,
    /// Pages that the prefix cache gave up, since the model was loaded.
    pub evicted: u64,
    /// Lanes whose turn ended and that were ready at once, since the model was loaded.
    pub reset: u64,
    /// Lanes that were given up because the engine failed on them, since the model was loaded.
    pub discarded: u64,
}

/// What one lane does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneRow {
    /// Whether a turn or read holds it.
    pub active: bool,
    /// Positions of that turn that are written; 0 without one.
    pub tokens: usize,
}

/// How lanes and prefixes are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneConfig {
    /// Lanes that may be active at the same time.
    pub max_active: usize,
    /// Lanes that stay idle; more are given up.
    pub max_idle: usize,
    /// Shorter prefixes are neither kept nor found.
    pub min_prefix_tokens: usize,
    /// Sequences in the prefix cache at most; 0 keeps none.
    pub max_prefixes: usize,
}

/// A lane that was claimed for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub lane: usize,
    /// Leading tokens whose K/V the lane already holds.
    pub cached: usize,
}

/// Pages of a branch that goes on from a lane's first positions.
#[derive(Debug)]
#[must_use = "a dropped fork leaks its pages"]
pub(crate) struct Fork {
    /// The page table it takes.
    pub slot: usize,
    pages: Vec<Page>,
    /// Still to make before the first step.
    pub copy: Option<PageCopy>,
}

impl Fork {
    /// The page table for the first `positions` positions.
    pub fn table(&self, positions: usize, page_positions: usize) -> Vec<u32> {
        self.pages.iter().take(positions.div_ceil(page_positions)).map(Page::index).collect()
    }
}

#[derive(Debug, Default)]
struct Lane {
    active: bool,
    /// Whether nothing of it is kept.
    is_one_shot: bool,
    namespace: u64,
    pages: Vec<Page>,
    /// Tokens whose K/V is written, by position.
    timeline: Vec<u32>,
    /// Tokens of it that were not computed here.
    cached: usize,
    /// Tokens of it that are in the prefix cache.
    kept: usize,
    /// A partly used page that the lane goes on from in one of its own.
    source: Option<Source>,
}

#[derive(Debug)]
struct Source {
    page: Page,
    to: u32,
    /// Whether a submitted step makes the copy.
    is_submitted: bool,
}

/// All lanes of an engine, the pages they share, and the prefixes that outlive their turns.
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    pool: PagePool,
    cache: PrefixCache,
    config: LaneConfig,
    page_positions: usize,
    /// Positions whose K/V can only be reused together.
    grain: usize,
    /// Page tables beside those of lanes that no branch has.
    slots: Vec<usize>,
    /// Pages kept free for branches, which never cost a conversation its state.
    reserve: usize,
    active: usize,
    idle: Vec<usize>,
    free: Vec<usize>,
    high_water: usize,
    reset: u64,
    discarded: u64,
    /// Changes with whatever may let in a turn that was refused.
    version: u64,
    /// Sequences that were left behind and not told of yet; none where nobody wants to know.
    kept: Option<Vec<Kept>>,
    observer: Option<Arc<dyn Observer>>,
}

impl Lanes {
    pub fn new(limits: &EngineLimits, config: LaneConfig) -> Self {
        let (grain, page_positions) = (limits.grain(), limits.page_positions);
        Self {
            lanes: (0..limits.lanes).map(|_| Lane::default()).collect(),
            pool: PagePool::new(limits.pages),
            cache: PrefixCache::new(page_positions, grain, config.min_prefix_tokens, config.max_prefixes),
            config,
            page_positions,
            grain,
            slots: (limits.lanes..limits.lanes + limits.branches).rev().collect(),
            reserve: (limits.pages / 16).min(limits.branches.saturating_mul(2)),
            active: 0,
            idle: Vec::new(),
            free: Vec::new(),
            high_water: 0,
            reset: 0,
            discarded: 0,
            version: 0,
            kept: None,
            observer: None,
        }
    }

    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.cache.observe(observer.clone());
        self.observer = Some(observer);
    }

    /// Whether a lane could be claimed, pages apart.
    pub fn has_room(&self) -> bool {
        self.active < self.config.max_active.min(self.lanes.len())
    }

    /// A number that is the same as long as whoever was refused would be refused again.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Leading tokens that a claim would not have to compute; changes nothing.
    pub fn peek(&self, namespace: u64, tokens: &[u32], reusable: usize) -> usize {
        self.usable(self.cache.peek(namespace, &tokens[..reusable.min(tokens.len())]))
    }

    /// Claims a lane and pages for `positions` together, or changes nothing.
    ///
    /// K/V of a common prefix of at most `reusable` tokens is reused: whole pages are shared, a partly used one is
    /// copied, or computed again where there is no room for both.
    pub fn claim(&mut self, namespace: u64, tokens: &[u32], reusable: usize, positions: usize) -> Option<Claim> {
        if !self.has_room() {
            return None;
        }
        let (cached, mut pages, source) = self.restore(namespace, &tokens[..reusable.min(tokens.len())], positions)?;
        let missing = self.pages_for(positions).saturating_sub(pages.len());
        let before = self.cache.evicted();
        pages.extend((0..missing).map(|_| self.take_page().expect("enough pages are free or cold")));
        self.cache.touch(namespace, &tokens[..cached]);
        let source =
            source.map(|page| Source { to: pages[cached / self.page_positions].index(), page, is_submitted: false });
        self.tell_claim(cached, source.is_some(), (self.cache.evicted() - before) as usize);
        let lane = self.idle.pop().or_else(|| self.free.pop()).unwrap_or(self.high_water);
        self.high_water = self.high_water.max(lane + 1);
        self.active += 1;
        let timeline = tokens[..cached].to_vec();
        self.lanes[lane] =
            Lane { active: true, is_one_shot: false, namespace, pages, timeline, cached, kept: 0, source };
        Some(Claim { lane, cached })
    }

    /// The pages of the longest usable prefix, and the one to copy, if all that `positions` need can be had.
    fn restore(
        &mut self,
        namespace: u64,
        tokens: &[u32],
        positions: usize,
    ) -> Option<(usize, Vec<Page>, Option<Page>)> {
        let (common, found) = self.cache.find(namespace, tokens);
        let mut cached = self.usable(common);
        let whole = cached / self.page_positions;
        let mut pages: Vec<Page> = found[..whole].iter().map(|page| self.pool.retain(page)).collect();
        let is_partial = !cached.is_multiple_of(self.page_positions);
        let mut source = is_partial.then(|| self.pool.retain(found[whole]));
        let total = self.pages_for(positions);
        if self.deficit(total, pages.len()) > 0
            && let Some(page) = source.take()
        {
            self.pool.release(page);
            cached -= cached % self.cache.unit();
            let spare = pages.split_off(cached / self.page_positions);
            spare.into_iter().for_each(|page| self.pool.release(page));
            if cached < self.config.min_prefix_tokens {
                pages.drain(..).for_each(|page| self.pool.release(page));
                cached = 0;
            }
        }
        let deficit = self.deficit(total, pages.len());
        if deficit > 0 {
            pages.into_iter().for_each(|page| self.pool.release(page));
            self.tell(PrefixEvent::Refused { deficit });
            return None;
        }
        Some((cached, pages, source))
    }

    /// Pages that cannot be had when `total` are needed and `held` of them are there.
    fn deficit(&self, total: usize, held: usize) -> usize {
        total.saturating_sub(held).saturating_sub(self.pool.available() + self.pool.cold())
    }

    /// How many of a running turn's leading tokens others will find before it has ended.
    pub fn cacheable(&self, tokens: usize) -> usize {
        let whole = tokens - tokens % self.cache.unit();
        if self.config.max_prefixes == 0 || whole < self.config.min_prefix_tokens { 0 } else { whole }
    }

    /// Tokens of a common prefix that can be reused.
    fn usable(&self, common: usize) -> usize {
        let whole = common - common % self.grain;
        if whole < self.config.min_prefix_tokens { 0 } else { whole }
    }

    /// Makes sure that the lane has a page for `position`; false when none can be had now.
    pub fn grow(&mut self, lane: usize, position: usize) -> bool {
        while self.lanes[lane].pages.len() < self.pages_for(position + 1) {
            let Some(page) = self.take_page() else {
                return false;
            };
            self.lanes[lane].pages.push(page);
        }
        true
    }

    /// The lane's page table for its first `positions` positions.
    pub fn table(&self, lane: usize, positions: usize) -> Vec<u32> {
        let count = self.pages_for(positions);
        self.lanes[lane].pages.iter().take(count).map(Page::index).collect()
    }

    /// The copy that the lane's next step must begin with, if it goes on from a partly used page.
    pub fn take_copy(&mut self, lane: usize) -> Option<PageCopy> {
        let source = self.lanes[lane].source.as_mut().filter(|source| !source.is_submitted)?;
        source.is_submitted = true;
        Some(PageCopy { from: source.page.index(), to: source.to })
    }

    /// A step of the lane failed that began at `from`: what it copied is copied again.
    pub fn failed(&mut self, lane: usize, from: usize) {
        let is_first = from == self.written(lane);
        if let Some(source) = self.lanes[lane].source.as_mut().filter(|_| is_first) {
            source.is_submitted = false;
        }
    }

    /// A step of the lane is done, and so is its copy.
    pub fn stepped(&mut self, lane: usize) {
        if let Some(source) = self.lanes[lane].source.take_if(|source| source.is_submitted) {
            self.pool.release(source.page);
            self.version += 1;
        }
    }

    /// Records that K/V of `tokens` is written behind the lane's timeline; whole pages can be reused from now on.
    pub fn commit(&mut self, lane: usize, tokens: &[u32]) {
        self.lanes[lane].timeline.extend_from_slice(tokens);
        let written = self.written(lane);
        let whole = written - written % self.cache.unit();
        if whole > self.lanes[lane].kept {
            self.keep(lane, whole);
        }
    }

    /// Positions that are written on a lane.
    pub fn written(&self, lane: usize) -> usize {
        self.lanes[lane].timeline.len()
    }

    /// Ends the lane's turn and keeps what it has written for reuse.
    pub fn park(&mut self, lane: usize, reset_ms: u64) {
        let mut written = self.written(lane);
        if self.lanes[lane].source.is_some() {
            // The page that was to be copied holds nothing.
            written -= written % self.page_positions;
        }
        let written = written - written % self.grain;
        self.keep(lane, written);
        self.note_kept(lane, written);
        self.release(lane);
        if self.idle.len() < self.config.max_idle {
            self.idle.push(lane);
        } else {
            self.free.push(lane);
        }
        self.reset += 1;
        while self.pool.available() < self.reserve && self.cache.evict(&mut self.pool) {}
        self.tell_lane(LaneEvent::SessionReset { reset_ms });
    }

    /// Ends the lane's turn and forgets what it computed.
    pub fn discard(&mut self, lane: usize) {
        self.release(lane);
        let Lane { namespace, timeline, cached, is_one_shot, .. } = std::mem::take(&mut self.lanes[lane]);
        // Nothing of a one-shot turn is in the cache: what is there with these tokens is another's.
        if !is_one_shot {
            self.cache.forget(&mut self.pool, namespace, &timeline, cached);
        }
        self.free.push(lane);
        self.discarded += 1;
        self.tell_lane(LaneEvent::SessionReclaimed);
    }

    /// Forgets all prefixes that no turn uses.
    pub fn clear_cache(&mut self) {
        self.cache.clear(&mut self.pool);
        self.version += 1;
    }

    /// Keeps the first `tokens` written tokens in the cache.
    fn keep(&mut self, lane: usize, tokens: usize) {
        let Lane { namespace, pages, timeline, kept, is_one_shot, .. } = &mut self.lanes[lane];
        if *is_one_shot {
            return;
        }
        let count = tokens.div_ceil(self.page_positions);
        self.cache.insert(&mut self.pool, *namespace, &timeline[..tokens], &mut pages[..count]);
        *kept = tokens;
        self.version += 1;
    }

    /// Keeps nothing of what the lane's turn computes.
    pub fn mark_one_shot(&mut self, lane: usize) {
        self.lanes[lane].is_one_shot = true;
    }

    /// Notes from now on what is left behind.
    pub fn note_all_kept(&mut self) {
        self.kept.get_or_insert_default();
    }

    /// What was left behind since the last call.
    pub fn take_kept(&mut self) -> Vec<Kept> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note_kept(&mut self, lane: usize, tokens: usize) {
        let Lane { namespace, timeline, is_one_shot, .. } = &self.lanes[lane];
        if let Some(kept) = &mut self.kept
            && !is_one_shot
            && self.config.max_prefixes > 0
            && tokens >= self.config.min_prefix_tokens
        {
            kept.push(Kept { namespace: *namespace, tokens: timeline[..tokens].to_vec() });
        }
    }

    fn release(&mut self, lane: usize) {
        let ended = &mut self.lanes[lane];
        let source = ended.source.take().map(|source| source.page);
        ended.pages.drain(..).chain(source).for_each(|page| self.pool.release(page));
        self.active -= usize::from(std::mem::take(&mut ended.active));
        self.version += 1;
    }

    /// Pages for a branch that shares the lane's first `shared` positions and has its own up to `end`: from free ones
    /// only, so that it costs no conversation its state.
    ///
    /// A partly filled page is copied: its rest differs from branch to branch.
    pub fn fork(&mut self, lane: usize, shared: usize, end: usize) -> Option<Fork> {
        let whole = shared / self.page_positions;
        let own = self.pages_for(end).saturating_sub(whole);
        if self.pool.available() < own {
            return None;
        }
        let slot = self.slots.pop()?;
        let source = &self.lanes[lane].pages;
        let mut pages: Vec<Page> = source[..whole].iter().map(|page| self.pool.retain(page)).collect();
        pages.extend((0..own).map(|_| self.pool.alloc().expect("enough pages are free")));
        let is_partial = !shared.is_multiple_of(self.page_positions);
        // What the same step copies is not there yet to be copied from.
        let pending = self.lanes[lane].source.as_ref().filter(|source| !source.is_submitted);
        let from = |own: &Page| pending.filter(|p| p.to == own.index()).map_or(own.index(), |p| p.page.index());
        let copy = is_partial.then(|| PageCopy { from: from(&source[whole]), to: pages[whole].index() });
        Some(Fork { slot, pages, copy })
    }

    /// Ends a branch; no step may touch it any more.
    pub fn join(&mut self, fork: Fork) {
        self.slots.push(fork.slot);
        fork.pages.into_iter().for_each(|page| self.pool.release(page));
        self.version += 1;
    }

    /// What every lane does, in the order of their numbers.
    pub fn rows(&self) -> impl Iterator<Item = LaneRow> {
        self.lanes
            .iter()
            .map(|lane| LaneRow { active: lane.active, tokens: if lane.active { lane.timeline.len() } else { 0 } })
    }

    pub fn stats(&self) -> LaneStats {
        LaneStats {
            active: self.active,
            idle: self.idle.len(),
            free: self.free.len(),
            high_water: self.high_water,
            pages_used: self.pool.capacity() - self.pool.available(),
            pages_cached: self.pool.cold(),
            pages_total: self.pool.capacity(),
            prefixes: self.cache.entries(),
            evicted: self.cache.evicted(),
            reset: self.reset,
            discarded: self.discarded,
        }
    }

    fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_positions)
    }

    /// A free page, if need be one that the cache gives up.
    fn take_page(&mut self) -> Option<Page> {
        loop {
            if let Some(page) = self.pool.alloc() {
                return Some(page);
            }
            if !self.cache.evict(&mut self.pool) {
                return None;
            }
        }
    }

    fn tell_claim(&self, cached: usize, is_copied: bool, evicted: usize) {
        self.tell(if cached > 0 { PrefixEvent::Restored { tokens: cached, is_copied } } else { PrefixEvent::Missed });
        if evicted > 0 {
            self.tell(PrefixEvent::Evicted { pages: evicted });
        }
    }

    fn tell(&self, event: PrefixEvent) {
        if let Some(observer) = self.observer.as_ref().filter(|_| self.config.max_prefixes > 0) {
            observer.prefix(event);
        }
    }

    pub fn tell_lane(&self, event: LaneEvent) {
        if let Some(observer) = &self.observer {
            observer.lane(event);
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // The pages go with the model, and so does what was announced.
        if let Some(observer) = self.observer.as_ref().filter(|_| self.cache.entries() > 0) {
            observer.cache(CacheEvent::Cleared);
        }
    }
}
