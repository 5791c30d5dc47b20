//! The driver of the session service for one model in one worker.

use crate::clock::now_ms;
use crate::error::WebError;
use laneway_engine::{DeviceChoice, DeviceSummary, EngineSettings, ModelEngine};
use laneway_files::{Bytes, Weights};
use laneway_session::{
    Action, Cancel, Decoded, Decoder, Engine, Event, Finish, Outcome, Request, Sampling, SamplingOptions, Service,
    ServiceConfig, Source, Turn, TurnError,
};
use std::sync::{Arc, Mutex, PoisonError};

/// A loaded model with the service that decides its steps.
pub struct Driver {
    engine: Option<ModelEngine>,
    service: Service<()>,
    facts: Facts,
}

/// What a page may want to show of a loaded model.
#[derive(Clone, Debug)]
pub struct Facts {
    pub device: DeviceSummary,
    pub weight_bytes: u64,
    pub vocab: usize,
    pub context_length: usize,
}

impl Driver {
    /// Reads a GGUF file and puts it on the browser's device.
    pub async fn open(file: Vec<u8>, context_length: Option<usize>) -> Result<Self, WebError> {
        let weights = Weights::from_gguf(Bytes::from(file))?;
        let settings =
            EngineSettings { device: DeviceChoice::Gpu, lanes: 1, context_length, ..EngineSettings::default() };
        let engine = ModelEngine::open(&weights, &settings).await?;
        let facts = Facts {
            device: engine.device().clone(),
            weight_bytes: engine.weight_bytes(),
            vocab: weights.config().vocab_size,
            context_length: engine.limits().context_length,
        };
        Ok(Self { engine: Some(engine), service: service(), facts })
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The engine, for work outside turns; whatever the lanes held is forgotten.
    pub fn borrow_engine(&mut self) -> Result<&mut ModelEngine, WebError> {
        self.service = service();
        self.engine.as_mut().ok_or(WebError::Gone)
    }

    /// Continues `prompt` greedily by `count` tokens, or fewer where the context ends.
    pub async fn generate(&mut self, prompt: Vec<u32>, count: usize) -> Result<Vec<u32>, WebError> {
        let vocab = self.facts.vocab;
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(WebError::Token { token, vocab });
        }
        if self.engine.is_none() {
            return Err(WebError::Gone);
        }
        let tokens = Shared::<Vec<u32>>::default();
        let end = Shared::<Option<Result<Finish, TurnError>>>::default();
        let told = end.clone();
        let turn = Turn {
            prompt,
            max_tokens: Some(count),
            sampling: greedy(),
            decoder: Box::new(Ids(tokens.clone())),
            events: Box::new(move |event| {
                if let Event::Finished(result) = event {
                    told.with(|end| *end = Some(result));
                }
            }),
            cancel: Cancel::new(),
            deadline_ms: None,
            source: Source::LocalChat,
            denoising: None,
            wants_drafts: false,
            gate: None,
            namespace: 0,
            target: laneway_session::Target::default(),
        };
        self.service.submit(now_ms(), Request { settings: (), idle_timeout_ms: None }, turn)?;
        self.drive().await;
        end.with(Option::take).unwrap_or(Err(TurnError::Internal))?;
        Ok(tokens.with(std::mem::take))
    }

    /// Does what the service asks for until it waits for turns.
    async fn drive(&mut self) {
        loop {
            let outcome = match self.service.plan(now_ms()) {
                Action::Load { .. } => {
                    let limits = self.engine.as_ref().map(ModelEngine::limits);
                    Outcome::Loaded(limits.ok_or_else(|| WebError::Gone.to_string()))
                }
                Action::Unload => {
                    self.engine = None;
                    Outcome::Unloaded
                }
                Action::Engine(call) => call.execute(self.engine.as_mut()).await,
                Action::Wait { .. } | Action::Stop => return,
            };
            self.service.commit(now_ms(), outcome);
        }
    }
}

fn service() -> Service<()> {
    Service::new(ServiceConfig { queue_depth: 1, idle_timeout_ms: u64::MAX, ..ServiceConfig::default() })
}

fn greedy() -> Sampling {
    let options = SamplingOptions { temperature: 0.0, ..SamplingOptions::default() };
    Sampling::new(options).expect("0 is a temperature")
}

/// What a turn's callbacks share with its driver.
struct Shared<T>(Arc<Mutex<T>>);

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Shared<T> {
    fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Collects ids; nothing but their number ends the answer.
struct Ids(Shared<Vec<u32>>);

impl Decoder for Ids {
    fn token(&mut self, token: u32) -> Decoded {
        self.0.with(|ids| ids.push(token));
        Decoded::default()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}
