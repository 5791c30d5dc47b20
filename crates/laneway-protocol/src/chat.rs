//! Answers of `POST /v1/chat/completions`.

use serde::Serialize;

use crate::{FinishReason, Usage, finite_logprob};

/// A whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct ChatCompletion {
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Unix time in seconds.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    pub choices: Vec<ChatChoice>,
    pub usage: Usage,
}

/// One of the answers.
#[derive(Clone, Debug, Serialize)]
pub struct ChatChoice {
    pub index: u32,
    pub message: AssistantMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: FinishReason,
}

/// What the model said.
#[derive(Clone, Debug, Serialize)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: &'static str,
    pub content: String,
    /// What the model thought before it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Always `null`; typed clients expect the member.
    pub refusal: Option<String>,
}

/// One event of a streamed answer.
#[derive(Clone, Debug, Serialize)]
pub struct ChatChunk {
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    /// Empty in the usage chunk.
    pub choices: Vec<ChunkChoice>,
    /// Absent unless asked for; `Some(None)` is `null`, in every chunk before the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// A canvas under revision, in a chunk without choices; void as soon as anything else follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_laneway_draft: Option<CanvasDraft>,
}

/// The likeliest text of a canvas after a pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CanvasDraft {
    /// The answer it belongs to.
    pub index: u32,
    /// Passes made over this canvas.
    pub step: u32,
    /// Mean entropy in nats.
    pub entropy: f32,
    /// All of the canvas, special tokens left out.
    pub text: String,
}

/// The news about one of the answers.
#[derive(Clone, Debug, Serialize)]
pub struct ChunkChoice {
    pub index: u32,
    pub delta: Delta,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<FinishReason>,
}

/// What is added to a message.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of what the model thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

/// Log-probabilities of the tokens in this message or chunk.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<TokenLogprob>,
    /// Always `null`.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// A generated token and its best rivals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    #[serde(flatten)]
    pub token: ScoredToken,
    pub top_logprobs: Vec<ScoredToken>,
}

/// A token's text, its natural-log probability and its exact bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoredToken {
    /// Lossy where the token is a part of a character; `bytes` is exact.
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

impl ScoredToken {
    /// A token of these bytes; a probability of zero becomes a finite number.
    pub fn new(bytes: Vec<u8>, logprob: f32) -> Self {
        Self { token: String::from_utf8_lossy(&bytes).into_owned(), logprob: finite_logprob(logprob), bytes }
    }
}

impl Delta {
    /// The first news of an answer.
    pub fn role() -> Self {
        Self { role: Some("assistant"), content: Some(String::new()), ..Self::default() }
    }

    /// More text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Some(text.into()), ..Self::default() }
    }

    /// More thoughts.
    pub fn reasoning(text: impl Into<String>) -> Self {
        Self { reasoning_content: Some(text.into()), ..Self::default() }
    }
}
