use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use laneway_session::fake::{FakeDecoder, FakeEngine, Fault, Faults, endless};
use laneway_session::{EngineError, EngineLimits, Finish, StepOutcome, StepPlan, TurnError};

use super::*;

const LIMITS: EngineLimits = EngineLimits {
    lanes: 2,
    pages: 64,
    page_positions: 8,
    context_length: 256,
    max_rows: 16,
    depth: 2,
    branches: 0,
    row_bytes: 0,
    canvas: None,
};

/// Guards tests that wait for another thread against waiting for ever.
const PATIENCE: Duration = Duration::from_secs(20);

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "the condition never holds");
        std::thread::yield_now();
    }
}

fn worker(faults: &Faults) -> Worker<u32> {
    let faults = faults.clone();
    let opener = move |_: &u32, _: &Cancel| Ok(FakeEngine::new(LIMITS, faults.clone()));
    Worker::spawn("lane-0", ServiceConfig::default(), opener).unwrap()
}

fn turn(prompt: &[u32], max_tokens: usize) -> TurnRequest<u32> {
    TurnRequest {
        request: Request { settings: 1, idle_timeout_ms: None },
        prompt: prompt.to_vec(),
        max_tokens: Some(max_tokens),
        sampling: Sampling::default(),
        decoder: Box::new(FakeDecoder { endless: true, ..Default::default() }),
        deadline_ms: None,
        source: Source::Http,
    }
}

/// All tokens and the end of a turn.
fn outcome(handle: &mut TurnHandle) -> (Vec<u32>, Result<Finish, TurnError>) {
    let mut all = Vec::new();
    while let Some(event) = handle.events().blocking_recv() {
        match event {
            Event::Chunk { tokens, .. } => all.extend(tokens.iter().map(|token| token.token)),
            Event::Finished(result) => {
                assert!(handle.events().blocking_recv().is_none(), "an event after the last");
                return (all, result);
            }
            Event::Loading | Event::Context { .. } | Event::Draft { .. } => {}
        }
    }
    panic!("the events end without a result");
}

/// An engine whose steps wait for permission.
struct Gated {
    inner: FakeEngine,
    open: Arc<AtomicBool>,
    entered: Arc<AtomicBool>,
    dropped: Arc<AtomicUsize>,
    panic_on_drop: bool,
}

impl Engine for Gated {
    fn limits(&self) -> EngineLimits {
        self.inner.limits()
    }

    fn begin(&mut self, lane: usize, sampling: &Sampling, prompt: &[u32]) -> Result<(), EngineError> {
        self.inner.begin(lane, sampling, prompt)
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        self.inner.submit(plan)
    }

    async fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        self.entered.store(true, Ordering::Release);
        until(|| self.open.load(Ordering::Acquire));
        self.inner.collect().await
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::AcqRel);
        assert!(!self.panic_on_drop, "injected panic in drop");
    }
}

struct Gate {
    open: Arc<AtomicBool>,
    entered: Arc<AtomicBool>,
    dropped: Arc<AtomicUsize>,
}

fn gated(config: ServiceConfig, faults: &Faults, panic_on_drop: bool) -> (Worker<u32>, Gate) {
    let gate = Gate { open: Arc::default(), entered: Arc::default(), dropped: Arc::default() };
    let (open, entered) = (gate.open.clone(), gate.entered.clone());
    let (dropped, faults) = (gate.dropped.clone(), faults.clone());
    let opener = move |_: &u32, _: &Cancel| {
        let inner = FakeEngine::new(LIMITS, faults.clone());
        Ok(Gated { inner, open: open.clone(), entered: entered.clone(), dropped: dropped.clone(), panic_on_drop })
    };
    (Worker::spawn("gated", config, opener).unwrap(), gate)
}

/// G1
#[test]
fn the_opener_runs_on_the_named_thread_and_clones_share_it() {
    let name = Arc::new(Mutex::new(None));
    let seen = name.clone();
    let opener = move |_: &u32, _: &Cancel| {
        *seen.lock().unwrap() = std::thread::current().name().map(str::to_owned);
        Ok(FakeEngine::new(LIMITS, Faults::default()))
    };
    let first = Worker::spawn("lane-7", ServiceConfig::default(), opener).unwrap();
    let second = first.clone();
    assert!(outcome(&mut first.submit(turn(&[1, 2], 3)).unwrap()).1.is_ok());
    assert_eq!(name.lock().unwrap().as_deref(), Some("lane-7"));
    assert_eq!(second.metrics().snapshot().http.finished, 1);
}

#[test]
fn concurrent_callers_get_the_answers_of_their_own_prompts() {
    let worker = worker(&Faults::default());
    std::thread::scope(|scope| {
        for n in 1..9_u32 {
            let worker = worker.clone();
            scope.spawn(move || {
                for round in 0..5 {
                    let prompt = [n, round, n];
                    let (tokens, result) = outcome(&mut worker.submit(turn(&prompt, 20)).unwrap());
                    assert_eq!(tokens, endless(0, &prompt, 20));
                    assert_eq!(result.unwrap().completion_tokens, 20);
                }
            });
        }
    });
    assert_eq!(worker.metrics().snapshot().http.finished, 40);
}

/// G4, G7: submission neither waits for the engine nor grows the queue over its bound.
#[test]
fn submit_returns_at_once_and_a_full_queue_refuses() {
    let config = ServiceConfig { queue_depth: 2, ..Default::default() };
    let (worker, gate) = gated(config, &Faults::default(), false);
    let mut handles = vec![worker.submit(turn(&[1, 2], 4)).unwrap()];
    // The thread is inside the engine from here on.
    until(|| gate.entered.load(Ordering::Acquire));
    for _ in 0..2 {
        handles.push(worker.submit(turn(&[3, 4], 4)).unwrap());
    }
    let refused = worker.submit(turn(&[5, 6], 4)).err();
    assert_eq!(refused, Some(SubmitError::QueueFull { depth: 2 }));
    gate.open.store(true, Ordering::Release);
    for handle in &mut handles {
        assert!(outcome(handle).1.is_ok());
    }
}

/// G5, llama.cpp#24496: a client that left costs no further steps.
#[test]
fn dropping_the_handle_cancels_the_turn() {
    let worker = worker(&Faults::default());
    let mut handle = worker.submit(turn(&[1, 2], 250)).unwrap();
    while !matches!(handle.events().blocking_recv(), Some(Event::Chunk { .. })) {}
    drop(handle);
    until(|| worker.metrics().snapshot().http.running() == 0);
    let snapshot = worker.metrics().snapshot();
    // Either the cancellation was in time, or 250 tokens were faster than the drop.
    assert_eq!(snapshot.http.failed + snapshot.http.finished, 1);
    until(|| worker.metrics().snapshot().lanes.active == 0);
}

/// G5, llama.cpp#13262
#[test]
fn a_turn_dropped_in_the_queue_is_never_started_on_a_lane() {
    let (worker, gate) = gated(ServiceConfig::default(), &Faults::default(), false);
    let mut running = worker.submit(turn(&[1, 2], 4)).unwrap();
    until(|| gate.entered.load(Ordering::Acquire));
    drop(worker.submit(turn(&[3; 100], 100)).unwrap());
    gate.open.store(true, Ordering::Release);
    assert_eq!(outcome(&mut running).0, endless(0, &[1, 2], 4));
    until(|| worker.metrics().snapshot().http.failed == 1);
    assert_eq!(worker.metrics().snapshot().prompt_tokens, 2);
}

#[test]
fn a_cancelled_turn_still_gets_its_last_event() {
    let (worker, gate) = gated(ServiceConfig::default(), &Faults::default(), false);
    let mut handle = worker.submit(turn(&[1, 2], 40)).unwrap();
    until(|| gate.entered.load(Ordering::Acquire));
    handle.cancel();
    gate.open.store(true, Ordering::Release);
    assert_eq!(outcome(&mut handle).1, Err(TurnError::Cancelled));
}

/// G25, G26
#[test]
fn a_panic_of_the_engine_ends_its_turns_and_the_next_turn_reloads() {
    for panic_on_drop in [false, true] {
        let faults = Faults::default();
        let (worker, gate) = gated(ServiceConfig::default(), &faults, panic_on_drop);
        faults.inject("collect", Fault::Panic);
        let mut broken = worker.submit(turn(&[1, 2], 40)).unwrap();
        gate.open.store(true, Ordering::Release);
        assert_eq!(outcome(&mut broken).1, Err(TurnError::Internal));
        assert_eq!(worker.health().state, HealthState::Failed);
        let mut next = worker.submit(turn(&[1, 2], 5)).unwrap();
        assert_eq!(outcome(&mut next).0, endless(0, &[1, 2], 5));
        let snapshot = worker.metrics().snapshot();
        assert_eq!((snapshot.loaded, snapshot.unloaded), (2, 1));
        assert_eq!(gate.dropped.load(Ordering::Acquire), 1);
        // The drop at the end must not panic the test.
        std::mem::forget(worker);
    }
}

/// G25
#[test]
fn a_panic_of_the_opener_is_a_turn_that_failed() {
    let mut first = true;
    let opener = move |_: &u32, _: &Cancel| {
        assert!(!std::mem::take(&mut first), "injected panic in the opener");
        Ok(FakeEngine::new(LIMITS, Faults::default()))
    };
    let worker = Worker::spawn("opener", ServiceConfig::default(), opener).unwrap();
    assert_eq!(outcome(&mut worker.submit(turn(&[1, 2], 3)).unwrap()).1, Err(TurnError::Internal));
    assert!(outcome(&mut worker.submit(turn(&[1, 2], 3)).unwrap()).1.is_ok());
    let snapshot = worker.metrics().snapshot();
    assert_eq!((snapshot.loading, snapshot.loaded, snapshot.load_failed), (2, 1, 1));
}

/// llama.cpp#27388: a wedged engine shows in the health, which answers all the same.
#[test]
fn a_wedged_engine_is_visible() {
    let (worker, gate) = gated(ServiceConfig::default(), &Faults::default(), false);
    assert_eq!(worker.health(), Health { state: HealthState::Ready, stalled_ms: 0 });
    let mut handle = worker.submit(turn(&[1, 2], 4)).unwrap();
    until(|| worker.health().stalled_ms >= 30);
    assert_eq!(worker.health().state, HealthState::Ready);
    gate.open.store(true, Ordering::Release);
    assert!(outcome(&mut handle).1.is_ok());
    until(|| worker.health().stalled_ms == 0);
}

#[test]
fn preloading_reports_success_and_failure_and_health_follows() {
    let block = |worker: &Worker<u32>, settings| block_on(worker.preload(Request { settings, idle_timeout_ms: None }));
    let opener = |settings: &u32, _: &Cancel| match settings {
        1 => Ok(FakeEngine::new(LIMITS, Faults::default())),
        other => Err(format!("no model {other}")),
    };
    let worker = Worker::spawn("preload", ServiceConfig::default(), opener).unwrap();
    assert_eq!(block(&worker, 2), Err("no model 2".to_owned()));
    assert_eq!(worker.health().state, HealthState::Failed);
    assert_eq!(block(&worker, 1), Ok(()));
    assert_eq!(worker.health().state, HealthState::Ready);
    assert_eq!(worker.metrics().snapshot().model, ModelState::Loaded);
    worker.shutdown();
    assert!(block(&worker, 1).is_err());
}

/// G28
#[test]
fn dropping_the_last_handle_drops_the_model_and_joins_the_thread() {
    let (worker, gate) = gated(ServiceConfig::default(), &Faults::default(), false);
    gate.open.store(true, Ordering::Release);
    let mut handle = worker.submit(turn(&[1, 2], 4)).unwrap();
    assert!(outcome(&mut handle).1.is_ok());
    let metrics = worker.metrics().clone();
    let clone = worker.clone();
    drop(worker);
    assert!(outcome(&mut clone.submit(turn(&[1, 2], 4)).unwrap()).1.is_ok());
    drop(clone);
    assert_eq!(gate.dropped.load(Ordering::Acquire), 1);
    assert_eq!(metrics.snapshot().unloaded, 1);
}

/// S22
#[test]
fn draining_completes_turns_and_shutdown_ends_them() {
    for graceful in [true, false] {
        let (worker, gate) = gated(ServiceConfig::default(), &Faults::default(), false);
        let mut running = worker.submit(turn(&[1, 2], 4)).unwrap();
        until(|| gate.entered.load(Ordering::Acquire));
        if graceful {
            worker.drain();
        } else {
            worker.shutdown();
        }
        assert_eq!(worker.submit(turn(&[1, 2], 4)).err(), Some(SubmitError::Stopped));
        assert_eq!(worker.health().state, HealthState::Draining);
        gate.open.store(true, Ordering::Release);
        worker.join();
        assert_eq!(worker.health().state, HealthState::Stopped);
        let result = outcome(&mut running).1;
        assert_eq!(result.map(|finish| finish.completion_tokens).ok(), graceful.then_some(4));
        assert_eq!(worker.metrics().snapshot().unloaded, 1);
    }
}

/// G16
#[test]
fn shutdown_and_cancel_reach_a_load_in_progress() {
    for shutdown in [true, false] {
        let opener = |_: &u32, cancel: &Cancel| {
            until(|| cancel.is_cancelled());
            Err::<FakeEngine, _>("aborted".to_owned())
        };
        let worker = Worker::spawn("loading", ServiceConfig::default(), opener).unwrap();
        let mut handle = worker.submit(turn(&[1, 2], 4)).unwrap();
        until(|| worker.health().state == HealthState::Loading);
        if shutdown {
            // The opener may not have been entered when loading is announced.
            until(|| worker.shared.pulse.lock().loading.is_some());
            worker.shutdown();
        } else {
            handle.cancel();
        }
        assert_eq!(outcome(&mut handle).1, Err(TurnError::Cancelled));
    }
}

/// G27
#[test]
fn an_idle_model_is_dropped_without_a_command() {
    let (worker, gate) = gated(ServiceConfig::default(), &Faults::default(), false);
    gate.open.store(true, Ordering::Release);
    let mut request = turn(&[1, 2], 4);
    request.request.idle_timeout_ms = Some(5);
    assert!(outcome(&mut worker.submit(request).unwrap()).1.is_ok());
    until(|| gate.dropped.load(Ordering::Acquire) == 1);
    until(|| worker.metrics().snapshot().model == ModelState::Unloaded);
}

/// A probe that comes right after the start must not find a server that cannot answer yet.
#[test]
fn health_says_loading_from_the_moment_a_load_is_asked_for() {
    let gate = Arc::new(AtomicBool::new(false));
    let open = gate.clone();
    let opener = move |_: &u32, _: &Cancel| {
        until(|| open.load(Ordering::Acquire));
        Ok(FakeEngine::new(LIMITS, Faults::default()))
    };
    let worker = Worker::spawn("slow", ServiceConfig::default(), opener).unwrap();
    let loaded = worker.preload(Request { settings: 1, idle_timeout_ms: None });
    assert_eq!(worker.health().state, HealthState::Loading);
    gate.store(true, Ordering::Release);
    assert_eq!(futures::executor::block_on(loaded), Ok(()));
    assert_eq!(worker.health().state, HealthState::Ready);
}
