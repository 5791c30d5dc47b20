//! Request bodies as they arrive: typed, not yet validated.

use std::fmt;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use crate::ApiError;
use crate::loose::{Integer, List, Object, Outline, Strings};
use crate::prompt::Prompts;

const MOST_MESSAGES: usize = 8192;
const MOST_PARTS: usize = 1024;

/// Every field that one of the two endpoints knows; others are ignored.
///
/// One flat struct, because `serde(flatten)` would lose the path of a wrong value.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Body {
    pub model: Option<String>,
    pub messages: Option<List<Object<RawMessage>, MOST_MESSAGES>>,
    pub prompt: Option<Prompts>,

    pub max_tokens: Option<Integer>,
    pub max_completion_tokens: Option<Integer>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<Integer>,
    pub min_p: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub seed: Option<Integer>,
    pub stop: Option<Strings>,
    pub n: Option<Integer>,
    pub best_of: Option<Integer>,
    pub logprobs: Option<Outline>,
    pub top_logprobs: Option<Integer>,
    pub stream: Option<bool>,
    pub stream_options: Option<Object<StreamOptions>>,

    pub reasoning_effort: Option<String>,
    pub chat_template_kwargs: Option<Object<TemplateOptions>>,
    pub x_laneway_drafts: Option<bool>,
    pub x_laneway_steps: Option<Integer>,
    pub x_laneway_one_shot: Option<bool>,
    pub cache_salt: Option<String>,

    pub echo: Option<Outline>,
    pub suffix: Option<Outline>,
    pub logit_bias: Option<Outline>,
    pub tools: Option<Outline>,
    pub tool_choice: Option<Outline>,
    pub functions: Option<Outline>,
    pub response_format: Option<Outline>,
    pub modalities: Option<Strings>,
    pub audio: Option<Outline>,
    pub web_search_options: Option<Outline>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct StreamOptions {
    pub include_usage: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct TemplateOptions {
    pub enable_thinking: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RawMessage {
    pub role: Option<String>,
    pub content: Option<Content>,
    pub tool_calls: Option<Outline>,
    pub function_call: Option<Outline>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Parts(List<Object<Part>, MOST_PARTS>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Part {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub text: Option<String>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string or a list of text parts")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Content, E> {
                Ok(Content::Text(value.to_owned()))
            }
            fn visit_string<E: de::Error>(self, value: String) -> Result<Content, E> {
                Ok(Content::Text(value))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                List::deserialize(SeqAccessDeserializer::new(seq)).map(Content::Parts)
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// Reads a body; an error names the field it was found in.
pub(crate) fn read(bytes: &[u8]) -> Result<Body, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let Object(body) = serde_path_to_error::deserialize::<_, Object<Body>>(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let found = describe(&inner);
        match path.as_str() {
            "." | "?" if inner.is_data() => ApiError::invalid(format!("the request body is not usable: {found}")),
            "." | "?" => ApiError::invalid(format!("the request body is not valid JSON: {found}")),
            _ if inner.is_data() => ApiError::field(&path, format!("`{path}`: {found}")),
            _ => ApiError::field(&path, format!("`{path}` is not valid JSON: {found}")),
        }
    })?;
    deserializer
        .end()
        .map_err(|error| ApiError::invalid(format!("the request body is not valid JSON: {}", describe(&error))))?;
    Ok(body)
}

/// serde's message, shortened: it may quote a value as long as the body.
fn describe(error: &serde_json::Error) -> String {
    const SHOWN_CHARS: usize = 120;
    let position = format!(" at line {} column {}", error.line(), error.column());
    let full = error.to_string();
    let text = full.strip_suffix(&position).unwrap_or(&full);
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    if !error.is_data() {
        shown.push_str(&position);
    }
    shown
}
