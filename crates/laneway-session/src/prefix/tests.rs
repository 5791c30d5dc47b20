use std::sync::Mutex;

use super::*;
use crate::pages::PagePool;

impl PrefixCache {
    /// Every rule of the tree.
    pub fn check(&self, pool: &PagePool) {
        let mut live: Vec<usize> = self.roots.values().copied().collect();
        let mut leaves = 0;
        let mut at = 0;
        while let Some(&node) = live.get(at) {
            at += 1;
            let Node { parent, tokens, pages, hashes, children, end, .. } = &self.nodes[node];
            let is_root = *parent == usize::MAX;
            assert_eq!(tokens.is_empty(), is_root);
            assert_eq!(pages.len(), tokens.len().div_ceil(self.page_positions));
            assert_eq!(hashes.len(), tokens.len() / self.unit * self.unit / self.page_positions);
            assert_eq!(*end, tokens.len() + if is_root { 0 } else { self.nodes[*parent].end });
            assert!(tokens.len().is_multiple_of(self.grain));
            assert!(children.is_empty() || tokens.len().is_multiple_of(self.unit));
            assert_eq!(self.leaves.contains(&self.rank(node)), children.is_empty());
            assert!(!is_root || !children.is_empty());
            leaves += usize::from(children.is_empty());
            let keys: Vec<&Box<[u32]>> = children.keys().collect();
            assert!(keys.windows(2).all(|pair| !pair[1].starts_with(pair[0])), "{keys:?}");
            for (key, child) in children {
                let own = &self.nodes[*child].tokens;
                assert_eq!((&key[..], self.nodes[*child].parent), (&own[..own.len().min(self.unit)], node));
                // Who holds a page holds those before it.
                if self.nodes[*child].pages.iter().any(|page| !pool.is_cold(page)) {
                    assert!(pages.iter().all(|page| !pool.is_cold(page)));
                }
                live.push(*child);
            }
        }
        assert_eq!((self.leaves.len(), live.len() + self.spare.len()), (leaves, self.nodes.len()));
    }
}

struct Bench {
    cache: PrefixCache,
    pool: PagePool,
}

impl Bench {
    fn new(pages: usize, max_entries: usize) -> Self {
        Self { cache: PrefixCache::new(4, 1, 2, max_entries), pool: PagePool::new(pages) }
    }

    fn keep_in(&mut self, namespace: u64, tokens: &[u32]) {
        let count = tokens.len().div_ceil(4);
        let mut pages: Vec<Page> = (0..count).map(|_| self.pool.alloc().unwrap()).collect();
        self.cache.insert(&mut self.pool, namespace, tokens, &mut pages);
        pages.into_iter().for_each(|page| self.pool.release(page));
        self.cache.check(&self.pool);
    }

    fn keep(&mut self, tokens: &[u32]) {
        self.keep_in(0, tokens);
    }

    fn evict(&mut self) -> bool {
        let evicted = self.cache.evict(&mut self.pool);
        self.cache.check(&self.pool);
        evicted
    }

    fn used(&self) -> usize {
        self.pool.capacity() - self.pool.available()
    }
}

/// L99, L100
#[test]
fn the_longest_common_prefix_is_found_also_of_a_longer_sequence() {
    let mut bench = Bench::new(30, 9);
    bench.keep(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    bench.keep(&[1, 2, 3, 4, 5, 6, 70, 71, 72]);
    bench.keep(&[1, 2, 60]);
    for (tokens, common) in [
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11][..], 10),
        (&[1, 2, 3, 4, 5, 6, 7], 7),
        (&[1, 2, 3, 4, 5, 6, 70, 71, 72, 73], 9),
        (&[1, 2, 3, 4, 5, 6, 99], 6),
        (&[1, 2, 60, 61], 3),
        (&[1, 2], 2),
        (&[2], 0),
        (&[], 0),
    ] {
        assert_eq!(bench.cache.peek(0, tokens), common, "{tokens:?}");
        let (found, pages) = bench.cache.find(0, tokens);
        assert_eq!((found, pages.len()), (common, common.div_ceil(4)));
    }
    // The first page is kept once: 1 + 2 and 2 and 1 more.
    assert_eq!((bench.used(), bench.cache.entries()), (6, 3));
}

/// L101
#[test]
fn what_is_kept_already_or_too_short_takes_no_page() {
    let mut bench = Bench::new(30, 9);
    bench.keep(&[1, 2, 3, 4, 5, 6]);
    for tokens in [&[1, 2, 3, 4, 5, 6][..], &[1, 2, 3], &[1, 2, 3, 4], &[7]] {
        bench.keep(tokens);
        assert_eq!((bench.used(), bench.cache.entries()), (2, 1), "{tokens:?}");
    }
    // A conversation that goes on is one sequence.
    bench.keep(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((bench.used(), bench.cache.entries()), (3, 1));
}

/// L97: namespaces see nothing of each other.
#[test]
fn namespaces_are_kept_apart() {
    let mut bench = Bench::new(30, 9);
    bench.keep_in(1, &[1, 2, 3, 4, 5]);
    assert_eq!((bench.cache.peek(1, &[1, 2, 3]), bench.cache.peek(0, &[1, 2, 3])), (3, 0));
    bench.keep_in(2, &[1, 2, 3, 4, 5]);
    assert_eq!(bench.used(), 4);
}

/// L99: looking changes nothing, using does.
#[test]
fn peeking_saves_nothing_from_eviction_and_touching_does() {
    let mut bench = Bench::new(30, 9);
    bench.keep(&[1, 1, 1, 1]);
    bench.keep(&[2, 2, 2, 2]);
    bench.cache.peek(0, &[1; 4]);
    bench.cache.find(0, &[1; 4]);
    assert!(bench.evict());
    assert_eq!((bench.cache.peek(0, &[1; 4]), bench.cache.peek(0, &[2; 4])), (0, 4));
    bench.keep(&[1, 1, 1, 1]);
    bench.cache.touch(0, &[2; 4]);
    assert!(bench.evict());
    assert_eq!((bench.cache.peek(0, &[1; 4]), bench.cache.peek(0, &[2; 4])), (0, 4));
}

/// L102
#[test]
fn a_cheap_new_sequence_goes_before_an_expensive_old_one() {
    let mut bench = Bench::new(3000, 99);
    let long: Vec<u32> = (0..8000).collect();
    bench.keep(&long);
    bench.keep(&[9000, 1, 2, 3]);
    assert!(bench.evict());
    assert_eq!((bench.cache.peek(0, &long), bench.cache.peek(0, &[9000, 1, 2, 3])), (8000, 0));
    // The page with fewest tokens costs least.
    bench.keep(&[9000, 1, 2, 3]);
    bench.keep(&[9001, 1, 2, 3, 4]);
    assert!(bench.evict());
    assert_eq!((bench.cache.peek(0, &[9000, 1, 2, 3]), bench.cache.peek(0, &[9001, 1, 2, 3, 4])), (4, 4));
}

/// No cost keeps what is never used.
#[test]
fn an_expensive_sequence_that_nobody_uses_goes_in_the_end() {
    let mut bench = Bench::new(3000, 99);
    let long: Vec<u32> = (0..8000).collect();
    bench.keep(&long);
    let mut rounds = 0;
    while bench.cache.peek(0, &long) == 8000 {
        rounds += 1;
        bench.keep(&[9000 + rounds, 1, 2, 3]);
        assert!(bench.evict());
        assert!(rounds < 100);
    }
    assert!(rounds > 1);
}

/// L102: pages in use are no victims, those that only other sequences lead to are.
#[test]
fn what_somebody_holds_is_not_given_up() {
    let mut bench = Bench::new(30, 9);
    bench.keep(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let held: Vec<Page> = {
        let (_, pages) = bench.cache.find(0, &[1, 2, 3, 4, 5, 6]);
        pages.into_iter().map(|page| bench.pool.retain(page)).collect()
    };
    assert_eq!((bench.used(), bench.pool.cold()), (3, 1));
    assert!(bench.evict());
    assert!(!bench.evict());
    assert_eq!((bench.used(), bench.cache.peek(0, &[1, 2, 3, 4, 5, 6, 7, 8])), (2, 8));
    held.into_iter().for_each(|page| bench.pool.release(page));
    assert!(bench.evict() && bench.evict() && !bench.evict());
    assert_eq!((bench.used(), bench.cache.entries()), (0, 0));
}

/// L101
#[test]
fn no_more_sequences_are_kept_than_may_be() {
    let mut bench = Bench::new(99, 3);
    for n in 0..10 {
        bench.keep(&[n, 1, 2, 3, 4, 5]);
        assert_eq!(bench.cache.entries(), 3.min(n as usize + 1));
    }
    assert_eq!(bench.used(), 6);
    assert_eq!([6, 7, 8, 9].map(|n| bench.cache.peek(0, &[n, 1, 2, 3, 4, 5])), [0, 6, 6, 6]);
    assert!(bench.cache.evicted() == 14);
}

/// The exact bound, also where blocks are longer than pages.
#[test]
fn sequences_part_where_a_page_and_a_block_end() {
    for (page, grain, unit) in [(4, 1, 4), (4, 6, 12), (16, 32, 32), (16, 4, 16), (5, 7, 35)] {
        assert_eq!(PrefixCache::new(page, grain, 1, 1).unit(), unit);
    }
}

#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Observer for Log {
    fn cache(&self, event: CacheEvent<'_>) {
        self.0.lock().unwrap().push(match event {
            CacheEvent::Stored { hashes, parent, tokens, page_positions } => {
                assert_eq!(tokens.len(), hashes.len() * page_positions);
                format!("stored {hashes:x?} {parent:x?} {tokens:?}")
            }
            CacheEvent::Removed { hashes } => format!("removed {hashes:x?}"),
            CacheEvent::Cleared => "cleared".to_owned(),
        });
    }
}

/// L107: whole pages only, with the hash of everything up to their end; equal ones have equal hashes.
#[test]
fn pages_are_announced_with_chained_hashes() {
    let log = Arc::new(Log::default());
    let mut bench = Bench::new(30, 9);
    bench.cache.observe(log.clone());
    bench.keep(&[1, 2, 3]);
    bench.keep(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    bench.keep(&[1, 2, 3, 4, 6, 6, 6, 6]);
    bench.keep_in(5, &[1, 2, 3, 4]);
    while bench.evict() {}
    bench.cache.clear(&mut bench.pool);
    let told = std::mem::take(&mut *log.0.lock().unwrap());
    let [first, second, third, fourth] = [&told[0], &told[1], &told[2], &told[3]];
    let hash = |event: &str, n: usize| event.split(['[', ']', ',']).nth(n).unwrap().trim().to_owned();
    let [a, b, c, d] = [hash(first, 1), hash(first, 2), hash(second, 1), hash(third, 1)];
    assert_eq!(*first, format!("stored [{a}, {b}] None [1, 2, 3, 4, 5, 6, 7, 8]"));
    assert_eq!(*second, format!("stored [{c}] Some({a}) [6, 6, 6, 6]"));
    assert_eq!(*third, format!("stored [{d}] None [1, 2, 3, 4]"));
    assert!(a != b && b != c && a != d, "{told:?}");
    assert!(fourth.starts_with("removed"));
    let mut removed: Vec<String> = told[3..7].iter().map(|event| hash(event, 1)).collect();
    let mut all = vec![a, b, c, d];
    removed.sort();
    all.sort();
    assert_eq!((removed, told[7].as_str(), told.len()), (all, "cleared", 8));
}
