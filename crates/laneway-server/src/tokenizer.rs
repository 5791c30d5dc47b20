//! The tokenizer that belongs to a model's files.

use anyhow::{Context, Result, bail};
use laneway_files::{Array, Metadata, Value, Weights};
use laneway_text::{ChatTemplate, TextError, Tokenizer, TokenizerSource};

/// Where a tokenizer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Metadata,
    Json,
    /// The files have none: a token's text is its id in angle brackets, and prompts are token ids.
    Ids,
}

/// The tokenizer of a model's files.
///
/// # Errors
/// An unsupported or damaged tokenizer, or one with more tokens than the network knows.
pub fn of(weights: &Weights) -> Result<(Tokenizer, Origin)> {
    let size = weights.config().vocab_size;
    let (tokenizer, origin) = if weights.metadata().get("tokenizer.ggml.model").is_some() {
        (Tokenizer::new(from_metadata(weights.metadata())?)?, Origin::Metadata)
    } else if let Some(json) = &weights.sidecars.tokenizer {
        (from_json(json, weights.sidecars.tokenizer_config.as_deref(), size)?, Origin::Json)
    } else {
        (Tokenizer::new(ids_only(weights))?, Origin::Ids)
    };
    if tokenizer.vocab_size() > size {
        bail!("the tokenizer has {} tokens, but the network knows only {size}", tokenizer.vocab_size());
    }
    Ok((tokenizer, origin))
}

/// The template of a model's files; a base model gets none that its vocabulary merely would fit.
///
/// # Errors
/// A template that is no valid Jinja.
pub fn template(weights: &Weights, tokenizer: &Tokenizer, is_base: bool) -> Result<Option<ChatTemplate>> {
    if let Some(source) = &weights.sidecars.chat_template {
        let piece = |id: Option<u32>| id.and_then(|id| tokenizer.token_piece(id)).unwrap_or_default();
        return Ok(Some(ChatTemplate::new(source, piece(tokenizer.bos()), piece(tokenizer.eos()))?));
    }
    if is_base && tokenizer.chat_template().is_none() {
        return Ok(None);
    }
    match ChatTemplate::of_tokenizer(tokenizer) {
        Ok(template) => Ok(Some(template)),
        Err(TextError::NoTemplate) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn from_metadata(metadata: &Metadata) -> Result<TokenizerSource> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let text = |name: &str| metadata.str(&key(name)).map(|text| text.map(str::to_owned));
    let flag = |name: &str| metadata.bool(&key(name));
    let id = |name: &str| -> Result<Option<u32>> {
        let id = metadata.u64(&key(name))?;
        id.map(|id| u32::try_from(id).with_context(|| format!("`{}` is {id}, no token id", key(name)))).transpose()
    };
    let strings = |name: &str| metadata.strings(&key(name)).map(|items| items.map(<[String]>::to_vec));
    let model = text("model")?.unwrap_or_default();
    // Files for SentencePiece that say nothing mean yes, as the original library does.
    let is_sentence_piece = model == "llama";
    Ok(TokenizerSource {
        pre: text("pre")?,
        tokens: strings("tokens")?.context("`tokenizer.ggml.tokens` is missing")?,
        scores: metadata.floats(&key("scores"))?.map(<[f32]>::to_vec),
        token_types: token_types(metadata.get(&key("token_type")))?,
        merges: strings("merges")?.unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        eot: id("eot_token_id")?,
        add_bos: flag("add_bos_token")?.unwrap_or(is_sentence_piece),
        add_eos: flag("add_eos_token")?.unwrap_or(false),
        add_space_prefix: flag("add_space_prefix")?.unwrap_or(is_sentence_piece),
        chat_template: metadata.str("tokenizer.chat_template")?.map(str::to_owned),
        model,
    })
}

fn token_types(value: Option<&Value>) -> Result<Option<Vec<i32>>> {
    let narrow =
        |number: i64| i32::try_from(number).context("`tokenizer.ggml.token_type` holds a number that is no type");
    match value {
        None => Ok(None),
        Some(Value::Array(Array::Signed(items))) => {
            items.iter().map(|&item| narrow(item)).collect::<Result<_>>().map(Some)
        }
        Some(Value::Array(Array::Unsigned(items))) => {
            let items = items.iter().map(|&item| narrow(i64::try_from(item).unwrap_or(i64::MAX)));
            items.collect::<Result<_>>().map(Some)
        }
        Some(_) => bail!("`tokenizer.ggml.token_type` should be an array of integers"),
    }
}

fn from_json(json: &str, config: Option<&str>, size: usize) -> Result<Tokenizer> {
    let tokenizer = Tokenizer::from_tokenizer_json(json, config)?;
    if tokenizer.vocab_size() <= size {
        return Ok(tokenizer);
    }
    // Files shared between sizes of a family list added tokens (for images) that a smaller network has no row for.
    let mut value: serde_json::Value = serde_json::from_str(json)?;
    if let Some(added) = value["added_tokens"].as_array_mut() {
        added.retain(|token| token["id"].as_u64().is_none_or(|id| id < size as u64));
    }
    Ok(Tokenizer::from_tokenizer_json(&value.to_string(), config)?)
}

fn ids_only(weights: &Weights) -> TokenizerSource {
    const USER_DEFINED: i32 = 4;
    let size = weights.config().vocab_size;
    let known = |id: &u32| (*id as usize) < size;
    let generation = weights.generation();
    let mut ends = generation.eos_token_ids.iter().copied().filter(known);
    TokenizerSource {
        model: "gpt2".to_owned(),
        tokens: (0..size).map(|id| format!("<{id}>")).collect(),
        token_types: Some(vec![USER_DEFINED; size]),
        bos: generation.bos_token_id.filter(known),
        eos: ends.next(),
        eot: ends.next(),
        ..TokenizerSource::default()
    }
}
