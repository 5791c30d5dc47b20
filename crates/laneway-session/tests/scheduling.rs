//! Batching, prefill chunks, page capacity, prefix reuse and failures of steps.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use lab::{Did, LIMITS, Lab, Told};
use laneway_session::fake::{EOS, FakeDecoder, Fault, continuation, endless, text};
use laneway_session::*;

const ROOMY: EngineLimits = EngineLimits { lanes: 4, pages: 400, context_length: 1000, ..LIMITS };

/// Submits a turn that only its length ends.
fn submit_endless(lab: &mut Lab, prompt: &[u32], max_tokens: usize) -> Told {
    lab.submit_with(1, prompt, |turn| {
        turn.max_tokens = Some(max_tokens);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
    })
}

fn lanes_of(plan: &StepPlan) -> Vec<usize> {
    let mut lanes: Vec<usize> = plan.rows.iter().map(|row| row.lane).collect();
    lanes.dedup();
    lanes
}

/// S13
#[test]
fn running_turns_decode_together_in_one_step() {
    let mut lab = Lab::new(ROOMY);
    let prompts: Vec<Vec<u32>> = (1..5).map(|n| vec![n, n]).collect();
    let told: Vec<Told> = prompts.iter().map(|prompt| submit_endless(&mut lab, prompt, 20)).collect();
    lab.settle();
    for (prompt, told) in prompts.iter().zip(told) {
        assert_eq!(told.tokens(), endless(0, prompt, 20));
    }
    assert!(lab.plans().iter().filter(|plan| plan.rows.len() == 4).count() >= 15);
    assert!(lab.plans().len() < 30);
}

/// L54, S13
#[test]
fn a_long_prefill_stalls_running_decodes_at_most_one_chunk() {
    for depth in [1, 2] {
        let mut lab = Lab::new(EngineLimits { depth, ..ROOMY });
        let decoding = submit_endless(&mut lab, &[1, 2], 60);
        lab.until(|lab| lab.snapshot().completion_tokens > 2);
        let begin = lab.log.len();
        let long: Vec<u32> = (0..200).map(|n| n % 60 + 1).collect();
        let prefilling = submit_endless(&mut lab, &long, 3);
        lab.settle();
        assert_eq!(decoding.tokens(), endless(0, &[1, 2], 60));
        assert_eq!(prefilling.tokens(), endless(0, &long, 3));
        let mut prefills_in_a_row = 0;
        let mut chunks = 0;
        for did in &lab.log[begin..] {
            let Did::Submit(plan) = did else { continue };
            assert!(plan.rows.len() <= 8);
            let prefill = plan.rows.len() > 2;
            assert!(!prefill || lanes_of(plan) == [1], "prefill and decode are mixed");
            prefills_in_a_row = if prefill { prefills_in_a_row + 1 } else { 0 };
            chunks += usize::from(prefill);
            assert!(prefills_in_a_row <= 1);
        }
        assert_eq!(chunks, 25);
    }
}

#[test]
fn short_prompts_share_a_prefill_step() {
    let mut lab = Lab::new(ROOMY);
    lab.submit(&[1, 2, 3], 1);
    lab.submit(&[4, 5, 6], 1);
    lab.submit(&[7, 8, 9], 1);
    lab.settle();
    let rows: Vec<usize> = lab.plans().iter().map(|plan| plan.rows.len()).collect();
    assert_eq!(rows, [8, 1]);
    assert_eq!(lab.plans()[0].samples, [2, 5]);
}

#[test]
fn more_lanes_than_rows_decode_in_turn() {
    let mut lab = Lab::new(EngineLimits { max_rows: 2, ..ROOMY });
    let told: Vec<Told> = (1..5).map(|n| submit_endless(&mut lab, &[n, n], 12)).collect();
    lab.settle();
    let finishes: Vec<u64> = told.iter().map(|told| told.finish().decode_ms).collect();
    assert!(finishes.iter().max().unwrap() - finishes.iter().min().unwrap() < 20, "{finishes:?}");
}

#[test]
fn the_next_decode_step_is_submitted_before_the_last_token_is_read_back() {
    let mut lab = Lab::new(EngineLimits { depth: 2, ..ROOMY });
    let told = submit_endless(&mut lab, &[1, 2], 10);
    lab.settle();
    assert_eq!(told.tokens(), endless(0, &[1, 2], 10));
    let unread = lab.plans().iter().filter(|plan| plan.rows[0].token == Token::Sampled).count();
    assert_eq!((unread, lab.plans().len()), (9, 10));
    let first = lab.log.iter().position(|did| matches!(did, Did::Submit(_))).unwrap();
    assert!(matches!(lab.log[first + 1], Did::Submit(_)));
}

#[test]
fn a_step_in_flight_after_the_end_of_a_turn_is_discarded() {
    let prompt: Vec<u32> = (1..500).map(|n| vec![n, 3]).find(|prompt| continuation(0, prompt, 9).len() == 4).unwrap();
    let mut lab = Lab::new(EngineLimits { depth: 2, ..ROOMY });
    let told = lab.submit(&prompt, 9);
    let neighbour = submit_endless(&mut lab, &[5, 5, 5], 30);
    lab.settle();
    let answer = continuation(0, &prompt, 9);
    assert_eq!(answer.last(), Some(&EOS));
    assert_eq!(told.text(), text(&answer));
    assert_eq!((told.finish().reason, told.finish().completion_tokens), (FinishReason::Stop, 4));
    assert_eq!(neighbour.tokens(), endless(0, &[5, 5, 5], 30));
    assert_eq!((lab.snapshot().completion_tokens, lab.snapshot().lanes.active), (34, 0));
    // The sampled end-of-sequence token is not written: 2 + 3 of 6 tokens are reused.
    let again = lab.submit(&[&prompt[..], &answer[..]].concat(), 1);
    lab.settle();
    assert_eq!(again.finish().cached_tokens, 5);
}

#[test]
fn a_stop_string_ends_the_answer_and_the_length_is_no_stop() {
    let answer = endless(0, &[1, 2], 8);
    let stop = answer[4];
    let end = answer.iter().position(|token| *token == stop).unwrap();
    let mut lab = Lab::new(ROOMY);
    let told = lab.submit_with(1, &[1, 2], |turn| {
        turn.decoder = Box::new(FakeDecoder { stop: Some(stop), endless: true });
    });
    lab.settle();
    assert_eq!(told.text(), text(&answer[..end]));
    assert_eq!(told.finish().reason, FinishReason::Stop);
    assert_eq!(told.finish().completion_tokens, end + 1);
    let cut = submit_endless(&mut lab, &[1, 2], 3);
    lab.settle();
    assert_eq!(cut.finish().reason, FinishReason::Length);
}

/// S11
#[test]
fn max_tokens_is_clamped_to_the_remaining_context() {
    for max_tokens in [None, Some(usize::MAX)] {
        let mut lab = Lab::new(LIMITS);
        let told = lab.submit_with(1, &[1; 60], |turn| {
            turn.max_tokens = max_tokens;
            turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
        });
        lab.settle();
        let finish = told.finish();
        assert_eq!((finish.reason, finish.completion_tokens), (FinishReason::Length, 4));
    }
}

#[test]
fn a_turn_that_asks_for_no_token_only_computes_its_prompt() {
    let mut lab = Lab::new(ROOMY);
    let told = lab.submit(&[1, 2, 3, 4, 5], 0);
    lab.settle();
    assert_eq!((told.finish().completion_tokens, told.finish().reason), (0, FinishReason::Length));
    assert!(lab.plans()[0].samples.is_empty());
    let next = lab.submit(&[1, 2, 3, 4, 5, 6], 1);
    lab.settle();
    assert_eq!(next.finish().cached_tokens, 5);
}

/// S2
#[test]
fn pages_are_reserved_for_the_prompt_and_at_most_512_new_tokens() {
    for (prompt, max_tokens, reserved) in [(400, 128, 528), (4506, 4096, 5018), (8000, 4096, 8192)] {
        let mut lab = Lab::new(EngineLimits { pages: 8192, page_positions: 1, context_length: 8192, ..LIMITS });
        lab.submit(&vec![1; prompt], max_tokens);
        lab.until(|lab| lab.count(&Did::Begin(0)) == 1);
        assert_eq!(lab.snapshot().lanes.pages_used, reserved);
    }
}

/// S1, S4, S10, S15
#[test]
fn a_turn_waits_for_lane_and_pages_while_others_run() {
    let config = ServiceConfig { max_overtaken: 0, ..Default::default() };
    let mut lab = Lab::with_config(EngineLimits { pages: 16, lanes: 3, context_length: 60, ..LIMITS }, config);
    let first = submit_endless(&mut lab, &[1; 20], 20);
    let large = submit_endless(&mut lab, &[2; 20], 20);
    let small = submit_endless(&mut lab, &[3; 4], 2);
    lab.until(|lab| lab.snapshot().completion_tokens == 10);
    let snapshot = lab.snapshot();
    // The large one does not fit; the small one would, and does not overtake it.
    assert_eq!((snapshot.lanes.active, snapshot.http.waiting(), snapshot.lanes.pages_used), (1, 2, 10));
    lab.settle();
    assert_eq!(first.tokens(), endless(0, &[1; 20], 20));
    assert_eq!(large.tokens(), endless(0, &[2; 20], 20));
    assert_eq!(small.tokens(), endless(0, &[3; 4], 2));
    assert_eq!(lab.snapshot().preempted, 0);
}

/// S7
#[test]
fn cancelling_the_turn_at_the_head_of_the_queue_lets_the_next_one_in() {
    let config = ServiceConfig { max_overtaken: 0, ..Default::default() };
    let mut lab = Lab::with_config(EngineLimits { pages: 16, lanes: 3, context_length: 60, ..LIMITS }, config);
    let first = submit_endless(&mut lab, &[1; 20], 20);
    let large = submit_endless(&mut lab, &[2; 20], 20);
    let small = submit_endless(&mut lab, &[3; 4], 2);
    lab.until(|lab| lab.snapshot().completion_tokens == 10);
    large.cancel.cancel();
    lab.until(|_| small.finished().is_some());
    assert!(first.finished().is_none());
    assert_eq!(large.error(), TurnError::Cancelled);
}

/// S23
#[test]
fn the_youngest_turn_gives_way_and_is_computed_again_without_repeating_its_text() {
    for depth in [1, 2] {
        let config = ServiceConfig { queue_depth: 9, reserved_tokens: 4, ..Default::default() };
        let limits = EngineLimits { lanes: 3, pages: 12, context_length: 48, depth, ..LIMITS };
        let mut lab = Lab::with_config(limits, config);
        let prompts = [[1_u32; 8], [2; 8], [3; 8]];
        let told = prompts.map(|prompt| submit_endless(&mut lab, &prompt, 30));
        lab.settle();
        for (prompt, told) in prompts.iter().zip(&told) {
            assert_eq!(told.tokens(), endless(0, prompt, 30));
            assert_eq!(told.finish().prompt_tokens, 8);
        }
        let snapshot = lab.snapshot();
        assert!(snapshot.preempted > 0);
        assert_eq!((snapshot.prompt_tokens, snapshot.http.started, snapshot.http.finished), (24, 3, 3));
    }
}

/// S31
#[test]
fn a_lane_is_given_away_only_after_its_last_step_was_collected() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, depth: 2, ..ROOMY });
    let left = submit_endless(&mut lab, &[1, 2], 20);
    let next = submit_endless(&mut lab, &[3, 4], 5);
    lab.until(|lab| lab.plans().len() == 6);
    left.cancel.cancel();
    lab.settle();
    assert_eq!((left.error(), next.tokens()), (TurnError::Cancelled, endless(0, &[3, 4], 5)));
}

#[test]
fn a_running_turn_that_lacks_a_page_goes_before_a_new_one() {
    let config = ServiceConfig { queue_depth: 9, reserved_tokens: 1, ..Default::default() };
    let mut lab = Lab::with_config(EngineLimits { pages: 12, context_length: 48, max_rows: 32, ..LIMITS }, config);
    let long = submit_endless(&mut lab, &[1; 12], 30);
    let short = submit_endless(&mut lab, &[2; 9], 16);
    let waiting = submit_endless(&mut lab, &[3; 20], 2);
    lab.until(|_| waiting.events().len() > 1);
    assert!(short.finished().is_some() && long.finished().is_some());
    lab.settle();
    assert_eq!((waiting.tokens(), lab.snapshot().preempted), (endless(0, &[3; 20], 2), 0));
}

/// S20
#[test]
fn a_failing_step_fails_only_the_turn_that_causes_it() {
    for depth in [1, 2] {
        let mut lab = Lab::new(EngineLimits { depth, ..ROOMY });
        let good = submit_endless(&mut lab, &[1, 2], 20);
        let other = submit_endless(&mut lab, &[3, 4], 20);
        lab.faults.poison(Some(999));
        let bad = submit_endless(&mut lab, &[5, 999], 20);
        lab.settle();
        assert_eq!(good.tokens(), endless(0, &[1, 2], 20));
        assert_eq!(other.tokens(), endless(0, &[3, 4], 20));
        let TurnError::Engine(reason) = bad.error() else { panic!("{:?}", bad.error()) };
        assert!(reason.contains("poisoned"));
        // Nothing of a failed turn is reused.
        lab.faults.poison(None);
        let again = submit_endless(&mut lab, &[5, 999, 1], 2);
        lab.settle();
        assert_eq!(again.finish().cached_tokens, 0);
        assert_eq!((lab.snapshot().lanes.active, lab.snapshot().unloaded), (0, 0));
    }
}

/// S20
#[test]
fn a_step_that_fails_once_costs_no_turn_when_several_run() {
    for (call, depth) in [("submit", 1), ("submit", 2), ("collect", 1), ("collect", 2)] {
        let mut lab = Lab::new(EngineLimits { depth, ..ROOMY });
        let told: Vec<Told> = (1..4).map(|n| submit_endless(&mut lab, &[n, n], 20)).collect();
        for wait in [5, 20, 40] {
            lab.until(|lab| lab.snapshot().completion_tokens >= wait);
            lab.faults.inject(call, Fault::Step);
        }
        lab.settle();
        for (n, told) in (1..4).zip(told) {
            assert_eq!(told.tokens(), endless(0, &[n, n], 20), "{call} {depth}");
        }
    }
}

/// S20
#[test]
fn a_lane_that_cannot_begin_fails_only_its_turn() {
    let mut lab = Lab::new(ROOMY);
    let running = submit_endless(&mut lab, &[1, 2], 20);
    lab.until(|lab| lab.snapshot().completion_tokens > 3);
    lab.faults.inject("begin", Fault::Step);
    let refused = submit_endless(&mut lab, &[3, 4], 20);
    lab.settle();
    assert!(matches!(refused.error(), TurnError::Engine(_)));
    assert_eq!(running.tokens(), endless(0, &[1, 2], 20));
    assert_eq!(lab.snapshot().lanes.active, 0);
}

/// transformers.js#1638, kjarni#51
#[test]
fn each_turn_of_a_chat_prefills_only_what_is_new() {
    let mut lab = Lab::new(ROOMY);
    let mut chat = vec![1, 2, 3, 4, 5];
    let mut written = 0;
    for round in 0..20 {
        let told = submit_endless(&mut lab, &chat, 7);
        lab.settle();
        assert_eq!(told.tokens(), endless(0, &chat, 7));
        assert_eq!(told.finish().cached_tokens, written);
        written = chat.len() + 6;
        chat.extend(told.tokens());
        chat.extend([50, 60 + round]);
    }
}

/// C1
#[test]
fn many_turns_with_changing_tails_never_run_out_of_pages() {
    let mut lab = Lab::new(EngineLimits { lanes: 2, pages: 24, ..LIMITS });
    for round in 0..60_u32 {
        let mut prompt = vec![9; 10];
        prompt.extend((0..round % 23).map(|n| n * round % 61));
        let told = [submit_endless(&mut lab, &prompt, 8), submit_endless(&mut lab, &prompt[..11.min(prompt.len())], 5)];
        lab.settle();
        assert_eq!(told[0].tokens(), endless(0, &prompt, 8));
        assert!(told[1].finished().unwrap().is_ok());
        assert_eq!(lab.snapshot().lanes.active, 0);
    }
    assert_eq!(lab.snapshot().preempted, 0);
}

#[test]
fn chunks_carry_the_probabilities_of_their_tokens() {
    let mut lab = Lab::new(ROOMY);
    let told = submit_endless(&mut lab, &[1, 2], 3);
    lab.settle();
    let answer = endless(0, &[1, 2], 3);
    for (event, token) in told.events().iter().filter(|e| matches!(e, Event::Chunk { .. })).zip(answer) {
        let logprob = -(token as f32);
        let tokens = vec![TokenLogprob { token, logprob, top: vec![(token, logprob)] }];
        assert_eq!(*event, Event::Chunk { text: text(&[token]), reasoning: false, tokens });
    }
}

/// S8: of two prompts with the same long beginning the second waits until the first has left it in the cache, while
/// others pass; neither is computed twice.
#[test]
fn prompts_that_share_a_beginning_are_prefilled_one_after_the_other() {
    let limits = EngineLimits { lanes: 3, pages: 120, context_length: 200, max_rows: 8, ..LIMITS };
    let shared: Vec<u32> = (0..40).map(|n| n % 50 + 1).collect();
    let prompt = |tail: u32| [&shared[..], &[tail, tail + 1]].concat();
    let mut lab = Lab::new(limits);
    let first = submit_endless(&mut lab, &prompt(51), 3);
    let second = submit_endless(&mut lab, &prompt(53), 3);
    let other = submit_endless(&mut lab, &[60, 59, 58], 3);
    lab.until(|lab| lab.snapshot().prefill_rows > 0);
    assert_eq!((lab.snapshot().lanes.active, lab.snapshot().total().waiting()), (2, 1));
    lab.settle();
    assert_eq!(other.tokens(), endless(0, &[60, 59, 58], 3));
    assert_eq!(first.finish().cached_tokens, 0);
    assert!(second.finish().cached_tokens >= 32, "{}", second.finish().cached_tokens);
    assert_eq!((first.tokens(), second.tokens()), (endless(0, &prompt(51), 3), endless(0, &prompt(53), 3)));
    // One that goes away holds nobody back.
    let mut lab = Lab::new(limits);
    let first = submit_endless(&mut lab, &prompt(51), 3);
    let second = submit_endless(&mut lab, &prompt(53), 3);
    lab.until(|lab| lab.snapshot().prefill_rows > 0);
    first.cancel.cancel();
    lab.settle();
    assert_eq!(second.tokens(), endless(0, &prompt(53), 3));
    // Nothing is kept, so there is nothing to wait for.
    let mut lab = Lab::with_config(limits, ServiceConfig { max_prefixes: 0, ..Default::default() });
    submit_endless(&mut lab, &prompt(51), 3);
    let second = submit_endless(&mut lab, &prompt(53), 3);
    lab.until(|lab| lab.snapshot().lanes.active == 2);
    lab.settle();
    assert_eq!(second.finish().cached_tokens, 0);
}
