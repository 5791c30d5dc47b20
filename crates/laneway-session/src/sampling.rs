//! Validated sampling parameters.

use std::ops::{Deref, RangeInclusive};

/// Sampling parameters as a caller states them.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// 0 is greedy; finite and not negative.
    pub temperature: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Nucleus mass, 0 to 1; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the best token, 0 to 1; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of tokens seen in prompt or answer; over 0, 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens of the answer, -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the answer, -2 to 2.
    pub frequency_penalty: f32,
    /// Key of the counter-based generator.
    pub seed: u64,
    /// Most probable tokens to report with each token, 0 to 20.
    pub top_logprobs: u8,
    /// Added to the logits of single tokens, -100 to 100 each.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            top_logprobs: 0,
            logit_bias: Vec::new(),
        }
    }
}

/// A sampling parameter is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}, expected {expected}")]
pub struct InvalidSampling {
    /// Name of the field of [`SamplingOptions`].
    pub field: &'static str,
    /// The refused value.
    pub value: f64,
    /// What is accepted, in words.
    pub expected: &'static str,
}

/// Sampling parameters within their ranges; reads like [`SamplingOptions`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling(SamplingOptions);

impl Sampling {
    /// Checks every range.
    pub fn new(options: SamplingOptions) -> Result<Self, InvalidSampling> {
        let o = &options;
        within("temperature", o.temperature, 0.0..=f32::MAX, "a finite number from 0")?;
        within("top_p", o.top_p, 0.0..=1.0, "a number from 0 to 1")?;
        within("min_p", o.min_p, 0.0..=1.0, "a number from 0 to 1")?;
        within("repetition_penalty", o.repetition_penalty, f32::MIN_POSITIVE..=f32::MAX, "a finite number over 0")?;
        within("presence_penalty", o.presence_penalty, -2.0..=2.0, "a number from -2 to 2")?;
        within("frequency_penalty", o.frequency_penalty, -2.0..=2.0, "a number from -2 to 2")?;
        within("top_logprobs", f32::from(o.top_logprobs), 0.0..=20.0, "a number from 0 to 20")?;
        for &(_, bias) in &o.logit_bias {
            within("logit_bias", bias, -100.0..=100.0, "numbers from -100 to 100")?;
        }
        Ok(Self(options))
    }
}

impl Deref for Sampling {
    type Target = SamplingOptions;

    fn deref(&self) -> &SamplingOptions {
        &self.0
    }
}

fn within(
    field: &'static str,
    value: f32,
    range: RangeInclusive<f32>,
    expected: &'static str,
) -> Result<(), InvalidSampling> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(InvalidSampling { field, value: value.into(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SamplingOptions)) -> Option<&'static str> {
        let mut options = SamplingOptions::default();
        change(&mut options);
        Sampling::new(options).err().map(|error| error.field)
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        assert_eq!(refused(|o| o.temperature = -0.1), Some("temperature"));
        assert_eq!(refused(|o| o.temperature = f32::NAN), Some("temperature"));
        assert_eq!(refused(|o| o.temperature = f32::INFINITY), Some("temperature"));
        assert_eq!(refused(|o| o.top_p = 1.01), Some("top_p"));
        assert_eq!(refused(|o| o.min_p = -0.01), Some("min_p"));
        assert_eq!(refused(|o| o.repetition_penalty = 0.0), Some("repetition_penalty"));
        assert_eq!(refused(|o| o.presence_penalty = 2.5), Some("presence_penalty"));
        assert_eq!(refused(|o| o.frequency_penalty = -2.5), Some("frequency_penalty"));
        assert_eq!(refused(|o| o.top_logprobs = 21), Some("top_logprobs"));
        assert_eq!(refused(|o| o.logit_bias = vec![(1, 0.0), (2, 101.0)]), Some("logit_bias"));
    }

    #[test]
    fn bounds_are_accepted_and_readable() {
        assert_eq!(refused(|o| (o.temperature, o.top_p) = (0.0, 0.0)), None);
        assert_eq!(refused(|o| (o.top_logprobs, o.presence_penalty) = (20, -2.0)), None);
        let sampling = Sampling::new(SamplingOptions { seed: 7, ..Default::default() });
        assert_eq!(sampling.map(|s| s.seed), Ok(7));
    }
}
