use std::sync::Mutex;

use super::*;

const CONFIG: LaneConfig =
    LaneConfig { max_active: usize::MAX, max_idle: usize::MAX, min_prefix_tokens: 1, max_prefixes: 4096 };

fn lanes_with(lanes: usize, pages: usize, config: LaneConfig) -> Lanes {
    let limits = EngineLimits {
        lanes,
        pages,
        page_positions: 4,
        context_length: 64,
        max_rows: 8,
        depth: 1,
        branches: 2,
        row_bytes: 0,
        canvas: None,
    };
    Lanes::new(&limits, config)
}

fn lanes(lanes: usize, pages: usize) -> Lanes {
    lanes_with(lanes, pages, CONFIG)
}

/// A claim that leaves a token to compute.
fn claim(lanes: &mut Lanes, tokens: &[u32], positions: usize) -> Option<Claim> {
    lanes.claim(0, tokens, tokens.len() - 1, positions)
}

/// Runs a turn that writes `tokens` and ends.
fn turn(lanes: &mut Lanes, tokens: &[u32]) -> Claim {
    let claim = claim(lanes, tokens, tokens.len()).unwrap();
    lanes.commit(claim.lane, &tokens[claim.cached..]);
    lanes.park(claim.lane, 0);
    claim
}

#[test]
fn every_earlier_sequence_is_reused_on_any_lane() {
    let mut lanes = lanes(3, 30);
    turn(&mut lanes, &[1, 2, 3, 4, 5, 6]);
    turn(&mut lanes, &[9, 8, 7, 6, 5, 4]);
    assert_eq!(turn(&mut lanes, &[1, 2, 3, 4, 5, 6, 7]), Claim { lane: 0, cached: 6 });
    assert_eq!(turn(&mut lanes, &[9, 8, 7, 6, 5, 4, 3]), Claim { lane: 0, cached: 6 });
    assert_eq!(lanes.stats().prefixes, 2);
}

/// At least one prompt token is computed, so that there are logits to sample.
#[test]
fn a_repeated_prompt_leaves_one_token_to_compute() {
    let mut lanes = lanes(1, 30);
    turn(&mut lanes, &[1, 2, 3, 4, 5]);
    assert_eq!(turn(&mut lanes, &[1, 2, 3, 4, 5]).cached, 4);
    assert_eq!(turn(&mut lanes, &[1, 2]).cached, 1);
    assert_eq!(lanes.stats().pages_used, 2);
}

/// C17, C20, G46
#[test]
fn a_side_request_and_a_regenerated_answer_leave_the_conversation_alone() {
    let mut lanes = lanes(2, 30);
    let chat: Vec<u32> = (0..20).collect();
    turn(&mut lanes, &chat);
    assert_eq!(turn(&mut lanes, &[0, 1, 2, 3, 4, 5, 99]).cached, 6);
    assert_eq!(turn(&mut lanes, &chat[..14]).cached, 13);
    assert_eq!(turn(&mut lanes, &[&chat[..14], &[70, 71, 72]].concat()).cached, 14);
    assert_eq!(turn(&mut lanes, &[&chat[..], &[50]].concat()).cached, 20);
}

/// L69, L70: shared pages are the same, and what goes on differently is in pages of its own.
#[test]
fn whole_pages_of_an_active_lane_are_shared_and_a_partly_used_one_is_copied() {
    let mut lanes = lanes(2, 30);
    let first = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 12).unwrap();
    lanes.commit(first.lane, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let second = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 60, 61], 12).unwrap();
    assert_eq!(second, Claim { lane: 1, cached: 6 });
    let (a, b) = (lanes.table(0, 9), lanes.table(1, 9));
    assert_eq!(a[0], b[0]);
    assert!(a[1..].iter().all(|page| !b[1..].contains(page)));
    assert_eq!(lanes.take_copy(1), Some(PageCopy { from: a[1], to: b[1] }));
    assert_eq!(lanes.take_copy(1), None);
    // The step was refused: its copy is made again.
    lanes.failed(1, 6);
    assert!(lanes.take_copy(1).is_some());
    // A later one was: it is not.
    lanes.failed(1, 8);
    assert_eq!(lanes.take_copy(1), None);
    lanes.stepped(1);
    lanes.commit(1, &[60, 61]);
    lanes.failed(1, 8);
    assert_eq!(lanes.take_copy(1), None);
}

/// A page that is to be copied is not given up before it was.
#[test]
fn the_source_of_a_copy_is_held_until_the_step_is_done() {
    let mut lanes = lanes(2, 6);
    turn(&mut lanes, &[1, 2, 3, 4, 5, 6]);
    let first = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 7], 8).unwrap();
    assert_eq!(first.cached, 6);
    let source = lanes.take_copy(first.lane).unwrap().from;
    let second = claim(&mut lanes, &[9, 9, 9], 12).unwrap();
    assert!(!lanes.table(second.lane, 12).contains(&source));
    assert_eq!((claim(&mut lanes, &[8], 4), lanes.grow(second.lane, 12)), (None, false));
    lanes.stepped(first.lane);
    assert!(lanes.grow(second.lane, 12));
    assert_eq!(lanes.table(second.lane, 13)[3], source);
}

/// Where there is no room for a page and its copy, it is computed again.
#[test]
fn without_room_for_a_copy_whole_pages_are_reused() {
    let mut lanes = lanes(1, 3);
    turn(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let claim = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 12).unwrap();
    assert_eq!((claim.cached, lanes.take_copy(claim.lane)), (8, None));
}

/// S1, L104
#[test]
fn a_claim_that_does_not_fit_changes_nothing_however_often_it_is_made() {
    let mut lanes = lanes(3, 6);
    turn(&mut lanes, &[1, 2, 3, 4, 5]);
    claim(&mut lanes, &[9; 8], 12).unwrap();
    let before = (lanes.stats(), lanes.version());
    for _ in 0..2 {
        assert_eq!(claim(&mut lanes, &[1, 2, 3, 4, 5, 6], 16), None);
        assert_eq!((lanes.stats(), lanes.version()), before);
    }
    assert_eq!(claim(&mut lanes, &[1, 2, 3, 4, 5, 6], 8), Some(Claim { lane: 1, cached: 5 }));
}

/// L102, L106
#[test]
fn the_sequence_used_least_recently_gives_up_its_last_pages_first() {
    let mut lanes = lanes(3, 6);
    turn(&mut lanes, &[1, 1, 1, 1, 1, 1, 1, 1]);
    turn(&mut lanes, &[2, 2, 2, 2, 2, 2, 2, 2]);
    claim(&mut lanes, &[3; 10], 12).unwrap();
    assert_eq!((lanes.peek(0, &[1; 9], 9), lanes.peek(0, &[2; 9], 9)), (4, 8));
    let stats = lanes.stats();
    assert_eq!((stats.pages_used, stats.pages_cached, stats.evicted), (6, 3, 1));
    assert!(lanes.grow(0, 12) && lanes.grow(0, 23));
    assert!(!lanes.grow(0, 24));
    let stats = lanes.stats();
    assert_eq!((stats.active, stats.idle, stats.pages_used, stats.pages_cached, stats.prefixes), (1, 0, 6, 0, 0));
}

/// L1, L2, L11, L14, L15, L16, L34, L36
#[test]
fn idle_lanes_go_before_given_up_ones_and_those_before_new_ones() {
    let mut lanes = lanes(3, 9);
    let busy: Vec<usize> = (0..3).map(|n| claim(&mut lanes, &[n], 1).unwrap().lane).collect();
    assert_eq!(busy, [0, 1, 2]);
    assert_eq!(claim(&mut lanes, &[7], 1), None);
    lanes.park(1, 0);
    lanes.discard(2);
    let stats = lanes.stats();
    assert_eq!((stats.active, stats.idle, stats.free, stats.high_water), (1, 1, 1, 3));
    assert_eq!((stats.reset, stats.discarded), (1, 1));
    assert_eq!(claim(&mut lanes, &[4], 1).unwrap().lane, 1);
    assert_eq!(claim(&mut lanes, &[5], 1).unwrap().lane, 2);
    assert_eq!((claim(&mut lanes, &[6], 1), lanes.stats().high_water), (None, 3));
    // Last in, first out.
    lanes.park(0, 0);
    lanes.park(2, 0);
    assert_eq!((claim(&mut lanes, &[4], 1).unwrap().lane, claim(&mut lanes, &[5], 1).unwrap().lane), (2, 0));
}

/// L3, L35
#[test]
fn more_lanes_than_may_be_idle_are_given_up() {
    let mut lanes = lanes_with(3, 9, LaneConfig { max_idle: 1, ..CONFIG });
    assert_eq!(lanes.stats(), LaneStats { pages_total: 9, ..LaneStats::default() });
    (0..3).for_each(|n| _ = claim(&mut lanes, &[n], 1));
    (0..3).for_each(|lane| lanes.park(lane, 0));
    let stats = lanes.stats();
    assert_eq!((stats.idle, stats.free, stats.reset, stats.discarded), (1, 2, 3, 0));
}

/// L17, L33: what an unrelated turn gets is empty.
#[test]
fn a_lane_that_was_used_begins_with_nothing_for_an_unrelated_turn() {
    let mut lanes = lanes(1, 9);
    turn(&mut lanes, &[1, 2, 3, 4, 5]);
    let claim = claim(&mut lanes, &[7, 8, 9], 3).unwrap();
    assert_eq!((claim, lanes.written(0)), (Claim { lane: 0, cached: 0 }, 0));
}

/// L32, L36: pages of a turn on which the engine failed are not reused, those that it got from others are.
#[test]
fn a_discarded_lane_takes_back_what_it_computed() {
    let mut lanes = lanes(2, 20);
    turn(&mut lanes, &[1, 2, 3, 4]);
    let bad = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 12).unwrap();
    lanes.commit(bad.lane, &[5, 6, 7, 8]);
    assert_eq!(lanes.peek(0, &[1, 2, 3, 4, 5, 6, 7, 8], 8), 8);
    lanes.discard(bad.lane);
    assert_eq!(lanes.peek(0, &[1, 2, 3, 4, 5, 6, 7, 8], 8), 4);
    assert_eq!(lanes.stats().pages_used, 1);
}

#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Observer for Log {
    fn lane(&self, event: LaneEvent) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
    fn prefix(&self, event: PrefixEvent) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

/// L40, L41, L107
#[test]
fn lane_and_prefix_events_come_in_order_with_counts_only() {
    let log = Arc::new(Log::default());
    let mut lanes = lanes(2, 4);
    lanes.observe(log.clone());
    turn(&mut lanes, &[1, 2, 3, 4, 5, 6]);
    turn(&mut lanes, &[1, 2, 3, 4, 5, 6, 7]);
    let bad = claim(&mut lanes, &[9; 9], 9).unwrap();
    assert_eq!(claim(&mut lanes, &[8; 9], 9), None);
    lanes.discard(bad.lane);
    let told = std::mem::take(&mut *log.0.lock().unwrap());
    assert_eq!(
        told,
        [
            "Missed",
            "SessionReset { reset_ms: 0 }",
            "Restored { tokens: 6, is_copied: true }",
            "SessionReset { reset_ms: 0 }",
            "Missed",
            "Evicted { pages: 1 }",
            "Refused { deficit: 2 }",
            "SessionReclaimed",
        ]
    );
}

/// L98, L107: a cache that is switched off tells nothing of itself.
#[test]
fn a_disabled_cache_keeps_and_tells_nothing() {
    let log = Arc::new(Log::default());
    let mut lanes = lanes_with(1, 9, LaneConfig { max_prefixes: 0, ..CONFIG });
    lanes.observe(log.clone());
    turn(&mut lanes, &[1, 2, 3, 4, 5]);
    assert_eq!(turn(&mut lanes, &[1, 2, 3, 4, 5]).cached, 0);
    assert_eq!((lanes.stats().pages_used, lanes.stats().prefixes), (0, 0));
    assert!(log.0.lock().unwrap().iter().all(|event| event.starts_with("SessionReset")));
}

/// A turn that ends before its first step leaves behind only what is in its pages.
#[test]
fn a_page_that_was_never_copied_is_not_kept() {
    let mut lanes = lanes(2, 30);
    turn(&mut lanes, &[1, 2, 3, 4, 5, 6]);
    let waiting = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 60], 8).unwrap();
    assert_eq!(waiting.cached, 6);
    // Another goes on in the same page, takes its place in the cache, and fails.
    let other = claim(&mut lanes, &[1, 2, 3, 4, 5, 6, 7, 8], 8).unwrap();
    lanes.take_copy(other.lane);
    lanes.stepped(other.lane);
    lanes.commit(other.lane, &[7, 8]);
    lanes.discard(other.lane);
    lanes.park(waiting.lane, 0);
    assert_eq!(lanes.peek(0, &[1, 2, 3, 4, 5, 6, 80], 7), 4);
}
