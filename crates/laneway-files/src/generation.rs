use serde_json::Value;

use crate::{
    DiffusionDefaults, FileError, Metadata, ModelConfig, Result, error::within, json::Fields, sampling::Source,
};

/// What a model's authors say about generating with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a generation; the tokenizer may know more by their text.
    pub eos_token_ids: Vec<u32>,
    /// The token that starts every prompt.
    pub bos_token_id: Option<u32>,
    /// The token that fills a canvas after its end.
    pub pad_token_id: Option<u32>,
    /// How canvases are revised; present for diffusion models.
    pub diffusion: Option<DiffusionDefaults>,
}

/// Reads the metadata of a GGUF file.
pub(crate) fn from_metadata(config: &ModelConfig, metadata: &Metadata) -> Result<GenerationConfig> {
    let id = |key: &str| match metadata.u64(key)? {
        Some(id) => token(key, id).map(Some),
        None => Ok(None),
    };
    let mut eos_token_ids = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        eos_token_ids.extend(id(key)?.filter(|id| !eos_token_ids.contains(id)));
    }
    Ok(GenerationConfig {
        eos_token_ids,
        bos_token_id: id("tokenizer.ggml.bos_token_id")?,
        pad_token_id: id("tokenizer.ggml.padding_token_id")?,
        diffusion: config
            .diffusion
            .map(|diffusion| DiffusionDefaults::read(&diffusion, Source::Metadata(metadata)))
            .transpose()?,
    })
}

/// Reads `generation_config.json`, with `config.json` for what it leaves out.
pub(crate) fn from_json(model: &ModelConfig, config: Fields, generation: Option<Fields>) -> Result<GenerationConfig> {
    let text = config.object("text_config")?;
    let sources = [generation, Some(config), text];
    let find = |key: &str| sources.iter().flatten().find_map(|fields| fields.get(key));
    let id = |key: &'static str| find(key).map(|value| token_value(key, value)).transpose();
    let eos_token_ids = match find("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().map(|id| token_value("eos_token_id", id)).collect::<Result<_>>()?,
        Some(id) => vec![token_value("eos_token_id", id)?],
        None => Vec::new(),
    };
    Ok(GenerationConfig {
        eos_token_ids,
        bos_token_id: id("bos_token_id")?,
        pad_token_id: id("pad_token_id")?,
        diffusion: model
            .diffusion
            .map(|diffusion| DiffusionDefaults::read(&diffusion, Source::Json(generation)))
            .transpose()?,
    })
}

fn token_value(key: &str, value: &Value) -> Result<u32> {
    let id = value.as_u64().ok_or_else(|| FileError::WrongType { key: key.to_owned(), expected: "a token id" })?;
    token(key, id)
}

fn token(key: &str, id: u64) -> Result<u32> {
    within(key, id, 0, i32::MAX as u64).map(|id| id as u32)
}
