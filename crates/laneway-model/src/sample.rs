//! Sampling of one row of logits: the reference that `shaders/sample_scan.wgsl` and `sample_pick.wgsl` follow.
//!
//! The order is penalties, temperature, then top-k, top-p and min-p as one lower bound on the logit; the token is the
//! Gumbel maximum above it. Noise is a hash of (seed, position, id): a draw depends on nothing else, so the same
//! request gives the same answer whatever ran beside it.

/// How one lane samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerParams {
    /// 0 takes the best logit.
    pub temperature: f32,
    /// Mass of the most likely tokens kept, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Least probability kept, as a fraction of the most likely token's; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits (multiplies negative ones) of tokens in prompt or answer; 1 does nothing.
    pub repetition: f32,
    /// Subtracted once from tokens in the answer.
    pub presence: f32,
    /// Subtracted for each time a token stands in the answer.
    pub frequency: f32,
    /// Number of likeliest tokens kept; 0 keeps all.
    pub top_k: u32,
    /// Log-probabilities wanted beside the chosen token's, at most [`MAX_TOP_LOGPROBS`].
    pub top_logprobs: u32,
    /// Seed of the noise.
    pub seed: u64,
}

/// Most log-probabilities a step reports per token.
pub const MAX_TOP_LOGPROBS: usize = 20;

impl SamplerParams {
    /// Takes the best logit.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
        top_k: 0,
        top_logprobs: 0,
        seed: 0,
    };

    /// Whether earlier tokens change the logits.
    pub fn penalises(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }
}

/// Bit of a count that says the token stands in the prompt; the other bits count it in the answer.
pub const IN_PROMPT: u32 = 1 << 31;

/// A sampled token with its probability under the model (before penalties and temperature).
#[derive(Clone, Debug, PartialEq)]
pub struct Picked {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Likeliest tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// Samples from `logits [V]`; `counts [V]` says how often each token stood before (empty: not at all).
pub fn sample(logits: &[f32], counts: &[u32], params: &SamplerParams, position: u32) -> Picked {
    let highest_raw = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mass: f32 = logits.iter().map(|&l| (l - highest_raw).exp()).sum();
    let log_mass = highest_raw + mass.ln();
    let score = |id: usize| match counts.get(id) {
        Some(&count) if params.penalises() => penalise(params, logits[id], count),
        _ => logits[id],
    };
    let best = best_id((0..logits.len()).map(score));
    let token = if params.temperature > 0.0 { draw(logits.len(), &score, score(best), params, position) } else { best };
    Picked {
        token: token as u32,
        logprob: logits[token] - log_mass,
        top: top(logits, params.top_logprobs as usize, log_mass),
    }
}

fn penalise(params: &SamplerParams, logit: f32, count: u32) -> f32 {
    if count == 0 {
        return logit;
    }
    let generated = count & !IN_PROMPT;
    let scaled = if logit > 0.0 { logit / params.repetition } else { logit * params.repetition };
    scaled - generated as f32 * params.frequency - if generated > 0 { params.presence } else { 0.0 }
}

fn draw(vocab: usize, score: &dyn Fn(usize) -> f32, best: f32, params: &SamplerParams, position: u32) -> usize {
    let highest = best / params.temperature;
    let scaled: Vec<f32> = (0..vocab).map(|id| score(id) / params.temperature).collect();
    let mut bound = if params.min_p > 0.0 { highest + params.min_p.ln() } else { f32::NEG_INFINITY };
    let limits_k = params.top_k > 0 && (params.top_k as usize) < vocab;
    if limits_k || params.top_p < 1.0 {
        let mut sorted: Vec<f32> = scaled.iter().copied().filter(|&s| s >= bound).collect();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        if limits_k && (params.top_k as usize) < sorted.len() {
            bound = sorted[params.top_k as usize - 1];
            sorted.retain(|&s| s >= bound);
        }
        if params.top_p < 1.0 {
            let mass: f32 = sorted.iter().map(|&s| (s - highest).exp()).sum();
            let mut reached = 0.0;
            for &s in &sorted {
                reached += (s - highest).exp() / mass;
                bound = s;
                if reached >= params.top_p {
                    break;
                }
            }
        }
    }
    let noisy = scaled
        .iter()
        .enumerate()
        .map(|(id, &s)| if s >= bound { s + gumbel(params.seed, position, id as u32) } else { f32::NEG_INFINITY });
    best_id(noisy)
}

/// Index of the greatest value; the first on ties, and never one that is not a number.
fn best_id(values: impl Iterator<Item = f32>) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, value) in values.enumerate() {
        if value > best.1 {
            best = (id, value);
        }
    }
    best.0
}

fn gumbel(seed: u64, position: u32, id: u32) -> f32 {
    let noise = hash4([id, position, seed as u32, (seed >> 32) as u32]);
    let uniform = ((noise >> 8) as f32 + 0.5) / 16_777_216.0;
    -(-uniform.ln()).ln()
}

/// The PCG4D hash of Jarzynski and Olano, "Hash Functions for GPU Rendering" (JCGT 2020); its last word.
fn hash4(seed: [u32; 4]) -> u32 {
    let [mut x, mut y, mut z, mut w] = seed.map(|v| v.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    for round in 0..2 {
        x = x.wrapping_add(y.wrapping_mul(w));
        y = y.wrapping_add(z.wrapping_mul(x));
        z = z.wrapping_add(x.wrapping_mul(y));
        w = w.wrapping_add(y.wrapping_mul(z));
        if round == 0 {
            [x, y, z, w] = [x, y, z, w].map(|v| v ^ (v >> 16));
        }
    }
    w
}

fn top(logits: &[f32], count: usize, log_mass: f32) -> Vec<(u32, f32)> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let count = count.min(ids.len());
    let descending = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if count == 0 {
        return Vec::new();
    }
    if count < ids.len() {
        ids.select_nth_unstable_by(count - 1, descending);
        ids.truncate(count);
    }
    ids.sort_unstable_by(descending);
    ids.into_iter().map(|id| (id, logits[id as usize] - log_mass)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(logits: &[f32], params: SamplerParams, count: u32) -> Vec<usize> {
        let mut seen = vec![0; logits.len()];
        for position in 0..count {
            seen[sample(logits, &[], &params, position).token as usize] += 1;
        }
        seen
    }

    fn warm() -> SamplerParams {
        SamplerParams { temperature: 1.0, seed: 7, ..SamplerParams::GREEDY }
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [1.0f32, 0.0, -1.0, 2.0];
        let mass: f32 = logits.iter().map(|l| l.exp()).sum();
        let seen = draws(&logits, warm(), 20_000);
        for (id, &n) in seen.iter().enumerate() {
            let expected = logits[id].exp() / mass;
            assert!((n as f32 / 20_000.0 - expected).abs() < 0.015, "{id}: {n}");
        }
    }

    #[test]
    fn filters_keep_only_what_they_say() {
        let logits = [3.0f32, 2.0, 1.0, 0.0, -8.0];
        let kept = |params| draws(&logits, params, 3_000).iter().filter(|&&n| n > 0).count();
        assert_eq!(kept(SamplerParams { top_k: 2, ..warm() }), 2);
        assert_eq!(kept(SamplerParams { top_p: 0.5, ..warm() }), 1);
        assert_eq!(kept(SamplerParams { top_p: 0.7, ..warm() }), 2);
        assert_eq!(kept(SamplerParams { min_p: 0.3, ..warm() }), 2);
        assert_eq!(kept(SamplerParams { temperature: 0.0, ..warm() }), 1);
    }

    #[test]
    fn penalties_push_repeated_tokens_down() {
        let logits = [2.0f32, 1.9, -1.0];
        let greedy = SamplerParams::GREEDY;
        let pick = |params, counts: [u32; 3]| sample(&logits, &counts, &params, 0).token;
        assert_eq!(pick(greedy, [5, 0, 0]), 0);
        assert_eq!(pick(SamplerParams { presence: 0.2, ..greedy }, [1, 0, 0]), 1);
        assert_eq!(pick(SamplerParams { presence: 0.2, ..greedy }, [IN_PROMPT, 0, 0]), 0);
        assert_eq!(pick(SamplerParams { frequency: 0.06, ..greedy }, [2, 0, 0]), 1);
        assert_eq!(pick(SamplerParams { repetition: 1.3, ..greedy }, [IN_PROMPT, 0, 0]), 1);
    }

    #[test]
    fn logprobs_are_of_the_model_itself() {
        let logits = [0.0f32, 0.0, 0.0, 0.0];
        let picked = sample(&logits, &[], &SamplerParams { top_logprobs: 3, ..warm() }, 0);
        assert!((picked.logprob - 0.25f32.ln()).abs() < 1e-6);
        assert_eq!(picked.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_row_of_nan_gives_a_token_all_the_same() {
        let picked = sample(&[f32::NAN; 5], &[], &warm(), 3);
        assert!(picked.token < 5);
    }
}
