use std::borrow::Cow;

use serde_json::Value;

use crate::json::{self, len_bytes};
use crate::shape::{At, Errors};
use crate::systemone::described::text;
use crate::systemone::images::refuse_images;
use crate::systemone::questions::read_questions;
use crate::systemone::{DecisionError, Described, ReadOptions, read_options};

/// Most questions in one request.
pub const MAX_QUESTIONS: usize = 256;
/// Most options of a choice.
pub const MAX_OPTIONS: usize = 255;
/// Most levels of a score.
pub const MAX_LEVELS: usize = 10;

/// A valid request for decisions about one state.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionRequest {
    /// The model's name as given, not yet resolved and never empty; `None` leaves it to the server.
    pub model: Option<String>,
    pub state: State,
    /// At least one, in the order of the request.
    pub questions: Vec<Question>,
    pub options: ReadOptions,
}

/// What the questions are about.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Text(String),
    /// An object or an array.
    Json(Value),
}

/// One question; its id names the answer and is nothing the model may see.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Never empty.
    pub id: String,
    pub kind: QuestionKind,
    pub instructions: Option<Described>,
    /// Whether the question asks to be read without the others in sight.
    pub alone: bool,
}

/// What kind of answer a question wants.
#[derive(Clone, Debug, PartialEq)]
pub enum QuestionKind {
    /// Whether something is true; its distribution is (yes, no).
    Noul { yes: Option<Described>, no: Option<Described> },
    /// One of 1 to [`MAX_OPTIONS`] options, in the order of the request.
    Choice(Vec<ChoiceOption>),
    /// One of 1 to [`MAX_LEVELS`] levels, lowest first.
    Score(Vec<Described>),
}

/// An option of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceOption {
    /// Never empty in a System One request, and there the key of its probability.
    pub name: String,
    pub description: Option<Described>,
}

impl DecisionRequest {
    /// Reads and validates a JSON body.
    pub fn from_json(bytes: &[u8]) -> Result<Self, DecisionError> {
        let body = json::read(bytes).map_err(DecisionError::unreadable)?;
        let (mut errors, mut refusals) = (Errors::default(), Vec::new());
        let Value::Object(mut body) = body else {
            errors.push(At::BODY, "dict_type", "Input should be a valid dictionary", Some(&body));
            return Err(DecisionError::shape(errors.into_vec()));
        };
        let model = read_model(body.get("model"), &mut errors);
        let state = read_state(body.remove("state"), &mut errors);
        let questions = read_questions(body.get("questions"), &mut errors, &mut refusals);
        let options = read_options(&body, &mut errors);
        refuse_images(&body, state.as_ref(), bytes.len(), &mut errors, &mut refusals);

        match (state, refusals.into_iter().next()) {
            (Some(state), None) if errors.is_empty() => Ok(Self { model, state, questions, options }),
            (Some(_), Some(refusal)) if errors.is_empty() => Err(refusal),
            _ => Err(DecisionError::shape(errors.into_vec())),
        }
    }
}

impl State {
    /// What the model reads: a string as it is, anything else as JSON text.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Json(value) => text(value),
        }
    }

    /// The length of the state's text in bytes, give or take escapes and long numbers; costs no copy of it.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Json(value) => len_bytes(value),
        }
    }
}

impl QuestionKind {
    /// How many probabilities the answer has.
    pub fn outcomes(&self) -> usize {
        match self {
            Self::Noul { .. } => 2,
            Self::Choice(options) => options.len(),
            Self::Score(levels) => levels.len(),
        }
    }
}

fn read_model(value: Option<&Value>, errors: &mut Errors) -> Option<String> {
    let at = At::BODY;
    let model = errors.string(at.field("model"), value.filter(|value| !value.is_null())?)?;
    if model.is_empty() {
        errors.empty_string(at.field("model"));
    }
    Some(model.to_owned())
}

fn read_state(value: Option<Value>, errors: &mut Errors) -> Option<State> {
    let body = At::BODY;
    let at = body.field("state");
    match value {
        Some(Value::String(text)) => return Some(State::Text(text)),
        Some(value @ (Value::Object(_) | Value::Array(_))) => return Some(State::Json(value)),
        Some(other) => {
            errors.push(at, "union_type", "Input should be a valid string, dictionary or list", Some(&other));
        }
        None => errors.missing(at),
    }
    None
}
