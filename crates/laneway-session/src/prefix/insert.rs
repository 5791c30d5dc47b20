//! Keeping a sequence.

use std::collections::BTreeMap;

use super::{Fork, Node, PrefixCache};
use crate::observer::CacheEvent;
use crate::pages::{Page, PagePool};

/// A sequence on its way into the tree.
struct Path<'a> {
    namespace: u64,
    tokens: &'a [u32],
    /// Its pages; where the tree holds the same already, they are exchanged for those.
    pages: &'a mut [Page],
}

impl PrefixCache {
    /// Keeps the pages of `tokens`, which end at a block of the model, and exchanges those of whole units that are kept
    /// already; the sequence may end within a unit only if nothing will be written behind it.
    ///
    /// One that is too short is not kept.
    pub fn insert(&mut self, pool: &mut PagePool, namespace: u64, tokens: &[u32], pages: &mut [Page]) {
        if tokens.is_empty() || tokens.len() < self.min_tokens || self.max_entries == 0 {
            return;
        }
        self.tick += 1;
        let root = match self.roots.get(&namespace) {
            Some(root) => *root,
            None => {
                let root = self.add(Node::new(usize::MAX, 0));
                self.roots.insert(namespace, root);
                root
            }
        };
        let mut path = Path { namespace, tokens, pages };
        let end = self.place(pool, root, &mut path);
        self.use_node(end, 0);
        self.hold_to_limit(pool);
    }

    /// Adds what is not in the tree; returns the node where the sequence ends.
    fn place(&mut self, pool: &mut PagePool, root: usize, path: &mut Path<'_>) -> usize {
        let (mut node, mut at) = (root, 0);
        loop {
            let rest = &path.tokens[at..];
            if rest.is_empty() {
                return node;
            }
            let Some(Fork { child, common }) = self.fork(node, rest) else {
                return self.append(pool, node, path, at);
            };
            let (len, is_covered) = (self.nodes[child].tokens.len(), common == rest.len());
            let whole = common - common % self.unit;
            self.exchange(pool, child, path, at, whole);
            match (whole, common == len) {
                _ if is_covered => return child,
                // A partly filled unit that is part of a fuller one.
                (0, true) => {
                    let leaf = self.append(pool, node, path, at);
                    self.remove(pool, child);
                    return leaf;
                }
                (0, false) => return self.append(pool, node, path, at),
                (_, true) if self.nodes[child].children.is_empty() => {
                    self.cut(pool, child, whole);
                    self.extend(pool, child, path, at + whole);
                    return child;
                }
                (_, true) => (node, at) = (child, at + whole),
                (_, false) => (node, at) = (self.split(child, whole), at + whole),
            }
        }
    }

    /// Exchanges the sequence's pages of a node's first `whole` tokens.
    fn exchange(&mut self, pool: &mut PagePool, node: usize, path: &mut Path<'_>, at: usize, whole: usize) {
        let first = at / self.page_positions;
        for (index, kept) in self.nodes[node].pages[..whole / self.page_positions].iter().enumerate() {
            let own = &mut path.pages[first + index];
            if own != kept {
                let duplicate = std::mem::replace(own, pool.retain(kept));
                pool.release(duplicate);
            }
        }
    }

    /// A new leaf for the tokens from `at` on.
    fn append(&mut self, pool: &mut PagePool, parent: usize, path: &Path<'_>, at: usize) -> usize {
        let rest = &path.tokens[at..];
        let leaf = self.add(Node::new(parent, at));
        let key = rest[..rest.len().min(self.unit)].into();
        self.leaves.remove(&self.rank(parent));
        self.nodes[parent].children.insert(key, leaf);
        self.leaves.insert(self.rank(leaf));
        self.extend(pool, leaf, path, at);
        leaf
    }

    /// Adds the tokens from `at` on to a leaf that ends there.
    fn extend(&mut self, pool: &mut PagePool, leaf: usize, path: &Path<'_>, at: usize) {
        self.leaves.remove(&self.rank(leaf));
        let rest = &path.tokens[at..];
        let node = &mut self.nodes[leaf];
        let had = node.hashes.len();
        node.tokens.extend_from_slice(rest);
        node.end += rest.len();
        node.pages.extend(path.pages[at / self.page_positions..].iter().map(|page| pool.keep(page)));
        let parent = node.hashes.last().copied().or_else(|| self.last_hash(self.nodes[leaf].parent));
        let mut last = parent;
        for unit in rest.chunks_exact(self.unit) {
            let salt = if self.unit == self.page_positions { 0 } else { unit.iter().fold(1, fold) };
            for page in unit.chunks_exact(self.page_positions) {
                let hash = page.iter().fold(last.unwrap_or(path.namespace) ^ salt, fold);
                self.nodes[leaf].hashes.push(hash);
                last = Some(hash);
            }
        }
        self.leaves.insert(self.rank(leaf));
        let hashes = &self.nodes[leaf].hashes[had..];
        if !hashes.is_empty() {
            let tokens = &rest[..hashes.len() * self.page_positions];
            self.tell(CacheEvent::Stored { hashes, parent, tokens, page_positions: self.page_positions });
        }
    }

    /// The hash of the last page that leads to the end of a node.
    fn last_hash(&self, node: usize) -> Option<u64> {
        self.nodes[node].hashes.last().copied()
    }

    /// Cuts a node in two; returns the first, with `whole` tokens.
    fn split(&mut self, node: usize, whole: usize) -> usize {
        self.leaves.remove(&self.rank(node));
        let pages = whole / self.page_positions;
        let parent = self.nodes[node].parent;
        let start = self.nodes[node].end - self.nodes[node].tokens.len();
        let first = self.add(Node::new(parent, start));
        let second = &mut self.nodes[node];
        let (key, second_key) = (&second.tokens[..self.unit], &second.tokens[whole..]);
        let key: Box<[u32]> = key.into();
        let second_key = second_key[..second_key.len().min(self.unit)].into();
        let rest = second.tokens.split_off(whole);
        let tokens = std::mem::replace(&mut second.tokens, rest);
        let rest = second.pages.split_off(pages);
        let taken = std::mem::replace(&mut second.pages, rest);
        let rest = second.hashes.split_off(pages);
        let hashes = std::mem::replace(&mut second.hashes, rest);
        let (hits, since, used) = (second.hits, second.since, second.used);
        second.parent = first;
        let end = start + whole;
        let children = BTreeMap::from([(second_key, node)]);
        self.nodes[first] = Node { parent, tokens, pages: taken, hashes, children, end, hits, since, used };
        self.nodes[parent].children.insert(key, first);
        if self.nodes[node].children.is_empty() {
            self.leaves.insert(self.rank(node));
        }
        first
    }

    fn add(&mut self, node: Node) -> usize {
        let node = Node { since: self.clock, used: self.tick, ..node };
        match self.spare.pop() {
            Some(index) => {
                self.nodes[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }
}

impl Node {
    pub(super) fn new(parent: usize, end: usize) -> Self {
        Self {
            parent,
            tokens: Vec::new(),
            pages: Vec::new(),
            hashes: Vec::new(),
            children: BTreeMap::new(),
            end,
            hits: 0,
            since: 0,
            used: 0,
        }
    }
}

/// One more token in a hash; part of what routers compare, so it stays as it is.
fn fold(hash: u64, token: &u32) -> u64 {
    let mixed = (hash ^ u64::from(*token)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}
