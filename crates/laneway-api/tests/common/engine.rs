//! A server over a worker with the engine without weights.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use laneway_api::{
    ApiOptions, CheckpointOptions, Health, KvLayout, ModelScope, ServeOptions, Sessions, StoreCodec, TurnService,
    Worker, WorkerService,
};
use laneway_checkpoint::{ByteStore, ElementType};
use laneway_decisions::{Reader, ReaderOptions, Readout};
use laneway_session::fake::{FakeEngine, Faults, VOCABULARY};
use laneway_session::{
    Engine, EngineError, EngineLimits, Metrics, Read, Request, Sampling, ServiceConfig, StepOutcome, StepPlan,
    SubmitError, Turn,
};
use laneway_text::{ChatTemplate, Tokenizer, TokenizerSource};

use super::{Server, model_with, wait_until};

/// Lets a number of steps and loads through, or all of them.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<Option<usize>>, Condvar)>);

impl Gate {
    pub fn of(steps: usize) -> Self {
        Self(Arc::new((Mutex::new(Some(steps)), Condvar::new())))
    }

    pub fn open(&self) {
        *self.0.0.lock().expect("unpoisoned") = None;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let closed = |left: &mut Option<usize>| *left == Some(0);
        let left = self.0.0.lock().expect("unpoisoned");
        let mut left = self.0.1.wait_while(left, closed).expect("unpoisoned");
        *left = left.map(|left| left - 1);
    }

    pub fn left(&self) -> Option<usize> {
        *self.0.0.lock().expect("unpoisoned")
    }
}

struct GatedEngine {
    inner: FakeEngine,
    gate: Gate,
}

impl Engine for GatedEngine {
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
        self.gate.pass();
        self.inner.collect().await
    }

    async fn read_page(&mut self, page: u32, positions: usize) -> Result<Vec<u8>, EngineError> {
        self.inner.read_page(page, positions).await
    }

    fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<(), EngineError> {
        self.inner.write_page(page, positions, content)
    }
}

/// What is served, and how.
pub struct Setup {
    pub steps: Gate,
    pub loads: Gate,
    pub faults: Faults,
    pub queue_depth: usize,
    pub stuck_after_ms: u64,
    pub limits: EngineLimits,
    pub options: ApiOptions,
    pub serving: ServeOptions,
    pub reading: ReaderOptions,
    /// Where sessions are stored; they can be moved whether they are stored or not.
    pub store: Option<(Arc<dyn ByteStore>, StoreCodec)>,
    /// Stands for the content of the model's files.
    pub positions: String,
}

impl Setup {
    pub fn new(limits: EngineLimits) -> Self {
        Self {
            steps: Gate::default(),
            loads: Gate::default(),
            faults: Faults::default(),
            queue_depth: 64,
            stuck_after_ms: 600_000,
            limits,
            options: ApiOptions::default(),
            serving: ServeOptions::default(),
            reading: ReaderOptions::default(),
            store: None,
            positions: "as usual".to_owned(),
        }
    }

    pub async fn start(&self, tokenizer: Tokenizer) -> Server<Watched> {
        let (steps, loads, faults, limits) = (self.steps.clone(), self.loads.clone(), self.faults.clone(), self.limits);
        let config = ServiceConfig { queue_depth: self.queue_depth, ..ServiceConfig::default() };
        let worker = Worker::spawn("test-worker", config, move |(): &(), _| {
            loads.pass();
            Ok(GatedEngine { inner: FakeEngine::new(limits, faults.clone()), gate: steps.clone() })
        })
        .expect("the thread starts");
        let request = Request { settings: (), idle_timeout_ms: None };
        let sessions = Arc::new(self.sessions(&worker));
        let inner = WorkerService::new(worker, request, self.stuck_after_ms);
        let service = Arc::new(Watched { inner, wakes: AtomicUsize::new(0), sessions: sessions.clone() });
        let mut model = model_with(service.clone(), tokenizer);
        model.info.context_length = limits.context_length;
        model.denoising = limits.canvas.map(|canvas| canvas.denoising);
        model.sessions = Some(sessions);
        model.reader = self.reader(&model.tokenizer, self.reading.clone()).map(Arc::new);
        Server::over(model, service, self.options.clone(), self.serving.clone()).await
    }

    fn sessions(&self, worker: &Worker<()>) -> Sessions {
        // The engine without weights has eight bytes a position.
        let layout = KvLayout {
            element: ElementType::F32,
            layers: 1,
            widths: vec![1],
            head_dims: vec![1],
            page_positions: self.limits.page_positions,
        };
        let scope = ModelScope { files: Vec::new(), positions: self.positions.clone() };
        let options = self.store.clone().map(|(store, codec)| CheckpointOptions {
            store,
            limits: laneway_checkpoint::Config::default(),
            codec,
        });
        Sessions::new(Arc::new(worker.clone()), layout, scope, options).expect("the store is readable")
    }

    /// What turns requests for decisions into reads of this engine.
    pub fn reader(&self, tokenizer: &Arc<Tokenizer>, options: ReaderOptions) -> Result<Reader, String> {
        let template = ChatTemplate::of_tokenizer(tokenizer).map_err(|error| error.to_string())?;
        let readout = self.limits.canvas.map_or(Readout::Autoregressive, Readout::Canvas);
        Reader::new(tokenizer.clone(), Some(template), readout, options).map_err(|error| error.to_string())
    }
}

/// Shows when the server has noticed that a client left.
pub struct Watched {
    inner: WorkerService<()>,
    pub wakes: AtomicUsize,
    pub sessions: Arc<Sessions>,
}

impl TurnService for Watched {
    fn submit(&self, turn: Turn) -> Result<(), SubmitError> {
        self.inner.submit(turn)
    }

    fn read(&self, read: Read) -> Result<(), SubmitError> {
        self.inner.read(read)
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, SeqCst);
        self.inner.wake();
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn metrics(&self) -> &Metrics {
        self.inner.metrics()
    }
}

/// Waits until nothing is queued or running.
pub async fn settled(server: &Server<Watched>) {
    wait_until(|| {
        let total = server.service.metrics().snapshot().total();
        total.waiting() + total.running() == 0
    })
    .await;
}

/// A vocabulary whose labels are among the tokens that the engine without weights can predict.
pub fn deciding_tokenizer() -> Tokenizer {
    let mut tokens = vec!["<|im_end|>".to_owned()];
    tokens.extend(('A'..='Z').chain('0'..='9').map(String::from));
    tokens.extend(["Ye", "Yes", "No", "▁", "▁y", "▁ye", "▁yes", "▁n", "▁no"].map(str::to_owned));
    tokens.extend((tokens.len()..VOCABULARY as usize).map(|word| format!("▁~{word}")));
    let words = tokens.len();
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    let mut types = vec![1; words];
    types[0] = 3;
    types.extend([6; 256]);
    Tokenizer::new(TokenizerSource {
        model: "llama".into(),
        scores: Some(vec![0.0; tokens.len()]),
        eos: Some(0),
        tokens,
        token_types: Some(types),
        chat_template: Some("{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:".into()),
        ..Default::default()
    })
    .expect("the vocabulary is valid")
}
