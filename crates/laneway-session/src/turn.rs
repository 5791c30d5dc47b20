//! A turn as the caller hands it in, and what the caller is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Sampling;
use crate::canvas::Denoising;
use crate::gate::GateId;
use crate::transfer::Target;

/// One request and everything that is needed to answer it.
pub struct Turn {
    /// Prompt token ids, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; clamped to the remaining context, which is also the default. Canvases are revised
    /// as a whole, and what exceeds this number is not told.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen; of a model that revises a canvas only the seed counts.
    pub sampling: Sampling,
    /// Turns tokens into text and knows what ends the answer.
    pub decoder: Box<dyn Decoder + Send>,
    /// Receives the events of this turn.
    pub events: Box<dyn Events + Send>,
    /// Stops the turn between two steps, also while it is queued.
    pub cancel: Cancel,
    /// Milliseconds after submission at which the turn fails; none waits for ever.
    pub deadline_ms: Option<u64>,
    /// Where the turn comes from, for the metrics.
    pub source: Source,
    /// How canvases are revised; none takes the model's way, and means nothing to a model without one.
    pub denoising: Option<Denoising>,
    /// Whether [`Event::Draft`]s are wanted.
    pub wants_drafts: bool,
    /// Where leave for every token is asked; a name that is not registered is refused.
    pub gate: Option<GateId>,
    /// Keeps what is cached of it apart from that of other namespaces, for example of other tenants; 0 for all alike.
    pub namespace: u64,
    /// What becomes of its state afterwards.
    pub target: Target,
}

/// Where a turn comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// An API client, answered without a stored session.
    #[default]
    Http,
    /// The built-in chat and its side tasks.
    LocalChat,
}

/// A sticky, shareable request to stop.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the flag for good.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the flag was set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a decoder ends the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its answer; the token has no text.
    Eos,
    /// A stop string was completed.
    StopString,
}

/// The text side of one token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Text that can be shown now; ignored on [`StopReason::Eos`].
    pub text: String,
    /// Whether the text belongs to the model's reasoning.
    pub reasoning: bool,
    /// Set when the answer ends with this token.
    pub stop: Option<StopReason>,
}

/// Turns generated tokens into text, with stop strings and incomplete characters held back.
pub trait Decoder {
    /// Takes the next generated token.
    fn token(&mut self, token: u32) -> Decoded;

    /// Text still held back when the answer ends by end-of-sequence or length; not called after a stop string.
    fn finish(&mut self) -> String;
}

/// Receives the events of one turn; must neither block nor panic, and may ignore a receiver that is gone.
pub trait Events {
    /// Takes the next event.
    fn send(&mut self, event: Event);
}

impl<F: FnMut(Event)> Events for F {
    fn send(&mut self, event: Event) {
        self(event);
    }
}

/// One thing a caller is told: optional `Loading`, any mix of `Context`, `Draft` and `Chunk`, one `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The model is being loaded for this turn.
    Loading,
    /// How full the context is.
    Context {
        /// Positions written.
        used: usize,
        /// Positions the turn can have.
        limit: usize,
        /// Generation speed; none while the prompt is processed.
        tokens_per_s: Option<f64>,
    },
    /// A piece of the answer.
    Chunk {
        /// The text, not empty unless the last tokens of an answer have none.
        text: String,
        /// Whether the text belongs to the model's reasoning.
        reasoning: bool,
        /// The tokens sampled since the last chunk.
        tokens: Vec<TokenLogprob>,
    },
    /// A canvas after a pass; whatever was shown of it before is void. Its final text follows as chunks.
    Draft {
        /// The likeliest token of every position.
        tokens: Vec<u32>,
        /// Passes made over this canvas.
        step: u32,
        /// Mean entropy in nats.
        entropy: f32,
    },
    /// The last event.
    Finished(Result<Finish, TurnError>),
}

/// A generated token with its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Its natural-log probability.
    pub logprob: f32,
    /// The most probable tokens at its place, best first.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End of sequence or stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
}

/// Figures of a completed turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose K/V was reused.
    pub cached_tokens: usize,
    /// Tokens sampled, an end-of-sequence token included.
    pub completion_tokens: usize,
    /// From submission to start.
    pub queue_ms: u64,
    /// From admission to a lane to the first token, or to the first pass over a canvas.
    pub prefill_ms: u64,
    /// From there to the end.
    pub decode_ms: u64,
}

/// Why a turn failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TurnError {
    /// The caller cancelled or left.
    #[error("cancelled")]
    Cancelled,
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {prompt} tokens, the context holds {limit}")]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions a turn can have.
        limit: usize,
    },
    /// The prompt has no tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The loaded model cannot make this read.
    #[error("the read cannot be made: {0}")]
    InvalidRead(&'static str),
    /// The gate that the turn names refused it, or there is no such gate.
    #[error("the application refused to go on")]
    Refused,
    /// No lane became free in the time that requests may wait.
    #[error("no lane became free in time")]
    QueueTimeout,
    /// The deadline passed.
    #[error("deadline exceeded")]
    DeadlineExceeded,
    /// The model could not be loaded.
    #[error("the model could not be loaded: {0}")]
    Load(String),
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// A fault inside Laneway; the model is reloaded by the next turn.
    #[error("internal error, the engine was reset")]
    Internal,
    /// The service stops.
    #[error("shutting down")]
    ShuttingDown,
}
