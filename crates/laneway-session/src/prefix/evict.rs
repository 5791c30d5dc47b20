//! What the cache gives up, and in which order.

use super::{Node, PrefixCache};
use crate::observer::CacheEvent;
use crate::pages::PagePool;

/// Positions at which attention costs about as much as the rest of a token.
const ATTENTION: u64 = 4096;

/// Uses beyond which another does not count.
const HITS: u64 = 7;

impl PrefixCache {
    /// Gives up the page that costs least to compute again for the use it had; false when all are in use.
    pub fn evict(&mut self, pool: &mut PagePool) -> bool {
        let victim = self.leaves.iter().find(|(.., node)| self.is_cold(pool, *node)).copied();
        let Some((rank, _, node)) = victim else {
            return false;
        };
        self.clock = self.clock.max(rank);
        self.evicted += 1;
        self.shorten(pool, node);
        true
    }

    /// Forgets the end of a sequence, as far as `keep` tokens and nobody else uses it.
    pub fn forget(&mut self, pool: &mut PagePool, namespace: u64, tokens: &[u32], keep: usize) {
        loop {
            let mut last = None;
            self.walk(namespace, tokens, |node, common| last = Some((node, common)));
            let Some((node, common)) = last else { return };
            let Node { tokens: own, children, end, .. } = &self.nodes[node];
            if *end <= keep || common < own.len() || !children.is_empty() || !self.is_cold(pool, node) {
                return;
            }
            self.shorten(pool, node);
        }
    }

    /// Forgets everything that is not in use.
    pub fn clear(&mut self, pool: &mut PagePool) {
        while self.evict(pool) {}
        if self.roots.is_empty() {
            self.tell(CacheEvent::Cleared);
        }
    }

    /// Leaves in the order in which they are given up: by cost, age and use, then age, then number.
    ///
    /// Whoever was used after others were given up ranks above them, so that nothing stays for ever for its cost alone.
    pub(super) fn rank(&self, node: usize) -> (u64, u64, usize) {
        let Node { end, pages, hits, since, used, .. } = &self.nodes[node];
        let start = end.saturating_sub(1) / self.page_positions * self.page_positions;
        let tokens = if pages.is_empty() { 0 } else { (end - start) as u64 };
        let cost = tokens * (ATTENTION + *end as u64) * (1 + hits.min(&HITS));
        (since.saturating_add(cost), *used, node)
    }

    fn is_cold(&self, pool: &PagePool, node: usize) -> bool {
        self.nodes[node].pages.last().is_some_and(|page| pool.is_cold(page))
    }

    /// Gives up whole sequences until no more are kept than may be.
    pub(super) fn hold_to_limit(&mut self, pool: &mut PagePool) {
        while self.leaves.len() > self.max_entries {
            let victim = self.leaves.iter().find(|(.., node)| self.is_cold(pool, *node)).copied();
            let Some((rank, _, node)) = victim else { return };
            self.clock = self.clock.max(rank);
            let entries = self.leaves.len();
            while self.leaves.len() == entries && self.is_leaf(node) && self.is_cold(pool, node) {
                self.evicted += 1;
                self.shorten(pool, node);
            }
            if self.leaves.len() == entries && self.is_leaf(node) {
                return;
            }
        }
    }

    fn is_leaf(&self, node: usize) -> bool {
        self.leaves.contains(&self.rank(node))
    }

    /// Gives up the last page of a leaf.
    fn shorten(&mut self, pool: &mut PagePool, node: usize) {
        let count = self.nodes[node].pages.len().saturating_sub(1);
        let whole = count * self.page_positions;
        if whole.is_multiple_of(self.unit) && count > 0 {
            self.cut(pool, node, whole);
            return;
        }
        // The rest of a unit of several pages: what is left of it ends at a block.
        let left = whole - whole % self.grain;
        let own = self.nodes[node].tokens[..left].to_vec();
        let parent = self.nodes[node].parent;
        if own.is_empty() {
            self.remove(pool, node);
            return;
        }
        if own.len() > self.unit {
            self.cut(pool, node, left);
            return;
        }
        let old: Box<[u32]> = self.key(node);
        self.nodes[parent].children.remove(&old);
        if self.fork(parent, &own).is_some_and(|fork| fork.common == own.len()) {
            self.nodes[parent].children.insert(old, node);
            self.remove(pool, node);
            return;
        }
        self.nodes[parent].children.insert(own.into_boxed_slice(), node);
        self.cut(pool, node, left);
    }

    /// Gives up what a leaf has behind its first `left` tokens.
    pub(super) fn cut(&mut self, pool: &mut PagePool, node: usize, left: usize) {
        let was_leaf = self.leaves.remove(&self.rank(node));
        let cut = &mut self.nodes[node];
        cut.end -= cut.tokens.len() - left;
        cut.tokens.truncate(left);
        let whole = left / self.unit * self.unit / self.page_positions;
        let hashes = cut.hashes.split_off(whole.min(cut.hashes.len()));
        for page in cut.pages.drain(left.div_ceil(self.page_positions)..) {
            pool.drop_kept(page);
        }
        if was_leaf {
            self.leaves.insert(self.rank(node));
        }
        if !hashes.is_empty() {
            self.tell(CacheEvent::Removed { hashes: &hashes });
        }
    }

    /// Takes a leaf out of the tree.
    pub(super) fn remove(&mut self, pool: &mut PagePool, node: usize) {
        let (key, parent) = (self.key(node), self.nodes[node].parent);
        self.cut(pool, node, 0);
        self.leaves.remove(&self.rank(node));
        self.nodes[parent].children.remove(&key);
        self.spare.push(node);
        if !self.nodes[parent].children.is_empty() {
            return;
        }
        if self.nodes[parent].parent == usize::MAX {
            self.roots.retain(|_, root| *root != parent);
            self.spare.push(parent);
        } else {
            self.leaves.insert(self.rank(parent));
        }
    }

    /// The place of a node among its siblings.
    fn key(&self, node: usize) -> Box<[u32]> {
        let tokens = &self.nodes[node].tokens;
        tokens[..tokens.len().min(self.unit)].into()
    }
}
