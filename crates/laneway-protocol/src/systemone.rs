//! `POST /v1/systemone`: typed questions about a state, answered with probabilities.
//!
//! A body becomes a [`DecisionRequest`] or a [`DecisionError`]. A wrong shape is
//! 422 with every error found; only a body of the right shape is held against
//! the limits and the features of this server, which are 400. Unknown fields
//! are ignored, and an object's members keep their order.
//!
//! A decision model turns each question into a [`Reading`]; [`Answers`] are
//! made of the request and its readings, and so cannot miss a question.

mod answer;
mod confidence;
mod convert;
mod described;
mod error;
mod images;
mod options;
mod questions;
mod request;
mod seed;

pub use answer::{Answer, Answers, ChoiceAnswer, NoulAnswer, ReadUsage, Reading, ScoreAnswer, SystemOneResponse};
pub use confidence::{Distribution, choice_confidence, entropy, entropy_confidence, score_confidence};
pub use described::Described;
pub use error::{DecisionError, DecisionErrorBody, Detail};
pub(crate) use options::read as read_options;
pub use options::{MAX_PERMUTATIONS, MAX_SAMPLES, MAX_STEPS, MAX_THINK, ReadOptions, Samples};
pub use request::{
    ChoiceOption, DecisionRequest, MAX_LEVELS, MAX_OPTIONS, MAX_QUESTIONS, Question, QuestionKind, State,
};
