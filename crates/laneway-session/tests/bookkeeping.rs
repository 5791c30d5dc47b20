//! What a step costs beside the engine's work.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use std::hint::black_box;
use std::time::Instant;

use lab::{Lab, turn};
use laneway_session::fake::{FakeDecoder, endless};
use laneway_session::*;

const LIMITS: EngineLimits = EngineLimits {
    lanes: 8,
    pages: 70_000,
    page_positions: 16,
    context_length: 8192,
    max_rows: 512,
    depth: 2,
    branches: 8,
    row_bytes: 8,
    canvas: None,
};

fn request() -> Request<u32> {
    Request { settings: 1, idle_timeout_ms: None }
}

/// A conversation that shares its first 256 tokens with all others and its next with some.
fn conversation(n: u32, length: u32) -> Vec<u32> {
    (0..length).map(|at| if at < 256 { at } else { 1000 + (at ^ (n >> (at / 256))) * 7 + n }).collect()
}

/// Answers what the service asks without computing anything.
struct Driver {
    service: Service<u32>,
    now: u64,
    /// Samples of submitted steps.
    steps: std::collections::VecDeque<Vec<usize>>,
    collected: u64,
}

impl Driver {
    fn new() -> Self {
        let config = ServiceConfig { queue_depth: 64, ..Default::default() };
        Self { service: Service::new(config), now: 1, steps: Default::default(), collected: 0 }
    }

    fn submit(&mut self, prompt: &[u32], max_tokens: usize) {
        let (mut turn, _) = turn(prompt);
        turn.events = Box::new(|_| {});
        turn.max_tokens = Some(max_tokens);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
        self.service.submit(self.now, request(), turn).unwrap();
    }

    fn act(&mut self) -> bool {
        self.now += 1;
        let outcome = match self.service.plan(self.now) {
            Action::Load { .. } => Outcome::Loaded(Ok(LIMITS)),
            Action::Engine(EngineCall::Begin { lane, .. }) => Outcome::Begun(lane, Ok(())),
            Action::Engine(EngineCall::Submit(plan)) => {
                let lanes = plan.samples.iter().map(|row| plan.rows[*row as usize].lane);
                self.steps.push_back(lanes.collect());
                black_box(&plan);
                Outcome::Submitted(Ok(()))
            }
            Action::Engine(EngineCall::Collect) => {
                let lanes = self.steps.pop_front().unwrap();
                self.collected += 1;
                let sampled = lanes.into_iter().map(|lane| Sampled { lane, token: 7, logprob: -1.0, top: Vec::new() });
                Outcome::Collected(Ok(StepOutcome { sampled: sampled.collect(), ..Default::default() }))
            }
            Action::Engine(EngineCall::ReadPage { .. } | EngineCall::WritePage { .. }) => unreachable!(),
            Action::Unload => Outcome::Unloaded,
            Action::Wait { .. } | Action::Stop => return false,
        };
        self.service.commit(self.now, outcome);
        true
    }

    fn settle(&mut self) {
        while self.act() {}
    }
}

/// Prints the time of the scheduler, the service and the cache for a step of 8 lanes beside 1 000 cached prefixes.
/// Run with `cargo test --release -p laneway-session --test bookkeeping -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn microseconds_of_a_step_at_8_lanes_with_1000_cached_prefixes() {
    let mut driver = Driver::new();
    for n in 0..1000 {
        driver.submit(&conversation(n, 1000), 0);
        driver.settle();
    }
    let lanes = driver.service.metrics().snapshot().lanes;
    assert_eq!(lanes.prefixes, 1000);
    for n in 0..8 {
        driver.submit(&conversation(n * 100, 1000), 4000);
    }
    while driver.service.metrics().snapshot().completion_tokens < 800 {
        driver.act();
    }
    let (steps, begin) = (driver.collected, Instant::now());
    while driver.collected < steps + 3000 {
        driver.act();
    }
    let decode = begin.elapsed().as_secs_f64() * 1e6 / 3000.0;
    driver.settle();
    let begin = Instant::now();
    for n in 0..1000 {
        driver.submit(&[&conversation(n, 1000)[..], &[1]].concat(), 0);
        driver.settle();
    }
    let admit = begin.elapsed().as_secs_f64() * 1e6 / 1000.0;
    let lanes = driver.service.metrics().snapshot().lanes;
    println!("a decode step of 8 lanes: {decode:.1} us; a whole turn of 1 001 tokens with 1 000 cached: {admit:.1} us");
    println!("{lanes:?}");
}

/// The prefix tree is not looked at again and again: a step does not grow with what is kept. Counted, not timed.
#[test]
fn a_thousand_cached_prefixes_change_no_step() {
    let plans = |prefixes: u32| {
        let mut lab = Lab::new(EngineLimits { depth: 1, max_rows: 64, ..LIMITS });
        for n in 0..prefixes {
            lab.submit(&[5000 + n, 1, 2, 3, 4], 0);
        }
        lab.settle();
        let begin = lab.plans().len();
        let told = lab.submit_with(1, &[1, 2, 3], |turn| {
            turn.max_tokens = Some(40);
            turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
        });
        lab.settle();
        assert_eq!(told.tokens(), endless(0, &[1, 2, 3], 40));
        lab.plans().len() - begin
    };
    assert_eq!(plans(0), plans(60));
}
