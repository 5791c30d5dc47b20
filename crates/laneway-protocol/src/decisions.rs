//! `POST /v1/decisions`: OpenAI's API for the same typed questions.
//!
//! A body becomes a [`DecisionsRequest`]: a [`DecisionRequest`] as System One's,
//! with what OpenAI's shape of the answer echoes. Errors are OpenAI's, 400 with
//! the path of the field at fault. Unlike System One this API needs
//! instructions, at least two choices or levels, and returns lists.
//!
//! The knobs of [`ReadOptions`] are read here too: OpenAI's clients send them as `extra_body`.
//!
//! [`DecisionRequest`]: crate::systemone::DecisionRequest
//! [`ReadOptions`]: crate::systemone::ReadOptions

mod answer;
mod content;
mod input;
mod questions;
mod request;

pub use answer::{
    ChoiceProbability, ChoiceValue, DecisionsAnswer, DecisionsResponse, DecisionsShape, DecisionsUsage,
    InputTokensDetails, OutputTokensDetails, ScoreProbability,
};
pub use request::{DecisionsRequest, MAX_QUESTIONS};
