use std::cmp::Reverse;
use std::collections::BinaryHeap;

const END: u32 = u32::MAX;

/// A run of bytes that is at present one token (or a byte without a token).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    /// `None` for text that has no token and so never merges.
    pub(crate) id: Option<u32>,
    /// Offset of the first byte in the text being merged.
    pub(crate) start: u32,
    /// Bytes; 0 once it has been joined to its left neighbour.
    pub(crate) len: u32,
    prev: u32,
    next: u32,
}

/// What joining two neighbours gives: lower priorities go first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Join {
    pub(crate) priority: u32,
    pub(crate) id: u32,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    len: u32,
    id: u32,
}

/// Joins neighbours, best pair first and leftmost on ties, in O(n log n).
///
/// The buffers are kept between words.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends a symbol of `len` bytes. The caller keeps texts below `u32::MAX` bytes.
    pub(crate) fn push(&mut self, id: Option<u32>, len: u32) {
        let index = self.symbols.len() as u32;
        let (start, prev) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = index;
                (last.start + last.len, index - 1)
            }
            None => (0, END),
        };
        self.symbols.push(Symbol { id, start, len, prev, next: END });
    }

    /// Merges until no pair joins, then calls `emit` for each remaining symbol in order.
    pub(crate) fn run(&mut self, join: impl Fn(&Symbol, &Symbol) -> Option<Join>, mut emit: impl FnMut(&Symbol)) {
        for left in 0..self.symbols.len() as u32 {
            self.consider(left, &join);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            self.apply(candidate, &join);
        }
        self.symbols.iter().filter(|s| s.len > 0).for_each(&mut emit);
    }

    fn apply(&mut self, candidate: Candidate, join: &impl Fn(&Symbol, &Symbol) -> Option<Join>) {
        let left = self.symbols[candidate.left as usize];
        if left.len == 0 || left.next == END {
            return;
        }
        let right = self.symbols[left.next as usize];
        // Symbols only grow, so an equal total length means that neither side has changed.
        if left.len + right.len != candidate.len {
            return;
        }
        self.symbols[left.next as usize].len = 0;
        if right.next != END {
            self.symbols[right.next as usize].prev = candidate.left;
        }
        let merged = &mut self.symbols[candidate.left as usize];
        merged.id = Some(candidate.id);
        merged.len = candidate.len;
        merged.next = right.next;
        self.consider(left.prev, join);
        self.consider(candidate.left, join);
    }

    fn consider(&mut self, left: u32, join: &impl Fn(&Symbol, &Symbol) -> Option<Join>) {
        if left == END {
            return;
        }
        let first = &self.symbols[left as usize];
        if first.next == END {
            return;
        }
        let second = &self.symbols[first.next as usize];
        if let Some(Join { priority, id }) = join(first, second) {
            let len = first.len + second.len;
            self.queue.push(Reverse(Candidate { priority, left, len, id }));
        }
    }
}

/// The longest text merged as one; longer ones are cut so that offsets fit 32 bits.
const MAX_FRAGMENT_BYTES: usize = 1 << 28;

/// Cuts `text` into pieces short enough for [`Merger`], at character borders.
pub(crate) fn bounded_pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, tail) = rest.split_at(rest.floor_char_boundary(MAX_FRAGMENT_BYTES));
        rest = tail;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(ids: &[u32], join: impl Fn(u32, u32) -> Option<Join>) -> Vec<Option<u32>> {
        let mut merger = Merger::default();
        for &id in ids {
            merger.push(Some(id), 1);
        }
        let mut out = Vec::new();
        merger.run(|a, b| join(a.id?, b.id?), |s| out.push(s.id));
        out
    }

    #[test]
    fn the_best_pair_goes_first_and_ties_go_left() {
        let join = |a, b| match (a, b) {
            (1, 1) => Some(Join { priority: 5, id: 2 }),
            (1, 3) => Some(Join { priority: 1, id: 4 }),
            _ => None,
        };
        assert_eq!(merged(&[1, 1, 1], join), [Some(2), Some(1)]);
        assert_eq!(merged(&[1, 1, 3], join), [Some(1), Some(4)]);
    }

    #[test]
    fn a_long_run_merges_completely() {
        let join = |a: u32, b: u32| (a == b && a < 20).then(|| Join { priority: a, id: a + 1 });
        assert_eq!(merged(&vec![0; 1 << 20], join), [Some(20)]);
    }

    #[test]
    fn bounded_pieces_cover_the_text() {
        assert_eq!(bounded_pieces("aé").collect::<Vec<_>>(), ["aé"]);
        assert_eq!(bounded_pieces("").count(), 0);
    }
}
