use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::json::Sorted;
use crate::systemone::{DecisionRequest, Described, Question, QuestionKind, State};

impl DecisionRequest {
    /// The seed of every random choice in reading this request.
    ///
    /// The first 8 bytes, most significant first, of SHA-256 over the JSON of
    /// `[state, questions]` with sorted keys. The order of an object's members
    /// and of a choice's options does not change it, nor do the questions'
    /// ids; the order of the questions does.
    pub fn seed(&self) -> u64 {
        let state = match &self.state {
            State::Text(text) => &Value::String(text.clone()),
            State::Json(value) => value,
        };
        let questions = Value::Array(self.questions.iter().map(canonical).collect());
        let text = serde_json::to_vec(&(Sorted(state), Sorted(&questions))).expect("JSON values have string keys");
        let [a, b, c, d, e, f, g, h, ..] = Sha256::digest(text).0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

fn canonical(question: &Question) -> Value {
    let value = |described: &Option<Described>| described.as_ref().map_or(Value::Null, |it| it.value().clone());
    let (kind, criteria) = match &question.kind {
        QuestionKind::Noul { yes, no } => ("noul", json!({"false": value(no), "true": value(yes)})),
        QuestionKind::Choice(options) => {
            // Pairs, not an object: OpenAI's API may offer both `true` and `"true"`.
            let mut options: Vec<_> = options.iter().map(|it| (&it.name, value(&it.description))).collect();
            options.sort_by_key(|(name, _)| *name);
            ("choice", json!(options))
        }
        QuestionKind::Score(levels) => ("score", levels.iter().map(|level| level.value().clone()).collect()),
    };
    json!({"criteria": criteria, "instructions": value(&question.instructions), "type": kind})
}
