//! Answers of `POST /v1/systemone`.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::systemone::{DecisionRequest, Described, Distribution, Question, QuestionKind};

/// What a model read for one question: the probability of each outcome, and how it was come by.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    distribution: Distribution,
    entropy: bool,
    samples: Option<u32>,
    std_error: Option<f64>,
}

/// The answer to one question; always of the question's kind and size.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Noul(NoulAnswer),
    Choice(ChoiceAnswer),
    Score(ScoreAnswer),
}

/// Whether something is true.
#[derive(Clone, Debug, PartialEq)]
pub struct NoulAnswer {
    reading: Reading,
}

/// One of the options.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceAnswer {
    names: Vec<String>,
    reading: Reading,
}

/// A place on the scale of levels.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreAnswer {
    levels: Vec<Described>,
    reading: Reading,
}

/// The answers to a whole request, by question id and in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers(Vec<(String, Answer)>);

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemOneResponse {
    /// The name of the model that answered.
    pub model: String,
    pub answers: Answers,
    pub usage: ReadUsage,
}

/// Token counts of a whole request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadUsage {
    /// Tokens of the prompts; a canvas is not counted.
    pub input_tokens: u64,
    /// Tokens of thought: a reading writes none.
    pub output_tokens: u64,
    /// Input tokens that were not computed again.
    #[serde(rename = "x_cached_tokens")]
    pub cached_tokens: u64,
    /// Tokens that were computed: a prefix shared by several questions once, every branch and canvas.
    #[serde(rename = "x_computed_tokens")]
    pub computed_tokens: u64,
}

impl Reading {
    /// A reading without extras. The outcomes of a noul are (yes, no).
    pub fn new(distribution: Distribution) -> Self {
        Self { distribution, entropy: false, samples: None, std_error: None }
    }

    /// The same reading, which also tells its entropy in nats as `x_entropy`.
    pub fn with_entropy(self) -> Self {
        Self { entropy: true, ..self }
    }

    /// The same reading, which also tells over how many samples it was averaged as `x_samples`.
    pub fn with_samples(self, samples: u32) -> Self {
        Self { samples: Some(samples), ..self }
    }

    /// The same reading, which also tells the standard error of its main number as `x_std_error`.
    ///
    /// That number is the noul, the probability of the choice, or the score. Nothing is told where it is not finite.
    pub fn with_std_error(self, std_error: f64) -> Self {
        Self { std_error: Some(std_error).filter(|error| error.is_finite()), ..self }
    }

    /// The probability of each outcome.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }
}

impl Answer {
    /// The answer that a reading gives; `None` if the question has another number of outcomes.
    pub fn new(question: &Question, reading: Reading) -> Option<Self> {
        if reading.distribution.probabilities().len() != question.kind.outcomes() {
            return None;
        }
        Some(match &question.kind {
            QuestionKind::Noul { .. } => Self::Noul(NoulAnswer { reading }),
            QuestionKind::Choice(options) => {
                let names = options.iter().map(|option| option.name.clone()).collect();
                Self::Choice(ChoiceAnswer { names, reading })
            }
            QuestionKind::Score(levels) => Self::Score(ScoreAnswer { levels: levels.clone(), reading }),
        })
    }

    /// The reading behind the answer.
    pub fn reading(&self) -> &Reading {
        match self {
            Self::Noul(NoulAnswer { reading })
            | Self::Choice(ChoiceAnswer { reading, .. })
            | Self::Score(ScoreAnswer { reading, .. }) => reading,
        }
    }
}

impl NoulAnswer {
    /// The probability of yes.
    pub fn yes(&self) -> f64 {
        self.reading.distribution.probabilities()[0]
    }
}

impl ChoiceAnswer {
    /// The index of the most probable option.
    pub fn index(&self) -> usize {
        self.reading.distribution.top()
    }

    /// The options in the order of the request.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The name of the most probable option.
    pub fn name(&self) -> &str {
        &self.names[self.index()]
    }

    /// 0 to 1.
    pub fn confidence(&self) -> f64 {
        self.reading.distribution.choice_confidence()
    }
}

impl ScoreAnswer {
    /// The expected level, 0 to the number of levels less one.
    pub fn score(&self) -> f64 {
        self.reading.distribution.mean()
    }

    /// 0 to 1.
    pub fn confidence(&self) -> f64 {
        self.reading.distribution.score_confidence()
    }
}

impl Answers {
    /// The answers that readings give, one for each question; `None` if their numbers do not match.
    pub fn new(request: &DecisionRequest, readings: Vec<Reading>) -> Option<Self> {
        if readings.len() != request.questions.len() {
            return None;
        }
        let answer = |(question, reading): (&Question, Reading)| {
            Answer::new(question, reading).map(|answer| (question.id.clone(), answer))
        };
        request.questions.iter().zip(readings).map(answer).collect::<Option<_>>().map(Self)
    }

    /// Each question's id and answer.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Answer)> {
        self.0.iter().map(|(id, answer)| (id.as_str(), answer))
    }
}

impl SystemOneResponse {
    /// The answer of the model of this name.
    pub fn new(model: impl Into<String>, answers: Answers, usage: ReadUsage) -> Self {
        Self { model: model.into(), answers, usage }
    }
}

impl Serialize for Answers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let probabilities = self.reading().distribution.probabilities();
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Noul(answer) => {
                map.serialize_entry("type", "noul")?;
                map.serialize_entry("noul", &answer.yes())?;
            }
            Self::Choice(answer) => {
                map.serialize_entry("type", "choice")?;
                map.serialize_entry("choice", answer.name())?;
                map.serialize_entry("probabilities", &Members(answer.names.iter().zip(probabilities)))?;
                map.serialize_entry("confidence", &answer.confidence())?;
            }
            Self::Score(answer) => {
                map.serialize_entry("type", "score")?;
                map.serialize_entry("score", &answer.score())?;
                map.serialize_entry("legend", &Members(answer.levels.iter().enumerate()))?;
                map.serialize_entry("probabilities", &Members(probabilities.iter().enumerate()))?;
                map.serialize_entry("confidence", &answer.confidence())?;
            }
        }
        let Reading { distribution, entropy, samples, std_error } = self.reading();
        if *entropy {
            map.serialize_entry("x_entropy", &distribution.entropy())?;
        }
        if let Some(samples) = samples {
            map.serialize_entry("x_samples", samples)?;
        }
        if let Some(std_error) = std_error {
            map.serialize_entry("x_std_error", std_error)?;
        }
        map.end()
    }
}

/// The pairs of an iterator as the members of an object.
struct Members<I>(I);

impl<K: Serialize, V: Serialize, I: Iterator<Item = (K, V)> + Clone> Serialize for Members<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}
