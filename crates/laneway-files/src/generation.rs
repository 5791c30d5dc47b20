use serde_json::Value;

use crate::{Family, FileError, Metadata, Result, error::within, json::Fields};

/// What a model's authors say about generating with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a generation; the tokenizer may know more by their text.
    pub eos_token_ids: Vec<u32>,
    /// The token that starts every prompt.
    pub bos_token_id: Option<u32>,
    /// The token that fills a canvas after its end.
    pub pad_token_id: Option<u32>,
    /// The sampler's numbers; present for diffusion models.
    pub diffusion: Option<DiffusionDefaults>,
}

/// The entropy-bound sampler's numbers; the default is the released model's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiffusionDefaults {
    /// Denoising passes per canvas at most.
    pub max_denoising_steps: u32,
    /// Temperature that the last step comes close to.
    pub t_min: f32,
    /// Temperature of the first step.
    pub t_max: f32,
    /// Budget of accepted uncertainty in nats.
    pub entropy_bound: f32,
    /// Earlier steps whose argmax canvas must equal the present one to stop.
    pub stability_threshold: u32,
    /// Mean entropy in nats below which a canvas may stop.
    pub confidence_threshold: f32,
}

impl Default for DiffusionDefaults {
    fn default() -> Self {
        Self {
            max_denoising_steps: 48,
            t_min: 0.4,
            t_max: 0.8,
            entropy_bound: 0.1,
            stability_threshold: 1,
            confidence_threshold: 0.005,
        }
    }
}

impl DiffusionDefaults {
    fn read(whole: impl Fn(&str) -> Result<Option<u64>>, number: impl Fn(&str) -> Result<Option<f64>>) -> Result<Self> {
        let default = Self::default();
        let count = |key: &str, min: u64, default: u32| match whole(key)? {
            Some(value) => within(key, value, min, 65_536).map(|value| value as u32),
            None => Ok(default),
        };
        let positive = |key: &str, default: f32| match number(key)?.map(|value| value as f32) {
            Some(value) if value.is_finite() && value >= 0.0 => Ok(value),
            Some(value) => Err(FileError::invalid(key, format!("is {value}, expected 0 or more"))),
            None => Ok(default),
        };
        let read = Self {
            max_denoising_steps: count("max_steps", 1, default.max_denoising_steps)?,
            t_min: positive("t_min", default.t_min)?,
            t_max: positive("t_max", default.t_max)?,
            entropy_bound: positive("entropy_bound", default.entropy_bound)?,
            stability_threshold: count("stability_threshold", 0, default.stability_threshold)?,
            confidence_threshold: positive("confidence_threshold", default.confidence_threshold)?,
        };
        // Every step's temperature is a mean of the two that gives some weight to `t_max`.
        if read.t_max <= 0.0 {
            return Err(FileError::invalid("t_max", "is 0, expected more"));
        }
        Ok(read)
    }
}

/// Reads the metadata of a GGUF file.
pub(crate) fn from_metadata(family: Family, metadata: &Metadata) -> Result<GenerationConfig> {
    let id = |key: &str| match metadata.u64(key)? {
        Some(id) => token(key, id).map(Some),
        None => Ok(None),
    };
    let mut eos_token_ids = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        eos_token_ids.extend(id(key)?.filter(|id| !eos_token_ids.contains(id)));
    }
    let read = || {
        DiffusionDefaults::read(
            |key| metadata.u64(&format!("diffusion.eb_{key}")),
            |key| metadata.f64(&format!("diffusion.eb_{key}")),
        )
    };
    Ok(GenerationConfig {
        eos_token_ids,
        bos_token_id: id("tokenizer.ggml.bos_token_id")?,
        pad_token_id: id("tokenizer.ggml.padding_token_id")?,
        diffusion: (family == Family::DiffusionGemma).then(read).transpose()?,
    })
}

/// Reads `generation_config.json`, with `config.json` for what it leaves out.
pub(crate) fn from_json(family: Family, config: Fields, generation: Option<Fields>) -> Result<GenerationConfig> {
    let text = config.object("text_config")?;
    let sources = [generation, Some(config), text];
    let find = |key: &str| sources.iter().flatten().find_map(|fields| fields.get(key));
    let id = |key: &'static str| find(key).map(|value| token_value(key, value)).transpose();
    let eos_token_ids = match find("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().map(|id| token_value("eos_token_id", id)).collect::<Result<_>>()?,
        Some(id) => vec![token_value("eos_token_id", id)?],
        None => Vec::new(),
    };
    let read = || {
        let Some(fields) = generation else {
            return Ok(DiffusionDefaults::default());
        };
        let sampler = fields.object("sampler_config")?;
        let whole = |key: &str| fields.u64(if key == "max_steps" { "max_denoising_steps" } else { key });
        let number = |key: &str| match (key, sampler) {
            ("entropy_bound", Some(sampler)) => sampler.f64(key),
            _ => fields.f64(key),
        };
        DiffusionDefaults::read(whole, number)
    };
    Ok(GenerationConfig {
        eos_token_ids,
        bos_token_id: id("bos_token_id")?,
        pad_token_id: id("pad_token_id")?,
        diffusion: (family == Family::DiffusionGemma).then(read).transpose()?,
    })
}

fn token_value(key: &str, value: &Value) -> Result<u32> {
    let id = value.as_u64().ok_or_else(|| FileError::WrongType { key: key.to_owned(), expected: "a token id" })?;
    token(key, id)
}

fn token(key: &str, id: u64) -> Result<u32> {
    within(key, id, 0, i32::MAX as u64).map(|id| id as u32)
}
