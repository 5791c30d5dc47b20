//! Random operations: nothing is lost, counted twice or answered wrongly.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use lab::{Lab, Told, request, turn};
use laneway_session::fake::{FakeDecoder, Fault, endless};
use laneway_session::*;
use proptest::prelude::*;

const CASES: u32 = 160;

#[derive(Clone, Debug)]
enum Operation {
    Submit { settings: u32, family: u32, length: usize, max_tokens: usize, seed: u64, deadline_ms: Option<u64> },
    Cancel(prop::sample::Index),
    Step(usize),
    Fail(&'static str, Fault),
    FailLoad(bool),
    Poison(Option<u32>),
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let fault = prop_oneof![Just(Fault::Step), Just(Fault::Step), Just(Fault::Lost), Just(Fault::Panic)];
    let call = prop_oneof![Just("begin"), Just("submit"), Just("collect")];
    let deadline = prop_oneof![4 => Just(None), 1 => (1_u64..60).prop_map(Some)];
    let settings = prop_oneof![9 => Just(1_u32), 1 => Just(2)];
    prop_oneof![
        10 => (settings, 1_u32..4, 0_usize..44, 0_usize..30, 0_u64..2, deadline).prop_map(
            |(settings, family, length, max_tokens, seed, deadline_ms)| Operation::Submit {
                settings, family, length, max_tokens, seed, deadline_ms
            }
        ),
        3 => any::<prop::sample::Index>().prop_map(Operation::Cancel),
        24 => (1_usize..12).prop_map(Operation::Step),
        2 => (call, fault).prop_map(|(call, fault)| Operation::Fail(call, fault)),
        1 => any::<bool>().prop_map(Operation::FailLoad),
        1 => prop::option::of(0_u32..64).prop_map(Operation::Poison),
        1 => (0_u64..2000).prop_map(Operation::Wait),
    ]
}

struct Sent {
    told: Told,
    prompt: Vec<u32>,
    seed: u64,
    max_tokens: usize,
}

/// Prompts of a family share their beginning and differ in the tail.
fn prompt(family: u32, length: usize) -> Vec<u32> {
    let length = length as u32;
    (0..length).map(|n| if n < length / 2 + 3 { family * 10 + n % 7 } else { n * length % 59 }).collect()
}

fn check(lab: &Lab, sent: &[Sent]) -> Result<(), TestCaseError> {
    let snapshot = lab.snapshot();
    let total = snapshot.total();
    prop_assert_eq!(total.queued, total.started + total.waiting() + total.rejected);
    prop_assert_eq!(total.started, total.finished + total.failed + total.running());
    let ended = sent.iter().filter(|sent| sent.told.finished().is_some()).count() as u64;
    prop_assert_eq!(ended, total.finished + total.failed);
    let lanes = snapshot.lanes;
    prop_assert_eq!(lanes.high_water, lanes.active + lanes.idle + lanes.free);
    prop_assert!(lanes.high_water <= lab.limits.lanes && lanes.pages_used <= lanes.pages_total);
    let loaded = u64::from(snapshot.model == ModelState::Loaded);
    prop_assert_eq!(snapshot.loaded, snapshot.unloaded + loaded);
    prop_assert_eq!(snapshot.loading, snapshot.loaded + snapshot.load_failed);
    Ok(())
}

fn check_answers(sent: &[Sent]) -> Result<(), TestCaseError> {
    for Sent { told, prompt, seed, max_tokens } in sent {
        let events = told.events();
        let finished = events.iter().filter(|event| matches!(event, Event::Finished(_))).count();
        prop_assert_eq!(finished, 1);
        prop_assert!(matches!(events.last(), Some(Event::Finished(_))));
        let loading = events.iter().position(|event| *event == Event::Loading);
        prop_assert!(loading.is_none_or(|index| index == 0));
        let answer = endless(*seed, prompt, 64);
        let tokens = told.tokens();
        prop_assert_eq!(&answer[..tokens.len()], &tokens[..], "prompt {:?}", prompt);
        if let Some(Ok(finish)) = told.finished() {
            prop_assert_eq!(finish.completion_tokens, tokens.len());
            prop_assert_eq!(tokens.len(), (*max_tokens).min(48 - prompt.len()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() })]

    /// G17, G25, G32, S23: 160 cases of 80 to 120 operations, 12 800 at least.
    #[test]
    fn turns_pages_lanes_and_counts_are_conserved(
        lanes in 1_usize..5,
        pages in 13_usize..32,
        page_positions in 4_usize..6,
        max_rows in 1_usize..10,
        depth in 1_usize..4,
        reserved_tokens in prop_oneof![Just(1_usize), Just(6), Just(512)],
        operations in prop::collection::vec(operation(), 80..120),
    ) {
        std::panic::set_hook(Box::new(|info| if !info.to_string().contains("injected panic") { eprintln!("{info}") }));
        let limits = EngineLimits { lanes, pages, page_positions, context_length: 48, max_rows, depth, branches: 0, row_bytes: 8, canvas: None };
        let config = ServiceConfig { queue_depth: 12, reserved_tokens, idle_timeout_ms: 3000, ..Default::default() };
        let mut lab = Lab::with_config(limits, config);
        let mut sent: Vec<Sent> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Submit { settings, family, length, max_tokens, seed, deadline_ms } => {
                    let prompt = prompt(family, length);
                    let (mut turn, told) = turn(&prompt);
                    turn.max_tokens = Some(max_tokens);
                    turn.deadline_ms = deadline_ms;
                    turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
                    turn.sampling = Sampling::new(SamplingOptions { seed, ..Default::default() }).unwrap();
                    match lab.service.submit(lab.now, request(settings), turn) {
                        Ok(()) => sent.push(Sent { told, prompt, seed, max_tokens }),
                        Err(error) => prop_assert_eq!(error, SubmitError::QueueFull { depth: 12 }),
                    }
                }
                Operation::Cancel(index) if !sent.is_empty() => index.get(&sent).told.cancel.cancel(),
                Operation::Cancel(_) => {}
                Operation::Step(count) => for _ in 0..count {
                    lab.step();
                    check(&lab, &sent)?;
                },
                Operation::Fail(call, fault) => lab.faults.inject(call, fault),
                Operation::FailLoad(fail) => lab.load_error = fail.then(|| "no such file".to_owned()),
                Operation::Poison(token) => lab.faults.poison(token),
                Operation::Wait(ms) => lab.now += ms,
            }
            check(&lab, &sent)?;
        }
        lab.settle();
        check(&lab, &sent)?;
        check_answers(&sent)?;
        let snapshot = lab.snapshot();
        prop_assert_eq!((snapshot.total().running(), snapshot.total().waiting()), (0, 0));
        prop_assert_eq!(snapshot.lanes.active, 0);
        lab.service.drain();
        lab.settle();
        let snapshot = lab.snapshot();
        prop_assert_eq!((snapshot.loaded, snapshot.lanes), (snapshot.unloaded, LaneStats::default()));
    }
}
