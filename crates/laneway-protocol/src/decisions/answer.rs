use serde::Serialize;

use crate::systemone::{Answer, Answers, ReadUsage};

/// What OpenAI's answer repeats of its questions.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionsShape(pub(super) Vec<Echo>);

/// What an answer repeats of its question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Echo {
    pub name: Option<String>,
    pub outcomes: Outcomes,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcomes {
    Predicate,
    Choice(Vec<ChoiceValue>),
    /// The levels' labels.
    Score(Vec<String>),
}

/// The value of a choice; `true` and `"true"` differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum ChoiceValue {
    Text(String),
    Flag(bool),
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecisionsResponse {
    /// In the order of the questions.
    pub answers: Vec<DecisionsAnswer>,
    /// The name of the model that answered.
    pub model: String,
    pub usage: DecisionsUsage,
}

/// The answer to one question; `name` is `null` where the question had none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DecisionsAnswer {
    #[non_exhaustive]
    Predicate { name: Option<String>, probability: f64 },
    #[non_exhaustive]
    Choice { name: Option<String>, choice: ChoiceValue, confidence: f64, probabilities: Vec<ChoiceProbability> },
    #[non_exhaustive]
    Score { name: Option<String>, score: f64, confidence: f64, probabilities: Vec<ScoreProbability> },
}

/// The probability of one choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ChoiceProbability {
    pub value: ChoiceValue,
    pub probability: f64,
}

/// The probability of one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScoreProbability {
    /// The level's place, from 0.
    pub value: usize,
    pub label: String,
    pub probability: f64,
}

/// Token counts of a whole request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DecisionsUsage {
    pub input_tokens: u64,
    pub input_tokens_details: InputTokensDetails,
    pub output_tokens: u64,
    pub output_tokens_details: OutputTokensDetails,
    pub total_tokens: u64,
}

/// What part of the input was not computed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InputTokensDetails {
    /// Always 0: storing a prefix costs nothing here.
    pub cache_write_tokens: u64,
    pub cached_tokens: u64,
}

/// What the output was for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutputTokensDetails {
    /// All of the output: a decision writes nothing but thought.
    pub reasoning_tokens: u64,
}

impl ChoiceValue {
    /// How a model reads the value.
    pub fn name(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Flag(flag) => flag.to_string(),
        }
    }
}

impl From<ReadUsage> for DecisionsUsage {
    fn from(usage: ReadUsage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            input_tokens_details: InputTokensDetails { cache_write_tokens: 0, cached_tokens: usage.cached_tokens },
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: usage.output_tokens },
            total_tokens: usage.input_tokens.saturating_add(usage.output_tokens),
        }
    }
}

impl DecisionsResponse {
    /// The answer of the model of this name; `answers` are to the request that came with `shape`.
    pub fn new(model: impl Into<String>, shape: &DecisionsShape, answers: Answers, usage: ReadUsage) -> Self {
        let answers = answers.iter().zip(&shape.0).filter_map(|((_, answer), echo)| echo.answer(answer)).collect();
        Self { answers, model: model.into(), usage: usage.into() }
    }
}

impl Echo {
    /// The answer in OpenAI's shape; `None` if it is to another question.
    fn answer(&self, answer: &Answer) -> Option<DecisionsAnswer> {
        let name = self.name.clone();
        let probabilities = answer.reading().distribution().probabilities().iter().copied();
        Some(match (answer, &self.outcomes) {
            (Answer::Noul(answer), Outcomes::Predicate) => {
                DecisionsAnswer::Predicate { name, probability: answer.yes() }
            }
            (Answer::Choice(answer), Outcomes::Choice(values)) => DecisionsAnswer::Choice {
                name,
                choice: values.get(answer.index())?.clone(),
                confidence: answer.confidence(),
                probabilities: values
                    .iter()
                    .zip(probabilities)
                    .map(|(value, probability)| ChoiceProbability { value: value.clone(), probability })
                    .collect(),
            },
            (Answer::Score(answer), Outcomes::Score(labels)) => DecisionsAnswer::Score {
                name,
                score: answer.score(),
                confidence: answer.confidence(),
                probabilities: labels
                    .iter()
                    .zip(probabilities)
                    .enumerate()
                    .map(|(value, (label, probability))| ScoreProbability { value, label: label.clone(), probability })
                    .collect(),
            },
            _ => return None,
        })
    }
}
