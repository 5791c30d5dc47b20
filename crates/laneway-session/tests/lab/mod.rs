//! Drives a service on the fake engine with a virtual clock.
#![allow(dead_code)]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use laneway_session::canvas::*;
use laneway_session::fake::{FakeDecoder, FakeEngine, Faults};
use laneway_session::*;

pub const LIMITS: EngineLimits = EngineLimits {
    lanes: 2,
    pages: 32,
    page_positions: 4,
    context_length: 64,
    max_rows: 8,
    depth: 1,
    branches: 2,
    row_bytes: 8,
    canvas: None,
};

/// Comes to rest after some passes on the fake engine, and never needs all of them.
pub const DENOISING: Denoising = Denoising {
    max_steps: 24,
    t_max: 0.8,
    t_min: 0.4,
    selection: Selection::EntropyBound(0.2),
    stop: Stop::Stable { passes: 1, entropy: 0.01 },
};

/// One position a pass, at least.
pub const UNMASKING: Denoising = Denoising {
    max_steps: 24,
    t_max: 0.0,
    t_min: 0.0,
    selection: Selection::Threshold { confidence: Confidence::Probability, least: 0.7, at_least: 1 },
    stop: Stop::Decided,
};

/// Like DiffusionGemma.
pub const CAUSAL: CanvasLimits = CanvasLimits {
    length: 6,
    vocabulary: 64,
    noise: Noise::Uniform,
    context: CanvasContext::Causal,
    shift: false,
    is_conditioned: true,
    pad: 0,
    denoising: DENOISING,
};

/// Like block diffusion with masks.
pub const BLOCKS: CanvasLimits = CanvasLimits {
    noise: Noise::Masked { mask: 63 },
    context: CanvasContext::Blocks,
    is_conditioned: false,
    denoising: UNMASKING,
    ..CAUSAL
};

/// Like models without a cache.
pub const WHOLE: CanvasLimits = CanvasLimits { context: CanvasContext::Whole, ..BLOCKS };

/// The same with shifted predictions.
pub const SHIFTED: CanvasLimits = CanvasLimits { shift: true, ..WHOLE };

/// All four, with a step that holds the whole context where there is no cache.
pub fn canvas_engines() -> [EngineLimits; 4] {
    [CAUSAL, BLOCKS, WHOLE, SHIFTED].map(|canvas| {
        let max_rows = if canvas.context == CanvasContext::Whole { LIMITS.context_length } else { LIMITS.max_rows };
        EngineLimits { canvas: Some(canvas), max_rows, ..LIMITS }
    })
}

#[derive(Clone, Debug, PartialEq)]
pub enum Did {
    Load(u32),
    Unload,
    Begin(usize),
    Submit(StepPlan),
    Collect,
    Read(u32),
    Write(u32),
    Wait(Option<u64>),
    Stop,
}

pub struct Lab {
    pub service: Service<u32>,
    pub engine: Option<FakeEngine>,
    pub limits: EngineLimits,
    pub faults: Faults,
    pub now: u64,
    pub log: Vec<Did>,
    pub load_error: Option<String>,
    pub cancel_during_load: bool,
    /// Milliseconds of a step, and of each of its rows.
    pub cost: (u64, u64),
}

#[derive(Clone)]
pub struct Told {
    pub events: Arc<Mutex<Vec<Event>>>,
    pub cancel: Cancel,
}

pub fn turn(prompt: &[u32]) -> (Turn, Told) {
    let told = Told { events: Arc::default(), cancel: Cancel::new() };
    let sink = told.events.clone();
    let turn = Turn {
        prompt: prompt.to_vec(),
        max_tokens: None,
        sampling: Sampling::default(),
        decoder: Box::new(FakeDecoder::default()),
        events: Box::new(move |event| sink.lock().unwrap().push(event)),
        cancel: told.cancel.clone(),
        deadline_ms: None,
        source: Source::Http,
        denoising: None,
        wants_drafts: false,
        gate: None,
        namespace: 0,
        target: laneway_session::Target::default(),
    };
    (turn, told)
}

#[derive(Clone)]
pub struct Answered {
    pub answers: Arc<Mutex<Vec<Result<ReadAnswer, TurnError>>>>,
    pub cancel: Cancel,
}

pub fn read(prompt: &[u32], branches: &[Branch]) -> (Read, Answered) {
    let told = Answered { answers: Arc::default(), cancel: Cancel::new() };
    let sink = told.answers.clone();
    let read = Read {
        prompt: prompt.to_vec(),
        branches: branches.to_vec(),
        answer: Box::new(move |answer| sink.lock().unwrap().push(answer)),
        cancel: told.cancel.clone(),
        deadline_ms: None,
        source: Source::Http,
        namespace: 0,
    };
    (read, told)
}

/// A branch with labels at some of its rows.
pub fn branch(kind: BranchKind, tokens: &[u32], rows: &[usize]) -> Branch {
    let slots = rows.iter().map(|&row| Slot { row, labels: vec![row as u32, 20, 30] });
    Branch { tokens: tokens.to_vec(), kind, slots: slots.collect() }
}

pub fn request(settings: u32) -> Request<u32> {
    Request { settings, idle_timeout_ms: None }
}

impl Lab {
    pub fn new(limits: EngineLimits) -> Self {
        Self::with_config(limits, ServiceConfig { queue_depth: 64, ..Default::default() })
    }

    pub fn with_config(limits: EngineLimits, config: ServiceConfig) -> Self {
        Self {
            service: Service::new(config),
            engine: None,
            limits,
            faults: Faults::default(),
            now: 1000,
            log: Vec::new(),
            load_error: None,
            cancel_during_load: false,
            cost: (0, 0),
        }
    }

    pub fn submit(&mut self, prompt: &[u32], max_tokens: usize) -> Told {
        self.submit_with(1, prompt, |turn| turn.max_tokens = Some(max_tokens))
    }

    pub fn submit_with(&mut self, settings: u32, prompt: &[u32], change: impl FnOnce(&mut Turn)) -> Told {
        let (mut turn, told) = turn(prompt);
        change(&mut turn);
        self.service.submit(self.now, request(settings), turn).unwrap();
        told
    }

    pub fn read(&mut self, prompt: &[u32], branches: &[Branch]) -> Answered {
        self.read_with(prompt, branches, |_| {})
    }

    pub fn read_with(&mut self, prompt: &[u32], branches: &[Branch], change: impl FnOnce(&mut Read)) -> Answered {
        let (mut read, told) = read(prompt, branches);
        change(&mut read);
        self.service.submit_read(self.now, request(1), read).unwrap();
        told
    }

    /// Plans, does and commits one action; false when there is nothing to do.
    pub fn step(&mut self) -> bool {
        self.now += 1;
        let worked = catch_unwind(AssertUnwindSafe(|| self.act()));
        worked.unwrap_or_else(|_| {
            self.engine = None;
            while catch_unwind(AssertUnwindSafe(|| self.service.reset(self.now))).is_err() {}
            true
        })
    }

    fn act(&mut self) -> bool {
        let outcome = match self.service.plan(self.now) {
            Action::Load { settings, cancel } => {
                self.log.push(Did::Load(settings));
                assert!(self.engine.is_none(), "two models in memory");
                if self.cancel_during_load {
                    cancel.cancel();
                }
                match self.load_error.clone() {
                    Some(error) => Outcome::Loaded(Err(error)),
                    None => {
                        self.engine = Some(FakeEngine::new(self.limits, self.faults.clone()));
                        Outcome::Loaded(Ok(self.limits))
                    }
                }
            }
            Action::Unload => {
                self.log.push(Did::Unload);
                self.engine = None;
                Outcome::Unloaded
            }
            Action::Engine(call) => {
                if let EngineCall::Submit(plan) = &call {
                    self.now += self.cost.0 + self.cost.1 * plan.rows.len() as u64;
                }
                self.log.push(match &call {
                    EngineCall::Begin { lane, .. } => Did::Begin(*lane),
                    EngineCall::Submit(plan) => Did::Submit(plan.clone()),
                    EngineCall::Collect => Did::Collect,
                    EngineCall::ReadPage { page, .. } => Did::Read(*page),
                    EngineCall::WritePage { page, .. } => Did::Write(*page),
                });
                ready(call.execute(self.engine.as_mut()))
            }
            Action::Wait { until } => {
                self.log.push(Did::Wait(until));
                return false;
            }
            Action::Stop => {
                self.log.push(Did::Stop);
                return false;
            }
        };
        self.service.commit(self.now, outcome);
        true
    }

    /// Works until there is nothing to do.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the service never comes to rest");
    }

    /// Works until a condition holds.
    pub fn until(&mut self, condition: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if condition(self) {
                return;
            }
            self.step();
        }
        panic!("the condition never holds");
    }

    pub fn snapshot(&self) -> Snapshot {
        self.service.metrics().snapshot()
    }

    pub fn plans(&self) -> Vec<&StepPlan> {
        let log = self.log.iter();
        log.filter_map(|did| match did {
            Did::Submit(plan) => Some(plan),
            _ => None,
        })
        .collect()
    }

    pub fn count(&self, did: &Did) -> usize {
        self.log.iter().filter(|other| *other == did).count()
    }
}

impl Answered {
    pub fn outcome(&self) -> Option<Result<ReadAnswer, TurnError>> {
        let answers = self.answers.lock().unwrap();
        assert!(answers.len() < 2, "a read was answered twice");
        answers.first().cloned()
    }

    pub fn answer(&self) -> ReadAnswer {
        self.outcome().expect("answered").expect("an answer")
    }

    pub fn error(&self) -> TurnError {
        self.outcome().expect("answered").expect_err("an error")
    }
}

impl Told {
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub fn finished(&self) -> Option<Result<Finish, TurnError>> {
        self.events().into_iter().find_map(|event| match event {
            Event::Finished(result) => Some(result),
            _ => None,
        })
    }

    pub fn finish(&self) -> Finish {
        self.finished().expect("finished").expect("an answer")
    }

    pub fn error(&self) -> TurnError {
        self.finished().expect("finished").expect_err("an error")
    }

    pub fn text(&self) -> String {
        let text = |event| match event {
            Event::Chunk { text, .. } => Some(text),
            _ => None,
        };
        self.events().into_iter().filter_map(text).collect()
    }

    pub fn tokens(&self) -> Vec<u32> {
        let tokens = |event| match event {
            Event::Chunk { tokens, .. } => tokens,
            _ => Vec::new(),
        };
        self.events().into_iter().flat_map(tokens).map(|token| token.token).collect()
    }
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the fake engine is always ready"),
    }
}

/// What a transfer told, once.
pub type Ended<T> = Arc<Mutex<Vec<Result<T, TransferError>>>>;

impl Lab {
    pub fn export(&mut self, namespace: u64, tokens: &[u32], from: usize) -> (Ended<Exported>, Cancel) {
        let (ended, cancel) = (Ended::default(), Cancel::new());
        let told = ended.clone();
        let done = Box::new(move |result| told.lock().unwrap().push(result));
        self.service.export(Export { namespace, tokens: tokens.to_vec(), from, cancel: cancel.clone(), done });
        (ended, cancel)
    }

    pub fn import(&mut self, namespace: u64, tokens: &[u32], pages: &[Vec<u8>]) -> (Ended<usize>, Cancel) {
        let (ended, cancel) = (Ended::default(), Cancel::new());
        let told = ended.clone();
        let done = Box::new(move |result| told.lock().unwrap().push(result));
        let (tokens, pages) = (tokens.to_vec(), pages.to_vec());
        self.service.import(Import { namespace, tokens, pages, cancel: cancel.clone(), done });
        (ended, cancel)
    }
}

pub fn ended<T: Clone>(told: &Ended<T>) -> Option<Result<T, TransferError>> {
    let told = told.lock().unwrap();
    assert!(told.len() < 2, "a transfer ended twice");
    told.first().cloned()
}
