use std::sync::Arc;
use std::time::Duration;

use laneway_decisions::Reader;
use laneway_protocol::models::{DECISION_ALIASES, ModelInfo};
use laneway_protocol::{ApiError, SamplingOptions};
use laneway_session::canvas::Denoising;
use laneway_session::{Metrics, Read, SubmitError, Turn};
use laneway_text::{ChatTemplate, Tokenizer};
use tokio::sync::{Semaphore, watch};

use crate::metrics::ApiMetrics;
use crate::sessions::Sessions;
use crate::telemetry::Telemetry;

/// Bodies up to this size are tokenised in well under a millisecond.
const SHORT_BODY_BYTES: usize = 4096;

/// Generates the answers of one model.
pub trait TurnService: Send + Sync + 'static {
    /// Queues a turn and returns at once; every event goes to [`Turn::events`].
    fn submit(&self, turn: Turn) -> Result<(), SubmitError>;

    /// Queues a read and returns at once; its outcome goes to [`Read::answer`].
    fn read(&self, read: Read) -> Result<(), SubmitError>;

    /// Looks at cancel flags soon: one was set.
    fn wake(&self);

    /// Whether turns are being worked on, judged by the engine's progress.
    fn health(&self) -> Health;

    /// The figures of the service.
    fn metrics(&self) -> &Metrics;
}

/// What a service can do at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The model is being loaded.
    Loading,
    /// Turns are answered.
    Ready,
    /// The model could not be loaded, or its engine is lost; the text says why.
    Failed(String),
    /// There is work, but no step has been finished for this long.
    Stuck { since_ms: u64 },
}

/// A served model: what it is called, and what turns text into its turns.
pub struct TextModel {
    pub info: ModelInfo,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Changes whenever the same seed may yield another answer.
    pub fingerprint: String,
    pub tokenizer: Arc<Tokenizer>,
    /// `None` for a model that can only complete text.
    pub template: Option<ChatTemplate>,
    /// Token positions of a KV page.
    pub page_positions: usize,
    /// What applies where a request says nothing.
    pub defaults: SamplingOptions,
    /// How the model revises a canvas; `None` for one that predicts the next token.
    pub denoising: Option<Denoising>,
    /// Plans the reads of decisions, or why the model answers none.
    pub reader: Result<Arc<Reader>, String>,
    pub service: Arc<dyn TurnService>,
    /// What moves and stores the model's sessions; `None` where nothing does.
    pub sessions: Option<Arc<Sessions>>,
}

impl TextModel {
    /// Makes ready what is stored of a prompt that is about to be queued.
    pub(crate) async fn prepare(&self, namespace: u64, prompt: &[u32]) {
        // A prompt without room for an answer is about to be refused.
        if let Some(sessions) = self.sessions.as_ref().filter(|_| prompt.len() < self.info.context_length) {
            sessions.prepare(namespace, prompt).await;
        }
    }
}

/// What an operator may set.
#[derive(Clone)]
pub struct ApiOptions {
    /// Demanded as a bearer token under `/v1/`; `None` lets everybody in.
    pub api_key: Option<String>,
    /// Demanded as a bearer token under `/admin/` and `/debug/`; `None` closes those routes.
    pub admin_key: Option<String>,
    /// Origins whose pages may read answers; `*` stands for all, none switches CORS off.
    pub cors_origins: Vec<String>,
    pub body_limit_bytes: usize,
    /// A whole request body must arrive within this time.
    pub body_timeout: Duration,
    /// A turn fails after this time in the queue and at work; `None` waits for ever.
    pub turn_timeout: Option<Duration>,
    /// A stream that has nothing to tell for this long gets a comment line, for whoever ends silent connections.
    pub keep_alive: Duration,
    /// Collects spans; `None` collects none.
    pub telemetry: Option<Telemetry>,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            api_key: None,
            admin_key: None,
            cors_origins: Vec::new(),
            body_limit_bytes: 4 << 20,
            body_timeout: Duration::from_secs(30),
            turn_timeout: Some(Duration::from_secs(600)),
            keep_alive: Duration::from_secs(5),
            telemetry: None,
        }
    }
}

/// How far the server is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// Not ready any more, so that routers look elsewhere; turns are still taken.
    Draining,
    /// New turns are refused, running ones go on.
    Closing,
    /// Running turns are cancelled.
    Stopping,
}

/// Everything the routes share.
pub struct ApiState {
    pub(crate) models: Vec<Arc<TextModel>>,
    pub(crate) options: ApiOptions,
    pub(crate) metrics: ApiMetrics,
    /// Long prompts are tokenised on this many blocking threads at a time.
    pub(crate) tokenising: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
}

impl ApiState {
    /// State that serves these models.
    pub fn new(models: Vec<TextModel>, options: ApiOptions) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let models: Vec<_> = models.into_iter().map(Arc::new).collect();
        Self {
            metrics: ApiMetrics::new(&models, options.telemetry.as_ref()),
            models,
            options,
            tokenising: Arc::new(Semaphore::new(threads)),
            phase: watch::Sender::new(Phase::Serving),
        }
    }

    /// Moves on to a later phase; earlier ones are ignored.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let later = phase > *current;
            *current = phase.max(*current);
            later
        });
    }

    /// How far the server is on its way out.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn watch_phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The model called `name`, if turns are still taken.
    pub(crate) fn admit(&self, name: &str) -> Result<Arc<TextModel>, ApiError> {
        if self.phase() >= Phase::Closing {
            return Err(shutting_down());
        }
        self.find(name).cloned().ok_or_else(|| ApiError::model_not_found(name))
    }

    /// The model that decides under this name; the usual aliases mean the first that answers decisions.
    pub(crate) fn find_for_decisions(&self, name: &str) -> Option<Arc<TextModel>> {
        let usual = || {
            let readers = self.models.iter().find(|model| model.reader.is_ok());
            readers.or(self.models.first()).filter(|_| DECISION_ALIASES.contains(&name))
        };
        self.find(name).or_else(usual).cloned()
    }

    /// Runs `work` on a body of this size, or as long as one: on this thread if it is short.
    pub(crate) async fn tokenise<T: Send + 'static>(
        &self,
        body_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if body_bytes <= SHORT_BODY_BYTES {
            return Ok(work());
        }
        let permit = self.tokenising.clone().acquire_owned().await.expect("the semaphore is never closed");
        let work = move || {
            // Work goes on when its client leaves, and so does its permit.
            let _permit = permit;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal("the request could not be prepared"))
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Arc<TextModel>> {
        self.models.iter().find(|model| model.info.id == name || model.aliases.iter().any(|alias| alias == name))
    }
}

pub(crate) fn shutting_down() -> ApiError {
    ApiError::unavailable("shutting_down", "the server is shutting down")
}
