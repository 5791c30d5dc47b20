use crate::{FileError, Result};

/// Divisors from here on mean "does not rotate": converters write 1e30.
const STILL: f32 = 1e20;

/// A rotary embedding as a file describes it.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    pub theta: f64,
    /// Rotated dimensions of a head, all of them when `None`.
    pub dims: Option<u64>,
    pub scaling: Scaling,
}

#[derive(Clone, Debug)]
pub(crate) enum Scaling {
    None,
    Linear(f64),
    /// Gemma 4: the first `fraction` of the pairs rotate, with exponents over the whole head.
    Proportional {
        fraction: f64,
        factor: f64,
    },
    /// Llama 3: long wavelengths are stretched, short ones kept.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    /// Divisors from the tensor `rope_freqs.weight`.
    Divisors(Vec<f32>),
}

impl Rope {
    pub fn plain(theta: f64) -> Self {
        Self { theta, dims: None, scaling: Scaling::None }
    }

    /// Angles per position of the `head_dim / 2` pairs.
    pub fn inv_freq(&self, head_dim: usize) -> Result<Vec<f32>> {
        let refused = |what: &str, reason: String| Err(FileError::invalid(format!("rope {what}"), reason));
        if !(self.theta.is_finite() && self.theta >= 1.0) {
            return refused("theta", format!("is {}, expected at least 1", self.theta));
        }
        let dims = self.dims.map_or(Some(head_dim), |dims| usize::try_from(dims).ok());
        let Some(dims) = dims.filter(|&dims| dims > 0 && dims <= head_dim && dims.is_multiple_of(2)) else {
            return refused("dimension count", format!("is {:?}, expected an even number up to {head_dim}", self.dims));
        };
        let base = (0..dims / 2).map(|i| self.theta.powf(-((2 * i) as f64 / dims as f64)));
        let mut scaled: Vec<f32> = match &self.scaling {
            Scaling::None => base.map(|f| f as f32).collect(),
            Scaling::Linear(factor) => {
                positive("factor", *factor)?;
                base.map(|f| (f / factor) as f32).collect()
            }
            Scaling::Proportional { fraction, factor } => {
                positive("factor", *factor)?;
                if !(0.0..=1.0).contains(fraction) {
                    return refused("partial_rotary_factor", format!("is {fraction}, expected 0 to 1"));
                }
                let rotated = (fraction * head_dim as f64 / 2.0) as usize;
                base.enumerate().map(|(i, f)| if i < rotated { (f / factor) as f32 } else { 0.0 }).collect()
            }
            Scaling::Llama3 { factor, low, high, original } => {
                for (what, value) in [
                    ("factor", factor),
                    ("low_freq_factor", low),
                    ("high_freq_factor", high),
                    ("original length", original),
                ] {
                    positive(what, *value)?;
                }
                if high <= low {
                    return refused("high_freq_factor", format!("is {high}, expected more than low_freq_factor {low}"));
                }
                base.map(|f| llama3(f, *factor, *low, *high, *original) as f32).collect()
            }
            Scaling::Divisors(divisors) => {
                if divisors.len() != dims / 2 {
                    return refused("divisors", format!("are {}, expected {}", divisors.len(), dims / 2));
                }
                if divisors.iter().any(|d| !(d.is_finite() && *d > 0.0)) {
                    return refused("divisors", "are not all positive".into());
                }
                base.zip(divisors).map(|(f, &d)| if d >= STILL { 0.0 } else { (f / f64::from(d)) as f32 }).collect()
            }
        };
        if !scaled.iter().all(|f| f.is_finite()) {
            return refused("scaling", "gives frequencies that are not finite".into());
        }
        scaled.resize(head_dim / 2, 0.0);
        Ok(scaled)
    }
}

fn positive(what: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(FileError::invalid(format!("rope {what}"), format!("is {value}, expected more than 0")))
}

/// Llama 3.1's frequency rule: wavelengths over `original / low` are stretched by `factor`, those under `original / high` are kept.
fn llama3(f: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let turns = original * f / std::f64::consts::TAU;
    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    kept * f + (1.0 - kept) * f / factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proportional_rotation_keeps_the_whole_head_in_the_exponent() {
        let rope = Rope { theta: 1e6, dims: None, scaling: Scaling::Proportional { fraction: 0.25, factor: 1.0 } };
        let inv_freq = rope.inv_freq(512).unwrap();
        assert_eq!(inv_freq[1], 1e6f64.powf(-2.0 / 512.0) as f32);
        assert!(inv_freq[63] > 0.0 && inv_freq[64..].iter().all(|&f| f == 0.0));
        let divisors = (0..256).map(|i| if i < 64 { 1.0 } else { 1e30 }).collect();
        let same = Rope { scaling: Scaling::Divisors(divisors), ..rope };
        assert_eq!(same.inv_freq(512).unwrap(), inv_freq);
    }

    #[test]
    fn llama3_scaling_keeps_short_and_stretches_long_wavelengths() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let scaled = Rope { theta: 5e5, dims: None, scaling }.inv_freq(128).unwrap();
        let plain = Rope::plain(5e5).inv_freq(128).unwrap();
        assert_eq!((scaled[0], scaled[63]), (1.0, plain[63] / 8.0));
        let between = scaled[32] / plain[32];
        assert!(between > 0.125 && between < 1.0, "{between}");
    }

    #[test]
    fn partial_rotation_leaves_the_last_pairs_still() {
        let rope = Rope { dims: Some(8), ..Rope::plain(1e4) };
        assert_eq!(rope.inv_freq(16).unwrap(), [1.0, 0.1, 0.01, 0.001, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn hostile_numbers_are_refused() {
        for rope in [
            Rope::plain(f64::NAN),
            Rope::plain(0.0),
            Rope { dims: Some(0), ..Rope::plain(1e4) },
            Rope { dims: Some(18), ..Rope::plain(1e4) },
            Rope { dims: Some(u64::MAX), ..Rope::plain(1e4) },
            Rope { scaling: Scaling::Linear(0.0), ..Rope::plain(1e4) },
            Rope { scaling: Scaling::Linear(1e-300), ..Rope::plain(1e4) },
            Rope { scaling: Scaling::Divisors(vec![1.0; 7]), ..Rope::plain(1e4) },
            Rope { scaling: Scaling::Divisors(vec![0.0; 8]), ..Rope::plain(1e4) },
            Rope {
                scaling: Scaling::Llama3 { factor: 8.0, low: 4.0, high: 4.0, original: 8192.0 },
                ..Rope::plain(1e4)
            },
        ] {
            assert!(rope.inv_freq(16).is_err(), "{rope:?}");
        }
    }
}
