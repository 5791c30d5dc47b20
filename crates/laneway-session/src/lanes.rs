//! Lanes: which pages each holds, which tokens those pages contain, and who may use them next.

use crate::EngineLimits;
use crate::engine::PageCopy;
use crate::pages::{Page, PagePool};

/// Counts of lanes and pages at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Lanes that a turn holds.
    pub active: usize,
    /// Lanes that keep the tokens of an earlier turn for reuse.
    pub idle: usize,
    /// Lanes that were used before and hold nothing.
    pub free: usize,
    /// Lanes that were ever used: `active + idle + free`.
    pub high_water: usize,
    /// Pages that are held.
    pub pages_used: usize,
    /// Pages in all.
    pub pages_total: usize,
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
    pages: Vec<Page>,
    /// Tokens whose K/V is written, by position.
    timeline: Vec<u32>,
    last_used: u64,
}

/// All lanes of an engine and the pages they share.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    pool: PagePool,
    page_positions: usize,
    /// Positions whose K/V can only be reused together.
    grain: usize,
    /// Page tables beside those of lanes that no branch has.
    slots: Vec<usize>,
    high_water: usize,
    tick: u64,
}

impl Lanes {
    pub fn new(limits: &EngineLimits) -> Self {
        Self {
            lanes: (0..limits.lanes).map(|_| Lane::default()).collect(),
            pool: PagePool::new(limits.pages),
            page_positions: limits.page_positions,
            grain: limits.grain(),
            slots: (limits.lanes..limits.lanes + limits.branches).rev().collect(),
            high_water: 0,
            tick: 0,
        }
    }

    /// Claims a lane and pages for `positions` together, or changes nothing.
    ///
    /// K/V of a common prefix of at most `reusable` tokens is reused.
    pub fn claim(&mut self, tokens: &[u32], reusable: usize, positions: usize) -> Option<Claim> {
        if self.lanes.iter().all(|lane| lane.active) {
            return None;
        }
        let source = self.longest_prefix(&tokens[..reusable.min(tokens.len())]);
        let lane = self.choose(source)?;
        let cached = source.map_or(0, |(from, common)| self.reusable(from, common, lane));
        let mut pages = self.share(source.map_or(lane, |(from, _)| from), cached);
        let missing = self.pages_for(positions).saturating_sub(pages.len());
        if self.pool.available() + self.reclaimable() < missing {
            pages.into_iter().for_each(|page| self.pool.release(page));
            return None;
        }
        self.clear(lane);
        self.lanes[lane].active = true;
        self.high_water = self.high_water.max(lane + 1);
        for _ in 0..missing {
            pages.push(self.take_page().expect("enough pages are free or reclaimable"));
        }
        self.lanes[lane].timeline.extend_from_slice(&tokens[..cached]);
        self.lanes[lane].pages = pages;
        Some(Claim { lane, cached })
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

    /// Records that K/V of `tokens` is written behind the lane's timeline.
    pub fn commit(&mut self, lane: usize, tokens: &[u32]) {
        self.lanes[lane].timeline.extend_from_slice(tokens);
    }

    /// Positions that are written on a lane.
    pub fn written(&self, lane: usize) -> usize {
        self.lanes[lane].timeline.len()
    }

    /// Ends the lane's turn and keeps its written pages for reuse.
    pub fn park(&mut self, lane: usize) {
        self.tick += 1;
        let keep = self.pages_for(self.written(lane));
        let parked = &mut self.lanes[lane];
        parked.active = false;
        parked.last_used = self.tick;
        for page in parked.pages.drain(keep..) {
            self.pool.release(page);
        }
    }

    /// Ends the lane's turn and forgets everything it holds.
    pub fn clear(&mut self, lane: usize) {
        let cleared = std::mem::take(&mut self.lanes[lane]);
        cleared.pages.into_iter().for_each(|page| self.pool.release(page));
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
        let copy = is_partial.then(|| PageCopy { from: source[whole].index(), to: pages[whole].index() });
        Some(Fork { slot, pages, copy })
    }

    /// Ends a branch; no step may touch it any more.
    pub fn join(&mut self, fork: Fork) {
        self.slots.push(fork.slot);
        fork.pages.into_iter().for_each(|page| self.pool.release(page));
    }

    pub fn stats(&self) -> LaneStats {
        let used = &self.lanes[..self.high_water];
        let active = used.iter().filter(|lane| lane.active).count();
        let free = used.iter().filter(|lane| !lane.active && lane.timeline.is_empty()).count();
        LaneStats {
            active,
            idle: self.high_water - active - free,
            free,
            high_water: self.high_water,
            pages_used: self.pool.capacity() - self.pool.available(),
            pages_total: self.pool.capacity(),
        }
    }

    fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_positions)
    }

    /// The lane, active or not, whose timeline has most leading tokens in common.
    fn longest_prefix(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        self.lanes
            .iter()
            .enumerate()
            .map(|(index, lane)| {
                let pairs = lane.timeline.iter().zip(tokens);
                (index, pairs.take_while(|(a, b)| a == b).count())
            })
            .filter(|&(_, common)| common > 0)
            // On equal length an idle lane wins: its last, partly filled page can be reused too.
            .max_by_key(|&(index, common)| (common, !self.lanes[index].active))
    }

    /// The lane to use: the source of the prefix unless most of what it holds would be lost.
    fn choose(&self, source: Option<(usize, usize)>) -> Option<usize> {
        if let Some((from, common)) = source {
            let lane = &self.lanes[from];
            if !lane.active && lane.timeline.len() - common <= common {
                return Some(from);
            }
        }
        let from = source.map(|(from, _)| from);
        let inactive = (0..self.lanes.len()).filter(|&index| !self.lanes[index].active);
        inactive.min_by_key(|&index| {
            let lane = &self.lanes[index];
            // A side request must not cost a conversation its state while another lane will do.
            (!lane.timeline.is_empty(), from == Some(index), lane.last_used, index)
        })
    }

    /// Common tokens that can stay, in whole grains: those in whole pages, and in a partly used one that nobody else
    /// reads.
    fn reusable(&self, from: usize, common: usize, lane: usize) -> usize {
        let common = common - common % self.grain;
        let partial = self.lanes[from].pages.get(common / self.page_positions);
        let owned = partial.is_some_and(|page| self.pool.references(page) == 1);
        if from == lane && owned {
            return common;
        }
        let mut whole = common - common % self.page_positions;
        while !whole.is_multiple_of(self.grain) {
            whole -= self.page_positions;
        }
        whole
    }

    fn share(&mut self, from: usize, positions: usize) -> Vec<Page> {
        let count = self.pages_for(positions);
        let pages = self.lanes[from].pages.iter().take(count);
        pages.map(|page| self.pool.retain(page)).collect()
    }

    /// Pages that become free when every lane without a turn is emptied.
    fn reclaimable(&self) -> usize {
        let mut held = vec![0_u32; self.pool.capacity()];
        let inactive = self.lanes.iter().filter(|lane| !lane.active);
        inactive
            .flat_map(|lane| &lane.pages)
            .filter(|page| {
                let count = &mut held[page.index() as usize];
                *count += 1;
                *count == self.pool.references(page)
            })
            .count()
    }

    /// A free page, if need be from the end of the lane that was parked first.
    fn take_page(&mut self) -> Option<Page> {
        loop {
            if let Some(page) = self.pool.alloc() {
                return Some(page);
            }
            let inactive = self.lanes.iter_mut().filter(|lane| !lane.active);
            let oldest = inactive.filter(|lane| !lane.pages.is_empty()).min_by_key(|lane| lane.last_used)?;
            if let Some(page) = oldest.pages.pop() {
                self.pool.release(page);
            }
            oldest.timeline.truncate(oldest.pages.len() * self.page_positions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(lanes: usize, pages: usize) -> Lanes {
        Lanes::new(&EngineLimits {
            lanes,
            pages,
            page_positions: 4,
            context_length: 64,
            max_rows: 8,
            depth: 1,
            branches: 2,
            canvas: None,
        })
    }

    /// A claim that leaves a token to compute.
    fn claim(lanes: &mut Lanes, tokens: &[u32], positions: usize) -> Option<Claim> {
        lanes.claim(tokens, tokens.len() - 1, positions)
    }

    /// Runs a turn that writes `tokens` and ends.
    fn turn(lanes: &mut Lanes, tokens: &[u32]) -> Claim {
        let claim = claim(lanes, tokens, tokens.len()).unwrap();
        lanes.commit(claim.lane, &tokens[claim.cached..]);
        lanes.park(claim.lane);
        claim
    }

    #[test]
    fn the_idle_lane_with_the_longest_common_prefix_is_taken() {
        let mut lanes = lanes(3, 30);
        turn(&mut lanes, &[1, 2, 3, 4, 5, 6]);
        turn(&mut lanes, &[9, 8, 7, 6, 5, 4]);
        assert_eq!(turn(&mut lanes, &[1, 2, 3, 4, 5, 6, 7]), Claim { lane: 0, cached: 6 });
        assert_eq!(turn(&mut lanes, &[9, 8, 7, 6, 5, 4, 3]), Claim { lane: 1, cached: 6 });
    }

    /// At least one prompt token is computed, so that there are logits to sample.
    #[test]
    fn a_repeated_prompt_leaves_one_token_to_compute() {
        let mut lanes = lanes(1, 30);
        turn(&mut lanes, &[1, 2, 3, 4, 5]);
        assert_eq!(turn(&mut lanes, &[1, 2, 3, 4, 5]).cached, 4);
        assert_eq!(turn(&mut lanes, &[1, 2]).cached, 1);
        assert_eq!(lanes.written(0), 2);
    }

    /// C17
    #[test]
    fn a_side_request_shares_the_system_prompt_and_leaves_the_conversation_alone() {
        let mut lanes = lanes(2, 30);
        let chat: Vec<u32> = (0..20).collect();
        turn(&mut lanes, &chat);
        let side = turn(&mut lanes, &[0, 1, 2, 3, 4, 5, 99]);
        assert_eq!(side, Claim { lane: 1, cached: 4 });
        assert_eq!(turn(&mut lanes, &[&chat[..], &[50]].concat()).cached, 20);
    }

    #[test]
    fn a_page_that_another_lane_reads_is_not_written_again() {
        let mut lanes = lanes(2, 30);
        turn(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let active = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8, 70], 12).unwrap();
        assert_eq!(active, Claim { lane: 0, cached: 8 });
        lanes.commit(0, &[70]);
        let shared = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8, 80], 12).unwrap();
        assert_eq!(shared, Claim { lane: 1, cached: 8 });
        assert_eq!(lanes.table(0, 8), lanes.table(1, 8));
        assert_ne!(lanes.table(0, 9)[2], lanes.table(1, 9)[2]);
        lanes.park(0);
        // Six tokens agree, but the second page is shared with lane 1.
        assert_eq!(claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 60], 7), Some(Claim { lane: 0, cached: 4 }));
        assert_eq!(lanes.table(0, 4), lanes.table(1, 4));
        assert_ne!(lanes.table(0, 8)[1], lanes.table(1, 8)[1]);
    }

    /// S1
    #[test]
    fn a_claim_that_does_not_fit_changes_nothing() {
        let mut lanes = lanes(3, 6);
        turn(&mut lanes, &[1, 2, 3, 4, 5]);
        claim(&mut lanes, &[9; 8], 12).unwrap();
        let before = lanes.stats();
        assert_eq!(claim(&mut lanes, &[1, 2, 3, 4, 5, 6], 16), None);
        assert_eq!(lanes.stats(), before);
        assert_eq!(claim(&mut lanes, &[1, 2, 3, 4, 5, 6], 8), Some(Claim { lane: 0, cached: 5 }));
    }

    #[test]
    fn the_lane_parked_first_gives_up_its_last_pages_first() {
        let mut lanes = lanes(3, 6);
        turn(&mut lanes, &[1, 1, 1, 1, 1, 1, 1, 1]);
        turn(&mut lanes, &[2, 2, 2, 2, 2, 2, 2, 2]);
        claim(&mut lanes, &[3; 10], 12).unwrap();
        assert_eq!((lanes.written(0), lanes.written(1)), (4, 8));
        assert_eq!(lanes.stats().pages_used, 6);
        assert!(lanes.grow(2, 12) && lanes.grow(2, 23));
        assert!(!lanes.grow(2, 24));
        let expected = LaneStats { active: 1, idle: 0, free: 2, high_water: 3, pages_used: 6, pages_total: 6 };
        assert_eq!(lanes.stats(), expected);
    }

    /// L11
    #[test]
    fn a_used_and_emptied_lane_goes_before_a_never_used_one() {
        let mut lanes = lanes(2, 6);
        turn(&mut lanes, &[1, 2]);
        lanes.clear(0);
        assert_eq!(turn(&mut lanes, &[3, 4]).lane, 0);
        assert_eq!(lanes.stats().high_water, 1);
        claim(&mut lanes, &[5], 1).unwrap();
        claim(&mut lanes, &[6], 1).unwrap();
        assert_eq!(claim(&mut lanes, &[7], 1), None);
    }
}
