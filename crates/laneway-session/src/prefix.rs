//! The prefix cache: which token sequences have their K/V in which pages, after the turns that computed them.
//!
//! A compressed radix tree over token ids, one for each namespace. A page belongs to a whole path of tokens, so edges
//! branch only where a page and a block of the model end together; what is left of a sequence behind its last such
//! place is a leaf of its own. A page that somebody else refers to stays, and so does everything before it: whoever
//! holds a page of the tree holds all pages that lead to it.

mod evict;
mod insert;
mod list;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::observer::{CacheEvent, Observer};
use crate::pages::Page;

/// Where a path is looked up and kept.
#[derive(Debug)]
struct Node {
    parent: usize,
    /// Tokens from the end of the parent.
    tokens: Vec<u32>,
    /// The pages of those tokens; the last one may be partly filled.
    pages: Vec<Page>,
    /// Chained hashes of whole pages in whole units.
    hashes: Vec<u64>,
    /// By their first unit of tokens; none begins with another.
    children: BTreeMap<Box<[u32]>, usize>,
    /// Tokens from the root to the end.
    end: usize,
    hits: u64,
    /// The cache's clock when it was used last.
    since: u64,
    used: u64,
}

/// The end of a common prefix in the tree.
struct Fork {
    child: usize,
    /// Leading tokens of the child that agree.
    common: usize,
}

pub(crate) struct PrefixCache {
    nodes: Vec<Node>,
    spare: Vec<usize>,
    roots: BTreeMap<u64, usize>,
    /// Nodes without children, the next victim first.
    leaves: BTreeSet<(u64, u64, usize)>,
    page_positions: usize,
    /// Positions whose K/V can only be reused together.
    grain: usize,
    /// Positions after which sequences can part.
    unit: usize,
    max_entries: usize,
    /// Shorter sequences are neither kept nor found.
    min_tokens: usize,
    /// The rank of the last victim: whoever is used now ranks above all that were not used since.
    clock: u64,
    tick: u64,
    evicted: u64,
    observer: Option<Arc<dyn Observer>>,
}

impl PrefixCache {
    /// An empty cache for pages of `page_positions` and blocks of `grain`.
    pub fn new(page_positions: usize, grain: usize, min_tokens: usize, max_entries: usize) -> Self {
        let unit = (page_positions / gcd(page_positions, grain)).saturating_mul(grain);
        Self {
            nodes: Vec::new(),
            spare: Vec::new(),
            roots: BTreeMap::new(),
            leaves: BTreeSet::new(),
            page_positions,
            grain,
            unit,
            max_entries,
            min_tokens,
            clock: 0,
            tick: 0,
            evicted: 0,
            observer: None,
        }
    }

    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Positions after which sequences can part.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Sequences that are kept, each with all that leads to it.
    pub fn entries(&self) -> usize {
        self.leaves.len()
    }

    /// Pages given up for want of room since the beginning.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// How many leading tokens are kept; changes nothing.
    pub fn peek(&self, namespace: u64, tokens: &[u32]) -> usize {
        self.walk(namespace, tokens, |_, _| {})
    }

    /// The same with the pages, the last of which may be partly used.
    pub fn find(&self, namespace: u64, tokens: &[u32]) -> (usize, Vec<&Page>) {
        let mut pages = Vec::new();
        let common = self.walk(namespace, tokens, |node, common| {
            let count = common.div_ceil(self.page_positions);
            pages.extend(self.nodes[node].pages.iter().take(count));
        });
        (common, pages)
    }

    /// Marks a prefix as used.
    pub fn touch(&mut self, namespace: u64, tokens: &[u32]) {
        self.tick += 1;
        let mut path = Vec::new();
        self.walk(namespace, tokens, |node, _| path.push(node));
        for node in path {
            self.use_node(node, 1);
        }
    }

    fn use_node(&mut self, node: usize, hits: u64) {
        let was_leaf = self.leaves.remove(&self.rank(node));
        let (clock, tick) = (self.clock, self.tick);
        let used = &mut self.nodes[node];
        (used.hits, used.since, used.used) = (used.hits.saturating_add(hits), clock, tick);
        if was_leaf {
            self.leaves.insert(self.rank(node));
        }
    }

    /// Visits the nodes that agree with `tokens`, with the number of their tokens that do.
    fn walk(&self, namespace: u64, tokens: &[u32], mut visit: impl FnMut(usize, usize)) -> usize {
        let Some(mut node) = self.roots.get(&namespace).copied() else {
            return 0;
        };
        let mut at = 0;
        while let Some(Fork { child, common }) = self.fork(node, &tokens[at..]) {
            visit(child, common);
            at += common;
            if common < self.nodes[child].tokens.len() || !common.is_multiple_of(self.unit) {
                break;
            }
            node = child;
        }
        at
    }

    /// The child that has most leading tokens in common with `rest`, if one has any.
    fn fork(&self, node: usize, rest: &[u32]) -> Option<Fork> {
        let children = &self.nodes[node].children;
        let key = &rest[..rest.len().min(self.unit)];
        // Among sorted sequences the neighbours of a place agree most with what belongs there.
        let before = children.range::<[u32], _>((Unbounded, Included(key))).next_back();
        let after = children.range::<[u32], _>((Excluded(key), Unbounded)).next();
        let forks = [before, after].into_iter().flatten();
        let forks = forks.map(|(_, &child)| Fork { child, common: common(&self.nodes[child].tokens, rest) });
        forks.filter(|fork| fork.common > 0).max_by_key(|fork| fork.common)
    }

    fn tell(&self, event: CacheEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer.cache(event);
        }
    }
}

/// Leading items that agree.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
