//! Queue, model, events and metrics of the generation service.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use std::sync::{Arc, Mutex};

use lab::{Did, LIMITS, Lab, request, turn};
use laneway_session::fake::{Fault, continuation, text};
use laneway_session::*;

/// A prompt whose answer has at least `length` tokens.
fn long_prompt(length: usize) -> Vec<u32> {
    let mut prompts = (1..500).map(|n| vec![n, 7, 8, 9, 10]);
    prompts.find(|prompt| continuation(0, prompt, length + 1).len() > length).unwrap()
}

/// G5
#[test]
fn cancel_is_sticky_and_shared() {
    let cancel = Cancel::new();
    let other = cancel.clone();
    assert!(!other.is_cancelled());
    cancel.cancel();
    cancel.cancel();
    assert!(other.is_cancelled() && cancel.is_cancelled());
}

/// G6
#[test]
fn turns_start_in_submission_order_one_at_a_time_on_one_lane() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..LIMITS });
    let order = Arc::new(Mutex::new(Vec::new()));
    for index in 0..4_u32 {
        let order = order.clone();
        lab.submit_with(1 + index % 2, &[index + 1, 2], |turn| {
            turn.max_tokens = Some(3);
            turn.events = Box::new(move |event| order.lock().unwrap().push((index, event)));
        });
    }
    lab.settle();
    let order: Vec<u32> = order.lock().unwrap().iter().map(|(index, _)| *index).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(lab.snapshot().http.finished, 4);
}

/// G3, G7, S5, C15
#[test]
fn a_full_queue_rejects_for_a_loaded_and_for_another_model() {
    let config = ServiceConfig { queue_depth: 2, ..Default::default() };
    let mut lab = Lab::with_config(EngineLimits { lanes: 1, ..LIMITS }, config);
    lab.submit(&long_prompt(20), 20);
    lab.until(|lab| lab.snapshot().steps > 3);
    lab.submit(&[1, 2], 1);
    lab.submit_with(2, &[1, 2], |_| {});
    for settings in [1, 2] {
        let refused = lab.service.submit(lab.now, request(settings), turn(&[1, 2]).0);
        assert_eq!(refused, Err(SubmitError::QueueFull { depth: 2 }));
    }
    let counts = lab.snapshot().http;
    assert_eq!((counts.rejected, counts.waiting(), counts.running()), (2, 2, 1));
    lab.settle();
    assert_eq!(lab.snapshot().http.finished, 3);
}

/// G9
#[test]
fn every_command_taken_from_the_queue_sets_the_idle_timeout() {
    let mut lab = Lab::new(LIMITS);
    lab.submit(&[1, 2], 1);
    lab.settle();
    let Some(Did::Wait(Some(until))) = lab.log.last() else { panic!("{:?}", lab.log) };
    assert!(*until > 15 * 60 * 1000);
    let (turn, told) = turn(&[1, 2]);
    told.cancel.cancel();
    let request = Request { settings: 1, idle_timeout_ms: Some(5000) };
    lab.service.submit(lab.now, request, turn).unwrap();
    lab.settle();
    let Some(Did::Wait(Some(until))) = lab.log.last() else { panic!("{:?}", lab.log) };
    assert!(*until <= lab.now + 5000);
}

/// G10
#[test]
fn queue_wait_is_recorded_apart_from_the_run() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..LIMITS });
    lab.submit(&long_prompt(20), 20);
    lab.until(|lab| lab.snapshot().steps > 3);
    let waiting = lab.submit(&[5, 6], 1);
    lab.now += 500;
    lab.settle();
    let finish = waiting.finish();
    assert!(finish.queue_ms >= 500 && finish.prefill_ms < 100, "{finish:?}");
    let record = lab.service.metrics().drain_records().pop().unwrap();
    assert_eq!(record.queue_ms, finish.queue_ms);
    assert!(record.ttft_ms.unwrap() >= finish.queue_ms + finish.prefill_ms);
}

/// G11, C9
#[test]
fn a_turn_cancelled_in_the_queue_fails_without_load() {
    let mut lab = Lab::new(LIMITS);
    let told = lab.submit(&[1, 2], 5);
    told.cancel.cancel();
    lab.settle();
    assert_eq!(told.events(), [Event::Finished(Err(TurnError::Cancelled))]);
    assert_eq!(lab.log, [Did::Wait(None)]);
    let counts = lab.snapshot().http;
    assert_eq!((counts.started, counts.failed), (1, 1));
}

/// G11
#[test]
fn a_turn_cancelled_in_the_queue_does_not_put_off_the_idle_unload() {
    let mut lab = Lab::new(LIMITS);
    lab.submit(&[1, 2], 1);
    lab.settle();
    let before = lab.log.last().cloned();
    lab.now += 100;
    lab.submit(&[1, 2], 1).cancel.cancel();
    lab.settle();
    assert_eq!(lab.log.last().cloned(), before);
}

/// C10
#[test]
fn cancelling_a_queued_turn_leaves_the_running_one_alone() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..LIMITS });
    let prompt = long_prompt(20);
    let running = lab.submit(&prompt, 20);
    let queued = lab.submit(&[9, 9], 20);
    lab.until(|lab| lab.snapshot().steps > 3);
    queued.cancel.cancel();
    lab.step();
    assert_eq!(queued.error(), TurnError::Cancelled);
    lab.settle();
    assert_eq!(running.text(), text(&continuation(0, &prompt, 20)));
}

/// G12, G14
#[test]
fn equal_settings_keep_the_model() {
    let mut lab = Lab::new(LIMITS);
    lab.submit(&[1, 2], 2);
    lab.settle();
    let second = lab.submit(&[3, 4], 2);
    lab.settle();
    assert_eq!(lab.count(&Did::Load(1)), 1);
    assert!(!second.events().contains(&Event::Loading));
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.loading, snapshot.loaded, snapshot.unloaded), (1, 1, 0));
    assert_eq!((snapshot.model, snapshot.load_ms), (ModelState::Loaded, 0));
}

/// G13
#[test]
fn another_model_is_loaded_after_the_old_one_is_dropped() {
    let mut lab = Lab::new(LIMITS);
    lab.submit(&long_prompt(10), 10);
    let other = lab.submit_with(2, &[1, 2], |turn| turn.max_tokens = Some(1));
    let back = lab.submit(&[3, 4], 1);
    lab.settle();
    let models: Vec<Did> = lab.log.iter().filter(|did| matches!(did, Did::Load(_) | Did::Unload)).cloned().collect();
    assert_eq!(models, [Did::Load(1), Did::Unload, Did::Load(2), Did::Unload, Did::Load(1)]);
    assert_eq!(other.events()[0], Event::Loading);
    assert_eq!(back.events()[0], Event::Loading);
    assert_eq!((lab.snapshot().loaded, lab.snapshot().unloaded), (3, 2));
}

/// G15
#[test]
fn a_failed_load_ends_its_turn_and_the_next_one_tries_again() {
    let mut lab = Lab::new(LIMITS);
    lab.load_error = Some("no such file".to_owned());
    let first = lab.submit(&[1, 2], 2);
    let second = lab.submit(&[1, 2], 2);
    lab.until(|_| first.finished().is_some());
    assert_eq!(lab.snapshot().model, ModelState::Failed);
    lab.load_error = None;
    lab.settle();
    let error = Event::Finished(Err(TurnError::Load("no such file".to_owned())));
    assert_eq!(first.events(), [Event::Loading, error]);
    assert_eq!(second.finish().prompt_tokens, 2);
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.loading, snapshot.loaded, snapshot.load_failed), (2, 1, 1));
}

/// G15
#[test]
fn unusable_engine_limits_are_a_failed_load() {
    let mut lab = Lab::new(EngineLimits { page_positions: 0, ..LIMITS });
    let told = lab.submit(&[1, 2], 2);
    lab.settle();
    let TurnError::Load(message) = told.error() else { panic!("{:?}", told.error()) };
    assert!(message.contains("page_positions"));
    assert!(lab.engine.is_none());
}

/// G16
#[test]
fn a_turn_cancelled_while_loading_ends_as_cancelled() {
    for error in [None, Some("aborted".to_owned())] {
        let mut lab = Lab::new(LIMITS);
        lab.load_error = error;
        lab.cancel_during_load = true;
        let told = lab.submit(&[1, 2], 2);
        lab.settle();
        let expected = [Event::Loading, Event::Finished(Err(TurnError::Cancelled))];
        assert_eq!(told.events(), expected);
        assert!(lab.plans().is_empty());
    }
}

/// G17, G18, G19, G23
#[test]
fn events_come_in_order_and_tell_the_whole_answer() {
    let mut lab = Lab::new(EngineLimits { max_rows: 2, ..LIMITS });
    let prompt = long_prompt(6);
    let told = lab.submit(&prompt, 6);
    lab.settle();
    let events = told.events();
    assert_eq!(events[0], Event::Loading);
    let context = |event: &Event| match *event {
        Event::Context { used, limit, tokens_per_s } => Some((used, limit, tokens_per_s.is_some())),
        _ => None,
    };
    let contexts: Vec<_> = events.iter().filter_map(context).collect();
    let prefill = [(0, 64, false), (2, 64, false), (4, 64, false), (5, 64, false)];
    let decode = [(6, 64, true), (7, 64, true), (8, 64, true), (9, 64, true), (10, 64, true)];
    assert_eq!(contexts, [&prefill[..], &decode[..]].concat());
    let Some(Event::Finished(Ok(finish))) = events.last() else { panic!("{events:?}") };
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Finished(_))).count(), 1);
    let figures = (finish.reason, finish.prompt_tokens, finish.cached_tokens, finish.completion_tokens);
    assert_eq!(figures, (FinishReason::Length, 5, 0, 6));
    let answer = continuation(0, &prompt, 6);
    assert_eq!((told.text(), told.tokens()), (text(&answer), answer));
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.prompt_tokens, snapshot.completion_tokens, snapshot.steps), (5, 6, 8));
    assert_eq!(snapshot.prefill_ms, finish.prefill_ms);
    assert_eq!(snapshot.decode_ms, finish.decode_ms);
}

/// G19, G21: 1 step is submit and collect, 2 ms of the virtual clock.
#[test]
fn speeds_are_tokens_over_time() {
    let mut lab = Lab::new(EngineLimits { max_rows: 5, ..LIMITS });
    lab.submit(&long_prompt(9), 9);
    lab.settle();
    // Admission, begin, submit and collect: 5 tokens within 2 ms of admission's commit.
    assert_eq!(lab.snapshot().prefill_tokens_per_s, 2500.0);
    assert_eq!(lab.snapshot().decode_tokens_per_s, 500.0);
}

/// G20
#[test]
fn cached_tokens_do_not_count_as_prefill_speed() {
    let mut lab = Lab::new(EngineLimits { max_rows: 32, lanes: 1, ..LIMITS });
    let mut prompt: Vec<u32> = (1..31).collect();
    lab.submit(&prompt, 1);
    lab.settle();
    prompt.extend([1, 2]);
    let told = lab.submit(&prompt, 1);
    lab.until(|_| told.events().len() == 1);
    let first = Event::Context { used: 30, limit: 64, tokens_per_s: None };
    assert_eq!((told.events()[0].clone(), lab.snapshot().prefill_tokens_per_s), (first, 0.0));
    lab.settle();
    assert_eq!(told.finish().cached_tokens, 30);
    assert_eq!(lab.snapshot().prefill_tokens_per_s, 1000.0);
}

/// G22, G24, C8
#[test]
fn a_cancelled_turn_frees_its_lane_within_one_step() {
    let mut lab = Lab::new(LIMITS);
    let told = lab.submit(&long_prompt(40), 40);
    lab.until(|lab| lab.snapshot().completion_tokens == 5);
    told.cancel.cancel();
    let steps = lab.plans().len();
    lab.settle();
    assert_eq!(told.error(), TurnError::Cancelled);
    assert_eq!((lab.plans().len(), lab.snapshot().lanes.active), (steps, 0));
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.http.failed, snapshot.model), (1, ModelState::Loaded));
}

/// C18
#[test]
fn cancel_is_seen_between_the_chunks_of_a_prompt() {
    let mut lab = Lab::new(EngineLimits { max_rows: 2, ..LIMITS });
    let told = lab.submit(&[3; 40], 5);
    lab.until(|lab| lab.plans().len() == 2);
    told.cancel.cancel();
    lab.settle();
    assert_eq!((told.error(), lab.plans().len()), (TurnError::Cancelled, 2));
}

/// G25, G26, S21
#[test]
fn a_panic_ends_running_turns_and_the_next_one_reloads() {
    for call in ["begin", "submit", "collect"] {
        let mut lab = Lab::new(LIMITS);
        let broken = lab.submit(&long_prompt(9), 9);
        lab.submit(&[9, 9], 1);
        lab.faults.inject(call, Fault::Panic);
        lab.until(|_| broken.finished().is_some());
        assert_eq!(broken.error(), TurnError::Internal);
        assert_eq!(broken.error().to_string(), "internal error, the engine was reset");
        let next = lab.submit(&long_prompt(9), 9);
        lab.settle();
        assert_eq!(next.text(), text(&continuation(0, &long_prompt(9), 9)));
        assert_eq!(lab.count(&Did::Load(1)), 2);
        let snapshot = lab.snapshot();
        assert_eq!((snapshot.loaded, snapshot.unloaded), (2, 1));
        assert_eq!(snapshot.total().running(), 0);
    }
}

/// G25
#[test]
fn a_panic_of_the_text_side_is_contained() {
    struct Broken;
    impl Decoder for Broken {
        fn token(&mut self, _: u32) -> Decoded {
            panic!("broken decoder")
        }
        fn finish(&mut self) -> String {
            String::new()
        }
    }
    let mut lab = Lab::new(LIMITS);
    let broken = lab.submit_with(1, &[1, 2], |turn| turn.decoder = Box::new(Broken));
    lab.settle();
    assert_eq!(broken.error(), TurnError::Internal);
    let next = lab.submit(&[1, 2], 1);
    lab.settle();
    assert_eq!(next.finish().completion_tokens, 1);
}

/// C28
#[test]
fn a_lost_device_ends_running_turns_and_the_next_one_reloads() {
    for call in ["begin", "submit", "collect"] {
        let mut lab = Lab::new(EngineLimits { depth: 2, ..LIMITS });
        let first = lab.submit(&long_prompt(9), 9);
        let second = lab.submit(&[8, 8], 9);
        let third = lab.submit(&[7, 7], 2);
        lab.faults.inject(call, Fault::Lost);
        lab.settle();
        let TurnError::Engine(reason) = first.error() else { panic!("{:?}", first.error()) };
        assert!(reason.contains("device lost"));
        assert!(second.finished().is_some());
        assert_eq!(third.finish().prompt_tokens, 2);
        assert_eq!(lab.count(&Did::Unload), 1);
        assert_eq!(lab.count(&Did::Load(1)), 2);
        assert_eq!((lab.snapshot().loaded, lab.snapshot().unloaded), (2, 1));
    }
}

/// G27
#[test]
fn an_idle_model_is_dropped_once_after_its_timeout() {
    let mut lab = Lab::new(LIMITS);
    let (turn, _) = turn(&[1, 2]);
    let request = Request { settings: 1, idle_timeout_ms: Some(1000) };
    lab.service.submit(lab.now, request, turn).unwrap();
    lab.settle();
    lab.now += 900;
    lab.settle();
    assert_eq!(lab.count(&Did::Unload), 0);
    lab.now += 200;
    lab.settle();
    lab.now += 5000;
    lab.settle();
    assert_eq!(lab.count(&Did::Unload), 1);
    assert!(lab.engine.is_none());
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.unloaded, snapshot.model), (1, ModelState::Unloaded));
}

/// G8, G27
#[test]
fn timeout_0_drops_the_model_after_the_turn_never_during_it() {
    let mut lab = Lab::new(LIMITS);
    let (mut turn, told) = turn(&long_prompt(9));
    turn.max_tokens = Some(9);
    let request = Request { settings: 1, idle_timeout_ms: Some(0) };
    lab.service.submit(lab.now, request, turn).unwrap();
    lab.settle();
    assert_eq!(told.finish().completion_tokens, 9);
    assert_eq!(lab.log[lab.log.len() - 2..], [Did::Unload, Did::Wait(None)]);
}

/// G29
#[test]
fn turns_are_counted_by_their_source() {
    let mut lab = Lab::new(LIMITS);
    lab.submit_with(1, &[1, 2], |turn| turn.source = Source::LocalChat);
    lab.submit(&[1, 2], 1);
    lab.submit(&[1, 2], 1);
    lab.settle();
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.local_chat.finished, snapshot.http.finished), (1, 2));
}

/// S19
#[test]
fn a_deadline_ends_turns_that_wait_and_turns_that_run() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..LIMITS });
    let running = lab.submit_with(1, &long_prompt(50), |turn| turn.deadline_ms = Some(40));
    let waiting = lab.submit_with(1, &[1, 2], |turn| turn.deadline_ms = Some(20));
    lab.until(|_| waiting.finished().is_some());
    assert_eq!(waiting.events(), [Event::Finished(Err(TurnError::DeadlineExceeded))]);
    assert!(running.finished().is_none());
    lab.settle();
    assert_eq!(running.error(), TurnError::DeadlineExceeded);
    assert_eq!(lab.snapshot().lanes.active, 0);
}

#[test]
fn a_preload_loads_without_a_turn() {
    let mut lab = Lab::new(LIMITS);
    let told = Arc::new(Mutex::new(Vec::new()));
    let preload = |lab: &mut Lab| {
        let told = told.clone();
        lab.service.preload(request(1), Box::new(move |result| told.lock().unwrap().push(result)));
        lab.settle();
    };
    lab.load_error = Some("no such file".to_owned());
    preload(&mut lab);
    lab.load_error = None;
    preload(&mut lab);
    preload(&mut lab);
    assert_eq!(*told.lock().unwrap(), [Err("no such file".to_owned()), Ok(()), Ok(())]);
    let first = lab.submit(&[1, 2], 1);
    lab.settle();
    assert!(!first.events().contains(&Event::Loading));
    assert_eq!(lab.count(&Did::Load(1)), 2);
}

/// G28
#[test]
fn draining_completes_what_was_taken_then_unloads_and_stops() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, ..LIMITS });
    let first = lab.submit(&[1, 2], 2);
    let second = lab.submit(&[3, 4], 2);
    lab.until(|lab| lab.plans().len() == 1);
    lab.service.drain();
    let refused = lab.service.submit(lab.now, request(1), turn(&[1, 2]).0);
    assert_eq!(refused, Err(SubmitError::Stopped));
    lab.settle();
    assert!(first.finish().completion_tokens > 0 && second.finish().completion_tokens > 0);
    assert_eq!(lab.log[lab.log.len() - 2..], [Did::Unload, Did::Stop]);
    assert_eq!((lab.snapshot().unloaded, lab.snapshot().http.rejected), (1, 1));
}

/// S22
#[test]
fn shutdown_ends_waiting_and_running_turns_with_an_error() {
    let mut lab = Lab::new(EngineLimits { lanes: 1, depth: 2, ..LIMITS });
    let running = lab.submit(&long_prompt(40), 40);
    let waiting = lab.submit(&[3, 4], 2);
    lab.until(|lab| lab.snapshot().completion_tokens > 3);
    lab.service.shutdown(lab.now);
    for told in [running, waiting] {
        assert_eq!(told.error(), TurnError::ShuttingDown);
    }
    lab.settle();
    assert_eq!(lab.log.last(), Some(&Did::Stop));
    assert!(lab.engine.is_none());
    assert_eq!(lab.snapshot().total().running(), 0);
}

/// S3, S11
#[test]
fn a_prompt_over_the_context_is_refused_with_both_numbers() {
    let mut lab = Lab::new(LIMITS);
    let cold = lab.submit(&[1; 64], 1);
    lab.settle();
    let error = TurnError::ContextExceeded { prompt: 64, limit: 64 };
    assert_eq!(cold.error(), error);
    // With the model loaded it is refused at once.
    let warm = lab.submit(&[1; 65], 1);
    assert_eq!(warm.error(), TurnError::ContextExceeded { prompt: 65, limit: 64 });
    let counts = lab.snapshot().http;
    assert_eq!((counts.started, counts.failed), (2, 2));
}

/// S16
#[test]
fn an_empty_prompt_is_refused() {
    let mut lab = Lab::new(LIMITS);
    let told = lab.submit(&[], 1);
    lab.settle();
    assert_eq!(told.error(), TurnError::EmptyPrompt);
}

/// L61: figures say when they were taken, and are there before anything has happened.
#[test]
fn figures_tell_when_they_were_taken() {
    let mut lab = Lab::new(LIMITS);
    assert_eq!(lab.snapshot().captured_ms, 0);
    lab.settle();
    assert_eq!(lab.snapshot().captured_ms, lab.now);
    let reader = lab.service.metrics().clone();
    lab.submit(&[1, 2, 3], 2);
    lab.settle();
    assert_eq!((reader.snapshot().captured_ms, reader.snapshot().lanes.active), (lab.now, 0));
}

/// Allows so many tokens, and notes what it was asked.
struct Allowance {
    tokens: usize,
    asked: std::sync::Mutex<Vec<(&'static str, usize)>>,
}

impl Gate for Allowance {
    fn prefilled(&self, input_tokens: usize, ceiling: usize) -> bool {
        self.asked.lock().unwrap().extend([("input", input_tokens), ("ceiling", ceiling)]);
        true
    }

    fn before(&self, index: usize) -> bool {
        self.asked.lock().unwrap().push(("before", index));
        index < self.tokens
    }

    fn after(&self, index: usize) -> bool {
        self.asked.lock().unwrap().push(("after", index));
        true
    }
}

/// S34: leave is asked after the prompt and around every token; without a gate of that name there is none.
#[test]
fn a_gate_decides_token_by_token() {
    let gates = Gates::default();
    let allowance = std::sync::Arc::new(Allowance { tokens: 2, asked: Default::default() });
    let registration = gates.register([7; 16], allowance.clone()).unwrap();
    assert!(gates.register([7; 16], allowance.clone()).is_none());
    let mut lab = Lab::new(LIMITS);
    lab.service = Service::new(ServiceConfig::default()).with_gates(gates.clone());
    let submit = |lab: &mut Lab, gate| {
        lab.submit_with(1, &[1, 2, 3], |turn| {
            turn.max_tokens = Some(5);
            turn.decoder = Box::new(laneway_session::fake::FakeDecoder { endless: true, ..Default::default() });
            turn.gate = gate;
        })
    };
    let (gated, free) = (submit(&mut lab, Some([7; 16])), submit(&mut lab, None));
    lab.settle();
    assert_eq!((gated.error(), gated.tokens().len(), free.finish().completion_tokens), (TurnError::Refused, 2, 5));
    assert_eq!(
        *allowance.asked.lock().unwrap(),
        [("input", 3), ("ceiling", 5), ("before", 0), ("after", 0), ("before", 1), ("after", 1), ("before", 2)]
    );
    drop(registration);
    assert_eq!(submit(&mut lab, Some([7; 16])).error(), TurnError::Refused);
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.lanes.active, snapshot.total().failed), (0, 2));
}
