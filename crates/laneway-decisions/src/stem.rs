//! Prompts that say a state before a question, so that all questions about it follow the same tokens.

use crate::error::PlanError;
use crate::prompt::Prompter;
use crate::wording::Frame;

/// States longer than this many bytes are encoded once, and their end again for each question.
const LONG_STATE: usize = 2048;
/// Bytes of that end.
const STATE_END: usize = 512;
/// Tokens before the question that must agree between a state and its end: no tokenizer looks further.
const SETTLED: usize = 32;
/// Questions that have nothing in common, not even the kind of their first character.
const PROBES: [&str; 2] = ["A", "0"];

/// A state that questions are asked about.
pub(crate) struct Stem<'a> {
    prompter: &'a Prompter,
    frame: &'a Frame,
    state: &'a str,
    /// What questions are encoded after: the state or its end.
    near: &'a str,
    /// The first probe after it.
    probe: Vec<u32>,
    /// Tokens that the probes share.
    common: usize,
    /// The first probe after the whole state and how many of its last tokens are the near one's, where that is short.
    whole: Option<(Vec<u32>, usize)>,
}

/// Questions after a state: the tokens that they share, and those of each after them.
pub(crate) struct Asked {
    pub prefix: Vec<u32>,
    pub suffixes: Vec<Vec<u32>>,
}

impl<'a> Stem<'a> {
    pub fn new(prompter: &'a Prompter, frame: &'a Frame, state: &'a str) -> Result<Self, PlanError> {
        let end = end_of(state);
        if end.len() < state.len() {
            let stem = Self::near(prompter, frame, state, end)?;
            let whole = stem.ids(state, PROBES[0])?;
            let settled = common(whole.iter().rev(), stem.probe.iter().rev());
            if settled >= stem.rest(stem.common) + SETTLED {
                return Ok(Self { whole: Some((whole, settled)), ..stem });
            }
        }
        Self::near(prompter, frame, state, state)
    }

    /// Tokens that depend on the state alone.
    pub fn len(&self) -> usize {
        let probe = self.whole.as_ref().map_or(self.probe.len(), |(whole, _)| whole.len());
        probe - self.rest(self.common)
    }

    /// The prompts of some questions, cut where they differ: after the state, or before where a question reaches into it.
    pub fn ask(&self, questions: &[&str]) -> Result<Asked, PlanError> {
        let ids = questions.iter().map(|question| self.ids(self.near, question)).collect::<Result<Vec<_>, _>>()?;
        let shared = |ids: &Vec<u32>| common(self.probe.iter(), ids.iter()).min(ids.len().saturating_sub(1));
        let common = ids.iter().map(shared).fold(self.common, usize::min);
        let rest = self.rest(common);
        let prefix = match &self.whole {
            None => self.probe[..common].to_vec(),
            Some((whole, settled)) if *settled >= rest + SETTLED => whole[..whole.len() - rest].to_vec(),
            Some(_) => return Self::near(self.prompter, self.frame, self.state, self.state)?.ask(questions),
        };
        if prefix.is_empty() {
            return Err(PlanError::EmptyPrompt);
        }
        Ok(Asked { prefix, suffixes: ids.into_iter().map(|ids| ids[common..].to_vec()).collect() })
    }

    /// The prompt of a question; the same whatever else is asked.
    pub fn prompt(&self, question: &str) -> Result<Vec<u32>, PlanError> {
        let Asked { prefix, suffixes } = self.ask(&[question])?;
        Ok([prefix, suffixes.concat()].concat())
    }

    fn near(prompter: &'a Prompter, frame: &'a Frame, state: &'a str, near: &'a str) -> Result<Self, PlanError> {
        let stem = Self { prompter, frame, state, near, probe: Vec::new(), common: 0, whole: None };
        let [probe, other] = [stem.ids(near, PROBES[0])?, stem.ids(near, PROBES[1])?];
        let common = common(probe.iter(), other.iter());
        Ok(Self { probe, common, ..stem })
    }

    fn ids(&self, state: &str, question: &str) -> Result<Vec<u32>, PlanError> {
        Ok(self.prompter.framed(self.frame, state, question)?)
    }

    /// Tokens of the probe after its first `common`.
    fn rest(&self, common: usize) -> usize {
        self.probe.len() - common
    }
}

/// How many items two begin with alike.
pub(crate) fn common<'a>(a: impl Iterator<Item = &'a u32>, b: impl Iterator<Item = &'a u32>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

fn end_of(state: &str) -> &str {
    if state.len() <= LONG_STATE {
        return state;
    }
    let from = (state.len() - STATE_END..).find(|&at| state.is_char_boundary(at)).expect("the end is a boundary");
    &state[from..]
}
