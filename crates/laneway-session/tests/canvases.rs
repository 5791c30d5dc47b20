//! Turns that are answered canvas after canvas.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use lab::{BLOCKS, CAUSAL, DENOISING, Did, LIMITS, Lab, SHIFTED, Told, UNMASKING, WHOLE, branch, canvas_engines};
use laneway_session::canvas::*;
use laneway_session::fake::{EOS, FakeDecoder, Fault, canvases, logits, text, up_to_eos};
use laneway_session::*;

const CANVAS: EngineLimits = EngineLimits { canvas: Some(CAUSAL), ..LIMITS };
const PROMPT: [u32; 10] = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

fn submit(lab: &mut Lab, prompt: &[u32], seed: u64, change: impl FnOnce(&mut Turn)) -> Told {
    lab.submit_with(1, prompt, |turn| {
        turn.sampling = Sampling::new(SamplingOptions { seed, ..Default::default() }).unwrap();
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
        change(turn);
    })
}

/// A turn that only its length ends.
fn submit_endless(lab: &mut Lab, prompt: &[u32], seed: u64, max_tokens: usize) -> Told {
    submit(lab, prompt, seed, |turn| turn.max_tokens = Some(max_tokens))
}

fn answer(limits: &EngineLimits, prompt: &[u32], seed: u64, count: usize) -> Vec<u32> {
    canvases(limits, limits.canvas.unwrap().denoising, seed, prompt, count)
}

fn denoise_plans(lab: &Lab) -> Vec<&StepPlan> {
    lab.plans().into_iter().filter(|plan| plan.pass == Pass::Denoise).collect()
}

#[test]
fn answers_of_several_canvases_are_those_of_the_sampler() {
    for limits in canvas_engines() {
        for depth in [1, 2] {
            let limits = EngineLimits { depth, ..limits };
            for (length, max_tokens) in [(10, 6), (10, 7), (1, 20), (12, 18), (17, 30)] {
                let mut lab = Lab::new(limits);
                let prompt: Vec<u32> = (1..=length).collect();
                let told = submit_endless(&mut lab, &prompt, 7, max_tokens);
                lab.settle();
                assert_eq!(told.tokens(), answer(&limits, &prompt, 7, max_tokens), "{limits:?}");
                let finish = told.finish();
                assert_eq!((finish.reason, finish.completion_tokens), (FinishReason::Length, max_tokens));
                assert_eq!(lab.snapshot().completion_tokens, max_tokens as u64);
                assert_eq!(lab.snapshot().passes, denoise_plans(&lab).len() as u64);
                assert_eq!(lab.snapshot().lanes.active, 0);
            }
        }
    }
}

#[test]
fn a_canvas_comes_to_rest_before_its_last_pass() {
    for limits in canvas_engines() {
        let mut lab = Lab::new(limits);
        submit_endless(&mut lab, &PROMPT, 3, 6);
        lab.settle();
        let passes = denoise_plans(&lab).len();
        assert!((2..24).contains(&passes), "{passes}");
    }
}

#[test]
fn a_prompt_is_encoded_as_the_model_caches_it() {
    let encoded = |limits: EngineLimits| {
        let mut lab = Lab::new(limits);
        let prompt: Vec<u32> = (1..=20).collect();
        submit_endless(&mut lab, &prompt, 3, 1);
        lab.settle();
        let plans = lab.plans().into_iter().filter(|plan| plan.pass == Pass::Encode);
        let sizes: Vec<usize> = plans.clone().map(|plan| plan.rows.len()).collect();
        let blocks: Vec<Option<Block>> = plans.flat_map(|plan| plan.rows.iter().map(|row| row.block)).collect();
        let canvas = denoise_plans(&lab)[0].rows.len();
        (sizes, blocks, canvas)
    };
    assert_eq!(encoded(CANVAS), (vec![8, 8, 4], vec![None; 20], 6));
    let (sizes, blocks, canvas) = encoded(EngineLimits { canvas: Some(BLOCKS), max_rows: 13, ..LIMITS });
    assert_eq!((sizes, canvas), (vec![12, 6], 6));
    let starts: Vec<u32> = blocks.iter().map(|block| block.unwrap().start).collect();
    assert_eq!(starts, [[0; 6], [6; 6], [12; 6]].concat());
    for canvas in [WHOLE, SHIFTED] {
        let whole = EngineLimits { canvas: Some(canvas), max_rows: 64, ..LIMITS };
        assert_eq!(encoded(whole), (vec![], vec![], 26));
    }
}

#[test]
fn drafts_are_asked_of_open_positions_and_of_all_where_the_next_pass_reads_them() {
    let drafts = |limits: EngineLimits| {
        let mut lab = Lab::new(limits);
        submit_endless(&mut lab, &PROMPT, 3, 2);
        lab.settle();
        let rows = |plan: &&StepPlan| plan.drafts.iter().map(|draft| draft.row as usize).collect::<Vec<_>>();
        denoise_plans(&lab).iter().map(rows).collect::<Vec<_>>()
    };
    assert!(drafts(CANVAS).iter().all(|rows| rows.iter().copied().eq(0..6)));
    // Ten prompt tokens: the second block begins with four of them.
    let blocks = drafts(EngineLimits { canvas: Some(BLOCKS), ..LIMITS });
    assert_eq!(blocks[0], [4, 5]);
    let whole = drafts(EngineLimits { canvas: Some(WHOLE), max_rows: 64, ..LIMITS });
    assert!(whole[0].iter().copied().eq(10..16));
    assert!(whole.windows(2).all(|pair| pair[1].len() < pair[0].len()));
    let shifted = drafts(EngineLimits { canvas: Some(SHIFTED), max_rows: 64, ..LIMITS });
    assert!(shifted[0].iter().copied().eq(9..15));
}

#[test]
fn the_schedule_of_temperatures_and_conditioning_reach_the_engine() {
    let mut lab = Lab::new(CANVAS);
    let denoising = Denoising { max_steps: 4, stop: Stop::Stable { passes: 1, entropy: 0.0 }, ..DENOISING };
    let told = submit(&mut lab, &PROMPT, 3, |turn| {
        turn.max_tokens = Some(12);
        turn.denoising = Some(denoising);
    });
    lab.settle();
    assert_eq!(told.tokens(), canvases(&CANVAS, denoising, 3, &PROMPT, 12));
    let plans = denoise_plans(&lab);
    let temperatures: Vec<f32> = plans.iter().map(|plan| plan.drafts[0].temperature).collect();
    let expected = [0.8, 0.7, 0.6, 0.5, 0.8, 0.7, 0.6, 0.5];
    assert!(temperatures.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{temperatures:?}");
    let conditioned: Vec<bool> = plans.iter().map(|plan| plan.rows[0].block.unwrap().is_conditioned).collect();
    assert_eq!(conditioned, [false, true, true, true, false, true, true, true]);
}

/// O5 and the like: draws depend on the seed alone.
#[test]
fn a_seed_gives_the_same_answer_alone_and_among_others() {
    let limits = EngineLimits { lanes: 3, pages: 100, ..CANVAS };
    let mut lab = Lab::new(limits);
    let told: Vec<Told> = [1, 2, 1].iter().map(|seed| submit_endless(&mut lab, &PROMPT, *seed, 12)).collect();
    lab.settle();
    for (told, seed) in told.iter().zip([1, 2, 1]) {
        assert_eq!(told.tokens(), answer(&limits, &PROMPT, seed, 12));
    }
    let draws = |seed| {
        let mut lab = Lab::new(limits);
        submit_endless(&mut lab, &PROMPT, seed, 1);
        lab.settle();
        denoise_plans(&lab)[0].drafts.iter().map(|draft| draft.draw).collect::<Vec<_>>()
    };
    assert_ne!(draws(1), draws(2));
}

/// G17, G18, S13
#[test]
fn several_lanes_revise_in_turn() {
    for depth in [1, 2] {
        let limits = EngineLimits { lanes: 3, depth, pages: 100, ..CANVAS };
        let mut lab = Lab::new(limits);
        for seed in 0..3 {
            submit_endless(&mut lab, &PROMPT[seed as usize..], seed, 18);
        }
        lab.settle();
        let lanes: Vec<usize> = denoise_plans(&lab).iter().map(|plan| plan.rows[0].lane).collect();
        let turns = lanes.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(turns * 3 > lanes.len() * 2, "{lanes:?}");
    }
}

/// 2.3
#[test]
fn drafts_are_told_only_if_wanted_and_the_text_is_appended_once() {
    let mut lab = Lab::new(CANVAS);
    let plain = submit_endless(&mut lab, &PROMPT, 3, 12);
    let drafts = submit(&mut lab, &PROMPT, 3, |turn| (turn.max_tokens, turn.wants_drafts) = (Some(12), true));
    lab.settle();
    assert!(!plain.events().iter().any(|event| matches!(event, Event::Draft { .. })));
    assert_eq!(plain.text(), drafts.text());
    let steps: Vec<(u32, usize)> = drafts
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Draft { tokens, step, entropy } => {
                assert!(entropy.is_finite());
                Some((*step, tokens.len()))
            }
            _ => None,
        })
        .collect();
    assert!(steps.iter().all(|(_, length)| *length == 6));
    assert_eq!(steps.iter().filter(|(step, _)| *step == 1).count(), 2);
    // The last draft of a canvas is what follows as chunks.
    let events = drafts.events();
    let last = events.iter().rposition(|event| matches!(event, Event::Draft { .. })).unwrap();
    let Event::Draft { tokens, .. } = &events[last] else { panic!() };
    assert!(drafts.tokens().ends_with(tokens));
    assert!(events[last + 1..].iter().any(|event| matches!(event, Event::Chunk { .. })));
}

/// The tail of a prompt that shares the first canvas is no part of the answer.
#[test]
fn drafts_leave_out_the_prompt() {
    let mut lab = Lab::new(EngineLimits { canvas: Some(BLOCKS), ..LIMITS });
    let told = submit(&mut lab, &PROMPT, 3, |turn| (turn.max_tokens, turn.wants_drafts) = (Some(2), true));
    lab.settle();
    let lengths = told.events().into_iter().filter_map(|event| match event {
        Event::Draft { tokens, .. } => Some(tokens.len()),
        _ => None,
    });
    assert!(lengths.collect::<Vec<_>>().iter().all(|length| *length == 2));
}

#[test]
fn an_end_of_sequence_ends_the_answer_within_its_canvas() {
    for limits in canvas_engines() {
        let ends = |prompt: &[u32]| up_to_eos(answer(&limits, prompt, 3, 24));
        let prompts = (1..900).map(|n| vec![n, 6, 7, 8]);
        let is_long = |prompt: &Vec<u32>| ends(prompt).last() == Some(&EOS) && (8..24).contains(&ends(prompt).len());
        let prompt = prompts.into_iter().find(is_long).unwrap();
        let expected = ends(&prompt);
        let mut lab = Lab::new(limits);
        let told = submit(&mut lab, &prompt, 3, |turn| {
            turn.max_tokens = Some(24);
            turn.decoder = Box::new(FakeDecoder::default());
        });
        lab.settle();
        assert_eq!(told.text(), text(&expected));
        let finish = told.finish();
        assert_eq!((finish.reason, finish.completion_tokens), (FinishReason::Stop, expected.len()));
        // The last canvas is not committed.
        let last = lab.plans().last().unwrap().pass;
        assert_eq!(last, Pass::Denoise);
    }
}

#[test]
fn a_stop_string_ends_the_answer_within_its_canvas() {
    let expected = answer(&CANVAS, &PROMPT, 3, 12);
    let stop = expected[7];
    let end = expected.iter().position(|token| *token == stop).unwrap();
    let mut lab = Lab::new(CANVAS);
    let told = submit(&mut lab, &PROMPT, 3, |turn| {
        turn.decoder = Box::new(FakeDecoder { stop: Some(stop), endless: true });
    });
    lab.settle();
    assert_eq!(told.text(), text(&expected[..end]));
    assert_eq!((told.finish().reason, told.finish().completion_tokens), (FinishReason::Stop, end + 1));
}

/// C30: whole canvases are counted.
#[test]
fn the_context_holds_whole_canvases() {
    for (limits, prompt, room) in [
        (CANVAS, 58, 6),
        (CANVAS, 50, 12),
        (EngineLimits { canvas: Some(BLOCKS), ..LIMITS }, 58, 2),
        (EngineLimits { canvas: Some(BLOCKS), ..LIMITS }, 59, 1),
        (EngineLimits { canvas: Some(WHOLE), max_rows: 40, ..LIMITS }, 30, 6),
    ] {
        let mut lab = Lab::new(limits);
        let prompt: Vec<u32> = (0..prompt).map(|n| n % 60 + 1).collect();
        let told = submit(&mut lab, &prompt, 3, |turn| turn.max_tokens = None);
        lab.settle();
        assert_eq!((told.tokens().len(), told.finish().reason), (room, FinishReason::Length));
        assert_eq!(told.tokens(), answer(&limits, &prompt, 3, room));
    }
    for (limits, length, limit) in [
        (CANVAS, 59, 64),
        (EngineLimits { canvas: Some(BLOCKS), ..LIMITS }, 60, 64),
        (EngineLimits { canvas: Some(WHOLE), max_rows: 40, ..LIMITS }, 35, 40),
    ] {
        let mut lab = Lab::new(limits);
        let told = submit(&mut lab, &vec![1; length], 3, |_| {});
        lab.settle();
        assert_eq!(told.error(), TurnError::ContextExceeded { prompt: length, limit });
        assert!(lab.plans().is_empty());
    }
}

#[test]
fn a_turn_that_asks_for_no_token_revises_nothing() {
    for limits in canvas_engines() {
        let mut lab = Lab::new(EngineLimits { lanes: 1, ..limits });
        for _ in 0..2 {
            // The second time all of the prompt is cached.
            let told = submit_endless(&mut lab, &PROMPT, 3, 0);
            lab.settle();
            assert_eq!((told.finish().completion_tokens, told.finish().reason), (0, FinishReason::Length));
        }
        assert!(denoise_plans(&lab).is_empty());
        assert_eq!(lab.snapshot().lanes.active, 0);
    }
}

#[test]
fn committed_canvases_are_reused_by_the_next_turn() {
    for (limits, cached) in [(CANVAS, 22), (EngineLimits { canvas: Some(BLOCKS), ..LIMITS }, 24)] {
        let mut lab = Lab::new(limits);
        let first = submit_endless(&mut lab, &PROMPT, 3, 18);
        lab.settle();
        let mut chat = PROMPT.to_vec();
        chat.extend(first.tokens());
        chat.extend([50, 51, 52]);
        let second = submit_endless(&mut lab, &chat, 4, 6);
        lab.settle();
        assert_eq!(second.tokens(), answer(&limits, &chat, 4, 6));
        assert_eq!(second.finish().cached_tokens, cached);
    }
}

/// S1, S2
#[test]
fn pages_are_claimed_for_the_prompt_and_one_canvas() {
    for (limits, pages) in [(CANVAS, 4), (EngineLimits { canvas: Some(BLOCKS), ..LIMITS }, 3)] {
        let mut lab = Lab::new(limits);
        submit_endless(&mut lab, &PROMPT, 3, 18);
        lab.until(|lab| lab.count(&Did::Begin(0)) == 1);
        assert_eq!(lab.snapshot().lanes.pages_used, pages);
    }
}

/// S23
#[test]
fn a_preempted_turn_goes_on_from_its_committed_canvases() {
    for canvas in [CAUSAL, BLOCKS] {
        for depth in [1, 2] {
            let limits =
                EngineLimits { lanes: 3, pages: 12, context_length: 48, depth, canvas: Some(canvas), ..LIMITS };
            let mut lab = Lab::new(limits);
            let prompts = [[1_u32; 8], [2; 8], [3; 8]];
            let told: Vec<Told> = (1..).zip(&prompts).map(|(seed, p)| submit_endless(&mut lab, p, seed, 36)).collect();
            lab.settle();
            for ((seed, prompt), told) in (1..).zip(&prompts).zip(&told) {
                assert_eq!(told.tokens(), answer(&limits, prompt, seed, 36));
                assert_eq!((told.finish().prompt_tokens, told.finish().completion_tokens), (8, 36));
            }
            let snapshot = lab.snapshot();
            assert!(snapshot.preempted > 0);
            assert_eq!((snapshot.prompt_tokens, snapshot.http.started, snapshot.http.finished), (24, 3, 3));
        }
    }
}

/// C26, S18, S19: cancelled before every single step of the driver, prompt, passes and commits.
#[test]
fn cancel_and_deadline_are_seen_in_every_pass_and_the_lane_recovers() {
    for limits in canvas_engines() {
        for depth in [1, 2] {
            let limits = EngineLimits { depth, lanes: 1, ..limits };
            let expected = answer(&limits, &PROMPT, 3, 12);
            for step in (0..90).step_by(depth) {
                let mut lab = Lab::new(limits);
                let by_deadline = step % 2 == 0;
                let told = submit(&mut lab, &PROMPT, 3, |turn| {
                    (turn.max_tokens, turn.deadline_ms) = (Some(12), Some(10_000));
                });
                (0..step).for_each(|_| _ = lab.step());
                let (before, done) = (lab.plans().len(), told.finished().is_some());
                if by_deadline {
                    lab.now += 20_000
                } else {
                    told.cancel.cancel()
                }
                lab.settle();
                if !done {
                    let error = if by_deadline { TurnError::DeadlineExceeded } else { TurnError::Cancelled };
                    assert_eq!((told.error(), lab.plans().len()), (error, before));
                    assert!(expected.starts_with(&told.tokens()));
                }
                let next = submit_endless(&mut lab, &PROMPT, 3, 12);
                lab.settle();
                assert_eq!(next.tokens(), expected);
                assert_eq!(lab.snapshot().lanes.active, 0);
            }
        }
    }
}

/// S20, G25, C28
#[test]
fn a_fault_at_any_call_leaves_the_next_turn_right() {
    for limits in canvas_engines() {
        for call in ["begin", "submit", "collect"] {
            for fault in [Fault::Step, Fault::Lost, Fault::Panic] {
                for step in (0..60).step_by(3) {
                    let mut lab = Lab::new(EngineLimits { depth: 1 + step % 2, ..limits });
                    let told = submit_endless(&mut lab, &PROMPT, 3, 12);
                    (0..step).for_each(|_| _ = lab.step());
                    lab.faults.inject(call, fault);
                    lab.settle();
                    let expected = answer(&limits, &PROMPT, 3, 12);
                    match told.finished().unwrap() {
                        Ok(_) => assert_eq!(told.tokens(), expected),
                        Err(TurnError::Engine(_)) => assert_ne!(fault, Fault::Panic),
                        Err(error) => assert_eq!((fault, error), (Fault::Panic, TurnError::Internal)),
                    }
                    assert!(expected.starts_with(&told.tokens()));
                    // A fault that was not met yet is met by this one.
                    submit_endless(&mut lab, &PROMPT, 3, 6);
                    lab.settle();
                    let next = submit_endless(&mut lab, &PROMPT, 3, 12);
                    lab.settle();
                    assert_eq!(next.tokens(), expected);
                    assert_eq!((lab.snapshot().lanes.active, lab.snapshot().total().running()), (0, 0));
                }
            }
        }
    }
}

/// S20
#[test]
fn a_poisoned_canvas_fails_only_its_turn() {
    for depth in [1, 2] {
        let limits = EngineLimits { depth, lanes: 3, pages: 100, ..CANVAS };
        let mut lab = Lab::new(limits);
        lab.faults.poison(Some(999));
        let good = submit_endless(&mut lab, &[1, 2], 1, 12);
        let bad = submit_endless(&mut lab, &[3, 999], 2, 12);
        let other = submit_endless(&mut lab, &[4, 5, 6], 3, 12);
        lab.settle();
        let TurnError::Engine(reason) = bad.error() else { panic!("{:?}", bad.error()) };
        assert!(reason.contains("poisoned"));
        assert_eq!(good.tokens(), answer(&limits, &[1, 2], 1, 12));
        assert_eq!(other.tokens(), answer(&limits, &[4, 5, 6], 3, 12));
    }
}

#[test]
fn entropies_that_are_no_numbers_end_the_turn_by_the_name_of_the_pass() {
    for limits in canvas_engines() {
        let mut lab = Lab::new(limits);
        let selection = Selection::Schedule(Confidence::Probability);
        let told = submit(&mut lab, &PROMPT[..6], 3, |turn| {
            turn.denoising = Some(Denoising { selection, max_steps: 3, ..UNMASKING });
        });
        lab.until(|lab| lab.snapshot().passes == 1);
        lab.faults.blind(true);
        lab.settle();
        let reason = "pass 2 over a canvas has entropies or probabilities that are not numbers";
        assert_eq!(told.error(), TurnError::Engine(reason.to_owned()));
        assert!(told.tokens().is_empty());
    }
}

/// C7, O14: a turn leaves no lane in the way of a read, and neither changes the other.
#[test]
fn reads_and_canvases_take_turns() {
    for limits in canvas_engines() {
        for lanes in [1, 2] {
            let limits = EngineLimits { lanes, ..limits };
            let mut lab = Lab::new(limits);
            let branches: Vec<Branch> =
                (0..4).map(|n| branch(BranchKind::Canvas { passes: 2 }, &[n, 2, 3], &[1, 2])).collect();
            let turn = submit_endless(&mut lab, &PROMPT, 3, 18);
            let read = lab.read(&PROMPT[..7], &branches);
            let after = submit_endless(&mut lab, &PROMPT[1..], 4, 12);
            lab.settle();
            assert_eq!(turn.tokens(), answer(&limits, &PROMPT, 3, 18));
            assert_eq!(read.answer().logits, logits(&limits, &PROMPT[..7], &branches));
            assert_eq!(after.tokens(), answer(&limits, &PROMPT[1..], 4, 12));
        }
    }
}

#[test]
fn a_turns_own_way_of_revising_goes_before_the_models() {
    for selection in [
        Selection::EntropyBound(0.4),
        Selection::Schedule(Confidence::Margin),
        Selection::Threshold { confidence: Confidence::Entropy, least: -0.1, at_least: 2 },
    ] {
        for base in [DENOISING, UNMASKING] {
            let denoising = Denoising { selection, max_steps: 5, ..base };
            for limits in canvas_engines() {
                let mut lab = Lab::new(limits);
                let told = submit(&mut lab, &PROMPT, 3, |turn| {
                    (turn.max_tokens, turn.denoising) = (Some(14), Some(denoising));
                });
                lab.settle();
                assert_eq!(told.tokens(), canvases(&limits, denoising, 3, &PROMPT, 14));
            }
        }
    }
}

/// G19, G23: passes count as generation, not as work on the prompt.
#[test]
fn passes_count_as_decoding() {
    let mut lab = Lab::new(CANVAS);
    let told = submit_endless(&mut lab, &PROMPT, 3, 6);
    lab.settle();
    let finish = told.finish();
    // Two steps of prompt, then passes; each takes two ticks, and beginning one.
    assert!(finish.prefill_ms <= 7, "{finish:?}");
    assert!(finish.decode_ms >= 2 * lab.snapshot().passes - 2, "{finish:?}");
    let speed = lab.snapshot().decode_tokens_per_s;
    assert!((speed - 6000.0 / finish.decode_ms as f64).abs() < 100.0, "{speed} {finish:?}");
    let record = lab.service.metrics().drain_records().pop().unwrap();
    assert!(record.ttft_ms.unwrap() >= finish.prefill_ms + finish.decode_ms);
}

#[test]
fn canvases_that_cannot_work_are_a_failed_load() {
    let with = |change: &dyn Fn(&mut CanvasLimits, &mut EngineLimits)| {
        let (mut canvas, mut limits) = (CAUSAL, LIMITS);
        change(&mut canvas, &mut limits);
        EngineLimits { canvas: Some(canvas), ..limits }.validate().err().map(|error| (error.field, error.value))
    };
    assert_eq!(with(&|_, _| {}), None);
    assert_eq!(with(&|c, _| c.length = 0), Some(("canvas.length", 0)));
    assert_eq!(with(&|c, _| c.length = 9), Some(("canvas.length", 9)));
    assert_eq!(with(&|_, l| l.context_length = 5), Some(("canvas.length", 6)));
    assert_eq!(with(&|_, l| l.pages = 1), Some(("canvas.length", 6)));
    assert_eq!(with(&|c, _| c.vocabulary = 0), Some(("canvas.vocabulary", 0)));
    assert_eq!(with(&|c, _| c.noise = Noise::Masked { mask: 64 }), Some(("canvas.noise", 64)));
    assert_eq!(with(&|c, _| c.shift = true), Some(("canvas.shift", 1)));
    assert_eq!(with(&|c, _| c.context = CanvasContext::Whole), Some(("canvas.is_conditioned", 1)));
    assert_eq!(with(&|c, _| c.denoising.max_steps = 0), Some(("canvas.denoising.max_steps", 0)));
    assert_eq!(with(&|_, l| l.branches = usize::MAX), Some(("branches", usize::MAX)));
    let mut lab = Lab::new(EngineLimits { canvas: Some(CanvasLimits { length: 0, ..CAUSAL }), ..LIMITS });
    let told = submit_endless(&mut lab, &PROMPT, 3, 6);
    lab.settle();
    assert!(matches!(told.error(), TurnError::Load(message) if message.contains("canvas.length")));
}
