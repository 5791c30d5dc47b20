use crate::{CanvasContext, DiffusionConfig, FileError, Metadata, Noise, Result, error::within, json::Fields};

/// How a model's authors revise a canvas; the default is the released DiffusionGemma's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiffusionDefaults {
    /// Denoising passes per canvas at most.
    pub max_denoising_steps: u32,
    /// Temperature of the first pass.
    pub t_max: f32,
    /// Temperature that the last pass comes close to; 0 takes the likeliest token.
    pub t_min: f32,
    /// Which positions take their candidate in a pass.
    pub selection: Selection,
    /// When a canvas is finished before its last pass.
    pub stop: Stop,
}

/// Which positions take their candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// The most certain ones, as long as the entropies of those before add up to no more than this many nats.
    EntropyBound(f32),
    /// As many as bring all to an end in the passes left, the most confident first.
    Schedule(Confidence),
    /// All with at least this confidence, and the most confident ones in any case.
    Threshold {
        /// The measure.
        confidence: Confidence,
        /// The least value.
        least: f32,
        /// Positions to take at least, from 1.
        at_least: u32,
    },
}

/// How sure a prediction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// Probability of the candidate.
    Probability,
    /// Probability of the likeliest token less that of the second.
    Margin,
    /// The negative entropy in nats.
    Entropy,
}

/// When a canvas is finished before its last pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// Once no position is undecided.
    Decided,
    /// Once the likeliest tokens equal those of so many passes before, and the mean entropy is below a bound in nats.
    Stable {
        /// Passes.
        passes: u32,
        /// Mean entropy.
        entropy: f32,
    },
}

impl Default for DiffusionDefaults {
    fn default() -> Self {
        Self {
            max_denoising_steps: 48,
            t_max: 0.8,
            t_min: 0.4,
            selection: Selection::EntropyBound(0.1),
            stop: Stop::Stable { passes: 1, entropy: 0.005 },
        }
    }
}

impl DiffusionDefaults {
    /// What a masked model is run with unless its files say otherwise: one token a pass over a whole answer, in blocks
    /// every token that the model is 90 % sure of.
    pub fn masked(diffusion: &DiffusionConfig) -> Self {
        let confidence = Confidence::Probability;
        Self {
            max_denoising_steps: diffusion.canvas_length as u32,
            t_max: 0.0,
            t_min: 0.0,
            selection: match diffusion.context {
                CanvasContext::Blocks => Selection::Threshold { confidence, least: 0.9, at_least: 1 },
                CanvasContext::Causal | CanvasContext::Whole => Selection::Schedule(confidence),
            },
            stop: Stop::Decided,
        }
    }

    pub(crate) fn read(diffusion: &DiffusionConfig, source: Source) -> Result<Self> {
        match diffusion.noise {
            Noise::Uniform => Self::read_uniform(source),
            Noise::Masked { .. } => Self::masked(diffusion).overridden(source),
        }
    }

    /// Reads `max_denoising_steps`, `t_min`, `t_max`, `stability_threshold`, `confidence_threshold` and
    /// `sampler_config.entropy_bound`, in GGUF files as `diffusion.eb_*`.
    fn read_uniform(source: Source) -> Result<Self> {
        let default = Self::default();
        let read = Self {
            max_denoising_steps: source.count(Key::Steps, 1)?.unwrap_or(default.max_denoising_steps),
            t_max: source.positive(Key::Uniform("t_max"))?.unwrap_or(default.t_max),
            t_min: source.positive(Key::Uniform("t_min"))?.unwrap_or(default.t_min),
            selection: match source.positive(Key::Bound)? {
                Some(bound) => Selection::EntropyBound(bound),
                None => default.selection,
            },
            stop: Stop::Stable {
                passes: source.count(Key::Uniform("stability_threshold"), 0)?.unwrap_or(1),
                entropy: source.positive(Key::Uniform("confidence_threshold"))?.unwrap_or(0.005),
            },
        };
        // Every step's temperature is a mean of the two that gives some weight to `t_max`.
        if read.t_max <= 0.0 {
            return Err(FileError::invalid("t_max", "is 0, expected more"));
        }
        Ok(read)
    }

    /// Takes what `diffusion` says: an object in `generation_config.json`, keys `diffusion.*` in GGUF files.
    ///
    /// `max_denoising_steps`; `temperature`; `selection`: `schedule`, `threshold` or `entropy_bound`; `confidence`:
    /// `probability`, `margin` or `entropy`; `threshold` and `at_least`; `entropy_bound`. A number that belongs to one
    /// selection stands for it. The outer `temperature` is for the model that a masked one was made from.
    fn overridden(mut self, source: Source) -> Result<Self> {
        self.max_denoising_steps =
            source.count(Key::Masked("max_denoising_steps"), 1)?.unwrap_or(self.max_denoising_steps);
        if let Some(temperature) = source.positive(Key::Masked("temperature"))? {
            (self.t_max, self.t_min) = (temperature, temperature);
        }
        let unsupported = |key: &str, found: &str, supported| FileError::UnsupportedFeature {
            what: format!("diffusion.{key}"),
            found: found.to_owned(),
            supported,
        };
        let confidence = match source.text("confidence")? {
            None | Some("probability") => Confidence::Probability,
            Some("margin") => Confidence::Margin,
            Some("entropy") => Confidence::Entropy,
            Some(other) => return Err(unsupported("confidence", other, "probability, margin, entropy")),
        };
        let (least, bound) = (source.number(Key::Masked("threshold"))?, source.positive(Key::Masked("entropy_bound"))?);
        let usual = match (least, bound, self.selection) {
            (Some(_), ..) | (None, None, Selection::Threshold { .. }) => "threshold",
            (None, Some(_), _) | (None, None, Selection::EntropyBound(_)) => "entropy_bound",
            (None, None, Selection::Schedule(_)) => "schedule",
        };
        self.selection = match source.text("selection")?.unwrap_or(usual) {
            "schedule" => Selection::Schedule(confidence),
            "threshold" => Selection::Threshold {
                confidence,
                least: threshold(confidence, least)?,
                at_least: source.count(Key::Masked("at_least"), 1)?.unwrap_or(1),
            },
            "entropy_bound" => Selection::EntropyBound(bound.unwrap_or(0.1)),
            other => return Err(unsupported("selection", other, "schedule, threshold, entropy_bound")),
        };
        Ok(self)
    }
}

fn threshold(confidence: Confidence, stated: Option<f32>) -> Result<f32> {
    let least = match (stated, confidence) {
        (Some(least), _) => least,
        (None, Confidence::Probability | Confidence::Margin) => 0.9,
        (None, Confidence::Entropy) => -0.1,
    };
    let usable = match confidence {
        Confidence::Probability | Confidence::Margin => (0.0..=1.0).contains(&least),
        Confidence::Entropy => least.is_finite() && least <= 0.0,
    };
    if usable {
        return Ok(least);
    }
    let expected = if confidence == Confidence::Entropy { "0 or less" } else { "0 to 1" };
    Err(FileError::invalid("diffusion.threshold", format!("is {least}, expected {expected}")))
}

/// Where a sampler's numbers are read from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Metadata(&'a Metadata),
    /// `generation_config.json`, if there is one.
    Json(Option<Fields<'a>>),
}

/// A number's place, which differs by the kind of model and of file.
#[derive(Clone, Copy)]
enum Key {
    Steps,
    Bound,
    Uniform(&'static str),
    Masked(&'static str),
}

impl Key {
    fn name(self) -> &'static str {
        match self {
            Self::Steps => "max_denoising_steps",
            Self::Bound => "entropy_bound",
            Self::Uniform(name) | Self::Masked(name) => name,
        }
    }

    fn in_metadata(self) -> String {
        match self {
            Self::Steps => "diffusion.eb_max_steps".into(),
            Self::Bound | Self::Uniform(_) => format!("diffusion.eb_{}", self.name()),
            Self::Masked(name) => format!("diffusion.{name}"),
        }
    }

    /// The object that holds the number.
    fn within(self, json: Fields<'_>) -> Result<Option<Fields<'_>>> {
        match self {
            Self::Steps | Self::Uniform(_) => Ok(Some(json)),
            Self::Bound => Ok(json.object("sampler_config")?.or(Some(json))),
            Self::Masked(_) => json.object("diffusion"),
        }
    }
}

impl<'a> Source<'a> {
    fn count(self, key: Key, min: u64) -> Result<Option<u32>> {
        let value = match self {
            Self::Metadata(metadata) => metadata.u64(&key.in_metadata())?,
            Self::Json(None) => None,
            Self::Json(Some(json)) => key.within(json)?.map_or(Ok(None), |fields| fields.u64(key.name()))?,
        };
        value.map(|value| within(key.name(), value, min, 65_536).map(|value| value as u32)).transpose()
    }

    fn number(self, key: Key) -> Result<Option<f32>> {
        let value = match self {
            Self::Metadata(metadata) => metadata.f64(&key.in_metadata())?,
            Self::Json(None) => None,
            Self::Json(Some(json)) => key.within(json)?.map_or(Ok(None), |fields| fields.f64(key.name()))?,
        };
        Ok(value.map(|value| value as f32))
    }

    fn positive(self, key: Key) -> Result<Option<f32>> {
        match self.number(key)? {
            Some(value) if !(value.is_finite() && value >= 0.0) => {
                Err(FileError::invalid(key.name(), format!("is {value}, expected 0 or more")))
            }
            value => Ok(value),
        }
    }

    fn text(self, key: &'static str) -> Result<Option<&'a str>> {
        match self {
            Self::Metadata(metadata) => metadata.str(&format!("diffusion.{key}")),
            Self::Json(None) => Ok(None),
            Self::Json(Some(json)) => json.object("diffusion")?.map_or(Ok(None), |fields| fields.str(key)),
        }
    }
}
