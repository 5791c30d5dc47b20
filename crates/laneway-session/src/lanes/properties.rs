//! Random claims, steps, forks and ends: no page or lane is lost, and every lane reads what belongs to its tokens.

use proptest::prelude::*;

use super::*;
use crate::canvas::{CanvasContext, CanvasLimits, Confidence, Denoising, Noise, Selection, Stop};

const CASES: u32 = 250;

const DENOISING: Denoising = Denoising {
    max_steps: 4,
    t_max: 0.0,
    t_min: 0.0,
    selection: Selection::Schedule(Confidence::Probability),
    stop: Stop::Decided,
};

#[derive(Clone, Debug)]
enum Operation {
    Claim {
        namespace: u64,
        family: u32,
        length: usize,
        more: usize,
        cut: usize,
    },
    Step {
        pick: usize,
        rows: usize,
        fails: bool,
    },
    Grow {
        pick: usize,
    },
    Fork {
        pick: usize,
        more: usize,
    },
    Join {
        pick: usize,
    },
    Park {
        pick: usize,
    },
    Discard {
        pick: usize,
    },
    /// Sequences are looked at while others work.
    Hold {
        namespace: u64,
        family: u32,
        length: usize,
    },
    /// Pages from elsewhere are written, or not.
    Import {
        namespace: u64,
        family: u32,
        length: usize,
        fails: bool,
    },
    GiveBack {
        pick: usize,
    },
    Clear,
}

fn operation() -> impl Strategy<Value = Operation> {
    let pick = || 0_usize..8;
    prop_oneof![
        6 => (0_u64..2, 0_u32..3, 1_usize..40, 0_usize..9, 0_usize..2).prop_map(
            |(namespace, family, length, more, cut)| Operation::Claim { namespace, family, length, more, cut }
        ),
        12 => (pick(), 1_usize..20, prop::bool::weighted(0.1)).prop_map(
            |(pick, rows, fails)| Operation::Step { pick, rows, fails }
        ),
        2 => pick().prop_map(|pick| Operation::Grow { pick }),
        2 => (pick(), 1_usize..9).prop_map(|(pick, more)| Operation::Fork { pick, more }),
        2 => pick().prop_map(|pick| Operation::Join { pick }),
        4 => pick().prop_map(|pick| Operation::Park { pick }),
        1 => pick().prop_map(|pick| Operation::Discard { pick }),
        2 => (0_u64..2, 0_u32..3, 1_usize..40).prop_map(
            |(namespace, family, length)| Operation::Hold { namespace, family, length }
        ),
        3 => (0_u64..2, 0_u32..3, 1_usize..40, any::<bool>()).prop_map(
            |(namespace, family, length, fails)| Operation::Import { namespace, family, length, fails }
        ),
        3 => pick().prop_map(|pick| Operation::GiveBack { pick }),
        1 => Just(Operation::Clear),
    ]
}

/// Tokens of a family agree at first and then more and more rarely.
fn tokens(family: u32, length: usize, salt: u32) -> Vec<u32> {
    (0..length as u32).map(|n| if n < 9 { n % 3 } else { family + (salt >> (n / 5)) % 2 }).collect()
}

struct Held {
    lane: usize,
    tokens: Vec<u32>,
    /// What is written, and what could be encoded.
    written: usize,
}

struct Model {
    lanes: Lanes,
    page: usize,
    grain: usize,
    /// What is in the pages: a hash of everything the position has seen.
    kv: Vec<u64>,
    held: Vec<Held>,
    forks: Vec<(Fork, Vec<u32>)>,
    looked_at: Vec<(crate::lanes::Held, Vec<u32>)>,
    salt: u32,
}

impl Model {
    fn new(lanes: usize, pages: usize, page: usize, grain: usize, max_prefixes: usize) -> Self {
        let canvas = CanvasLimits {
            length: grain,
            vocabulary: 64,
            noise: Noise::Masked { mask: 63 },
            context: CanvasContext::Blocks,
            shift: false,
            is_conditioned: false,
            pad: 0,
            denoising: DENOISING,
        };
        let limits = EngineLimits {
            lanes,
            pages,
            page_positions: page,
            context_length: 64,
            max_rows: 64,
            depth: 1,
            branches: 3,
            row_bytes: 0,
            canvas: (grain > 1).then_some(canvas),
        };
        let config = LaneConfig { max_active: lanes, max_idle: 2, min_prefix_tokens: 2, max_prefixes };
        let kv = vec![0; pages * page];
        Self {
            lanes: Lanes::new(&limits, config),
            page,
            grain,
            kv,
            held: Vec::new(),
            forks: Vec::new(),
            looked_at: Vec::new(),
            salt: 0,
        }
    }

    /// K/V of a position: it has seen its block and all before it.
    fn entry(&self, tokens: &[u32], position: usize) -> u64 {
        let end = (position / self.grain + 1) * self.grain;
        tokens[..end.min(tokens.len())].iter().fold(position as u64, |hash, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        })
    }

    fn slot(&self, table: &[u32], position: usize) -> usize {
        table[position / self.page] as usize * self.page + position % self.page
    }

    fn claim(&mut self, namespace: u64, family: u32, length: usize, more: usize, cut: usize) {
        self.salt = self.salt.wrapping_mul(69069).wrapping_add(12345);
        let tokens = tokens(family, length, self.salt >> 9);
        let before = (self.lanes.stats(), self.lanes.version());
        let reusable = length.saturating_sub(cut);
        let peeked = self.lanes.peek(namespace, &tokens, reusable);
        let Some(claim) = self.lanes.claim(namespace, &tokens, reusable, length + more) else {
            assert_eq!((self.lanes.stats(), self.lanes.version()), before);
            return;
        };
        assert!(claim.cached <= reusable && claim.cached.is_multiple_of(self.grain) && claim.cached <= peeked);
        assert!(self.held.iter().all(|held| held.lane != claim.lane));
        self.held.push(Held { lane: claim.lane, tokens, written: claim.cached });
    }

    fn step(&mut self, pick: usize, rows: usize, fails: bool) {
        let Some(index) = pick.checked_rem(self.held.len()) else { return };
        let Held { lane, tokens, written } = &self.held[index];
        let (lane, from) = (*lane, *written);
        let rows = rows.min(tokens.len() - from);
        let rows = rows - rows % self.grain;
        if let Some(PageCopy { from, to }) = self.lanes.take_copy(lane) {
            let from = from as usize * self.page;
            self.kv.copy_within(from..from + self.page, to as usize * self.page);
        }
        let table = self.lanes.table(lane, from + rows);
        for position in from..from + rows {
            let slot = self.slot(&table, position);
            self.kv[slot] = if fails { 1 } else { self.entry(&self.held[index].tokens, position) };
        }
        if fails {
            self.lanes.failed(lane, from);
            return;
        }
        self.lanes.stepped(lane);
        self.lanes.commit(lane, &self.held[index].tokens[from..from + rows]);
        self.held[index].written += rows;
    }

    fn fork(&mut self, pick: usize, more: usize) {
        let Some(index) = pick.checked_rem(self.held.len()) else { return };
        let Held { lane, tokens, written } = &self.held[index];
        let Some(mut fork) = self.lanes.fork(*lane, *written, written + more) else { return };
        let shared = tokens[..*written].to_vec();
        if let Some(PageCopy { from, to }) = fork.copy.take() {
            let from = from as usize * self.page;
            self.kv.copy_within(from..from + self.page, to as usize * self.page);
        }
        let table = fork.table(shared.len() + more, self.page);
        for position in shared.len()..shared.len() + more {
            let slot = self.slot(&table, position);
            self.kv[slot] = 2;
        }
        self.forks.push((fork, shared));
    }

    fn import(&mut self, namespace: u64, family: u32, length: usize, fails: bool) {
        let length = length - length % self.grain;
        if length == 0 || !self.lanes.is_keepable(length) {
            return;
        }
        self.salt = self.salt.wrapping_mul(69069).wrapping_add(12345);
        let tokens = tokens(family, length, self.salt >> 9);
        let before = self.lanes.stats();
        let Ok(held) = self.lanes.reserve(namespace, &tokens) else {
            assert_eq!(self.lanes.stats(), before);
            return;
        };
        let table: Vec<u32> = (0..held.pages()).map(|page| held.page(page).unwrap()).collect();
        for position in held.shared * self.page..length {
            let slot = self.slot(&table, position);
            self.kv[slot] = if fails { 3 } else { self.entry(&tokens, position) };
        }
        if fails {
            self.lanes.give_back(held);
        } else {
            self.lanes.keep_reserved(namespace, &tokens, held);
        }
    }

    fn check(&self) {
        let stats = self.lanes.stats();
        assert_eq!(stats.high_water, stats.active + stats.idle + stats.free);
        assert_eq!(stats.active, self.held.len());
        let (idle, free) = (&self.lanes.idle, &self.lanes.free);
        let mut all: Vec<usize> =
            self.held.iter().map(|held| held.lane).chain(idle.iter().chain(free).copied()).collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..stats.high_water), "{all:?}");
        self.lanes.cache.check(&self.lanes.pool);
        // Over the limit are only sequences that lanes and branches held when the last one was added.
        let held = 2 * self.lanes.lanes.len() + 3 + self.looked_at.len();
        assert!(stats.pages_cached <= stats.pages_used && stats.prefixes <= self.lanes.config.max_prefixes + held);
        for held in &self.held {
            assert_eq!(self.lanes.written(held.lane), held.written);
            // A page that is still to be copied holds nothing yet.
            let pending = self.lanes.lanes[held.lane].source.is_some();
            let end = if pending { held.written / self.page * self.page } else { held.written };
            self.check_kv(&self.lanes.table(held.lane, held.written), &held.tokens[..held.written], end);
        }
        for (held, tokens) in &self.looked_at {
            let table: Vec<u32> = (0..held.pages()).map(|page| held.page(page).unwrap()).collect();
            self.check_kv(&table, &tokens[..held.tokens], held.tokens);
        }
        for (fork, shared) in &self.forks {
            self.check_kv(&fork.table(shared.len(), self.page), shared, shared.len());
        }
    }

    fn check_kv(&self, table: &[u32], tokens: &[u32], end: usize) {
        for position in 0..end {
            assert_eq!(self.kv[self.slot(table, position)], self.entry(tokens, position), "position {position}");
        }
    }

    fn act(&mut self, operation: Operation) {
        match operation {
            Operation::Claim { namespace, family, length, more, cut } => {
                self.claim(namespace, family, length, more, cut);
            }
            Operation::Step { pick, rows, fails } => self.step(pick, rows, fails),
            Operation::Grow { pick } if !self.held.is_empty() => {
                let held = &self.held[pick % self.held.len()];
                self.lanes.grow(held.lane, held.tokens.len());
            }
            Operation::Fork { pick, more } => self.fork(pick, more),
            Operation::Join { pick } if !self.forks.is_empty() => {
                let (fork, _) = self.forks.swap_remove(pick % self.forks.len());
                self.lanes.join(fork);
            }
            Operation::Park { pick } if !self.held.is_empty() => {
                let held = self.held.swap_remove(pick % self.held.len());
                self.lanes.park(held.lane, 0);
            }
            Operation::Discard { pick } if !self.held.is_empty() => {
                let held = self.held.swap_remove(pick % self.held.len());
                self.lanes.discard(held.lane);
            }
            Operation::Hold { namespace, family, length } => {
                self.salt = self.salt.wrapping_mul(69069).wrapping_add(12345);
                let tokens = tokens(family, length, self.salt >> 9);
                let held = self.lanes.hold(namespace, &tokens);
                self.looked_at.push((held, tokens));
            }
            Operation::Import { namespace, family, length, fails } => self.import(namespace, family, length, fails),
            Operation::GiveBack { pick } if !self.looked_at.is_empty() => {
                let (held, _) = self.looked_at.swap_remove(pick % self.looked_at.len());
                self.lanes.give_back(held);
            }
            Operation::Clear => self.lanes.clear_cache(),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() })]

    /// L1, L2, L43, L46, L47, L51, L99, L102, L103, L104: 250 cases of 80 to 120 operations, 20 000 at least.
    #[test]
    fn pages_and_lanes_are_conserved_and_hold_what_they_should(
        lanes in 1_usize..5,
        pages in 6_usize..40,
        page in 2_usize..6,
        grain in prop_oneof![3 => Just(1_usize), 2 => 2_usize..7],
        max_prefixes in prop_oneof![Just(4096_usize), Just(3), Just(0)],
        operations in prop::collection::vec(operation(), 80..120),
    ) {
        let mut model = Model::new(lanes, pages, page, grain, max_prefixes);
        for operation in operations {
            model.act(operation);
            model.check();
        }
        while !model.held.is_empty() {
            model.act(Operation::Park { pick: 0 });
            model.check();
        }
        while !model.looked_at.is_empty() {
            model.act(Operation::GiveBack { pick: 0 });
        }
        while !model.forks.is_empty() {
            model.act(Operation::Join { pick: 0 });
        }
        // Whatever is kept can be given up for one who needs everything.
        let stats = model.lanes.stats();
        prop_assert_eq!(stats.pages_cached, stats.pages_used);
        let all = model.lanes.claim(9, &[7], 1, pages * page);
        prop_assert!(all.is_some());
        model.lanes.park(all.unwrap().lane, 0);
        model.lanes.clear_cache();
        prop_assert_eq!((model.lanes.stats().pages_used, model.lanes.stats().prefixes), (0, 0));
    }
}
