//! Reads: what they yield, which pages they take, and that they leave nothing behind.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use std::sync::{Arc, Mutex};

use lab::{Answered, BLOCKS, CAUSAL, Did, LIMITS, Lab, SHIFTED, WHOLE, branch, canvas_engines, read, request, turn};
use laneway_session::fake::{FakeDecoder, Fault, endless, logits};
use laneway_session::*;

const ONCE: BranchKind = BranchKind::Canvas { passes: 1 };
const PROMPT: [u32; 10] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
const CANVAS: EngineLimits = EngineLimits { canvas: Some(CAUSAL), ..LIMITS };

/// `count` branches of three tokens that differ.
fn branches(kind: BranchKind, count: u32) -> Vec<Branch> {
    (0..count).map(|n| branch(kind, &[n, n + 1, n + 2], &[1, 2])).collect()
}

fn check(limits: EngineLimits, prompt: &[u32], branches: &[Branch]) -> Lab {
    let mut lab = Lab::new(limits);
    let told = lab.read(prompt, branches);
    lab.settle();
    let answer = told.answer();
    assert_eq!(answer.logits, logits(&limits, prompt, branches), "{limits:?}");
    assert_eq!((answer.prompt_tokens, answer.cached_tokens), (prompt.len(), 0));
    let rows: usize = lab.plans().iter().map(|plan| plan.rows.len()).sum();
    assert_eq!(answer.computed_tokens, rows);
    let lanes = lab.snapshot().lanes;
    let kept = if lab.limits.canvas == Some(WHOLE) || lab.limits.canvas == Some(SHIFTED) { 0 } else { prompt.len() };
    let kept = if lab.limits.canvas == Some(BLOCKS) { kept - kept % BLOCKS.length } else { kept };
    assert_eq!((lanes.active, lanes.pages_used), (0, kept.div_ceil(limits.page_positions)));
    lab
}

fn branch_steps(lab: &Lab) -> Vec<&StepPlan> {
    lab.plans().into_iter().filter(|plan| !plan.labels.is_empty()).collect()
}

/// O11, O13
#[test]
fn a_causal_branch_reads_what_follows_its_rows() {
    for max_rows in [1, 2, 8, 32] {
        let lab = check(EngineLimits { max_rows, ..LIMITS }, &PROMPT, &branches(BranchKind::Causal, 1));
        assert!(lab.plans().iter().all(|plan| plan.pass == Pass::Encode && plan.samples.is_empty()));
        assert_eq!((lab.snapshot().http.finished, lab.snapshot().reads), (1, 1));
        assert_eq!(lab.snapshot().completion_tokens, 0);
    }
    check(CANVAS, &PROMPT, &branches(BranchKind::Causal, 3));
}

/// O11
#[test]
fn a_canvas_branch_is_one_block_behind_the_prompt() {
    for limits in canvas_engines() {
        let lab = check(limits, &PROMPT, &branches(ONCE, 1));
        let steps = branch_steps(&lab);
        assert_eq!((steps.len(), steps[0].pass), (1, Pass::Denoise));
        assert!(steps[0].rows.iter().all(|row| row.block.is_some_and(|block| !block.is_conditioned)));
    }
    let lab = check(CANVAS, &PROMPT, &branches(ONCE, 1));
    let block = Some(Block { start: 10, len: 3, is_conditioned: false });
    assert!(branch_steps(&lab)[0].rows.iter().all(|row| row.block == block));
}

#[test]
fn later_passes_see_the_likeliest_labels_and_what_was_predicted() {
    for limits in canvas_engines() {
        for passes in [2, 3] {
            let lab = check(limits, &PROMPT, &branches(BranchKind::Canvas { passes }, 4));
            let conditioned = branch_steps(&lab)
                .into_iter()
                .filter(|plan| plan.rows.iter().any(|row| row.block.is_some_and(|block| block.is_conditioned)));
            assert_eq!(conditioned.count() > 0, limits.canvas.unwrap().is_conditioned);
        }
    }
}

#[test]
fn drafts_are_asked_for_only_where_the_next_pass_reads_them() {
    let lab = check(CANVAS, &PROMPT, &branches(BranchKind::Canvas { passes: 2 }, 1));
    let drafts: Vec<usize> = branch_steps(&lab).iter().map(|plan| plan.drafts.len()).collect();
    assert_eq!(drafts, [3, 0]);
    assert!(branch_steps(&lab)[0].drafts.iter().all(|draft| draft.temperature == 1.0));
}

#[test]
fn a_model_without_a_cache_needs_no_prompt_before_the_branch() {
    for canvas in [WHOLE, SHIFTED] {
        let limits = EngineLimits { canvas: Some(canvas), ..LIMITS };
        check(limits, &[], &branches(ONCE, 2));
        check(limits, &[9], &[branch(ONCE, &[1, 2, 3], &[0, 2])]);
    }
}

/// Where predictions are shifted, slot 2 is read from row 1.
#[test]
fn shifted_slots_are_read_from_the_row_before() {
    let limits = EngineLimits { canvas: Some(SHIFTED), ..LIMITS };
    let lab = check(limits, &[9], &[branch(ONCE, &[1, 2, 3], &[0, 2])]);
    let rows: Vec<u32> = branch_steps(&lab)[0].labels.iter().map(|label| label.row).collect();
    assert_eq!(rows, [0, 2]);
}

#[test]
fn as_many_branches_as_there_are_tables_share_a_step() {
    for (tables, steps) in [(0, 7), (1, 4), (2, 3), (6, 1), (9, 1)] {
        for kind in [ONCE, BranchKind::Causal] {
            let limits = EngineLimits { branches: tables, max_rows: 32, ..CANVAS };
            let lab = check(limits, &PROMPT, &branches(kind, 7));
            assert_eq!(branch_steps(&lab).len(), steps, "{tables} tables");
        }
    }
    // 8 rows hold two branches of three.
    let lab = check(CANVAS, &PROMPT, &branches(ONCE, 7));
    assert_eq!(branch_steps(&lab).len(), 4);
}

#[test]
fn a_partly_filled_page_is_copied_and_whole_ones_are_shared() {
    let limits = EngineLimits { max_rows: 32, ..CANVAS };
    let lab = check(limits, &PROMPT, &branches(ONCE, 3));
    let step = branch_steps(&lab)[0];
    let tables: Vec<&Vec<u32>> = [0, 2, 3].iter().map(|lane| &step.tables[*lane]).collect();
    assert!(tables.iter().all(|table| table.len() == 4 && table[..2] == tables[0][..2]));
    let last: Vec<u32> = tables.iter().flat_map(|table| table[2..].to_vec()).collect();
    assert!((1..last.len()).all(|n| !last[..n].contains(&last[n])), "{last:?}");
    let copies = [1, 2].map(|n| PageCopy { from: tables[0][2], to: tables[n][2] });
    assert_eq!(step.copies, copies);
    // Eight tokens fill two pages: nothing to copy.
    let lab = check(limits, &PROMPT[..8], &branches(ONCE, 3));
    assert!(branch_steps(&lab)[0].copies.is_empty());
}

#[test]
fn several_passes_keep_their_tables_and_copy_once() {
    let limits = EngineLimits { max_rows: 32, ..CANVAS };
    let lab = check(limits, &PROMPT, &branches(BranchKind::Canvas { passes: 3 }, 5));
    let steps = branch_steps(&lab);
    assert_eq!(steps.len(), 6);
    for group in steps.chunks(3) {
        assert!(group.iter().all(|step| step.tables == group[0].tables));
        assert!(group[1..].iter().all(|step| step.copies.is_empty()));
    }
}

/// Without free pages the branches run one after the other, and no conversation loses its pages.
#[test]
fn without_free_pages_branches_take_turns_on_the_lane() {
    let limits = EngineLimits { pages: 11, context_length: 40, max_rows: 32, ..CANVAS };
    let mut lab = Lab::new(limits);
    let chat: Vec<u32> = (20..46).collect();
    lab.submit(&chat, 0);
    lab.settle();
    assert_eq!(lab.snapshot().lanes.pages_used, 7);
    let told = lab.read(&PROMPT, &branches(ONCE, 3));
    lab.settle();
    assert_eq!(told.answer().logits, logits(&limits, &PROMPT, &branches(ONCE, 3)));
    assert_eq!(branch_steps(&lab).len(), 3);
    let again = lab.submit(&chat, 0);
    lab.settle();
    assert_eq!(again.finish().cached_tokens, 26);
}

#[test]
fn kinds_do_not_share_a_step() {
    let kinds = [ONCE, BranchKind::Causal, BranchKind::Canvas { passes: 2 }, BranchKind::Causal, ONCE];
    let branches: Vec<Branch> = kinds.iter().map(|kind| branch(*kind, &[1, 2], &[1])).collect();
    let lab = check(EngineLimits { branches: 9, max_rows: 32, ..CANVAS }, &PROMPT, &branches);
    assert_eq!(branch_steps(&lab).len(), 4);
}

/// A causal branch is computed in chunks like a prompt.
#[test]
fn a_causal_branch_may_be_longer_than_a_step() {
    let tokens: Vec<u32> = (1..22).collect();
    let long = branch(BranchKind::Causal, &tokens, &[0, 7, 8, 20]);
    let short = branch(BranchKind::Causal, &[4], &[0]);
    let lab = check(LIMITS, &PROMPT, &[long.clone(), short, long]);
    assert!(lab.plans().iter().all(|plan| plan.rows.len() <= 8));
}

/// O15
#[test]
fn a_read_between_two_equal_ones_changes_nothing() {
    for limits in canvas_engines() {
        for passes in [1, 2] {
            let kind = BranchKind::Canvas { passes };
            let mut lab = Lab::new(limits);
            let (a, b) = (branches(kind, 5), vec![branch(kind, &[40, 41, 42, 43], &[1, 3])]);
            let first = lab.read(&PROMPT, &a);
            let other = lab.read(&PROMPT[..7], &b);
            let last = lab.read(&PROMPT, &a);
            lab.settle();
            assert_eq!(first.answer().logits, last.answer().logits);
            assert_eq!(other.answer().logits, logits(&limits, &PROMPT[..7], &b));
            assert_ne!(first.answer().logits[0], other.answer().logits[0]);
        }
    }
}

/// L25, C7: an idle lane is no obstacle to a read, nor is one that a read or turn failed on.
#[test]
fn the_only_lane_is_there_for_a_read_after_anything() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..CANVAS });
    lab.submit(&PROMPT, 3);
    lab.settle();
    for fault in [None, Some("begin"), Some("submit"), Some("collect")] {
        if let Some(call) = fault {
            lab.faults.inject(call, Fault::Step);
            let turn = lab.submit(&[1, 2, 3], 3);
            lab.settle();
            assert!(turn.finished().unwrap().is_err());
        }
        let read = lab.read(&PROMPT, &branches(ONCE, 2));
        lab.settle();
        assert_eq!(read.answer().logits, logits(&CANVAS, &PROMPT, &branches(ONCE, 2)));
    }
    assert_eq!((lab.snapshot().lanes.active, lab.snapshot().lanes.high_water), (0, 1));
}

/// Unlike a turn, a read needs no row of its prompt.
#[test]
fn a_cached_prompt_needs_no_step() {
    for limits in [LIMITS, CANVAS] {
        let mut lab = Lab::new(EngineLimits { lanes: 1, ..limits });
        lab.read(&PROMPT, &branches(BranchKind::Causal, 1));
        lab.settle();
        let steps = lab.plans().len();
        let again = lab.read(&PROMPT, &branches(BranchKind::Causal, 1));
        lab.settle();
        assert_eq!(lab.plans().len(), steps + 1);
        let answer = again.answer();
        assert_eq!((answer.cached_tokens, answer.computed_tokens), (10, 3));
        let snapshot = lab.snapshot();
        assert_eq!((snapshot.prompt_tokens, snapshot.cached_tokens), (20, 10));
    }
}

/// Blocks are reused whole: a prompt that goes on within one computes it again.
#[test]
fn a_block_is_reused_whole_or_not_at_all() {
    let limits = EngineLimits { canvas: Some(BLOCKS), lanes: 1, ..LIMITS };
    let mut lab = Lab::new(limits);
    let long: Vec<u32> = (1..20).collect();
    for (prompt, cached) in [(&long[..], 0), (&long[..17], 12), (&long[..], 18), (&long[..18], 18), (&long[..5], 0)] {
        let told = lab.read(prompt, &branches(ONCE, 2));
        lab.settle();
        assert_eq!(told.answer().cached_tokens, cached, "{}", prompt.len());
        assert_eq!(told.answer().logits, logits(&limits, prompt, &branches(ONCE, 2)));
    }
}

/// O14
#[test]
fn reads_beside_decoding_turns_change_nothing_and_take_turns_with_them() {
    for depth in [1, 2] {
        for lanes in [1, 3] {
            let limits = EngineLimits { lanes, depth, pages: 200, context_length: 200, ..LIMITS };
            let mut lab = Lab::new(limits);
            let mut told = Vec::new();
            for n in 0..2_u32 {
                told.push(lab.submit_with(1, &[n + 1, 2], |turn| {
                    turn.max_tokens = Some(60);
                    turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
                }));
            }
            let reads: Vec<Answered> =
                (0..6).map(|n| lab.read(&PROMPT[n..], &branches(BranchKind::Causal, 5))).collect();
            lab.settle();
            for (n, told) in told.iter().enumerate() {
                assert_eq!(told.tokens(), endless(0, &[n as u32 + 1, 2], 60));
            }
            for (n, read) in reads.iter().enumerate() {
                let expected = logits(&limits, &PROMPT[n..], &branches(BranchKind::Causal, 5));
                assert_eq!(read.answer().logits, expected);
            }
            let is_read: Vec<bool> = lab.plans().iter().map(|plan| !plan.labels.is_empty()).collect();
            // With a lane to spare no decode waits for two steps with branches.
            let first = is_read.iter().position(|read| *read).unwrap();
            assert!(lanes == 1 || is_read[first..].windows(4).take(12).all(|steps| steps.contains(&false)));
            assert!(lab.plans().iter().all(|plan| plan.labels.is_empty() || plan.samples.is_empty()));
        }
    }
}

/// O14, S1
#[test]
fn many_reads_on_one_lane_are_all_answered_in_order() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..CANVAS });
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..32_u32 {
        let order = order.clone();
        lab.read_with(&[n, 3, 4], &branches(ONCE, n % 4 + 1), |read| {
            read.answer = Box::new(move |answer| order.lock().unwrap().push((n, answer.unwrap().logits)));
        });
    }
    lab.settle();
    let order = order.lock().unwrap();
    assert!(order.iter().map(|(n, _)| *n).eq(0..32));
    for (n, answer) in order.iter() {
        assert_eq!(*answer, logits(&CANVAS, &[*n, 3, 4], &branches(ONCE, n % 4 + 1)));
    }
    assert_eq!(lab.service.metrics().drain_reads().len(), 32);
}

/// S5, O14
#[test]
fn reads_and_turns_share_the_places_of_the_queue() {
    let config = ServiceConfig { queue_depth: 2, ..Default::default() };
    let mut lab = Lab::with_config(EngineLimits { lanes: 1, ..CANVAS }, config);
    let first = lab.read(&PROMPT, &branches(ONCE, 3));
    let second = lab.submit(&[1, 2], 0);
    let refused = lab.service.submit_read(lab.now, request(1), read(&PROMPT, &branches(ONCE, 1)).0);
    assert_eq!(refused, Err(SubmitError::QueueFull { depth: 2 }));
    assert_eq!(lab.service.submit(lab.now, request(1), turn(&[1]).0), Err(SubmitError::QueueFull { depth: 2 }));
    let counts = lab.snapshot().http;
    assert_eq!((counts.queued, counts.rejected, counts.waiting()), (4, 2, 2));
    lab.settle();
    assert!(first.outcome().is_some() && second.finished().is_some());
    assert_eq!(lab.snapshot().http.finished, 2);
    lab.service.drain();
    let refused = lab.service.submit_read(lab.now, request(1), read(&PROMPT, &branches(ONCE, 1)).0);
    assert_eq!(refused, Err(SubmitError::Stopped));
}

/// S4, G6
#[test]
fn a_read_that_waits_for_pages_is_not_overtaken() {
    let config = ServiceConfig { max_overtaken: 0, ..Default::default() };
    let mut lab = Lab::with_config(EngineLimits { pages: 16, lanes: 3, context_length: 60, ..LIMITS }, config);
    let turn = lab.submit_with(1, &[1; 20], |turn| {
        turn.max_tokens = Some(20);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
    });
    let tokens: Vec<u32> = (0..18).collect();
    let large = lab.read(&PROMPT, &[branch(BranchKind::Causal, &tokens, &[17])]);
    let small = lab.read(&[1, 2], &branches(BranchKind::Causal, 1));
    lab.until(|lab| lab.snapshot().completion_tokens == 10);
    assert_eq!((lab.snapshot().lanes.active, lab.snapshot().http.waiting()), (1, 2));
    assert_eq!(lab.snapshot().lanes.pages_used, 10);
    lab.settle();
    assert!(turn.finished().is_some() && large.outcome().is_some() && small.outcome().is_some());
}

/// O1, O9, S3
#[test]
fn reads_that_can_never_be_made_are_refused_for_good() {
    let long: Vec<u32> = (0..55).collect();
    let invalid = |what| TurnError::InvalidRead(what);
    let canvas = CANVAS;
    let shifted = EngineLimits { canvas: Some(SHIFTED), ..LIMITS };
    let unlabelled = Branch { slots: vec![Slot { row: 0, labels: vec![] }], ..branch(ONCE, &[1], &[]) };
    let foreign = Branch { slots: vec![Slot { row: 0, labels: vec![64] }], ..branch(ONCE, &[1], &[]) };
    let cases = [
        (canvas, &PROMPT[..], vec![], invalid("it has no branch")),
        (canvas, &[], branches(ONCE, 1), TurnError::EmptyPrompt),
        (canvas, &PROMPT, vec![branch(ONCE, &[], &[0])], invalid("a branch has no tokens")),
        (canvas, &PROMPT, vec![branch(ONCE, &[1], &[])], invalid("a branch has no slot, or a slot no label")),
        (canvas, &PROMPT, vec![unlabelled], invalid("a branch has no slot, or a slot no label")),
        (canvas, &PROMPT, vec![foreign], invalid("a label is outside the vocabulary")),
        (
            canvas,
            &PROMPT,
            vec![branch(ONCE, &[1, 2], &[2])],
            invalid("slots are outside their branch or not in ascending order"),
        ),
        (
            canvas,
            &PROMPT,
            vec![branch(ONCE, &[1, 2], &[1, 1])],
            invalid("slots are outside their branch or not in ascending order"),
        ),
        (canvas, &PROMPT, branches(BranchKind::Canvas { passes: 0 }, 1), invalid("a branch has no pass")),
        (canvas, &PROMPT, vec![branch(ONCE, &[1; 9], &[8])], invalid("a canvas is longer than a step")),
        (LIMITS, &PROMPT, branches(ONCE, 1), invalid("the model has no canvas")),
        (
            shifted,
            &PROMPT[..2],
            branches(BranchKind::Causal, 1),
            invalid("the model reads blocks, the branch is causal"),
        ),
        (shifted, &[], vec![branch(ONCE, &[1], &[0])], invalid("the first position of all has no row before it")),
        (
            LIMITS,
            &PROMPT,
            vec![branch(BranchKind::Causal, &long, &[0])],
            TurnError::ContextExceeded { prompt: 65, limit: 64 },
        ),
    ];
    for (limits, prompt, branches, error) in cases {
        let mut lab = Lab::new(limits);
        let cold = lab.read(prompt, &branches);
        lab.settle();
        assert_eq!(cold.error(), error);
        // With the model loaded it is refused at once.
        assert_eq!(lab.read(prompt, &branches).error(), error);
        assert!(lab.plans().is_empty());
        assert_eq!((lab.snapshot().http.failed, lab.snapshot().http.running()), (2, 0));
    }
}

/// S18, C9, G11: cancelled before every single step of the driver, in the queue, the prompt, the branches and between passes.
#[test]
fn cancel_and_deadline_are_seen_between_any_two_steps() {
    for depth in [1, 2] {
        let limits = EngineLimits { depth, lanes: 1, ..CANVAS };
        let work = branches(BranchKind::Canvas { passes: 3 }, 4);
        let mut reached = Vec::new();
        for step in 0..60 {
            for by_deadline in [false, true] {
                let mut lab = Lab::new(limits);
                let told = lab.read_with(&PROMPT, &work, |read| read.deadline_ms = Some(10_000));
                (0..step).for_each(|_| _ = lab.step());
                let before = lab.plans().len();
                if by_deadline {
                    lab.now += 20_000
                } else {
                    told.cancel.cancel()
                }
                let done = told.outcome().is_some();
                lab.settle();
                if !done {
                    let error = if by_deadline { TurnError::DeadlineExceeded } else { TurnError::Cancelled };
                    assert_eq!(told.error(), error);
                    assert_eq!(lab.plans().len(), before, "work after the end");
                }
                reached.push(before);
                assert_eq!(lab.snapshot().lanes.active, 0);
                // Whatever was under way, the next one is right.
                let next = lab.read(&PROMPT, &work);
                lab.settle();
                assert_eq!(next.answer().logits, logits(&limits, &PROMPT, &work));
                assert_eq!(lab.snapshot().lanes.pages_used, 3);
            }
        }
        assert!((0..8).all(|count| reached.contains(&count)), "{reached:?}");
    }
}

/// S20, S31, L44: a fault at every call; only the read whose step it was fails, and no page or lane is lost.
#[test]
fn a_fault_at_any_call_fails_one_read_and_loses_nothing() {
    for (call, fault) in [
        ("submit", Fault::Step),
        ("collect", Fault::Step),
        ("submit", Fault::Lost),
        ("collect", Fault::Lost),
        ("submit", Fault::Panic),
        ("collect", Fault::Panic),
    ] {
        for depth in [1, 2] {
            let limits = EngineLimits { depth, lanes: 2, ..CANVAS };
            let work = branches(BranchKind::Canvas { passes: 2 }, 4);
            for step in 1..40 {
                let mut lab = Lab::new(limits);
                let told = lab.read(&PROMPT, &work);
                (0..step).for_each(|_| _ = lab.step());
                lab.faults.inject(call, fault);
                lab.settle();
                if let Some(Ok(answer)) = told.outcome() {
                    assert_eq!(answer.logits, logits(&limits, &PROMPT, &work));
                } else {
                    let engine = matches!(told.error(), TurnError::Engine(_));
                    assert!(engine || (fault == Fault::Panic && told.error() == TurnError::Internal));
                }
                lab.faults.inject("begin", Fault::Step);
                let next = lab.read(&PROMPT, &work);
                lab.settle();
                if next.outcome().unwrap().is_err() {
                    // The fault was not met before: it is this one's.
                    assert!(told.outcome().unwrap().is_ok());
                }
                let snapshot = lab.snapshot();
                assert_eq!((snapshot.lanes.active, snapshot.total().running()), (0, 0));
                assert!(snapshot.lanes.pages_used <= 3);
            }
        }
    }
}

/// S20: a read's prompt shares a step with a decoding neighbour's prompt, its branches do not.
#[test]
fn a_failing_read_leaves_its_neighbours_alone() {
    for depth in [1, 2] {
        for place in ["prompt", "branch"] {
            let mut lab = Lab::new(EngineLimits { depth, lanes: 3, max_rows: 16, ..LIMITS });
            lab.faults.poison(Some(999));
            let endless_turn = |turn: &mut Turn| {
                turn.max_tokens = Some(20);
                turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
            };
            let good = lab.submit_with(1, &[1, 2], endless_turn);
            let prompt = if place == "prompt" { vec![5, 999] } else { vec![5, 6] };
            let mut work = branches(BranchKind::Causal, 2);
            work[1].tokens[0] = if place == "branch" { 999 } else { 7 };
            let bad = lab.read(&prompt, &work);
            let other = lab.read(&[7, 8], &branches(BranchKind::Causal, 2));
            lab.settle();
            let TurnError::Engine(reason) = bad.error() else { panic!("{:?}", bad.error()) };
            assert!(reason.contains("poisoned"));
            assert_eq!(good.tokens(), endless(0, &[1, 2], 20));
            assert_eq!(other.answer().logits, logits(&lab.limits, &[7, 8], &branches(BranchKind::Causal, 2)));
            // Nothing of a failed read is reused.
            lab.faults.poison(None);
            let again = lab.read(&prompt, &branches(BranchKind::Causal, 1));
            lab.settle();
            assert_eq!(again.answer().cached_tokens, 0);
        }
    }
}

#[test]
fn logits_that_are_no_numbers_never_reach_the_caller() {
    for passes in [1, 2] {
        let mut lab = Lab::new(CANVAS);
        lab.faults.blind(true);
        let told = lab.read(&PROMPT, &branches(BranchKind::Canvas { passes }, 2));
        lab.settle();
        assert_eq!(told.error(), TurnError::Engine("a logit of branch 0 is not a number".to_owned()));
        lab.faults.blind(false);
        let next = lab.read(&PROMPT, &branches(ONCE, 2));
        lab.settle();
        assert_eq!(next.answer().logits, logits(&CANVAS, &PROMPT, &branches(ONCE, 2)));
    }
}

/// G13, G15, S22
#[test]
fn reads_load_their_model_and_hear_of_failures_and_the_end() {
    let mut lab = Lab::new(CANVAS);
    lab.load_error = Some("no such file".to_owned());
    let failed = lab.read(&PROMPT, &branches(ONCE, 1));
    lab.settle();
    assert_eq!(failed.error(), TurnError::Load("no such file".to_owned()));
    lab.load_error = None;
    lab.read(&PROMPT, &branches(ONCE, 1));
    lab.settle();
    assert_eq!(lab.count(&Did::Load(1)), 2);
    let running = lab.read(&PROMPT, &branches(ONCE, 9));
    lab.step();
    let waiting = lab.read(&PROMPT, &branches(ONCE, 1));
    lab.service.shutdown(lab.now);
    assert_eq!((running.error(), waiting.error()), (TurnError::ShuttingDown, TurnError::ShuttingDown));
    lab.settle();
    assert_eq!(lab.log.last(), Some(&Did::Stop));
}

/// A ticket that is dropped gives its place back and tells the caller.
#[test]
fn a_dropped_read_is_counted_and_told() {
    let intake = Intake::new(1);
    let (read, told) = read(&PROMPT, &branches(ONCE, 1));
    drop(intake.admit_read(read).unwrap());
    assert_eq!(told.error(), TurnError::ShuttingDown);
    let counts = intake.metrics().snapshot().http;
    assert_eq!((counts.queued, counts.rejected, counts.waiting()), (1, 1, 0));
}
