//! What turns and reads reuse of each other, and what observers hear of it.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use std::sync::{Arc, Mutex};

use lab::{CAUSAL, LIMITS, Lab, Told, branch, request, turn};
use laneway_session::fake::{FakeDecoder, Fault, endless, logits};
use laneway_session::*;

const ROOMY: EngineLimits = EngineLimits { lanes: 4, pages: 400, context_length: 1000, ..LIMITS };

fn submit_endless(lab: &mut Lab, prompt: &[u32], max_tokens: usize) -> Told {
    lab.submit_with(1, prompt, |turn| {
        turn.max_tokens = Some(max_tokens);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
    })
}

fn submit_in(lab: &mut Lab, namespace: u64, prompt: &[u32]) -> Told {
    let (mut turn, told) = turn(prompt);
    turn.max_tokens = Some(2);
    let ticket = lab.service.intake().admit(turn).unwrap().with_cache_namespace(namespace);
    lab.service.enqueue(lab.now, request(1), ticket);
    told
}

fn numbers(count: u32) -> Vec<u32> {
    (0..count).map(|n| n % 60 + 1).collect()
}

/// G46, C20, L55: a shorter prompt goes back to where it parts, whatever ran on the lanes in between.
#[test]
fn regenerating_an_answer_computes_one_token_of_the_prompt() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..ROOMY });
    let chat = numbers(38);
    let first = submit_endless(&mut lab, &chat, 9);
    lab.settle();
    submit_endless(&mut lab, &[9, 9, 9, 9, 9], 3);
    lab.settle();
    let again = submit_endless(&mut lab, &chat, 9);
    lab.settle();
    assert_eq!((first.finish().cached_tokens, again.finish().cached_tokens), (0, 37));
    assert_eq!(first.tokens(), again.tokens());
}

/// More conversations than lanes, in turn: each finds what it left.
#[test]
fn every_conversation_of_many_prefills_only_what_is_new() {
    for depth in [1, 2] {
        let mut lab = Lab::new(EngineLimits { lanes: 2, depth, ..ROOMY });
        let mut chats: Vec<Vec<u32>> = (0..6).map(|n| [&numbers(21)[..], &[n]].concat()).collect();
        let mut written = [0_usize; 6];
        for round in 0..4 {
            let told: Vec<Told> = chats.iter().map(|chat| submit_endless(&mut lab, chat, 5)).collect();
            lab.settle();
            for (n, told) in told.iter().enumerate() {
                assert_eq!(told.tokens(), endless(0, &chats[n], 5));
                assert!(round == 0 || told.finish().cached_tokens == written[n]);
                written[n] = chats[n].len() + 4;
                chats[n].extend(told.tokens());
                chats[n].push(round);
            }
        }
        // Five whole pages of the common beginning are there once.
        let lanes = lab.snapshot().lanes;
        let each = (written[0] - 20).div_ceil(4);
        assert_eq!((lanes.pages_used, lanes.prefixes, lanes.active), (5 + 6 * each, 6, 0));
    }
}

/// A turn that starts while another with the same beginning runs gets its pages.
#[test]
fn a_running_turn_shares_what_it_has_computed() {
    for depth in [1, 2] {
        let mut lab = Lab::new(EngineLimits { depth, ..ROOMY });
        let running = submit_endless(&mut lab, &numbers(30), 60);
        lab.until(|lab| lab.snapshot().completion_tokens > 4);
        let beside = submit_endless(&mut lab, &[&numbers(26)[..], &[7, 7]].concat(), 9);
        lab.settle();
        assert_eq!(beside.finish().cached_tokens, 26);
        assert_eq!(beside.tokens(), endless(0, &[&numbers(26)[..], &[7, 7]].concat(), 9));
        assert_eq!(running.tokens(), endless(0, &numbers(30), 60));
    }
}

/// Prompts that are computed at the same time end in the same pages.
#[test]
fn equal_prompts_computed_at_once_are_kept_once() {
    let mut lab = Lab::new(EngineLimits { max_rows: 400, ..ROOMY });
    let told: Vec<Told> = (0..4).map(|_| submit_endless(&mut lab, &numbers(40), 1)).collect();
    lab.settle();
    assert!(told.iter().all(|told| told.tokens() == endless(0, &numbers(40), 1)));
    assert_eq!(lab.snapshot().lanes.pages_used, 10);
}

/// L20, L103: a fault at any call of a turn that goes on from a copied page: the answer is right or there is none, and
/// the next turn's is right.
#[test]
fn a_copy_is_made_again_when_its_step_failed() {
    for depth in [1, 2] {
        for (call, fault) in [("submit", Fault::Step), ("collect", Fault::Step), ("begin", Fault::Step)] {
            for step in 0..24 {
                let mut lab = Lab::new(EngineLimits { depth, max_rows: 3, ..ROOMY });
                let chat = numbers(22);
                submit_endless(&mut lab, &chat, 0);
                lab.settle();
                let more = [&chat[..], &[40, 41, 42, 43, 44]].concat();
                let told = submit_endless(&mut lab, &more, 4);
                let beside = submit_endless(&mut lab, &[&chat[..21], &[50, 51]].concat(), 4);
                (0..step).for_each(|_| _ = lab.step());
                lab.faults.inject(call, fault);
                lab.settle();
                for (told, prompt) in [(told, more), (beside, [&chat[..21], &[50, 51]].concat())] {
                    if told.finished().unwrap().is_ok() {
                        assert_eq!(told.tokens(), endless(0, &prompt, 4), "{call} {step} {depth}");
                    }
                }
                let again = submit_endless(&mut lab, &chat, 4);
                lab.settle();
                // The fault was perhaps not met before.
                if again.finished().unwrap().is_ok() {
                    assert_eq!(again.tokens(), endless(0, &chat, 4));
                }
                assert_eq!(lab.snapshot().lanes.active, 0);
            }
        }
    }
}

/// A prompt that is kept up to within a page, and branches that all go on from there, in one step.
#[test]
fn branches_of_a_cached_prompt_copy_what_the_lane_copies() {
    for depth in [1, 2] {
        for limits in [LIMITS, EngineLimits { canvas: Some(CAUSAL), ..LIMITS }] {
            let limits = EngineLimits { depth, branches: 3, max_rows: 32, ..limits };
            let mut lab = Lab::new(limits);
            let prompt = numbers(10);
            let work: Vec<Branch> = (0..4).map(|n| branch(BranchKind::Causal, &[n, n + 1], &[0, 1])).collect();
            let first = lab.read(&prompt, &work);
            lab.settle();
            let before = lab.plans().len();
            let again = lab.read(&prompt, &work);
            lab.settle();
            assert_eq!((again.answer().cached_tokens, lab.plans().len()), (10, before + 1));
            assert_eq!(again.answer().logits, first.answer().logits);
            assert_eq!(again.answer().logits, logits(&limits, &prompt, &work));
            let plan = lab.plans()[before].clone();
            assert_eq!(plan.copies.len(), 4);
            // None is made from a page that another one writes.
            assert!(plan.copies.iter().all(|copy| plan.copies.iter().all(|other| other.to != copy.from)));
        }
    }
}

/// L97
#[test]
fn tenants_do_not_share_prefixes() {
    let mut lab = Lab::new(ROOMY);
    let cached: Vec<usize> = [0, 7, 7, 0, 8]
        .iter()
        .map(|namespace| {
            let told = submit_in(&mut lab, *namespace, &numbers(20));
            lab.settle();
            told.finish().cached_tokens
        })
        .collect();
    assert_eq!(cached, [0, 0, 19, 19, 0]);
}

/// L100
#[test]
fn a_match_below_the_minimum_is_a_miss() {
    let config = ServiceConfig { min_prefix_tokens: 10, ..Default::default() };
    let mut lab = Lab::with_config(ROOMY, config);
    submit_endless(&mut lab, &numbers(9), 0);
    submit_endless(&mut lab, &[&numbers(9)[..], &[50, 51, 52]].concat(), 0);
    lab.settle();
    // The first is too short to be kept.
    assert_eq!(lab.snapshot().lanes.prefixes, 1);
    for (prompt, cached) in [(numbers(12), 0), ([&numbers(9)[..], &[50, 51]].concat(), 10)] {
        let told = submit_endless(&mut lab, &prompt, 0);
        lab.settle();
        assert_eq!(told.finish().cached_tokens, cached);
    }
}

/// C1, L71: tool-like turns without end; what is kept makes room.
#[test]
fn a_full_cache_makes_room_for_every_turn() {
    let mut lab = Lab::new(EngineLimits { lanes: 2, pages: 20, depth: 2, ..LIMITS });
    for n in 0..200_u32 {
        let prompt: Vec<u32> = (0..20).map(|at| (at * n) % 61).collect();
        let told = submit_endless(&mut lab, &prompt, 8);
        lab.settle();
        assert_eq!(told.tokens(), endless(0, &prompt, 8));
    }
    let lanes = lab.snapshot().lanes;
    assert_eq!((lanes.active, lanes.pages_used - lanes.pages_cached, lab.snapshot().preempted), (0, 0, 0));
    assert!(lanes.evicted > 1000);
    lab.service.clear_prefixes();
    assert_eq!((lab.snapshot().lanes.pages_used, lab.snapshot().lanes.prefixes), (0, 0));
}

#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Observer for Log {
    fn lane(&self, event: LaneEvent) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
    fn cache(&self, event: CacheEvent<'_>) {
        self.0.lock().unwrap().push(match event {
            CacheEvent::Stored { tokens, .. } => format!("stored {}", tokens.len()),
            CacheEvent::Removed { hashes } => format!("removed {}", hashes.len()),
            CacheEvent::Cleared => "cleared".to_owned(),
            _ => "?".to_owned(),
        });
    }
    fn prefix(&self, event: PrefixEvent) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// L5, L32, L36, L38, L39, L40, L41, L107
#[test]
fn an_observer_hears_of_every_end_of_a_lane_and_every_page() {
    let log = Arc::new(Log::default());
    let mut lab = Lab::new(EngineLimits { depth: 2, ..ROOMY });
    lab.service.observe(log.clone());
    let told = submit_endless(&mut lab, &numbers(10), 3);
    lab.settle();
    assert_eq!(log.take(), ["Missed", "stored 8", "stored 4", "SessionReset { reset_ms: 0 }"]);
    // One that never had a lane has no event of its own.
    submit_endless(&mut lab, &numbers(10), 3).cancel.cancel();
    lab.settle();
    assert!(log.take().is_empty());
    let left = submit_endless(&mut lab, &[&numbers(10)[..], &told.tokens()[..]].concat(), 30);
    lab.until(|lab| lab.snapshot().completion_tokens == 5);
    log.take();
    left.cancel.cancel();
    lab.settle();
    assert_eq!(log.take().last().unwrap(), "SessionReset { reset_ms: 0 }");
    lab.faults.poison(Some(999));
    submit_endless(&mut lab, &[999, 1, 2, 3], 3);
    lab.settle();
    assert_eq!(log.take(), ["Missed", "SessionReclaimed"]);
    assert_eq!((lab.snapshot().lanes.reset, lab.snapshot().lanes.discarded), (2, 1));
    lab.now += 20 * 60 * 1000;
    lab.settle();
    assert_eq!(log.take(), ["cleared"]);
}

/// L41: without an observer everything is the same.
#[test]
fn an_observer_changes_nothing() {
    let run = |observed: bool| {
        let mut lab = Lab::new(EngineLimits { lanes: 2, pages: 20, ..LIMITS });
        if observed {
            lab.service.observe(Arc::new(Log::default()));
        }
        for n in 0..20_u32 {
            lab.submit(&[&numbers(n % 9 + 3)[..], &[n]].concat(), 9);
            lab.settle();
        }
        (lab.log, lab.service.metrics().snapshot())
    };
    assert_eq!(run(false), run(true));
}
