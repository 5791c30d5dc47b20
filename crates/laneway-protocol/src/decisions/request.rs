use serde_json::Value;

use crate::ApiError;
use crate::decisions::DecisionsShape;
use crate::decisions::content::Notes;
use crate::decisions::input::read_input;
use crate::decisions::questions::read_questions;
use crate::json::{self, MOST_VALUES, Unreadable};
use crate::shape::At;
use crate::systemone::{DecisionRequest, read_options};

/// Most questions in one request.
pub const MAX_QUESTIONS: usize = 400;

/// A valid request of OpenAI's decisions API.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionsRequest {
    /// As the decision models know it; the questions' ids are their places in the list.
    pub request: DecisionRequest,
    /// What the answer needs beyond that.
    pub shape: DecisionsShape,
}

impl DecisionsRequest {
    /// Reads and validates a JSON body.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ApiError> {
        let body = json::read(bytes).map_err(unreadable)?;
        let (at, mut notes) = (At::BODY, Notes::default());
        let Value::Object(mut body) = body else {
            return Err(ApiError::invalid("the request body is not usable: input should be a valid dictionary"));
        };
        let model = notes.text(at, &body, "model").map(str::to_owned);
        let state = read_input(at.field("input"), body.remove("input"), &mut notes);
        let questions = read_questions(at, &body, &mut notes);
        let options = read_options(&body, &mut notes.errors);
        for name in ["prompt_cache_key", "safety_identifier"] {
            if let Some(value) = body.get(name).filter(|value| !value.is_null()) {
                notes.errors.string(at.field(name), value);
            }
        }
        match notes.into_error() {
            Some(error) => Err(error),
            None => {
                let (questions, echoes) = questions.into_iter().unzip();
                let request = DecisionRequest { model, state, questions, options };
                Ok(Self { request, shape: DecisionsShape(echoes) })
            }
        }
    }
}

fn unreadable(why: Unreadable) -> ApiError {
    match why {
        Unreadable::Syntax { offset, reason } => {
            ApiError::invalid(format!("the request body is not valid JSON: {reason} at character {offset}"))
        }
        Unreadable::TooManyValues => {
            ApiError::invalid(format!("the request body holds more than {MOST_VALUES} JSON values"))
        }
    }
}
