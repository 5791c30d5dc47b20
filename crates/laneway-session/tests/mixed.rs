//! Random turns, reads and faults on models of every kind: nothing is lost, counted twice or answered wrongly.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use lab::{Answered, BLOCKS, CAUSAL, Lab, SHIFTED, Told, WHOLE, ended, read, request, turn};
use laneway_session::canvas::{CanvasContext, CanvasLimits};
use laneway_session::fake::{FakeDecoder, Fault, canvases, endless, logits};
use laneway_session::*;
use proptest::prelude::*;

const CASES: u32 = 160;
const CONTEXT: usize = 48;

#[derive(Clone, Debug)]
enum Operation {
    Turn { settings: u32, family: u32, length: usize, max_tokens: usize, seed: u64, deadline_ms: Option<u64> },
    Read { settings: u32, family: u32, length: usize, count: u32, size: u32, passes: u32, deadline_ms: Option<u64> },
    Cancel(prop::sample::Index),
    Step(usize),
    Fail(&'static str, Fault),
    FailLoad(bool),
    Poison(Option<u32>),
    OneShot(u32),
    Export { family: u32, length: usize, from: usize },
    Import { pick: prop::sample::Index, namespace: u64 },
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let fault = prop_oneof![Just(Fault::Step), Just(Fault::Step), Just(Fault::Lost), Just(Fault::Panic)];
    let call = prop_oneof![Just("begin"), Just("submit"), Just("collect"), Just("read_page"), Just("write_page")];
    let deadline = || prop_oneof![4 => Just(None), 1 => (1_u64..80).prop_map(Some)];
    let settings = || prop_oneof![9 => Just(1_u32), 1 => Just(2)];
    prop_oneof![
        7 => (settings(), 1_u32..4, 0_usize..44, 0_usize..30, 0_u64..2, deadline()).prop_map(
            |(settings, family, length, max_tokens, seed, deadline_ms)| Operation::Turn {
                settings, family, length, max_tokens, seed, deadline_ms
            }
        ),
        7 => (settings(), 1_u32..4, 0_usize..44, 0_u32..7, 1_u32..7, 0_u32..4, deadline()).prop_map(
            |(settings, family, length, count, size, passes, deadline_ms)| Operation::Read {
                settings, family, length, count, size, passes, deadline_ms
            }
        ),
        3 => any::<prop::sample::Index>().prop_map(Operation::Cancel),
        24 => (1_usize..16).prop_map(Operation::Step),
        2 => (call, fault).prop_map(|(call, fault)| Operation::Fail(call, fault)),
        1 => any::<bool>().prop_map(Operation::FailLoad),
        1 => prop::option::of(0_u32..64).prop_map(Operation::Poison),
        1 => (0_u64..2000).prop_map(Operation::Wait),
        1 => (1_u32..4).prop_map(Operation::OneShot),
        4 => (1_u32..4, 0_usize..44, 0_usize..3).prop_map(|(family, length, from)| Operation::Export { family, length, from }),
        4 => (any::<prop::sample::Index>(), 0_u64..2).prop_map(|(pick, namespace)| Operation::Import { pick, namespace }),
    ]
}

#[derive(Default)]
struct Sent {
    turns: Vec<(Told, Vec<u32>, u64, usize)>,
    reads: Vec<(Answered, Vec<u32>, Vec<Branch>)>,
}

/// Prompts of a family share their beginning and differ in the tail.
fn prompt(family: u32, length: usize) -> Vec<u32> {
    let length = length as u32;
    (0..length).map(|n| if n < length / 2 + 3 { family * 10 + n % 7 } else { n * length % 59 }).collect()
}

/// Branches of two kinds: passes 0 are causal, and every fourth is of the other kind.
fn branches(count: u32, size: u32, passes: u32, has_canvas: bool) -> Vec<Branch> {
    let kind = |n: u32| match (passes, has_canvas && n % 4 < 3) {
        (1.., true) => BranchKind::Canvas { passes },
        _ => BranchKind::Causal,
    };
    let slot = |row| Slot { row, labels: vec![1, 2, 3 + row as u32] };
    (0..count)
        .map(|n| Branch {
            tokens: (0..size).map(|at| (at * 5 + n) % 60).collect(),
            kind: kind(n),
            slots: (0..size as usize).step_by(2).map(slot).collect(),
        })
        .collect()
}

fn check(lab: &Lab, sent: &Sent) -> Result<(), TestCaseError> {
    let snapshot = lab.snapshot();
    let total = snapshot.total();
    prop_assert_eq!(total.queued, total.started + total.waiting() + total.rejected);
    prop_assert_eq!(total.started, total.finished + total.failed + total.running());
    let turns = sent.turns.iter().filter(|sent| sent.0.finished().is_some()).count() as u64;
    let answers: Vec<_> = sent.reads.iter().filter_map(|sent| sent.0.outcome()).collect();
    prop_assert_eq!(turns + answers.len() as u64, total.finished + total.failed);
    prop_assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count() as u64, snapshot.reads);
    let lanes = snapshot.lanes;
    prop_assert_eq!(lanes.high_water, lanes.active + lanes.idle + lanes.free);
    prop_assert!(lanes.high_water <= lab.limits.lanes && lanes.pages_used <= lanes.pages_total);
    let loaded = u64::from(snapshot.model == ModelState::Loaded);
    prop_assert_eq!(snapshot.loaded, snapshot.unloaded + loaded);
    prop_assert_eq!(snapshot.loading, snapshot.loaded + snapshot.load_failed);
    Ok(())
}

fn check_answers(limits: &EngineLimits, sent: &Sent) -> Result<usize, TestCaseError> {
    let mut complete = 0;
    for (told, prompt, seed, max_tokens) in &sent.turns {
        let events = told.events();
        let finished = events.iter().filter(|event| matches!(event, Event::Finished(_))).count();
        prop_assert_eq!(finished, 1);
        prop_assert!(matches!(events.last(), Some(Event::Finished(_))));
        let tokens = told.tokens();
        let room = limits.answer_room(prompt.len());
        let answer = match limits.canvas {
            Some(canvas) => canvases(limits, canvas.denoising, *seed, prompt, tokens.len()),
            None => endless(*seed, prompt, tokens.len()),
        };
        prop_assert_eq!(&answer, &tokens, "prompt {:?}", prompt);
        if let Some(Ok(finish)) = told.finished() {
            prop_assert_eq!(finish.completion_tokens, tokens.len());
            prop_assert_eq!(tokens.len(), room.min(*max_tokens));
            complete += 1;
        }
    }
    for (told, prompt, branches) in &sent.reads {
        let Ok(answer) = told.outcome().unwrap() else { continue };
        prop_assert_eq!(answer.logits, logits(limits, prompt, branches), "prompt {:?}", prompt);
        complete += 1;
    }
    Ok(complete)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..Default::default() })]

    /// G17, G25, G32, L1, L2, O15, S1, S20, S23: 160 cases of 80 to 120 operations, 12 800 at least.
    #[test]
    fn turns_reads_pages_and_counts_are_conserved(
        canvas in prop::sample::select(vec![None, Some(CAUSAL), Some(BLOCKS), Some(WHOLE), Some(SHIFTED)]),
        length in 3_usize..7,
        lanes in 1_usize..5,
        pages in 13_usize..32,
        page_positions in 4_usize..6,
        rows in 6_usize..20,
        depth in 1_usize..4,
        branch_tables in 0_usize..5,
        reserved_tokens in prop_oneof![Just(1_usize), Just(6), Just(512)],
        operations in prop::collection::vec(operation(), 80..120),
    ) {
        std::panic::set_hook(Box::new(|info| if !info.to_string().contains("injected panic") { eprintln!("{info}") }));
        let canvas = canvas.map(|canvas| CanvasLimits { length, ..canvas });
        let is_whole = canvas.is_some_and(|canvas| canvas.context == CanvasContext::Whole);
        let max_rows = if is_whole { CONTEXT } else { rows };
        let limits = EngineLimits {
            lanes, pages, page_positions, context_length: CONTEXT, max_rows, depth, branches: branch_tables, row_bytes: 8, canvas
        };
        let config = ServiceConfig { queue_depth: 12, reserved_tokens, idle_timeout_ms: 3000, ..Default::default() };
        let mut lab = Lab::with_config(limits, config);
        let mut sent = Sent::default();
        let mut cancels: Vec<Cancel> = Vec::new();
        let mut exports = Vec::new();
        let mut imports = Vec::new();
        for operation in operations {
            match operation {
                Operation::Turn { settings, family, length, max_tokens, seed, deadline_ms } => {
                    let prompt = prompt(family, length);
                    let (mut turn, told) = turn(&prompt);
                    turn.max_tokens = Some(max_tokens);
                    turn.deadline_ms = deadline_ms;
                    turn.wants_drafts = seed == 1;
                    turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
                    turn.sampling = Sampling::new(SamplingOptions { seed, ..Default::default() }).unwrap();
                    match lab.service.submit(lab.now, request(settings), turn) {
                        Ok(()) => {
                            cancels.push(told.cancel.clone());
                            sent.turns.push((told, prompt, seed, max_tokens));
                        }
                        Err(error) => prop_assert_eq!(error, SubmitError::QueueFull { depth: 12 }),
                    }
                }
                Operation::Read { settings, family, length, count, size, passes, deadline_ms } => {
                    let (prompt, branches) = (prompt(family, length), branches(count, size, passes, canvas.is_some()));
                    let (mut read, told) = read(&prompt, &branches);
                    read.deadline_ms = deadline_ms;
                    match lab.service.submit_read(lab.now, request(settings), read) {
                        Ok(()) => {
                            cancels.push(told.cancel.clone());
                            sent.reads.push((told, prompt, branches));
                        }
                        Err(error) => prop_assert_eq!(error, SubmitError::QueueFull { depth: 12 }),
                    }
                }
                Operation::Cancel(index) if !cancels.is_empty() => index.get(&cancels).cancel(),
                Operation::Cancel(_) => {}
                Operation::Step(count) => for _ in 0..count {
                    lab.step();
                    check(&lab, &sent)?;
                },
                Operation::Fail(call, fault) => lab.faults.inject(call, fault),
                Operation::FailLoad(fail) => lab.load_error = fail.then(|| "no such file".to_owned()),
                Operation::Poison(token) => lab.faults.poison(token),
                Operation::OneShot(family) => {
                    let prompt = prompt(family, 20);
                    let (mut turn, told) = turn(&prompt);
                    turn.max_tokens = Some(9);
                    turn.target = Target::OneShot;
                    turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
                    if lab.service.submit(lab.now, request(1), turn).is_ok() {
                        cancels.push(told.cancel.clone());
                        sent.turns.push((told, prompt, 0, 9));
                    }
                }
                Operation::Export { family, length, from } => {
                    let prompt = prompt(family, length);
                    let (told, cancel) = lab.export(0, &prompt, from * page_positions);
                    cancels.push(cancel);
                    exports.push((prompt, from, told));
                }
                Operation::Import { pick, namespace } if !exports.is_empty() => {
                    let (prompt, from, told) = pick.get(&exports);
                    if let (Some(Ok(exported)), 0) = (ended(told), from) {
                        let (told, cancel) = lab.import(namespace, &prompt[..exported.tokens], &exported.pages);
                        cancels.push(cancel);
                        imports.push(told);
                    }
                }
                Operation::Import { .. } => {}
                Operation::Wait(ms) => lab.now += ms,
            }
            check(&lab, &sent)?;
        }
        lab.settle();
        check(&lab, &sent)?;
        check_answers(&limits, &sent)?;
        prop_assert!(exports.iter().all(|(.., told)| ended(told).is_some()));
        prop_assert!(imports.iter().all(|told| ended(told).is_some()));
        let snapshot = lab.snapshot();
        prop_assert_eq!(snapshot.lanes.pages_used, snapshot.lanes.pages_cached);
        prop_assert_eq!((snapshot.total().running(), snapshot.total().waiting()), (0, 0));
        prop_assert_eq!(snapshot.lanes.active, 0);
        lab.service.drain();
        lab.settle();
        let snapshot = lab.snapshot();
        prop_assert_eq!((snapshot.loaded, snapshot.lanes), (snapshot.unloaded, LaneStats::default()));
    }

    /// The same without faults: everything that can be answered is.
    #[test]
    fn without_faults_every_turn_and_read_is_answered(
        canvas in prop::sample::select(vec![None, Some(CAUSAL), Some(BLOCKS), Some(WHOLE), Some(SHIFTED)]),
        lanes in 1_usize..4,
        pages in 13_usize..32,
        depth in 1_usize..3,
        branch_tables in 0_usize..4,
        tasks in prop::collection::vec((1_u32..4, 1_usize..30, 1_u32..6, 1_u32..6, 1_u32..4, any::<bool>()), 1..12),
    ) {
        let limits = EngineLimits {
            lanes, pages, page_positions: 4, context_length: CONTEXT, max_rows: CONTEXT, depth,
            branches: branch_tables, row_bytes: 8, canvas,

        };
        let mut lab = Lab::with_config(limits, ServiceConfig { reserved_tokens: 2, ..Default::default() });
        let mut sent = Sent::default();
        for (family, length, count, size, passes, is_read) in tasks {
            let prompt = prompt(family, length);
            if is_read {
                let kind = if canvas.is_some() { BranchKind::Canvas { passes } } else { BranchKind::Causal };
                let mut branches = branches(count, size, 1, canvas.is_some());
                branches.iter_mut().for_each(|branch| branch.kind = kind);
                sent.reads.push((lab.read(&prompt, &branches), prompt, branches));
            } else {
                let told = lab.submit_with(1, &prompt, |turn| {
                    turn.max_tokens = Some(count as usize * 4);
                    turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
                });
                sent.turns.push((told, prompt, 0, count as usize * 4));
            }
        }
        lab.settle();
        check(&lab, &sent)?;
        prop_assert_eq!(check_answers(&limits, &sent)?, sent.turns.len() + sent.reads.len());
    }
}
