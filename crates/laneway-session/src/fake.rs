//! A deterministic engine without weights, for tests of schedulers and drivers.
//!
//! Its next token is a hash of all tokens that a row can see through its page table, so that a
//! wrong page, position or order shows as a wrong answer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    Decoded, Decoder, Engine, EngineError, EngineLimits, Sampled, Sampling, StepOutcome, StepPlan, StopReason, Token,
};

/// Tokens a [`FakeEngine`] can sample: 0 to 63.
pub const VOCABULARY: u32 = 64;

/// The token that ends an answer.
pub const EOS: u32 = 0;

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// [`EngineError::Step`].
    Step,
    /// [`EngineError::Lost`].
    Lost,
    /// A panic.
    Panic,
}

/// Injects faults into an engine that somebody else owns; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<FaultState>>);

#[derive(Debug, Default)]
struct FaultState {
    once: HashMap<&'static str, Fault>,
    poison: Option<u32>,
}

impl Faults {
    /// The next call of `begin`, `submit` or `collect` fails.
    pub fn inject(&self, call: &'static str, fault: Fault) {
        self.lock().once.insert(call, fault);
    }

    /// Every step that has this token fails when it is collected.
    pub fn poison(&self, token: Option<u32>) {
        self.lock().poison = token;
    }

    fn check(&self, call: &'static str) -> Result<(), EngineError> {
        let fault = self.lock().once.remove(call);
        match fault {
            None => Ok(()),
            Some(Fault::Step) => Err(EngineError::Step(format!("{call} failed"))),
            Some(Fault::Lost) => Err(EngineError::Lost(format!("device lost in {call}"))),
            Some(Fault::Panic) => panic!("injected panic in {call}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Default)]
struct FakeLane {
    seed: u64,
    sampled: u32,
}

/// The engine without weights.
pub struct FakeEngine {
    limits: EngineLimits,
    faults: Faults,
    kv: Vec<Option<u32>>,
    lanes: Vec<FakeLane>,
    in_flight: VecDeque<InFlight>,
}

struct InFlight {
    lanes: Vec<usize>,
    outcome: Result<StepOutcome, EngineError>,
}

impl FakeEngine {
    /// An engine with empty pages.
    pub fn new(limits: EngineLimits, faults: Faults) -> Self {
        Self {
            kv: vec![None; limits.pages * limits.page_positions],
            lanes: vec![FakeLane::default(); limits.lanes],
            in_flight: VecDeque::new(),
            limits,
            faults,
        }
    }

    fn slot(&self, table: &[u32], position: usize) -> Option<usize> {
        let page = *table.get(position / self.limits.page_positions)? as usize;
        Some(page * self.limits.page_positions + position % self.limits.page_positions)
    }

    fn compute(&mut self, plan: &StepPlan) -> Result<StepOutcome, EngineError> {
        let bad = |what: &str| EngineError::Step(format!("bad plan: {what}"));
        if plan.rows.is_empty() || plan.rows.len() > self.limits.max_rows {
            return Err(bad("row count"));
        }
        let poison = self.faults.lock().poison;
        let mut outcome = StepOutcome::default();
        let mut poisoned = false;
        for (index, row) in plan.rows.iter().enumerate() {
            let token = match row.token {
                Token::Known(token) => token,
                Token::Sampled => self.lanes[row.lane].sampled,
            };
            poisoned |= poison == Some(token);
            let table = &plan.tables[row.lane];
            let position = row.position as usize;
            let slot = self.slot(table, position).ok_or_else(|| bad("position outside the table"))?;
            self.kv[slot] = Some(token);
            if plan.samples.contains(&(index as u32)) {
                let visible = (0..=position).map(|at| self.slot(table, at).and_then(|at| self.kv[at]));
                let token = next_token(self.lanes[row.lane].seed, visible);
                self.lanes[row.lane].sampled = token;
                outcome.sampled.push(Sampled {
                    lane: row.lane,
                    token,
                    logprob: -(token as f32),
                    top: vec![(token, -(token as f32))],
                });
            }
        }
        if poisoned {
            return Err(EngineError::Step("poisoned token".to_owned()));
        }
        Ok(outcome)
    }
}

impl Engine for FakeEngine {
    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn begin(&mut self, lane: usize, sampling: &Sampling, _: &[u32]) -> Result<(), EngineError> {
        self.faults.check("begin")?;
        if self.in_flight.iter().any(|step| step.lanes.contains(&lane)) {
            return Err(EngineError::Lost(format!("lane {lane} is in a submitted step")));
        }
        self.lanes[lane] = FakeLane { seed: sampling.seed, sampled: VOCABULARY };
        Ok(())
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        self.faults.check("submit")?;
        if self.in_flight.len() >= self.limits.depth {
            return Err(EngineError::Lost("too many steps in flight".to_owned()));
        }
        let lanes = plan.rows.iter().map(|row| row.lane).collect();
        let outcome = self.compute(plan);
        self.in_flight.push_back(InFlight { lanes, outcome });
        Ok(())
    }

    async fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        let step = self.in_flight.pop_front();
        self.faults.check("collect")?;
        step.map_or_else(|| Err(EngineError::Lost("nothing to collect".to_owned())), |step| step.outcome)
    }
}

/// The tokens that follow `prompt`, up to and with [`EOS`], at most `max_tokens`.
pub fn continuation(seed: u64, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut tokens = endless(seed, prompt, max_tokens);
    if let Some(end) = tokens.iter().position(|token| *token == EOS) {
        tokens.truncate(end + 1);
    }
    tokens
}

/// The `count` tokens that follow `prompt` when nothing ends the answer.
pub fn endless(seed: u64, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        tokens.push(next_token(seed, tokens.iter().copied().map(Some)));
    }
    tokens.split_off(prompt.len())
}

/// The text a [`FakeDecoder`] makes of tokens.
pub fn text(tokens: &[u32]) -> String {
    tokens.iter().filter(|token| **token != EOS).map(|token| format!("{token} ")).collect()
}

/// Writes tokens as numbers; ends at [`EOS`] and at a stop token, which takes the place of a stop string.
#[derive(Clone, Debug, Default)]
pub struct FakeDecoder {
    /// The token that ends the answer like a stop string.
    pub stop: Option<u32>,
    /// Whether [`EOS`] is a token like any other.
    pub endless: bool,
}

impl Decoder for FakeDecoder {
    fn token(&mut self, token: u32) -> Decoded {
        let stop = match token {
            EOS if !self.endless => Some(StopReason::Eos),
            token if self.stop == Some(token) => Some(StopReason::StopString),
            _ => None,
        };
        let text = if stop.is_some() { String::new() } else { text(&[token]) };
        Decoded { text, reasoning: false, stop }
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

fn next_token(seed: u64, visible: impl Iterator<Item = Option<u32>>) -> u32 {
    let mut hash = seed ^ 0x9e37_79b9_7f4a_7c15;
    for token in visible {
        hash ^= token.map_or(u64::MAX, u64::from);
        hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }
    ((hash ^ (hash >> 32)) % u64::from(VOCABULARY)) as u32
}
