//! A turn on its way: its tokens, its text side and its clock.

mod canvas;

use std::sync::Arc;

use crate::canvas::Denoising;
use crate::denoise::Canvas;
use crate::gate::{Gate, GateId};
use crate::metrics::TurnRecord;
use crate::outlet::Outlet;
use crate::random::SplitMix64;
use crate::transfer::Target;
use crate::turn::{Cancel, Decoder, Event, Finish, FinishReason, StopReason, TokenLogprob, Turn, TurnError};
use crate::{EngineLimits, Sampling};

pub(crate) struct Run {
    outlet: Outlet,
    decoder: Box<dyn Decoder + Send>,
    pub sampling: Sampling,
    pub cancel: Cancel,
    pub namespace: u64,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    prompt_tokens: usize,
    max_tokens: Option<usize>,
    pub deadline_at: Option<u64>,
    /// Positions the turn can have; known after admission.
    limit: usize,
    /// Tokens the answer can have; known after admission.
    budget: usize,
    denoising: Option<Denoising>,
    wants_drafts: bool,
    pub target: Target,
    pub gate_id: Option<GateId>,
    pub gate: Option<Arc<dyn Gate>>,
    /// Where the draws of the next canvas begin.
    rng: SplitMix64,
    /// The canvas under revision.
    canvas: Option<Canvas>,
    cached: usize,
    clock: Clock,
    /// Position and time of the first progress report after admission.
    baseline: (usize, u64),
    reasoning: bool,
    /// Sampled tokens whose text is still held back.
    unsent: Vec<TokenLogprob>,
}

#[derive(Default)]
struct Clock {
    submitted: u64,
    started: Option<u64>,
    admitted: Option<u64>,
    /// When the first token was known, or the first pass over a canvas began.
    prefilled: Option<u64>,
    first_token: Option<u64>,
}

impl Run {
    pub fn new(now: u64, namespace: u64, turn: Turn, outlet: Outlet) -> Self {
        let Turn {
            prompt,
            max_tokens,
            sampling,
            decoder,
            cancel,
            deadline_ms,
            denoising,
            wants_drafts,
            target,
            gate,
            ..
        } = turn;
        Self {
            rng: SplitMix64::new(sampling.seed),
            canvas: None,
            denoising,
            wants_drafts,
            target,
            gate_id: gate,
            gate: None,
            outlet,
            decoder,
            sampling,
            cancel,
            namespace,
            prompt_tokens: prompt.len(),
            tokens: prompt,
            max_tokens,
            deadline_at: deadline_ms.map(|ms| now.saturating_add(ms)),
            limit: 0,
            budget: 0,
            cached: 0,
            clock: Clock { submitted: now, ..Clock::default() },
            baseline: (0, now),
            reasoning: false,
            unsent: Vec::new(),
        }
    }

    /// The turn leaves the queue.
    pub fn start(&mut self, now: u64) {
        self.clock.started.get_or_insert(now);
        self.outlet.start();
    }

    /// Whether it ever had a lane.
    pub fn was_admitted(&self) -> bool {
        self.clock.admitted.is_some()
    }

    /// When it was handed in.
    pub fn submitted(&self) -> u64 {
        self.clock.submitted
    }

    /// Tells the caller, unless the turn ran before and its model was lost since.
    pub fn tell_loading(&mut self) {
        if self.clock.admitted.is_none() {
            self.outlet.send(Event::Loading);
        }
    }

    /// Why the turn can never run on an engine, if so.
    pub fn refused(&self, limits: &EngineLimits) -> Option<TurnError> {
        match self.prompt_tokens {
            0 => Some(TurnError::EmptyPrompt),
            prompt if limits.answer_room(prompt) == 0 => {
                Some(TurnError::ContextExceeded { prompt, limit: limits.turn_positions() })
            }
            _ => None,
        }
    }

    /// Positions to claim pages for when at most `new_tokens` of the tokens to come are provided for: those, or the
    /// first canvas.
    pub fn reservation(&self, limits: &EngineLimits, new_tokens: usize) -> usize {
        let left = self.budget(limits).saturating_sub(self.completion_tokens());
        match limits.canvas {
            Some(canvas) if left == 0 => canvas.encoded(self.tokens.len()),
            Some(canvas) => canvas.start(self.tokens.len()) + canvas.length,
            None => self.tokens.len().saturating_add(left.min(new_tokens)).min(limits.turn_positions()),
        }
    }

    /// The turn got a lane that holds `cached` of its tokens.
    pub fn admitted(&mut self, now: u64, limits: &EngineLimits, cached: usize) {
        self.limit = limits.turn_positions();
        self.budget = self.budget(limits);
        self.baseline = (cached, now);
        if self.clock.admitted.is_none() {
            self.clock.admitted = Some(now);
            self.cached = cached;
            let prompt_tokens = self.prompt_tokens as u64;
            self.outlet.metrics().update(|m| {
                m.prompt_tokens += prompt_tokens;
                m.cached_tokens += cached as u64;
            });
        }
        self.progress(now, cached);
    }

    /// Reports how many positions are written.
    pub fn progress(&mut self, now: u64, used: usize) {
        let prefilled = self.clock.prefilled.filter(|_| used >= self.tokens.len() - 1);
        let generating = prefilled.is_some();
        let speed = if let Some(since) = prefilled {
            per_second(self.completion_tokens(), now.saturating_sub(since))
        } else {
            let (from, since) = self.baseline;
            per_second(used.saturating_sub(from), now.saturating_sub(since))
        };
        let limit = self.limit;
        self.outlet.metrics().update(|m| {
            (m.context_used, m.context_limit) = (used, limit);
            if generating {
                m.decode_tokens_per_s = speed;
            } else {
                m.prefill_tokens_per_s = speed;
            }
        });
        let tokens_per_s = generating.then_some(speed);
        self.outlet.send(Event::Context { used, limit, tokens_per_s });
    }

    /// Whether another token may be sampled while `pending` samples are not read back.
    pub fn wants_sample(&self, pending: usize) -> bool {
        self.completion_tokens() + pending < self.budget
    }

    /// Asks for leave to commit the next token, or to make the next pass over a canvas.
    pub fn may_go_on(&self) -> bool {
        let Some(gate) = &self.gate else { return true };
        let index = self.completion_tokens();
        let is_first = self.clock.prefilled.is_none();
        (!is_first || gate.prefilled(self.prompt_tokens, self.budget)) && gate.before(index)
    }

    /// Tells of the token that was committed last.
    pub fn may_have_gone_on(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.after(self.completion_tokens().saturating_sub(1)))
    }

    /// Takes the next token of the answer; says why the answer ends, if it does.
    pub fn accept(&mut self, now: u64, next: TokenLogprob) -> Option<FinishReason> {
        let token = next.token;
        self.clock.prefilled.get_or_insert(now);
        self.clock.first_token.get_or_insert(now);
        self.tokens.push(token);
        self.outlet.metrics().update(|m| m.completion_tokens += 1);
        let decoded = self.decoder.token(token);
        self.reasoning = decoded.reasoning;
        if decoded.stop != Some(StopReason::Eos) {
            self.unsent.push(next);
        }
        match decoded.stop {
            Some(StopReason::Eos) => self.flush(),
            Some(StopReason::StopString) => self.chunk(decoded.text, true),
            None => {
                self.chunk(decoded.text, false);
                if self.wants_sample(0) {
                    return None;
                }
                self.flush();
                return Some(FinishReason::Length);
            }
        }
        Some(FinishReason::Stop)
    }

    pub fn finish(&mut self, now: u64, result: Result<FinishReason, TurnError>) {
        let clock = &self.clock;
        let (first, prefilled) = (clock.first_token, clock.prefilled);
        let record = TurnRecord {
            source: self.outlet.source(),
            ok: result.is_ok(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached,
            completion_tokens: self.completion_tokens(),
            queue_ms: clock.started.unwrap_or(now).saturating_sub(clock.submitted),
            ttft_ms: first.map(|at| at.saturating_sub(clock.submitted)),
            prefill_ms: clock.admitted.map_or(0, |at| prefilled.unwrap_or(now).saturating_sub(at)),
            decode_ms: prefilled.map_or(0, |at| now.saturating_sub(at)),
        };
        let finish = result.map(|reason| Finish {
            reason,
            prompt_tokens: record.prompt_tokens,
            cached_tokens: record.cached_tokens,
            completion_tokens: record.completion_tokens,
            queue_ms: record.queue_ms,
            prefill_ms: record.prefill_ms,
            decode_ms: record.decode_ms,
        });
        self.outlet.end(record, finish);
    }

    fn completion_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    fn budget(&self, limits: &EngineLimits) -> usize {
        let room = limits.answer_room(self.prompt_tokens);
        self.max_tokens.map_or(room, |max| max.min(room))
    }

    fn flush(&mut self) {
        let text = self.decoder.finish();
        self.chunk(text, true);
    }

    /// Sends text; with `all`, also tokens that have none.
    fn chunk(&mut self, text: String, all: bool) {
        if !text.is_empty() || (all && !self.unsent.is_empty()) {
            let tokens = std::mem::take(&mut self.unsent);
            self.outlet.send(Event::Chunk { text, reasoning: self.reasoning, tokens });
        }
    }
}

fn per_second(count: usize, elapsed_ms: u64) -> f64 {
    if elapsed_ms == 0 {
        return 0.0;
    }
    count as f64 * 1000.0 / elapsed_ms as f64
}
