//! One row's distribution over the vocabulary, piece by piece.

use crate::math::exp;
use crate::simd::{Kernel, LANES, Simd, Tier};
use laneway_model::{Draft, Drafted};

/// Vocabulary rows that are summed as one; tiles of logits begin at multiples of it.
pub(crate) const CHUNK: usize = 1024;
/// The logit of a token that is never predicted: finite, so that sums stay so.
pub(crate) const IMPOSSIBLE: f32 = f32::MIN;
/// Distance below the top, in units of the temperature, past which a probability is 0.
const FAR: f32 = -1e4;

/// What is known of one row's distribution.
#[derive(Clone)]
pub(crate) struct Spread {
    /// Of the draft's temperature.
    inverse: f32,
    chunks: Vec<Chunk>,
    argmax: usize,
    pub top: f32,
    second: f32,
    is_finite: bool,
    /// `Σ e^((logit − top) / T)` over the vocabulary.
    pub total: f64,
    entropy: f64,
    sampled: Option<(usize, f32)>,
    /// The chunk that holds the drawn token, and what is left of the draw when it begins.
    drawn: (usize, f64),
}

#[derive(Clone, Copy)]
struct Chunk {
    top: f32,
    second: f32,
    /// `Σ e^d` with `d = (logit − top) / T` for the chunk's own top.
    sum: f64,
    /// `Σ d·e^d`.
    weighted: f64,
    is_finite: bool,
}

impl Spread {
    pub fn new(draft: &Draft) -> Self {
        Self {
            inverse: 1.0 / draft.temperature,
            chunks: Vec::new(),
            argmax: 0,
            top: f32::NEG_INFINITY,
            second: f32::NEG_INFINITY,
            is_finite: true,
            total: f64::NAN,
            entropy: f64::NAN,
            sampled: None,
            drawn: (0, 0.0),
        }
    }

    /// Takes in the next logits, a whole number of chunks unless they are the last.
    pub fn add(&mut self, logits: &[f32], tier: Tier) {
        for logits in logits.chunks(CHUNK) {
            let chunk = tier.run(SumUp { logits, inverse: self.inverse });
            if chunk.top > self.top {
                let place = logits.iter().position(|&logit| logit == chunk.top);
                self.argmax = self.chunks.len() * CHUNK + place.unwrap_or(0);
                self.second = self.top.max(chunk.second);
                self.top = chunk.top;
            } else {
                self.second = self.second.max(chunk.top);
            }
            self.is_finite &= chunk.is_finite;
            self.chunks.push(chunk);
        }
    }

    /// Ends the sums and finds the chunk that `draw` falls in.
    pub fn settle(&mut self, draw: f32) {
        if !self.is_finite {
            return;
        }
        let share = |chunk: &Chunk| (f64::from(self.distance(chunk.top)), chunk.sum, chunk.weighted);
        let sums =
            || self.chunks.iter().map(share).map(|(d, sum, weighted)| (d.exp() * sum, d.exp() * (weighted + d * sum)));
        let (total, weighted) = sums().fold((0.0, 0.0), |(a, b), (sum, weighted)| (a + sum, b + weighted));
        let target = f64::from(draw) * total;
        let mut before = 0.0;
        for (index, (sum, _)) in sums().enumerate() {
            if before + sum >= target {
                self.drawn = (index, target - before);
                break;
            }
            before += sum;
        }
        self.total = total;
        self.entropy = (total.ln() - weighted / total).max(0.0);
    }

    /// The vocabulary chunk that [`Spread::pick`] must see; none for broken logits.
    pub fn drawn_chunk(&self) -> Option<usize> {
        self.is_finite.then_some(self.drawn.0)
    }

    /// Finds the drawn token among logits that begin at vocabulary row `first`, if they hold its chunk.
    pub fn pick(&mut self, logits: &[f32], first: usize) {
        let Some(start) = self.drawn_chunk().map(|chunk| chunk * CHUNK) else { return };
        let Some(logits) = start.checked_sub(first).and_then(|start| logits.get(start..)) else { return };
        let (mut sum, mut likely) = (0.0, None);
        for (token, &logit) in (start..).zip(logits.iter().take(CHUNK)) {
            if logit == IMPOSSIBLE {
                continue;
            }
            let weight = f64::from(self.distance(logit)).exp();
            sum += weight;
            if weight > 0.0 || likely.is_none() {
                likely = Some((token, logit));
            }
            if sum >= self.drawn.1 {
                self.sampled = Some((token, logit));
                return;
            }
        }
        // Rounding alone kept the sum below what the chunk's own sum had reached.
        self.sampled = likely.or(self.sampled);
    }

    /// Replaces logits by `e^((logit − top) / T)`, and by 0 where that is below `least` of all.
    pub fn weigh(&self, logits: &mut [f32], least: f64, tier: Tier) {
        let least = (self.total * least) as f32;
        tier.run(Weigh { logits, top: self.top, inverse: self.inverse, least });
    }

    pub fn drafted(&self) -> Drafted {
        let log_total = self.total.ln();
        let logprob = |logit: f32| match logit > IMPOSSIBLE {
            true => (f64::from(logit - self.top) * f64::from(self.inverse) - log_total) as f32,
            false => f32::NEG_INFINITY,
        };
        let (sampled, logit) = self.sampled.unwrap_or((self.argmax, self.top));
        Drafted {
            argmax: self.argmax as u32,
            argmax_logprob: logprob(self.top),
            second_logprob: logprob(self.second),
            entropy: self.entropy as f32,
            sampled: sampled as u32,
            sampled_logprob: logprob(logit),
        }
    }

    fn distance(&self, logit: f32) -> f32 {
        ((logit - self.top) * self.inverse).max(FAR)
    }
}

struct SumUp<'a> {
    logits: &'a [f32],
    inverse: f32,
}

/// 16 lanes, those missing [`IMPOSSIBLE`].
#[inline(always)]
fn lanes<S: Simd>(s: S, x: &[f32]) -> S::F {
    match x.first_chunk::<LANES>() {
        Some(whole) => s.load(whole),
        None => {
            let mut lanes = [IMPOSSIBLE; LANES];
            lanes[..x.len()].copy_from_slice(x);
            s.load(&lanes)
        }
    }
}

impl Kernel for SumUp<'_> {
    type Output = Chunk;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Chunk {
        let lowest = s.splat(f32::NEG_INFINITY);
        let (mut first, mut next, mut check) = (lowest, lowest, s.splat(0.0));
        for x in self.logits.chunks(LANES) {
            let x = lanes(s, x);
            next = s.max(next, s.min(first, x));
            first = s.max(first, x);
            // Nothing times 0 is anything but 0, except what is not finite.
            check = s.fma(x, s.splat(0.0), check);
        }
        let mut both = [[0.0; LANES]; 2];
        s.store(first, &mut both[0]);
        s.store(next, &mut both[1]);
        let (mut top, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &x in both.as_flattened() {
            second = second.max(x.min(top));
            top = top.max(x);
        }
        let (mut sum, mut weighted) = (s.splat(0.0), s.splat(0.0));
        for x in self.logits.chunks(LANES) {
            let d = s.max(s.mul(s.sub(lanes(s, x), s.splat(top)), s.splat(self.inverse)), s.splat(FAR));
            let e = exp(s, d);
            sum = s.add(sum, e);
            weighted = s.fma(d, e, weighted);
        }
        let is_finite = s.sum(check) == 0.0;
        Chunk { top, second, sum: f64::from(s.sum(sum)), weighted: f64::from(s.sum(weighted)), is_finite }
    }
}

struct Weigh<'a> {
    logits: &'a mut [f32],
    top: f32,
    inverse: f32,
    least: f32,
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.logits.chunks_mut(LANES) {
            let e = exp(s, s.mul(s.sub(s.load_part(x), s.splat(self.top)), s.splat(self.inverse)));
            s.store_part(e, x);
            for x in x {
                *x = if *x >= self.least { *x } else { 0.0 };
            }
        }
    }
}
