//! Labels that are tokens of their own where an answer stands.

use std::collections::BTreeSet;

use laneway_text::Tokenizer;

use crate::agenda::Kind;
use crate::layout::{Entry, Layout};
use crate::prompt::{Neutral, Prompter};
use crate::wording::{DIGITS, TEXT_SIDES};

/// Two-letter labels that are words come last: a model says them for other reasons.
const WORDS: [&str; 30] = [
    "AM", "AN", "AS", "AT", "BE", "BY", "DO", "GO", "HA", "HE", "HI", "IF", "IN", "IS", "IT", "ME", "MY", "NO", "OF",
    "OH", "OK", "ON", "OR", "SO", "TO", "UP", "US", "UK", "WE", "PM",
];

/// A label and every way to write it as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub text: String,
    /// At least one, none empty.
    pub spellings: Vec<Vec<u32>>,
}

/// Labels where an answer begins in text.
pub(crate) struct TextLabels {
    letters: Vec<Label>,
    /// Of two letters each, whatever their number of tokens.
    codes: Vec<Label>,
    digits: Option<Vec<Label>>,
    sides: Option<Vec<Label>>,
}

impl TextLabels {
    pub fn new(prompter: &Prompter, neutral: &Neutral) -> Self {
        let mut taken = BTreeSet::new();
        let single = |text: String| single(prompter, neutral, text, &mut taken);
        let letters: Vec<Label> = candidates().into_iter().filter_map(single).collect();
        let walked = |text: &str| {
            let spellings = prompter.continuation(neutral, text).into_iter().collect::<Vec<_>>();
            (!spellings.is_empty()).then(|| Label { text: text.to_owned(), spellings })
        };
        let all = |texts: &[&str]| {
            let mut taken = BTreeSet::new();
            let mut one = |text: &&str| single_or(prompter, neutral, text, &mut taken, walked);
            let labels = texts.iter().map(&mut one).collect::<Option<Vec<Label>>>();
            labels.filter(|labels| is_prefix_free(labels))
        };
        let codes = pairs().iter().filter_map(|text| walked(text)).collect::<Vec<_>>();
        Self {
            codes: if is_prefix_free(&codes) { codes } else { Vec::new() },
            digits: all(&DIGITS),
            sides: all(&TEXT_SIDES),
            letters,
        }
    }

    /// The first `count` letters, or codes where there are too few; else how many there are.
    pub fn letters(&self, count: usize) -> Result<&[Label], usize> {
        let most = self.letters.len().max(self.codes.len());
        self.letters.get(..count).or_else(|| self.codes.get(..count)).ok_or(most)
    }

    /// Yes and no, or the digits, where the tokenizer has them.
    pub fn own(&self, kind: Kind) -> Option<&[Label]> {
        match kind {
            Kind::Noul => self.sides.as_deref(),
            Kind::Score => self.digits.as_deref(),
            Kind::Choice => None,
        }
    }
}

/// Letters and pairs, each a token of its own in the answer of a layout, and below `vocabulary`.
pub(crate) fn canvas_letters(tokenizer: &Tokenizer, layout: Layout, vocabulary: u32) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    let mut ids = BTreeSet::new();
    for candidate in candidates() {
        // Two others to be told from: the first label has none yet.
        let reference = kept.first().map_or_else(|| if candidate == "A" { "B" } else { "A" }.to_owned(), Clone::clone);
        let labels = [candidate.clone(), reference];
        let laid = layout.lay(tokenizer, &[Entry { index: 0, labels: &labels }]);
        if let Ok(laid) = laid
            && laid.slots[0].labels[0] < vocabulary
            && ids.insert(laid.slots[0].labels[0])
        {
            kept.push(candidate);
        }
    }
    kept
}

/// A-Z, a-z, then pairs.
fn candidates() -> Vec<String> {
    let letters = ('A'..='Z').chain('a'..='z').map(String::from);
    letters.chain(pairs()).collect()
}

fn pairs() -> Vec<String> {
    let all = ('A'..='Z').flat_map(|first| ('A'..='Z').map(move |second| format!("{first}{second}")));
    let (words, pairs): (Vec<_>, Vec<_>) = all.partition(|pair| WORDS.contains(&pair.as_str()));
    [pairs, words].concat()
}

/// The label in all its spellings of one token that no earlier label has.
fn single(prompter: &Prompter, neutral: &Neutral, text: String, taken: &mut BTreeSet<u32>) -> Option<Label> {
    let mut spellings = Vec::new();
    for spelling in [text.clone(), format!(" {text}")] {
        if let Some([id]) = prompter.continuation(neutral, &spelling).as_deref()
            && !prompter.tokenizer.is_special(*id)
            && prompter.tokenizer.decode(&[*id], false).trim() == text
            && taken.insert(*id)
        {
            spellings.push(vec![*id]);
        }
    }
    (!spellings.is_empty()).then_some(Label { text, spellings })
}

fn single_or(
    prompter: &Prompter,
    neutral: &Neutral,
    text: &str,
    taken: &mut BTreeSet<u32>,
    otherwise: impl Fn(&str) -> Option<Label>,
) -> Option<Label> {
    single(prompter, neutral, text.to_owned(), taken).or_else(|| otherwise(text))
}

/// Whether no label's tokens begin another's: only then a walk ends at one label.
fn is_prefix_free(labels: &[Label]) -> bool {
    let mut all: Vec<&Vec<u32>> = labels.iter().flat_map(|label| &label.spellings).collect();
    all.sort();
    all.windows(2).all(|pair| !pair[1].starts_with(pair[0]))
}
