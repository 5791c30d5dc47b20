//! Wire types of Laneway's public HTTP API and their validation.
//!
//! A request body becomes a [`ChatTurn`] or a [`CompletionTurn`], types that
//! cannot hold an invalid value; anything else becomes an [`ApiError`] that
//! names the field at fault. Answers are built from the serialisable types in
//! [`chat`], [`completion`] and [`models`].
//!
//! Decisions have one request type for two APIs: TypeSafe's System One, whose
//! errors are its own ([`systemone`]), and OpenAI's ([`decisions`]).
//!
//! This crate does no I/O and knows no model: names are resolved, prompts
//! tokenised and defaults applied by its callers.
#![forbid(unsafe_code)]

mod body;
pub mod chat;
pub mod completion;
pub mod decisions;
mod error;
mod json;
mod loose;
pub mod models;
mod prompt;
mod settings;
mod shape;
pub mod systemone;
mod turn;

pub use error::{ApiError, ErrorBody, ErrorEnvelope};
pub use prompt::Prompt;
pub use settings::{Delivery, MAX_CHOICES, MAX_STOP_BYTES, MAX_STOPS, SamplingOptions, TurnSettings};
pub use shape::{Loc, MAX_SHAPE_ERRORS, ShapeError};
pub use turn::{ChatTurn, CompletionTurn, Message, Role};

use serde::Serialize;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn, or a stop string matched.
    Stop,
    /// The token limit or the end of the context was reached.
    Length,
}

/// Token counts of a whole request; several choices add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    pub prompt_tokens_details: PromptTokensDetails,
}

/// What part of the prompt was not computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    pub cached_tokens: u64,
}

impl Usage {
    /// Counts for one prompt; `cached` of its tokens came from a stored prefix.
    pub fn new(prompt: u64, cached: u64, completion: u64) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt.saturating_add(completion),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: cached },
        }
    }
}

/// Makes a log-probability representable in JSON, as OpenAI does for impossible tokens.
pub(crate) fn finite_logprob(value: f32) -> f32 {
    if value.is_finite() { value } else { -9999.0 }
}
