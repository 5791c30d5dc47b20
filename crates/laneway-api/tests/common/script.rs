use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway_api::{Health, TurnService};
use laneway_session::canvas::Denoising;
use laneway_session::{
    Cancel, Event, Finish, FinishReason, Metrics, Read, Sampling, StopReason, SubmitError, TokenLogprob, Turn,
    TurnError,
};
use tokio::sync::Semaphore;

use super::{end, word};

/// What the service answers.
pub struct Script {
    /// Token ids; the seed chooses, and the chosen one is repeated until it is long enough.
    pub answers: Vec<Vec<u32>>,
    /// Turns accepted at a time.
    pub capacity: usize,
    /// Tokens to generate before everything waits for [`ScriptService::release`].
    pub free_tokens: usize,
    /// Fails after this many tokens.
    pub fails_after: Option<usize>,
}

impl Default for Script {
    fn default() -> Self {
        let hello = [" Hello", "!", " How", " are", " you", "?"].map(word);
        let tea = [" tea", "?"].map(word);
        let with_end = |words: &[u32]| words.iter().copied().chain([end()]).collect();
        Self {
            answers: vec![with_end(&hello), with_end(&tea)],
            capacity: 8,
            free_tokens: Semaphore::MAX_PERMITS,
            fails_after: None,
        }
    }
}

/// Answers from a [`Script`], one task a turn.
pub struct ScriptService {
    script: Script,
    gate: Arc<Semaphore>,
    metrics: Metrics,
    pub health: Mutex<Health>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    running: Arc<AtomicUsize>,
    cancelled: Arc<AtomicUsize>,
}

/// A turn as the service received it.
#[derive(Clone)]
pub struct Seen {
    pub prompt: Vec<u32>,
    pub max_tokens: Option<usize>,
    pub sampling: Sampling,
    pub denoising: Option<Denoising>,
    pub wants_drafts: bool,
}

impl ScriptService {
    pub fn new(script: Script) -> Self {
        Self {
            gate: Arc::new(Semaphore::new(script.free_tokens)),
            script,
            metrics: Metrics::default(),
            health: Mutex::new(Health::Ready),
            seen: Arc::default(),
            running: Arc::default(),
            cancelled: Arc::default(),
        }
    }

    /// Lets more tokens be generated.
    pub fn release(&self, tokens: usize) {
        self.gate.add_permits(tokens);
    }

    pub fn running(&self) -> usize {
        self.running.load(SeqCst)
    }

    pub async fn wait_for_running(&self, count: usize) {
        wait_until(|| self.running.load(SeqCst) == count).await;
    }

    pub async fn wait_for_cancelled(&self, count: usize) {
        wait_until(|| self.cancelled.load(SeqCst) == count).await;
    }
}

pub async fn wait_until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the condition comes true");
}

impl TurnService for ScriptService {
    fn submit(&self, mut turn: Turn) -> Result<(), SubmitError> {
        if self.running.load(SeqCst) >= self.script.capacity {
            return Err(SubmitError::QueueFull { depth: self.script.capacity });
        }
        self.running.fetch_add(1, SeqCst);
        let seen = Seen {
            prompt: turn.prompt.clone(),
            max_tokens: turn.max_tokens,
            sampling: turn.sampling.clone(),
            denoising: turn.denoising,
            wants_drafts: turn.wants_drafts,
        };
        self.seen.lock().expect("no test panics while it holds this").push(seen);
        let answers = &self.script.answers;
        let answer = answers[(turn.sampling.seed % answers.len() as u64) as usize].clone();
        let (gate, fails_after) = (self.gate.clone(), self.script.fails_after);
        let (running, cancelled) = (self.running.clone(), self.cancelled.clone());
        tokio::spawn(async move {
            let result = generate(&mut turn, &answer, &gate, fails_after).await;
            if result == Err(TurnError::Cancelled) {
                cancelled.fetch_add(1, SeqCst);
            }
            running.fetch_sub(1, SeqCst);
            turn.events.send(Event::Finished(result));
        });
        Ok(())
    }

    /// A script has no distributions: those are read from the engine without weights.
    fn read(&self, _: Read) -> Result<(), SubmitError> {
        Err(SubmitError::Stopped)
    }

    fn wake(&self) {}

    fn health(&self) -> Health {
        self.health.lock().expect("no test panics while it holds this").clone()
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

async fn generate(
    turn: &mut Turn,
    answer: &[u32],
    gate: &Semaphore,
    fails_after: Option<usize>,
) -> Result<Finish, TurnError> {
    let limit = turn.max_tokens.unwrap_or(usize::MAX).min(super::CONTEXT - turn.prompt.len());
    let mut finish = Finish {
        reason: FinishReason::Length,
        prompt_tokens: turn.prompt.len(),
        cached_tokens: 3.min(turn.prompt.len()),
        completion_tokens: 0,
        queue_ms: 0,
        prefill_ms: 0,
        decode_ms: 0,
    };
    let mut held = Vec::new();
    let mut reasoning = false;
    for &token in answer.iter().cycle() {
        if finish.completion_tokens == limit {
            break;
        }
        if fails_after == Some(finish.completion_tokens) {
            return Err(TurnError::Engine("out of steam".into()));
        }
        wait(gate, &turn.cancel).await?;
        finish.completion_tokens += 1;
        let top =
            (0..turn.sampling.top_logprobs).map(|rank| (token + u32::from(rank), -0.5 - f32::from(rank))).collect();
        held.push(TokenLogprob { token, logprob: -0.5, top });
        let decoded = turn.decoder.token(token);
        reasoning = decoded.reasoning;
        match decoded.stop {
            Some(StopReason::Eos) => {
                finish.reason = FinishReason::Stop;
                break;
            }
            stop => {
                if !decoded.text.is_empty() {
                    let tokens = std::mem::take(&mut held);
                    turn.events.send(Event::Chunk { text: decoded.text, reasoning, tokens });
                }
                if stop.is_some() {
                    finish.reason = FinishReason::Stop;
                    return Ok(finish);
                }
            }
        }
    }
    let text = turn.decoder.finish();
    if !text.is_empty() || !held.is_empty() {
        turn.events.send(Event::Chunk { text, reasoning, tokens: held });
    }
    Ok(finish)
}

async fn wait(gate: &Semaphore, cancel: &Cancel) -> Result<(), TurnError> {
    loop {
        if cancel.is_cancelled() {
            return Err(TurnError::Cancelled);
        }
        if let Ok(permit) = gate.try_acquire() {
            permit.forget();
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
