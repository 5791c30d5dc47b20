use serde::Deserialize;
use serde_json::Value;

use crate::{
    CanvasContext, DiffusionConfig, Family, FileError, Metadata, Noise, Result, Sidecars, error::within, json::Fields,
};

/// Rows of a block are numbered in 15 bits.
const MAX_CANVAS: u64 = (1 << 15) - 1;
/// Block of the published masked checkpoints, whose files leave it to the sampler.
const USUAL_BLOCK: u64 = 32;
/// What masked models call their mask.
const MASK_TOKENS: [&str; 2] = ["<|mask|>", "<|MASK|>"];
/// The first id behind Qwen 3's own tokens, which every masked conversion of it took.
const QWEN3_MASK: u64 = 151_669;

/// What lies around a `config.json`.
#[derive(Clone, Copy)]
pub(crate) struct Beside<'a> {
    pub folder: &'a str,
    pub sidecars: &'a Sidecars,
}

/// The refusal of Qwen 2 and what was made from it.
pub(crate) fn biased(architecture: &str) -> FileError {
    FileError::UnsupportedFeature {
        what: "architecture".into(),
        found: architecture.to_owned(),
        supported: "networks whose queries, keys and values have no biases, such as llama and qwen3",
    }
}

/// How a GGUF model's canvas is run; none for a causal model.
///
/// A masked one has `A.attention.causal` false, or is of the architecture `llada`. It is run in blocks where the file
/// gives `diffusion.block_length`, else as a whole.
pub(crate) fn from_metadata(metadata: &Metadata, arch: &str, family: Family) -> Result<Option<DiffusionConfig>> {
    if family == Family::DiffusionGemma {
        let canvas = metadata.u64("diffusion.canvas_length")?;
        return uniform(canvas.ok_or_else(|| FileError::MissingKey("diffusion.canvas_length".into()))?).map(Some);
    }
    let causal = metadata.bool(&format!("{arch}.attention.causal"))?.unwrap_or(arch != "llada");
    if family.is_gemma() || causal {
        return Ok(None);
    }
    let (key, mask_key) = ("diffusion.block_length", "tokenizer.ggml.mask_token_id");
    let length = metadata.u64(key)?;
    let mask = match metadata.u64(mask_key)? {
        Some(mask) => mask,
        None => {
            let tokens = metadata.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
            let mask = tokens.iter().position(|token| MASK_TOKENS.contains(&token.as_str()));
            mask.ok_or_else(|| FileError::MissingKey(mask_key.into()))? as u64
        }
    };
    Ok(Some(DiffusionConfig {
        canvas_length: within(key, length.unwrap_or(USUAL_BLOCK), 1, MAX_CANVAS)?,
        noise: masked(mask_key, mask)?,
        context: if length.is_some() { CanvasContext::Blocks } else { CanvasContext::Whole },
        shift: metadata.bool("diffusion.shift_logits")?.unwrap_or(false),
        self_conditioning: false,
    }))
}

/// How a checkpoint's canvas is run; none for a causal model.
///
/// Masked are the `a2d-` model types and every Llama or Qwen 3 with an object `diffusion` in its `config.json`:
/// `{"kind": "mdlm" | "bd3lm", "block_length": N, "mask_token_id": M, "shift_logits": B}`, each of which may be absent.
/// Published checkpoints have none of them. What they are is then told by the name of the model or its folder, and
/// their mask by the tokenizer.
pub(crate) fn from_json(root: Fields, family: Family, beside: Beside) -> Result<Option<DiffusionConfig>> {
    if family == Family::DiffusionGemma {
        return uniform(root.required("canvas_length")?).map(Some);
    }
    let stated = root.object("diffusion")?;
    let converted = root.str("model_type")?.is_some_and(|kind| kind.starts_with("a2d-"));
    if family.is_gemma() || !(converted || stated.is_some()) {
        return Ok(None);
    }
    let number = |key| stated.map_or(Ok(None), |stated| stated.u64(key));
    let mask_key = "mask_token_id";
    let mask = match number(mask_key)?.or(root.u64(mask_key)?).or_else(|| mask_of(beside.sidecars)) {
        Some(mask) => mask,
        None if family == Family::Qwen3 && root.required("vocab_size")? > QWEN3_MASK => QWEN3_MASK,
        None => return Err(FileError::MissingKey(format!("diffusion.{mask_key}"))),
    };
    let shift = stated.map_or(Ok(None), |stated| stated.bool("shift_logits"))?;
    Ok(Some(DiffusionConfig {
        canvas_length: within("diffusion.block_length", number("block_length")?.unwrap_or(USUAL_BLOCK), 1, MAX_CANVAS)?,
        noise: masked(mask_key, mask)?,
        context: context(root, stated, beside.folder)?,
        shift: shift.unwrap_or(false),
        self_conditioning: false,
    }))
}

fn context(root: Fields, stated: Option<Fields>, folder: &str) -> Result<CanvasContext> {
    let kind = stated.map_or(Ok(None), |stated| stated.str("kind"))?;
    let names = [folder, root.str("_name_or_path")?.unwrap_or_default()];
    match kind {
        Some("mdlm") => Ok(CanvasContext::Whole),
        Some("bd3lm") => Ok(CanvasContext::Blocks),
        None if names.iter().any(|name| name.to_lowercase().contains("bd3lm")) => Ok(CanvasContext::Blocks),
        None => Ok(CanvasContext::Whole),
        Some(other) => Err(FileError::UnsupportedFeature {
            what: "diffusion.kind".into(),
            found: other.to_owned(),
            supported: "mdlm, bd3lm",
        }),
    }
}

fn uniform(canvas: u64) -> Result<DiffusionConfig> {
    Ok(DiffusionConfig {
        canvas_length: within("canvas length", canvas, 1, MAX_CANVAS)?,
        noise: Noise::Uniform,
        context: CanvasContext::Causal,
        shift: false,
        self_conditioning: true,
    })
}

fn masked(key: &str, mask: u64) -> Result<Noise> {
    Ok(Noise::Masked { mask: within(key, mask, 0, i32::MAX as u64)? as u32 })
}

#[derive(Deserialize)]
struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
}

/// The mask's id in a tokenizer's files; files that cannot be read are for the tokenizer to complain about.
fn mask_of(sidecars: &Sidecars) -> Option<u64> {
    let config: Option<Value> = sidecars.tokenizer_config.as_deref().and_then(|json| serde_json::from_str(json).ok());
    let config = config.unwrap_or_default();
    let named = config.get("mask_token").and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    let is_mask = |text: &str| named.map_or(MASK_TOKENS.contains(&text), |named| named == text);
    let decoder = config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let listed =
        decoder.into_iter().find(|(_, token)| token.get("content").and_then(Value::as_str).is_some_and(is_mask));
    if let Some(id) = listed.and_then(|(id, _)| id.parse().ok()) {
        return Some(id);
    }
    let tokenizer: Tokenizer = serde_json::from_str(sidecars.tokenizer.as_deref()?).ok()?;
    tokenizer.added_tokens.into_iter().find(|token| is_mask(&token.content)).map(|token| token.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sidecars(tokenizer: &str, config: &str) -> Sidecars {
        Sidecars { tokenizer: Some(tokenizer.into()), tokenizer_config: Some(config.into()), chat_template: None }
    }

    #[test]
    fn the_mask_is_found_in_either_tokenizer_file() {
        let check = |tokenizer: &str, config: &str, expected| {
            assert_eq!(mask_of(&sidecars(tokenizer, config)), expected, "{tokenizer} {config}");
        };
        let listed = r#"{"added_tokens_decoder": {"7": {"content": "<|mask|>"}, "9": {"content": "[M]"}}"#;
        let added = r#"{"added_tokens": [{"id": 3, "content": "<|MASK|>"}, {"id": 4, "content": "[M]"}], "model": {}}"#;
        check("{}", &format!("{listed}}}"), Some(7));
        check("{}", &format!(r#"{listed}, "mask_token": "[M]"}}"#), Some(9));
        check("{}", &format!(r#"{listed}, "mask_token": {{"content": "[M]"}}}}"#), Some(9));
        check(added, "{}", Some(3));
        check(added, r#"{"mask_token": "[M]"}"#, Some(4));
        check(added, r#"{"mask_token": "[other]"}"#, None);
        check("[", "[", None);
        assert_eq!(mask_of(&Sidecars::default()), None);
    }
}
