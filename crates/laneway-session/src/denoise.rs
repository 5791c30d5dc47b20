//! One canvas under revision: what a pass is asked, and what becomes of its predictions.
//!
//! Draws come from one generator in a fixed order, so that a seed gives the same answer on every device: for uniform
//! noise `C` tokens first, then for every pass `C` units and `C` tokens; for masks `C` units for every pass whose
//! temperature is over 0. `C` is the length of the canvas, whatever part of it is still open.

mod select;

use crate::canvas::{CanvasLimits, Denoising, Noise, Stop};
use crate::engine::Drafted;
use crate::random::SplitMix64;

/// A pass yielded what no sampler can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pass {pass} over a canvas {what}")]
pub struct UnusablePass {
    /// The pass, from 1.
    pub pass: u32,
    /// What is wrong with it.
    pub what: &'static str,
}

/// A canvas that is being revised.
///
/// Every pass takes [`Canvas::ask`], an engine, and [`Canvas::revise`]. Any [`Denoising`] has a meaning: no passes
/// count as one, temperatures that are no positive number as 0, and a bound that is no number lets nothing in beyond
/// what has to be taken.
#[derive(Clone, Debug)]
pub struct Canvas {
    denoising: Denoising,
    noise: Noise,
    vocabulary: u32,
    has_memory: bool,
    fixed: usize,
    tokens: Vec<u32>,
    /// Positions that may change: those without a final token.
    open: Vec<bool>,
    likeliest: Vec<u32>,
    logprobs: Vec<f32>,
    /// Likeliest tokens after the last pass, none before the first.
    settled: Vec<u32>,
    /// Passes before the last one that had these.
    streak: u32,
    passes: u32,
    entropy: f32,
    rng: SplitMix64,
}

/// A position that takes part in a selection.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    position: usize,
    token: u32,
    logprob: f32,
    draft: Drafted,
}

impl Canvas {
    /// A canvas of `length` positions that begins with `fixed` tokens; the rest is noise.
    pub fn new(denoising: Denoising, limits: &CanvasLimits, fixed: &[u32], length: usize, mut rng: SplitMix64) -> Self {
        let mut tokens: Vec<u32> = match limits.noise {
            Noise::Uniform => (0..length).map(|_| rng.token(limits.vocabulary)).collect(),
            Noise::Masked { mask } => vec![mask; length],
        };
        let fixed = &fixed[..fixed.len().min(length)];
        tokens[..fixed.len()].copy_from_slice(fixed);
        Self {
            denoising,
            noise: limits.noise,
            vocabulary: limits.vocabulary,
            has_memory: limits.is_conditioned,
            fixed: fixed.len(),
            open: (0..length).map(|position| position >= fixed.len()).collect(),
            likeliest: tokens.clone(),
            logprobs: vec![0.0; length],
            tokens,
            settled: Vec::new(),
            streak: 0,
            passes: 0,
            entropy: 0.0,
            rng,
        }
    }

    /// The tokens of the next pass, all positions.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Passes made.
    pub fn passes(&self) -> u32 {
        self.passes
    }

    /// Mean entropy in nats of the positions that were open in the last pass.
    pub fn entropy(&self) -> f32 {
        self.entropy
    }

    /// Leading positions that were given.
    pub fn fixed(&self) -> usize {
        self.fixed
    }

    /// The likeliest tokens of the last pass, all positions.
    pub fn likeliest(&self) -> &[u32] {
        &self.likeliest
    }

    /// Whether the next pass reads the prediction of the one before.
    pub fn is_conditioned(&self) -> bool {
        self.has_memory && self.passes > 0
    }

    /// The temperature of the next pass as the schedule has it, 0 for the likeliest token.
    pub fn temperature(&self) -> f32 {
        let Denoising { t_min, t_max, .. } = self.denoising;
        let steps = self.max_steps();
        let left = steps.saturating_sub(self.passes).max(1);
        let temperature = t_min + (t_max - t_min) * (left as f32 / steps as f32);
        if temperature.is_finite() && temperature > 0.0 { temperature } else { 0.0 }
    }

    /// The temperature an engine divides by in the next pass: where candidates are the likeliest tokens it is 1.
    pub fn divisor(&self) -> f32 {
        let temperature = self.temperature();
        if temperature > 0.0 { temperature } else { 1.0 }
    }

    /// Positions whose drafts the next pass wants, ascending, with their draws; called once a pass.
    pub fn ask(&mut self) -> Vec<(usize, f32)> {
        let draws = self.noise == Noise::Uniform || self.temperature() > 0.0;
        let units: Vec<f32> = self.tokens.iter().map(|_| if draws { self.rng.unit() } else { 0.0 }).collect();
        units.into_iter().enumerate().filter(|&(position, _)| self.is_asked(position)).collect()
    }

    /// Takes the drafts that were asked for; says whether the canvas is finished.
    ///
    /// # Errors
    /// When an entropy or a probability is not a number, or a token is outside the vocabulary.
    pub fn revise(&mut self, drafts: &[Drafted]) -> Result<bool, UnusablePass> {
        let candidates = self.candidates(drafts)?;
        let accepted = self.select(&candidates);
        for candidate in &candidates {
            self.likeliest[candidate.position] = candidate.draft.argmax;
        }
        let entropies = candidates.iter().map(|candidate| f64::from(candidate.draft.entropy));
        self.entropy = (entropies.sum::<f64>() / candidates.len().max(1) as f64) as f32;
        self.write(&candidates, &accepted);
        self.passes = self.passes.saturating_add(1);
        let is_settled = self.is_stable() || self.is_decided(&accepted);
        let is_finished = is_settled || self.passes >= self.max_steps();
        if is_finished {
            self.close();
        }
        Ok(is_finished)
    }

    /// The tokens of a finished canvas behind the fixed ones, with their log probabilities.
    pub fn finals(&self) -> impl Iterator<Item = (u32, f32)> {
        let tokens = match self.noise {
            Noise::Uniform => &self.likeliest,
            Noise::Masked { .. } => &self.tokens,
        };
        tokens.iter().copied().zip(self.logprobs.iter().copied()).skip(self.fixed)
    }

    /// The generator, for the canvas after this one.
    pub fn into_rng(self) -> SplitMix64 {
        self.rng
    }
}

impl Canvas {
    fn max_steps(&self) -> u32 {
        self.denoising.max_steps.max(1)
    }

    /// A pass that others read is asked for all rows.
    fn is_asked(&self, position: usize) -> bool {
        self.open[position] || self.has_memory
    }

    /// The drafts of open positions; those of decided ones only feed the next pass.
    fn candidates(&self, drafts: &[Drafted]) -> Result<Vec<Candidate>, UnusablePass> {
        let unusable = |what| UnusablePass { pass: self.passes.saturating_add(1), what };
        let asked: Vec<usize> = (0..self.tokens.len()).filter(|&position| self.is_asked(position)).collect();
        if asked.len() != drafts.len() {
            return Err(unusable("has not as many drafts as were asked for"));
        }
        for draft in drafts {
            let logprobs = [draft.argmax_logprob, draft.second_logprob, draft.sampled_logprob];
            if !draft.entropy.is_finite() || logprobs.iter().any(|logprob| logprob.is_nan()) {
                return Err(unusable("has entropies or probabilities that are not numbers"));
            }
            if draft.argmax.max(draft.sampled) >= self.vocabulary {
                return Err(unusable("has a token outside the vocabulary"));
            }
        }
        let is_drawn = self.temperature() > 0.0;
        let open = asked.into_iter().zip(drafts).filter(|&(position, _)| self.open[position]);
        let candidates = open.map(|(position, &draft)| {
            let drawn = (draft.sampled, draft.sampled_logprob);
            let (token, logprob) = if is_drawn { drawn } else { (draft.argmax, draft.argmax_logprob) };
            Candidate { position, token, logprob, draft }
        });
        Ok(candidates.collect())
    }

    /// Puts accepted candidates on the canvas, and fresh noise elsewhere if the noise is uniform.
    fn write(&mut self, candidates: &[Candidate], accepted: &[bool]) {
        let random: Option<Vec<u32>> = match self.noise {
            Noise::Uniform => Some(self.tokens.iter().map(|_| self.rng.token(self.vocabulary)).collect()),
            Noise::Masked { .. } => None,
        };
        for (candidate, &is_accepted) in candidates.iter().zip(accepted) {
            let position = candidate.position;
            self.logprobs[position] = candidate.draft.argmax_logprob;
            match &random {
                Some(random) if !is_accepted => self.tokens[position] = random[position],
                Some(_) => self.tokens[position] = candidate.token,
                None if is_accepted => self.decide(candidate),
                None => {}
            }
        }
    }

    fn decide(&mut self, candidate: &Candidate) {
        let position = candidate.position;
        self.open[position] = false;
        self.tokens[position] = candidate.token;
        self.likeliest[position] = candidate.token;
        self.logprobs[position] = candidate.logprob;
    }

    /// Whether the likeliest tokens are those of the passes before and the predictions are certain; remembers them.
    fn is_stable(&mut self) -> bool {
        let has_stayed = self.settled == self.likeliest;
        self.streak = if has_stayed { self.streak.saturating_add(1) } else { 0 };
        self.settled.clone_from(&self.likeliest);
        match self.denoising.stop {
            Stop::Decided => false,
            Stop::Stable { passes, entropy } => self.streak >= passes && self.entropy < entropy,
        }
    }

    fn is_decided(&self, accepted: &[bool]) -> bool {
        match self.noise {
            Noise::Masked { .. } => !self.open.contains(&true),
            Noise::Uniform => self.denoising.stop == Stop::Decided && !accepted.contains(&false),
        }
    }

    /// What a finished canvas leaves open takes its likeliest token.
    fn close(&mut self) {
        if matches!(self.noise, Noise::Masked { .. }) {
            for position in (0..self.tokens.len()).filter(|&position| self.open[position]) {
                self.tokens[position] = self.likeliest[position];
            }
        }
    }
}
