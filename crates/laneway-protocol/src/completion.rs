//! Answers of `POST /v1/completions`.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::chat::TokenLogprob;
use crate::{FinishReason, Usage};

/// A whole answer, or one event of a streamed one: both have this shape.
#[derive(Clone, Debug, Serialize)]
pub struct Completion {
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    /// Empty in the usage event.
    pub choices: Vec<CompletionChoice>,
    /// Absent unless asked for; `Some(None)` is `null`, in every event before the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

/// One of the answers, or what is added to it.
#[derive(Clone, Debug, Serialize)]
pub struct CompletionChoice {
    pub text: String,
    pub index: u32,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<FinishReason>,
}

/// Log-probabilities in the older shape: four lists of one length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<f32>,
    /// Token text to log-probability; `None` if no rivals were asked for.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Position of each token in the answer's text, in characters.
    pub text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Converts tokens that begin `offset` characters into the answer.
    pub fn new(tokens: &[TokenLogprob], mut offset: usize) -> Self {
        let mut lists = Self::default();
        for scored in tokens {
            lists.text_offset.push(offset);
            offset += scored.token.token.chars().count();
            lists.tokens.push(scored.token.token.clone());
            lists.token_logprobs.push(scored.token.logprob);
            lists.top_logprobs.push(rivals(scored));
        }
        lists
    }
}

fn rivals(scored: &TokenLogprob) -> Option<Map<String, Value>> {
    if scored.top_logprobs.is_empty() {
        return None;
    }
    Some(scored.top_logprobs.iter().map(|rival| (rival.token.clone(), rival.logprob.into())).collect())
}
