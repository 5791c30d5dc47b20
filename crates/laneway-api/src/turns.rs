//! The turns behind one request: prompts in, merged news out.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use laneway_protocol::chat::{CanvasDraft, ScoredToken, TokenLogprob};
use laneway_protocol::{ApiError, FinishReason, SamplingOptions, TurnSettings, Usage};
use laneway_session::canvas::Denoising;
use laneway_session::{Cancel, Event, Finish, Sampling, Source, SubmitError, Target, Turn, TurnError};
use laneway_text::Detokenizer;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::decoder::TextDecoder;
use crate::state::{ApiState, Phase, TextModel, shutting_down};
use crate::telemetry::{REQUEST, SpanContext};

/// Token ids of one prompt, and the field that errors about it name.
pub(crate) struct TokenPrompt {
    pub ids: Vec<u32>,
    pub param: &'static str,
    /// Whether the answer goes on in the middle of a text.
    pub continues: bool,
    /// Whether it is a conversation, whose answer may have channels.
    pub is_chat: bool,
}

/// What happened to one of the answers.
pub(crate) struct News {
    pub choice: u32,
    pub text: String,
    /// Whether the text is what the model thinks before it answers.
    pub reasoning: bool,
    /// A canvas under revision; then there is nothing else.
    pub draft: Option<CanvasDraft>,
    /// Empty unless log-probabilities were asked for.
    pub tokens: Vec<TokenLogprob>,
    pub finish: Option<FinishReason>,
}

/// Running turns; dropping them cancels what has not ended.
pub(crate) struct Turns {
    state: Arc<ApiState>,
    model: Arc<TextModel>,
    events: mpsc::UnboundedReceiver<(u32, Event)>,
    phase: watch::Receiver<Phase>,
    running: Vec<Option<Cancel>>,
    last_chunk: Vec<Option<Instant>>,
    /// The field that holds the prompt.
    param: &'static str,
    choices_per_prompt: u32,
    wants_logprobs: bool,
    usage: Usage,
    /// The request's span, and when its turns began.
    span: Option<(SpanContext, SystemTime)>,
}

impl Turns {
    /// Queues a turn for each choice of each prompt, or none at all.
    pub fn start(
        state: Arc<ApiState>,
        model: Arc<TextModel>,
        prompts: Vec<TokenPrompt>,
        settings: &TurnSettings,
    ) -> Result<Self, ApiError> {
        for prompt in &prompts {
            let context = model.info.context_length;
            if prompt.ids.len() >= context {
                return Err(ApiError::context_length(prompt.param, prompt.ids.len(), context));
            }
        }
        let (sender, events) = mpsc::unbounded_channel();
        let mut turns = Self {
            events,
            phase: state.watch_phase(),
            running: Vec::new(),
            last_chunk: vec![None; prompts.len() * settings.choices as usize],
            param: prompts.first().map_or("prompt", |prompt| prompt.param),
            choices_per_prompt: settings.choices,
            wants_logprobs: settings.top_logprobs.is_some(),
            usage: Usage::default(),
            span: REQUEST.try_get().ok().map(|request| (request, SystemTime::now())),
            state,
            model,
        };
        let first_seed = settings.sampling.seed.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0);
        for prompt in &prompts {
            for _ in 0..settings.choices {
                let choice = turns.running.len() as u32;
                let sampling = turns.sampling(settings, first_seed.wrapping_add(choice.into()))?;
                turns.submit(prompt, settings, sampling, sender.clone())?;
            }
        }
        tracing::debug!(model = turns.model.info.id, turns = turns.running.len(), "turns queued");
        Ok(turns)
    }

    /// The next news; `None` when every answer is complete.
    pub async fn next(&mut self) -> Option<Result<News, ApiError>> {
        loop {
            if self.running.iter().all(Option::is_none) {
                return None;
            }
            let (choice, event) = tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => event,
                    None => return Some(Err(ApiError::internal("the engine stopped without an answer"))),
                },
                _ = self.phase.wait_for(|phase| *phase == Phase::Stopping) => return Some(Err(shutting_down())),
            };
            match event {
                Event::Chunk { text, tokens, reasoning } => {
                    self.observe_chunk(choice, tokens.len());
                    let tokens = self.scored(tokens);
                    if !text.is_empty() || !tokens.is_empty() {
                        return Some(Ok(News { choice, text, reasoning, draft: None, tokens, finish: None }));
                    }
                }
                Event::Draft { tokens, step, entropy } => {
                    let text = self.model.tokenizer.decode(&tokens, true);
                    let draft = Some(CanvasDraft { index: choice, step, entropy, text });
                    let (text, tokens) = (String::new(), Vec::new());
                    return Some(Ok(News { choice, text, reasoning: false, draft, tokens, finish: None }));
                }
                Event::Finished(result) => return Some(self.finished(choice, result)),
                _ => {}
            }
        }
    }

    /// Longest silence of a stream.
    pub fn keep_alive(&self) -> Duration {
        self.state.options.keep_alive
    }

    /// Number of answers.
    pub fn choices(&self) -> u32 {
        self.running.len() as u32
    }

    /// Tokens of the answers that are complete.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    fn submit(
        &mut self,
        prompt: &TokenPrompt,
        settings: &TurnSettings,
        sampling: Sampling,
        sender: mpsc::UnboundedSender<(u32, Event)>,
    ) -> Result<(), ApiError> {
        let choice = self.running.len() as u32;
        let cancel = Cancel::new();
        let detokenizer = if prompt.continues { Detokenizer::continuing(true) } else { Detokenizer::new(true) };
        let mut decoder = TextDecoder::new(self.model.tokenizer.clone(), detokenizer, settings.stop.clone());
        if prompt.is_chat {
            decoder = decoder.with_channels().after(&prompt.ids);
        }
        let turn = Turn {
            prompt: prompt.ids.clone(),
            max_tokens: settings.max_tokens.map(|limit| limit as usize),
            sampling,
            decoder: Box::new(decoder),
            events: Box::new(move |event| drop(sender.send((choice, event)))),
            cancel: cancel.clone(),
            deadline_ms: self.state.options.turn_timeout.map(|limit| limit.as_millis() as u64),
            source: Source::Http,
            denoising: self.denoising(settings),
            wants_drafts: settings.drafts,
            gate: None,
            namespace: cache_namespace(settings),
            target: if settings.one_shot { Target::OneShot } else { Target::Transient },
        };
        self.model.service.submit(turn).map_err(|error| match error {
            SubmitError::QueueFull { .. } => ApiError::busy(1),
            SubmitError::Stopped => ApiError::unavailable("engine_stopped", "the engine has stopped"),
        })?;
        self.running.push(Some(cancel));
        Ok(())
    }

    /// The model's way of revising a canvas with the number of passes that was asked for.
    fn denoising(&self, settings: &TurnSettings) -> Option<Denoising> {
        let max_steps = settings.denoising_steps?;
        Some(Denoising { max_steps, ..self.model.denoising? })
    }

    fn sampling(&self, settings: &TurnSettings, seed: u64) -> Result<Sampling, ApiError> {
        let (asked, usual) = (&settings.sampling, &self.model.defaults);
        let pick =
            |field: fn(&SamplingOptions) -> Option<f32>, otherwise| field(asked).or(field(usual)).unwrap_or(otherwise);
        Sampling::new(laneway_session::SamplingOptions {
            temperature: pick(|o| o.temperature, 1.0),
            top_k: asked.top_k.or(usual.top_k).unwrap_or(0),
            top_p: pick(|o| o.top_p, 1.0),
            min_p: pick(|o| o.min_p, 0.0),
            repetition_penalty: pick(|o| o.repetition_penalty, 1.0),
            presence_penalty: pick(|o| o.presence_penalty, 0.0),
            frequency_penalty: pick(|o| o.frequency_penalty, 0.0),
            seed,
            top_logprobs: settings.top_logprobs.unwrap_or(0),
            ..Default::default()
        })
        .map_err(|error| ApiError::field(error.field, error.to_string()))
    }

    fn scored(&self, tokens: Vec<laneway_session::TokenLogprob>) -> Vec<TokenLogprob> {
        if !self.wants_logprobs {
            return Vec::new();
        }
        let tokenizer = &self.model.tokenizer;
        let score = |(token, logprob): (u32, f32)| ScoredToken::new(tokenizer.token_bytes(token).into_owned(), logprob);
        let shown = tokens.into_iter().filter(|scored| !tokenizer.is_special(scored.token));
        shown
            .map(|scored| TokenLogprob {
                token: score((scored.token, scored.logprob)),
                top_logprobs: scored.top.into_iter().map(score).collect(),
            })
            .collect()
    }

    fn observe_chunk(&mut self, choice: u32, tokens: usize) {
        let now = Instant::now();
        if let Some(last) = self.last_chunk[choice as usize].replace(now) {
            self.state.metrics.observe_interval(&self.model, now - last, tokens);
        }
    }

    fn tell_span(&self, result: &Result<Finish, TurnError>) {
        if let (Some(telemetry), Some((request, start))) = (&self.state.options.telemetry, self.span) {
            telemetry.turn(request, &self.model.info.id, start, result);
        }
    }

    fn finished(&mut self, choice: u32, result: Result<Finish, TurnError>) -> Result<News, ApiError> {
        self.running[choice as usize] = None;
        self.state.metrics.count_finished(&self.model, &result);
        self.tell_span(&result);
        let finish = result.map_err(|error| failure(&error, self.param))?;
        self.usage.completion_tokens += finish.completion_tokens as u64;
        // The answers to one prompt share it, so it counts once.
        if choice.is_multiple_of(self.choices_per_prompt) {
            self.usage.prompt_tokens += finish.prompt_tokens as u64;
            self.usage.prompt_tokens_details.cached_tokens += finish.cached_tokens as u64;
        }
        self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
        let reason = match finish.reason {
            laneway_session::FinishReason::Stop => FinishReason::Stop,
            laneway_session::FinishReason::Length => FinishReason::Length,
        };
        let (text, tokens) = (String::new(), Vec::new());
        Ok(News { choice, text, reasoning: false, draft: None, tokens, finish: Some(reason) })
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        let mut left = 0;
        for cancel in self.running.iter().flatten() {
            cancel.cancel();
            left += 1;
        }
        if left > 0 {
            self.model.service.wake();
            self.tell_span(&Err(TurnError::Cancelled));
            tracing::debug!(turns = left, "unfinished turns cancelled");
        }
    }
}

/// What keeps the cached prefixes of a request apart from others'.
pub(crate) fn cache_namespace(settings: &TurnSettings) -> u64 {
    let Some(salt) = &settings.cache_salt else { return 0 };
    let laneway_checkpoint::Digest([a, b, c, d, e, f, g, h, ..]) = laneway_checkpoint::Digest::of(salt.as_bytes());
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
}

fn failure(error: &TurnError, param: &str) -> ApiError {
    match error {
        TurnError::ContextExceeded { prompt, limit } => ApiError::context_length(param, *prompt, *limit),
        TurnError::EmptyPrompt => ApiError::invalid("the prompt has no tokens"),
        TurnError::Refused => ApiError::forbidden(error.to_string()),
        TurnError::QueueTimeout => ApiError::busy(1),
        TurnError::DeadlineExceeded => ApiError::timeout("the answer was not complete in time"),
        TurnError::Load(_) => ApiError::unavailable("load_failed", error.to_string()),
        TurnError::ShuttingDown => shutting_down(),
        TurnError::Cancelled => ApiError::unavailable("cancelled", "the turn was cancelled"),
        TurnError::Engine(_) | TurnError::Internal | TurnError::InvalidRead(_) => ApiError::internal(error.to_string()),
    }
}
