use crate::agenda::Kind;
use crate::error::ReaderError;

/// Models of fewer parameters answer letters by habit: SmolLM2-135M sends 2 of 30 support tickets to the right one of
/// 6 queues by letters, 27 by words.
const SMALL: u64 = 500_000_000;

/// How a model's decisions are read, as its owner sets it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReaderOptions {
    /// What logits are divided by.
    pub temperatures: Temperatures,
    /// Orders of the options that are averaged at least, from 1.
    pub permutations: u32,
    /// Whether the habit without a state is always divided out; only for a model that predicts the next token.
    pub prior_correction: bool,
    /// Whether each question has a prompt and a canvas of its own, as if all asked for it: then no answer depends on what
    /// else is asked, and every question costs a read. A model that predicts the next token has no other way.
    pub isolated: bool,
    /// What a noul is answered with by a model that predicts the next token.
    pub noul_labels: NoulLabels,
    /// What a choice is answered with by such a model.
    pub choice_labels: ChoiceLabels,
    /// What a score is answered with by such a model.
    pub score_labels: ScoreLabels,
    /// Text that such a model's answer begins with, before the label.
    pub answer_opening: String,
}

/// Temperatures by type of question, each over 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperatures {
    pub noul: f64,
    pub choice: f64,
    pub score: f64,
}

/// Labels of a noul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoulLabels {
    /// Yes and No.
    #[default]
    Words,
    /// A and B, for the options Yes and No.
    Letters,
}

/// Labels of a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChoiceLabels {
    /// A and so on, with the options listed in a turn of a conversation.
    #[default]
    Letters,
    /// The words of the options themselves, as keywords of the bare text, less what is said after the options' own texts
    /// in its place: one short read more for each new question. The options are not listed, so that their order does
    /// not matter. For models too small to follow a letter back to its option. Options that their words do not tell
    /// apart get letters.
    Words,
}

/// Labels of a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoreLabels {
    /// 0 for the lowest level, and so on.
    #[default]
    Digits,
    /// A and so on.
    Letters,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            temperatures: Temperatures::default(),
            permutations: 1,
            prior_correction: false,
            isolated: false,
            noul_labels: NoulLabels::default(),
            choice_labels: ChoiceLabels::default(),
            score_labels: ScoreLabels::default(),
            answer_opening: String::new(),
        }
    }
}

impl ReaderOptions {
    /// What is best without a calibration for a model that predicts the next token and has so many parameters.
    pub fn for_parameters(parameters: u64) -> Self {
        let choice_labels = if parameters < SMALL { ChoiceLabels::Words } else { ChoiceLabels::Letters };
        Self { choice_labels, ..Self::default() }
    }
}

impl Default for Temperatures {
    fn default() -> Self {
        Self { noul: 1.0, choice: 1.0, score: 1.0 }
    }
}

impl Temperatures {
    pub(crate) fn of(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Noul => self.noul,
            Kind::Choice => self.choice,
            Kind::Score => self.score,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ReaderError> {
        for (kind, value) in [("noul", self.noul), ("choice", self.choice), ("score", self.score)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ReaderError::Temperature { kind, value });
            }
        }
        Ok(())
    }
}
