use serde::Deserialize;
use serde_json::Value;

use crate::pretokenize::name_of_pattern;
use crate::vocabulary::byte_of;
use crate::{TextError, TokenizerSource};

/// Ids that may be missing in a vocabulary before it is taken for broken.
const MAX_HOLES: usize = 1 << 16;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

#[derive(Deserialize)]
struct TokenizerJson {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: Value,
    #[serde(default)]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Default, Deserialize)]
struct Config {
    bos_token: Option<Value>,
    eos_token: Option<Value>,
    unk_token: Option<Value>,
    pad_token: Option<Value>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    chat_template: Option<Value>,
}

/// How the text is prepared, as far as this crate distinguishes it.
struct Preparation {
    model: &'static str,
    pre: Option<&'static str>,
    add_space_prefix: bool,
}

/// Reads the two files of a Hugging Face model folder.
pub(crate) fn source(tokenizer: &str, config: Option<&str>) -> Result<TokenizerSource, TextError> {
    let json: TokenizerJson = parse(tokenizer)?;
    let config: Config = config.map(parse).transpose()?.unwrap_or_default();
    let kind = json.model.kind.as_deref().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(unsupported(format!("model type `{kind}`")));
    }
    let preparation = preparation(&json)?;
    let (tokens, token_types) = vocabulary(&json)?;
    let id = |text: &str| {
        let found = tokens.iter().position(|token| token == text);
        found.and_then(|id| u32::try_from(id).ok())
    };
    let named = |token: &Option<Value>| token.as_ref().and_then(token_text).and_then(id);
    let template_bos = template_bos(&json.post_processor);
    let unk_text = json.model.unk_token.as_deref();
    Ok(TokenizerSource {
        model: preparation.model.to_owned(),
        pre: preparation.pre.map(str::to_owned),
        scores: None,
        bos: named(&config.bos_token).or_else(|| template_bos.and_then(id)),
        eos: named(&config.eos_token),
        unk: named(&config.unk_token).or_else(|| unk_text.and_then(id)),
        pad: named(&config.pad_token),
        eot: None,
        add_bos: config.add_bos_token.unwrap_or(template_bos.is_some()),
        add_eos: config.add_eos_token.unwrap_or(false),
        add_space_prefix: preparation.add_space_prefix,
        chat_template: config.chat_template.as_ref().and_then(chat_template),
        merges: json.model.merges.into_iter().map(merge).collect::<Result<_, _>>()?,
        tokens,
        token_types: Some(token_types),
    })
}

fn parse<'j, T: Deserialize<'j>>(json: &'j str) -> Result<T, TextError> {
    serde_json::from_str(json).map_err(|e| TextError::InvalidTokenizerJson(e.to_string()))
}

fn unsupported(what: String) -> TextError {
    TextError::UnsupportedTokenizerJson(what)
}

fn merge(merge: Merge) -> Result<String, TextError> {
    match merge {
        Merge::Joined(text) => Ok(text),
        Merge::Pair(left, right) if left.chars().skip(1).any(|c| c == ' ') => {
            Err(unsupported(format!("a merge of parts with spaces (`{left}`, `{right}`)")))
        }
        Merge::Pair(left, right) => Ok(format!("{left} {right}")),
    }
}

/// Token texts and GGUF token types by id.
fn vocabulary(json: &TokenizerJson) -> Result<(Vec<String>, Vec<i32>), TextError> {
    let Value::Object(vocab) = &json.model.vocab else {
        return Err(TextError::InvalidTokenizerJson("model.vocab is not a map".into()));
    };
    let ids = vocab.iter().map(|(text, id)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(|id| (text, id))
            .ok_or_else(|| TextError::InvalidTokenizerJson(format!("the id of `{text}` is not a 32-bit number")))
    });
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let added = json.added_tokens.iter().map(|token| token.id);
    let largest = ids.iter().map(|&(_, id)| id).chain(added).max().unwrap_or(0) as usize;
    if largest >= ids.len() + json.added_tokens.len() + MAX_HOLES {
        return Err(TextError::InvalidTokenizerJson(format!("token id {largest} is too large")));
    }
    let mut tokens = vec![String::new(); largest + 1];
    let mut types = vec![UNUSED; largest + 1];
    for (text, id) in ids {
        let is_byte = json.model.byte_fallback && byte_of(text).is_some();
        tokens[id as usize].clone_from(text);
        types[id as usize] = if is_byte { BYTE } else { NORMAL };
    }
    for token in &json.added_tokens {
        tokens[token.id as usize].clone_from(&token.content);
        types[token.id as usize] = if token.special { CONTROL } else { USER_DEFINED };
    }
    Ok((tokens, types))
}

fn preparation(json: &TokenizerJson) -> Result<Preparation, TextError> {
    let steps = steps(&json.pre_tokenizer, "pretokenizers");
    let kinds: Vec<&str> = steps.iter().map(|step| kind(step)).collect();
    let uses_regex = |step: &Value| step["use_regex"].as_bool().unwrap_or(true);
    let pre = match (kinds.as_slice(), steps.as_slice()) {
        (["ByteLevel"], [level]) if uses_regex(level) => Some("gpt-2"),
        (["Digits", "ByteLevel"], [digits, level]) if uses_regex(level) && digits["individual_digits"] == true => {
            Some("smollm")
        }
        (["Split", "ByteLevel"], [split, level]) if !uses_regex(level) => {
            let pattern = split["pattern"]["Regex"].as_str().unwrap_or_default();
            let name = name_of_pattern(pattern);
            Some(name.ok_or_else(|| unsupported(format!("the split pattern `{pattern}`")))?)
        }
        _ if json.model.byte_fallback => None,
        _ => {
            return Err(unsupported(format!("the pre-tokenizer [{}]", kinds.join(", "))));
        }
    };
    match pre {
        Some(_) => byte_level(json, pre),
        None => character_level(json, &steps),
    }
}

fn byte_level(json: &TokenizerJson, pre: Option<&'static str>) -> Result<Preparation, TextError> {
    for step in normalizers(json) {
        if kind(step) != "NFC" {
            return Err(unsupported(format!("the normalizer `{}`", kind(step))));
        }
    }
    Ok(Preparation { model: "gpt2", pre, add_space_prefix: false })
}

fn character_level(json: &TokenizerJson, steps: &[&Value]) -> Result<Preparation, TextError> {
    let mut add_space_prefix = false;
    for step in normalizers(json) {
        match kind(step) {
            "Prepend" if step["prepend"] == "▁" => add_space_prefix = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            other => return Err(unsupported(format!("the normalizer `{other}`"))),
        }
    }
    for step in steps {
        match kind(step) {
            // Spaces are gone by then, so Gemma's split at spaces does nothing.
            "Split" if step["pattern"]["String"] == " " => {}
            "Metaspace" if step["split"] == false && step["replacement"] == "▁" => {
                add_space_prefix |= step["prepend_scheme"] != "never";
            }
            other => return Err(unsupported(format!("the pre-tokenizer `{other}`"))),
        }
    }
    Ok(Preparation { model: "gemma4", pre: None, add_space_prefix })
}

fn normalizers(json: &TokenizerJson) -> Vec<&Value> {
    steps(&json.normalizer, "normalizers")
}

/// The members of a `Sequence`, or the step itself.
fn steps<'j>(step: &'j Value, members: &str) -> Vec<&'j Value> {
    match (kind(step), step[members].as_array()) {
        ("Sequence", Some(members)) => members.iter().collect(),
        ("", _) => Vec::new(),
        _ => vec![step],
    }
}

fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or_default()
}

/// The special token that the post-processor puts before every text.
fn template_bos(post_processor: &Value) -> Option<&str> {
    steps(post_processor, "processors")
        .into_iter()
        .find(|step| kind(step) == "TemplateProcessing")
        .and_then(|step| step["single"][0]["SpecialToken"]["id"].as_str())
}

fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// The template itself, or of several named ones the one called `default`.
fn chat_template(template: &Value) -> Option<String> {
    let named = |entry: &&Value| entry["name"] == "default";
    let text = template.as_str().or_else(|| template.as_array()?.iter().find(named)?["template"].as_str());
    text.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{EncodeOptions, Tokenizer};

    const SPECIAL: EncodeOptions = EncodeOptions { add_bos: true, parse_special: true };

    #[test]
    fn byte_level_files_encode_and_decode() {
        let tokenizer = json!({
            "model": {"type": "BPE", "vocab": {"h": 0, "i": 1, "hi": 2, "Ġ": 3, "Ġhi": 4, "1": 5},
                      "merges": [["h", "i"], ["Ġ", "hi"]]},
            "added_tokens": [{"id": 6, "content": "<|im_end|>", "special": true}],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel"}]},
        });
        let config = json!({"eos_token": {"content": "<|im_end|>"}, "bos_token": null,
                            "chat_template": [{"name": "default", "template": "x"}]});
        let tokenizer = Tokenizer::from_tokenizer_json(&tokenizer.to_string(), Some(&config.to_string())).unwrap();
        let ids = tokenizer.encode("hi hi11<|im_end|>", SPECIAL);
        assert_eq!(ids, [2, 4, 5, 5, 6]);
        assert_eq!(tokenizer.decode(&ids, true), "hi hi11");
        assert_eq!(tokenizer.end_of_generation(), [6]);
        assert_eq!(tokenizer.chat_template(), Some("x"));
    }

    #[test]
    fn byte_fallback_files_encode_and_decode() {
        let tokenizer = json!({
            "model": {"type": "BPE", "byte_fallback": true, "merges": ["▁ a"],
                      "vocab": {"<s>": 0, "▁": 1, "a": 2, "▁a": 3, "<0xC3>": 4, "<0xA9>": 5}},
            "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "post_processor": {"type": "TemplateProcessing",
                               "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]},
        });
        let tokenizer = Tokenizer::from_tokenizer_json(&tokenizer.to_string(), None).unwrap();
        let ids = tokenizer.encode("a aé", SPECIAL);
        assert_eq!(ids, [0, 3, 3, 4, 5]);
        assert_eq!(tokenizer.decode(&ids, true), "a aé");
    }

    fn refusal(change: Value) -> String {
        let mut tokenizer = json!({
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
            "pre_tokenizer": {"type": "ByteLevel"},
        });
        for (key, value) in change.as_object().unwrap() {
            tokenizer[key] = value.clone();
        }
        let error = Tokenizer::from_tokenizer_json(&tokenizer.to_string(), None).err();
        error.expect("the file is refused").to_string()
    }

    #[test]
    fn other_kinds_are_refused_with_the_supported_ones() {
        let unigram = refusal(json!({"model": {"type": "Unigram", "vocab": []}}));
        assert!(unigram.contains("`Unigram`") && unigram.contains("byte-level BPE"), "{unigram}");
        let pre = refusal(json!({"pre_tokenizer": {"type": "Whitespace"}}));
        assert!(pre.contains("[Whitespace]"), "{pre}");
        let lowercase = refusal(json!({"normalizer": {"type": "Lowercase"}}));
        assert!(lowercase.contains("`Lowercase`"), "{lowercase}");
    }

    #[test]
    fn hostile_ids_are_refused() {
        let huge = json!({"model": {"type": "BPE", "vocab": {"a": 4294967295u32}}});
        assert!(refusal(huge).contains("too large"));
        let negative = json!({"model": {"type": "BPE", "vocab": {"a": -1}}});
        assert!(refusal(negative).contains("32-bit"));
        assert!(Tokenizer::from_tokenizer_json("{", None).is_err());
    }
}
