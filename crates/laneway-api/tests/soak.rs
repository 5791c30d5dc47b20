//! Many short turns and reads over an engine that fails in every way it can: nothing is lost, nothing stays.
//!
//! `LANEWAY_SOAK_SESSIONS` sets how many; 24 000 by default.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use laneway_api::{TurnRequest, Worker};
use laneway_session::fake::{FakeDecoder, FakeEngine, Fault, Faults, endless, logits};
use laneway_session::{
    Branch, BranchKind, Cancel, EngineLimits, Event, Read, ReadAnswer, Request, Sampling, SamplingOptions,
    ServiceConfig, Slot, Source, SplitMix64, SubmitError, TurnError,
};

const LIMITS: EngineLimits = EngineLimits {
    lanes: 4,
    pages: 24,
    page_positions: 4,
    context_length: 64,
    max_rows: 12,
    depth: 2,
    branches: 3,
    row_bytes: 0,
    canvas: None,
};
const PHASES: u64 = 12;
const CLIENTS: u64 = 8;
/// Guards a wait for another thread against waiting for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the callers were told.
#[derive(Default)]
struct Told {
    finished: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    left: AtomicU64,
}

struct Soak {
    worker: Worker<u32>,
    faults: Faults,
    failing_loads: Arc<AtomicU64>,
    told: Told,
}

struct Client<'a> {
    soak: &'a Soak,
    random: SplitMix64,
}

impl Client<'_> {
    fn below(&mut self, end: u64) -> u64 {
        u64::from(self.random.token(end as u32))
    }

    /// Prompts of a family share their beginning and differ in the tail.
    fn prompt(&mut self) -> Vec<u32> {
        let (family, length) = (self.below(5) as u32, self.below(50) as u32);
        let tail = self.below(7) as u32;
        (0..length).map(|n| if n < length / 2 + 3 { family * 10 + n % 7 } else { (n * length + tail) % 59 }).collect()
    }

    fn deadline(&mut self) -> Option<u64> {
        (self.below(12) == 0).then(|| self.below(4))
    }

    fn request(&mut self) -> Request<u32> {
        // Now and then another model, for which the one that is loaded must go.
        Request { settings: u32::from(self.below(150) == 0), idle_timeout_ms: None }
    }

    /// Whether it was taken.
    fn session(&mut self) -> bool {
        if self.below(25) == 0 {
            let call = ["begin", "submit", "collect"][self.below(3) as usize];
            let fault = [Fault::Step, Fault::Step, Fault::Step, Fault::Lost, Fault::Panic][self.below(5) as usize];
            self.soak.faults.inject(call, fault);
        }
        match self.below(400) {
            0 => self.soak.faults.poison(Some(self.below(64) as u32)),
            1..20 => self.soak.faults.poison(None),
            20 => self.soak.failing_loads.store(1 + self.below(2), Relaxed),
            _ => {}
        }
        if self.below(4) == 0 { self.read() } else { self.turn() }
    }

    fn turn(&mut self) -> bool {
        let (prompt, seed, max_tokens) = (self.prompt(), self.below(2), self.below(30) as usize);
        let options = SamplingOptions { seed, ..SamplingOptions::default() };
        let request = TurnRequest {
            request: self.request(),
            prompt: prompt.clone(),
            max_tokens: Some(max_tokens),
            sampling: Sampling::new(options).unwrap(),
            decoder: Box::new(FakeDecoder { endless: true, ..Default::default() }),
            deadline_ms: self.deadline(),
            source: if self.below(8) == 0 { Source::LocalChat } else { Source::Http },
        };
        let mut handle = match self.soak.worker.submit(request) {
            Ok(handle) => handle,
            Err(error) => return self.refused(&error),
        };
        // None waits for the end; others leave before or after some token, saying so or not.
        let patience = (self.below(3) == 0).then(|| self.below(20) as usize);
        let says_so = self.below(2) == 0;
        let mut tokens = Vec::new();
        let result = loop {
            if patience.is_some_and(|patience| tokens.len() >= patience) {
                if !says_so {
                    self.soak.told.left.fetch_add(1, Relaxed);
                    return true;
                }
                handle.cancel();
            }
            match handle.events().blocking_recv().expect("an end comes before the channel closes") {
                Event::Chunk { tokens: more, .. } => tokens.extend(more.iter().map(|token| token.token)),
                Event::Finished(result) => break result,
                _ => {}
            }
        };
        assert_eq!(tokens, endless(seed, &prompt, tokens.len()), "prompt {prompt:?}");
        if let Ok(finish) = &result {
            assert_eq!(finish.completion_tokens, tokens.len());
            assert_eq!(tokens.len(), max_tokens.min(LIMITS.context_length - prompt.len()), "prompt {prompt:?}");
        }
        self.told(result.is_ok());
        true
    }

    fn read(&mut self) -> bool {
        let (prompt, answered) = ([vec![1], self.prompt()].concat(), mpsc::channel());
        let branches: Vec<Branch> = (0..1 + self.below(4)).map(|_| self.branch()).collect();
        let cancel = Cancel::new();
        let read = Read {
            prompt: prompt.clone(),
            branches: branches.clone(),
            // A caller that left has dropped the other end.
            answer: Box::new(move |answer| drop(answered.0.send(answer))),
            cancel: cancel.clone(),
            deadline_ms: self.deadline(),
            source: Source::Http,
            namespace: 0,
        };
        let request = self.request();
        if let Err(error) = self.soak.worker.read(request, read) {
            return self.refused(&error);
        }
        if self.below(4) == 0 {
            cancel.cancel();
            self.soak.worker.wake();
        }
        if self.below(8) == 0 {
            self.soak.told.left.fetch_add(1, Relaxed);
            return true;
        }
        let answer: Result<ReadAnswer, TurnError> = answered.1.recv_timeout(PATIENCE).expect("every read is answered");
        if let Ok(answer) = &answer {
            assert_eq!(answer.logits, logits(&LIMITS, &prompt, &branches), "prompt {prompt:?}");
        }
        self.told(answer.is_ok());
        true
    }

    fn branch(&mut self) -> Branch {
        let tokens: Vec<u32> = (0..1 + self.below(4)).map(|_| self.below(60) as u32).collect();
        let row = tokens.len() - 1;
        Branch { tokens, kind: BranchKind::Causal, slots: vec![Slot { row, labels: vec![3, 9] }] }
    }

    fn refused(&self, error: &SubmitError) -> bool {
        assert!(!matches!(error, SubmitError::Stopped), "the worker stopped");
        self.soak.told.rejected.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_micros(200));
        false
    }

    fn told(&self, ok: bool) {
        if ok { &self.soak.told.finished } else { &self.soak.told.failed }.fetch_add(1, Relaxed);
    }
}

impl Soak {
    fn start() -> Self {
        let (faults, failing_loads) = (Faults::default(), Arc::new(AtomicU64::new(0)));
        let (engine_faults, failing) = (faults.clone(), failing_loads.clone());
        let opener = move |_: &u32, _: &Cancel| {
            let fails = failing.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
            if fails { Err("as the test wants".to_owned()) } else { Ok(FakeEngine::new(LIMITS, engine_faults.clone())) }
        };
        // Less than the clients can hand in at once, so that some are refused.
        let config = ServiceConfig { queue_depth: 3, reserved_tokens: 4, ..ServiceConfig::default() };
        let worker = Worker::spawn("soak", config, opener).unwrap();
        Self { worker, faults, failing_loads, told: Told::default() }
    }

    /// Nothing waits, runs or is held, and the figures are those that the callers were told.
    fn check_rest(&self) {
        let start = Instant::now();
        let snapshot = loop {
            let snapshot = self.worker.metrics().snapshot();
            let total = snapshot.total();
            if total.waiting() + total.running() == 0 && snapshot.lanes.active == 0 {
                break snapshot;
            }
            assert!(start.elapsed() < PATIENCE, "work goes on: {snapshot:?}");
            std::thread::sleep(Duration::from_millis(1));
        };
        let (total, lanes) = (snapshot.total(), snapshot.lanes);
        assert_eq!(total.queued, total.started + total.rejected, "{total:?}");
        assert_eq!(total.started, total.finished + total.failed, "{total:?}");
        assert_eq!(lanes.pages_used, lanes.pages_cached, "pages are held by nobody: {lanes:?}");
        assert_eq!(lanes.high_water, lanes.idle + lanes.free, "{lanes:?}");
        assert!(lanes.pages_used <= lanes.pages_total && lanes.high_water <= LIMITS.lanes, "{lanes:?}");
        let loaded = u64::from(lanes.pages_total > 0);
        assert_eq!(snapshot.loaded, snapshot.unloaded + loaded);
        assert_eq!(snapshot.loading, snapshot.loaded + snapshot.load_failed);
        let told = |count: &AtomicU64| count.load(Relaxed);
        let (finished, failed) = (told(&self.told.finished), told(&self.told.failed));
        assert_eq!(total.rejected, told(&self.told.rejected));
        assert!(total.finished >= finished && total.failed >= failed, "{total:?}");
        assert_eq!(total.finished + total.failed, finished + failed + told(&self.told.left), "{total:?}");
    }

    /// Without faults every turn is answered again; as many as there are pages show that none is lost.
    fn check_work(&self) {
        self.faults.poison(None);
        self.failing_loads.store(0, Relaxed);
        // Each of these takes at most one fault that was injected and not met yet.
        let answers = |prompt: Vec<u32>, max_tokens| {
            let request = TurnRequest {
                request: Request { settings: 0, idle_timeout_ms: None },
                prompt,
                max_tokens: Some(max_tokens),
                sampling: Sampling::default(),
                decoder: Box::new(FakeDecoder { endless: true, ..Default::default() }),
                deadline_ms: None,
                source: Source::Http,
            };
            let mut handle = self.worker.submit(request).unwrap();
            let result = loop {
                if let Event::Finished(result) = handle.events().blocking_recv().unwrap() {
                    break result;
                }
            };
            if result.is_ok() { &self.told.finished } else { &self.told.failed }.fetch_add(1, Relaxed);
            result
        };
        let settled = (0..5).any(|_| answers(vec![2, 3], 4).is_ok());
        assert!(settled, "it fails without a fault");
        let whole = LIMITS.context_length - 8;
        for first in 0..8 {
            let prompt: Vec<u32> = (0..8).map(|n| first * 7 + n).collect();
            let finish = answers(prompt, whole).unwrap();
            assert_eq!(finish.completion_tokens, whole);
        }
    }
}

#[test]
fn sessions_that_fail_in_every_way_leave_nothing_behind() {
    let sessions: u64 = std::env::var("LANEWAY_SOAK_SESSIONS").map_or(24_000, |count| count.parse().unwrap());
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("injected panic") {
            eprintln!("{info}");
        }
    }));
    let (soak, start) = (Soak::start(), Instant::now());
    let mut first_kib = None;
    for phase in 0..PHASES {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let mut client = Client { soak: &soak, random: SplitMix64::new(phase << 32 | client) };
                scope.spawn(move || {
                    let mut taken = 0;
                    while taken < sessions.div_ceil(PHASES * CLIENTS) {
                        taken += u64::from(client.session());
                    }
                });
            }
        });
        soak.check_rest();
        soak.check_work();
        soak.check_rest();
        first_kib = first_kib.or(resident_kib());
    }
    let (snapshot, now) = (soak.worker.metrics().snapshot(), resident_kib());
    let told = |count: &AtomicU64| count.load(Relaxed);
    println!(
        "{:?}: {:?}, left {}, loads {} of which failed {}, preempted {}, evicted {}, resident {first_kib:?} to {now:?} KiB",
        start.elapsed(),
        snapshot.total(),
        told(&soak.told.left),
        snapshot.loading,
        snapshot.load_failed,
        snapshot.preempted,
        snapshot.lanes.evicted,
    );
    assert!(snapshot.total().queued - snapshot.total().rejected >= sessions);
    let every_way = [snapshot.load_failed, snapshot.preempted, snapshot.total().rejected, told(&soak.told.left)];
    assert!(every_way.iter().all(|count| *count > 0) && snapshot.unloaded > 10, "{every_way:?}");
    if let (Some(first), Some(now)) = (first_kib, now) {
        assert!(now.saturating_sub(first) < 8 * 1024, "memory grew from {first} to {now} KiB");
    }
}

/// Memory of this process, where the system tells.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().trim_end_matches(" kB").parse().ok()
}
