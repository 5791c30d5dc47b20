//! The scheduler on a virtual clock: every step costs time, and what turns see of it is compared.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use lab::{Did, LIMITS, Lab, Told, request, turn};
use laneway_session::fake::{FakeDecoder, endless};
use laneway_session::*;

const ROOMY: EngineLimits =
    EngineLimits { lanes: 4, pages: 2000, page_positions: 16, context_length: 4096, max_rows: 32, ..LIMITS };

/// A step takes 5 ms and 1 ms a row.
fn simulation(limits: EngineLimits, config: ServiceConfig) -> Lab {
    Lab { cost: (5, 1), ..Lab::with_config(limits, config) }
}

fn submit(lab: &mut Lab, prompt: &[u32], max_tokens: usize) -> Told {
    lab.submit_with(1, prompt, |turn| {
        turn.max_tokens = Some(max_tokens);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
    })
}

fn numbers(count: u32, salt: u32) -> Vec<u32> {
    (0..count).map(|n| (n * 7 + salt) % 61).collect()
}

/// The time of each token of a turn, from now on.
fn token_times(lab: &mut Lab, told: &Told) -> Vec<u64> {
    let mut times = Vec::new();
    while told.finished().is_none() {
        lab.step();
        times.resize(told.tokens().len(), lab.now);
    }
    times
}

/// S26
#[test]
fn the_same_trace_gives_the_same_steps_and_figures() {
    let run = || {
        let mut lab = simulation(EngineLimits { pages: 40, depth: 2, ..ROOMY }, ServiceConfig::default());
        let mut told = Vec::new();
        for n in 0..15_u32 {
            told.push(submit(&mut lab, &numbers(n * 13 % 90 + 1, n % 3), (n * 7 % 40) as usize + 1));
            (0..n * 5 % 23).for_each(|_| _ = lab.step());
            if n % 4 == 3 {
                told[n as usize / 2].cancel.cancel();
            }
        }
        lab.settle();
        let events: Vec<_> = told.iter().map(Told::events).collect();
        (lab.snapshot(), events, lab.log, lab.now)
    };
    assert_eq!(run(), run());
}

/// S25, S26, G41, G44
#[test]
fn a_restored_prefix_lowers_the_time_to_the_first_token() {
    let mut lab = simulation(ROOMY, ServiceConfig::default());
    let history = numbers(1000, 1);
    let cold = submit(&mut lab, &history, 1);
    lab.settle();
    let steps = lab.plans().len();
    let warm = submit(&mut lab, &[&history[..], &[3; 20]].concat(), 1);
    lab.settle();
    assert_eq!(warm.tokens(), endless(0, &[&history[..], &[3; 20]].concat(), 1));
    assert_eq!((steps, lab.plans().len() - steps), (32, 1));
    let (cold, warm) = (cold.finish(), warm.finish());
    assert_eq!((cold.cached_tokens, warm.cached_tokens), (0, 1000));
    assert!(warm.prefill_ms * 5 <= cold.prefill_ms, "{} {}", warm.prefill_ms, cold.prefill_ms);
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.prefix_hits, snapshot.prefix_misses), (1, 1));
    assert_eq!((snapshot.prefill_rows, snapshot.decode_rows), (1020, 0));
}

/// S26, S13
#[test]
fn a_bounded_prefill_cuts_the_largest_gap_between_tokens() {
    let largest_gap = |max_rows| {
        let mut lab = simulation(EngineLimits { max_rows, ..ROOMY }, ServiceConfig::default());
        let decoding = submit(&mut lab, &[1, 2], 100);
        lab.until(|lab| lab.snapshot().completion_tokens == 3);
        submit(&mut lab, &numbers(600, 1), 1);
        let times = token_times(&mut lab, &decoding);
        times[2..].windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    };
    let (whole, bounded) = (largest_gap(1024), largest_gap(32));
    assert!(whole >= 4 * bounded, "{whole} {bounded}");
}

/// S26
#[test]
fn a_burst_of_four_is_answered_in_shared_steps() {
    let mut lab = simulation(ROOMY, ServiceConfig::default());
    let told: Vec<Told> = (0..4).map(|n| submit(&mut lab, &numbers(20 + n, n), 30)).collect();
    lab.settle();
    for (n, told) in (0..).zip(&told) {
        assert_eq!(told.tokens(), endless(0, &numbers(20 + n, n), 30));
    }
    let decodes: Vec<usize> = lab.plans().iter().filter(|plan| plan.rows.len() <= 4).map(|p| p.rows.len()).collect();
    assert!(decodes.iter().sum::<usize>() > 3 * decodes.len());
}

/// S26, S8
#[test]
fn the_turn_with_a_hot_prefix_goes_first() {
    let mut lab = simulation(EngineLimits { lanes: 1, ..ROOMY }, ServiceConfig::default());
    let hot = numbers(100, 1);
    submit(&mut lab, &hot, 0);
    lab.settle();
    let running = submit(&mut lab, &[9; 9], 20);
    lab.until(|lab| lab.snapshot().lanes.active == 1);
    let cold = submit(&mut lab, &numbers(100, 2), 5);
    let first = submit(&mut lab, &[&hot[..], &[1]].concat(), 5);
    let second = submit(&mut lab, &[&hot[..], &[2]].concat(), 5);
    lab.until(|_| first.finished().is_some());
    assert!(running.finished().is_some() && cold.finished().is_none());
    // Being overtaken once is worth more than 100 tokens.
    lab.until(|_| cold.finished().is_some());
    assert!(second.finished().is_none());
    lab.settle();
    assert_eq!((second.finish().cached_tokens, lab.snapshot().overtaken), (100, 1));
}

/// Equal claims keep the order in which they came.
#[test]
fn without_a_prefix_turns_start_in_their_order() {
    let mut lab = simulation(EngineLimits { lanes: 1, ..ROOMY }, ServiceConfig::default());
    let told: Vec<Told> = (0..9).map(|n| submit(&mut lab, &numbers(20, n * 3), 2)).collect();
    lab.settle();
    let waits: Vec<u64> = told.iter().map(|told| told.finish().queue_ms).collect();
    assert!(waits.is_sorted(), "{waits:?}");
    assert_eq!(lab.snapshot().overtaken, 0);
}

/// Limits in which a turn of 200 tokens does not fit beside another.
const TIGHT: EngineLimits = EngineLimits { pages: 20, page_positions: 16, context_length: 320, ..ROOMY };

/// S8, S15
#[test]
fn a_turn_that_fits_passes_one_that_does_not() {
    let mut lab = simulation(TIGHT, ServiceConfig::default());
    let first = submit(&mut lab, &numbers(150, 1), 40);
    let large = submit(&mut lab, &numbers(200, 2), 40);
    let small = submit(&mut lab, &numbers(20, 3), 4);
    lab.until(|_| small.finished().is_some());
    assert!(first.finished().is_none() && large.finished().is_none());
    lab.settle();
    assert_eq!(large.tokens(), endless(0, &numbers(200, 2), 40));
    assert_eq!((lab.snapshot().overtaken, lab.snapshot().preempted), (1, 0));
}

/// S9
#[test]
fn a_turn_is_passed_no_more_than_32_times() {
    for (config, bound) in [
        (ServiceConfig::default(), 32),
        (ServiceConfig { max_overtaken: 3, ..Default::default() }, 3),
        (ServiceConfig { max_overtaken: 0, ..Default::default() }, 0),
    ] {
        let config = ServiceConfig { queue_depth: 200, ..config };
        let mut lab = simulation(TIGHT, config);
        submit(&mut lab, &numbers(20, 1), 200);
        lab.until(|lab| lab.snapshot().lanes.active == 1);
        let large = submit(&mut lab, &numbers(250, 2), 4);
        let small: Vec<Told> = (0..100).map(|n| submit(&mut lab, &numbers(20, n + 3), 1)).collect();
        lab.until(|_| !large.events().is_empty());
        // The running one, the large one, and those that passed it.
        assert_eq!((lab.snapshot().overtaken, lab.snapshot().http.started), (bound, bound + 2));
        lab.settle();
        assert!(large.finished().is_some() && small.iter().all(|told| told.finished().is_some()));
    }
}

/// S10: a turn that does not fit is not tried again and again.
#[test]
fn a_refused_claim_is_made_again_only_when_something_changed() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    #[derive(Default)]
    struct Refusals(AtomicUsize);
    impl Observer for Refusals {
        fn prefix(&self, event: PrefixEvent) {
            self.0.fetch_add(usize::from(matches!(event, PrefixEvent::Refused { .. })), Ordering::Relaxed);
        }
    }
    let refusals = std::sync::Arc::new(Refusals::default());
    let mut lab = simulation(TIGHT, ServiceConfig::default());
    lab.service.observe(refusals.clone());
    submit(&mut lab, &numbers(150, 1), 100);
    submit(&mut lab, &numbers(250, 2), 1);
    lab.settle();
    // Once, and again when the running turn has filled a page.
    let steps = lab.plans().len();
    assert!(steps > 100 && refusals.0.load(Ordering::Relaxed) <= 20, "{steps} {refusals:?}", refusals = refusals.0);
}

/// S6
#[test]
fn a_turn_that_finds_no_lane_in_time_is_ended() {
    let config = ServiceConfig { admission_timeout_ms: 100, ..Default::default() };
    let mut lab = simulation(EngineLimits { lanes: 1, ..ROOMY }, config);
    let running = submit(&mut lab, &[1, 2], 100);
    let waiting = submit(&mut lab, &[3, 4], 1);
    lab.until(|_| waiting.finished().is_some());
    assert_eq!((waiting.error(), running.finished()), (TurnError::QueueTimeout, None));
    assert!((1100..1120).contains(&lab.now), "{}", lab.now);
    lab.settle();
    // Running is no waiting.
    assert_eq!(running.tokens().len(), 100);
}

/// S6
#[test]
fn a_turn_that_would_wait_too_long_is_refused_at_once() {
    let config = ServiceConfig { admission_timeout_ms: 2000, queue_depth: 50, ..Default::default() };
    let mut lab = simulation(EngineLimits { lanes: 1, ..ROOMY }, config);
    // Nothing is known of the speed yet.
    submit(&mut lab, &numbers(10, 1), 90);
    lab.settle();
    let mut taken = 0;
    while lab.service.submit(lab.now, request(1), turn(&numbers(88, 2)).0).is_ok() {
        taken += 1;
        assert!(taken < 50);
    }
    // 6 to 8 ms a token and 600 tokens a turn.
    assert_eq!(taken, 1);
    let snapshot = lab.snapshot();
    assert!(snapshot.predicted_wait_ms > 2000, "{}", snapshot.predicted_wait_ms);
    assert_eq!((snapshot.http.rejected, snapshot.http.waiting()), (1, 1));
    lab.settle();
    assert_eq!(lab.snapshot().predicted_wait_ms, 0);
    assert!(lab.service.submit(lab.now, request(1), turn(&numbers(88, 2)).0).is_ok());
}

/// S24
#[test]
fn safe_mode_runs_one_turn_at_a_time() {
    let config = ServiceConfig { safe_mode: true, ..Default::default() };
    let mut lab = simulation(ROOMY, config);
    let told: Vec<Told> = (0..4).map(|n| submit(&mut lab, &numbers(20, n), 9)).collect();
    while lab.step() {
        assert!(lab.snapshot().lanes.active <= 1);
    }
    assert!(told.iter().all(|told| told.finish().completion_tokens == 9));
    assert!(lab.plans().iter().all(|plan| plan.rows.iter().all(|row| row.lane == 0)));
    assert_eq!(lab.snapshot().lanes.high_water, 1);
}

/// L37, L44, L56, L57, L58, L61: read beside the service, without a lock that inference holds.
#[test]
fn the_figures_of_lanes_have_a_row_for_each_and_count_active_ones_only() {
    let mut lab = simulation(ROOMY, ServiceConfig::default());
    assert!(lab.service.metrics().lanes().is_empty());
    submit(&mut lab, &numbers(50, 1), 9);
    submit(&mut lab, &numbers(20, 2), 2);
    lab.until(|lab| lab.snapshot().completion_tokens >= 4);
    let rows = lab.service.metrics().lanes();
    assert_eq!(rows.len(), 4);
    let active: Vec<usize> = rows.iter().filter(|row| row.active).map(|row| row.tokens).collect();
    assert!(active.len() == lab.snapshot().lanes.active && active[0] >= 50, "{rows:?}");
    assert!(rows.iter().all(|row| row.active || row.tokens == 0));
    lab.settle();
    assert!(lab.service.metrics().lanes().iter().all(|row| *row == LaneRow::default()));
    lab.service.reset(lab.now);
    assert!(lab.service.metrics().lanes().is_empty());
    lab.engine = None;
    let next = submit(&mut lab, &numbers(20, 2), 2);
    lab.settle();
    assert_eq!((next.tokens().len(), lab.count(&Did::Load(1))), (2, 2));
}
