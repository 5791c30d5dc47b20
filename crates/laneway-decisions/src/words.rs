//! Options told apart by their own words: which of them a model would go on with.

use std::collections::BTreeMap;

use crate::agenda::{Item, Outcome};
use crate::tree::{Unreadable, log_sum};

/// Most words of an option that count.
const MOST_WORDS: usize = 32;
/// Most options whose own text is read in place of a state.
const MOST_STAND_INS: usize = 16;
/// Logits are divided by this where the temperature is 1: a mean over words is flatter than any of them. The least loss of
/// SmolLM2-135M over seven sets of choices.
const FLATNESS: f64 = 0.5;
/// Words that say nothing of their option.
const EMPTY_WORDS: [&str; 30] = [
    "a", "an", "the", "of", "or", "and", "to", "in", "on", "for", "with", "is", "are", "be", "by", "from", "at", "no",
    "not", "any", "as", "via", "that", "this", "it", "its", "into", "than", "other", "etc",
];

/// The first tokens of the words of a question's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    /// Tokens, all different.
    pub labels: Vec<u32>,
    /// For each outcome its words, for each of these the labels that begin it.
    pub outcomes: Vec<Vec<Vec<usize>>>,
}

/// Where they are read.
#[derive(Clone, Debug)]
pub(crate) struct WordsPlace {
    pub branch: usize,
    pub slot: usize,
    pub labels: usize,
    pub outcomes: Vec<Vec<Vec<usize>>>,
}

impl Words {
    /// `first` gives the first token of a word; `None` where words do not tell the options apart.
    pub fn new(item: &Item, first: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let mut words = Self { labels: Vec::new(), outcomes: Vec::new() };
        let mut places: BTreeMap<u32, usize> = BTreeMap::new();
        for outcome in &item.outcomes {
            let mut own: Vec<Vec<usize>> = Vec::new();
            for word in said(outcome) {
                let tokens = spellings(&word).into_iter().filter_map(|spelling| first(&spelling));
                let mut labels: Vec<usize> = tokens
                    .map(|token| {
                        *places.entry(token).or_insert_with(|| {
                            words.labels.push(token);
                            words.labels.len() - 1
                        })
                    })
                    .collect();
                labels.sort_unstable();
                labels.dedup();
                if !labels.is_empty() {
                    own.push(labels);
                }
            }
            own.sort();
            own.dedup();
            if own.is_empty() || words.outcomes.contains(&own) {
                return None;
            }
            words.outcomes.push(own);
        }
        Some(words)
    }
}

impl WordsPlace {
    /// Natural logs of the probabilities of the outcomes: a softmax over the mean of their words' logits, sharpened; the
    /// spellings of a word add up.
    pub fn log_probabilities(&self, logits: &[Vec<Vec<f32>>], temperature: f64) -> Result<Vec<f64>, Unreadable> {
        let slot = logits.get(self.branch).and_then(|slots| slots.get(self.slot)).ok_or(Unreadable::Mismatch)?;
        if slot.len() != self.labels {
            return Err(Unreadable::Mismatch);
        }
        if slot.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Err(Unreadable::NotFinite);
        }
        let word = |labels: &Vec<usize>| log_sum(&labels.iter().map(|&at| f64::from(slot[at])).collect::<Vec<_>>());
        let mean = |words: &Vec<Vec<usize>>| words.iter().map(word).sum::<f64>() / words.len() as f64;
        let mut logs: Vec<f64> = self.outcomes.iter().map(|words| mean(words) / (FLATNESS * temperature)).collect();
        let total = log_sum(&logs);
        if !total.is_finite() {
            return Err(Unreadable::NotFinite);
        }
        logs.iter_mut().for_each(|log| *log -= total);
        Ok(logs)
    }
}

/// The words of an option's name and description, each once; empty ones only if there are no others.
fn said(outcome: &Outcome) -> Vec<String> {
    let text = format!("{} {}", outcome.name, outcome.description.as_deref().unwrap_or_default());
    let mut words: Vec<String> = Vec::new();
    let is_part = |char: char| char.is_alphanumeric() || matches!(char, '\'' | '-');
    for word in text.split(|char| !is_part(char)).map(|word| word.trim_matches(['\'', '-'])) {
        if !word.is_empty() && !words.iter().any(|other| other.to_lowercase() == word.to_lowercase()) {
            words.push(word.to_owned());
        }
    }
    if words.iter().any(|word| !is_empty(word)) {
        words.retain(|word| !is_empty(word));
    }
    words.truncate(MOST_WORDS);
    words
}

fn is_empty(word: &str) -> bool {
    EMPTY_WORDS.contains(&word.to_lowercase().as_str())
}

/// In small letters, and as it stands.
fn spellings(word: &str) -> [String; 2] {
    [word.to_lowercase(), word.to_owned()]
}

/// Texts of options in place of a state: what is likely after all of them is a habit and no answer. The same whatever
/// the order of the options.
pub(crate) fn stand_ins(item: &Item) -> Vec<String> {
    let text = |outcome: &Outcome| {
        let name = outcome.name.replace('_', " ");
        outcome.description.as_ref().map_or_else(|| name.clone(), |description| format!("{name}: {description}"))
    };
    let mut texts: Vec<String> = item.outcomes.iter().map(text).collect();
    texts.sort();
    let count = texts.len().min(MOST_STAND_INS);
    (0..count).map(|index| texts[index * texts.len() / count].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agenda::Kind;

    fn item(options: &[(&str, Option<&str>)]) -> Item {
        let outcome = |(name, description): &(&str, Option<&str>)| Outcome {
            name: (*name).to_owned(),
            description: description.map(str::to_owned),
        };
        Item { kind: Kind::Choice, instructions: None, outcomes: options.iter().map(outcome).collect(), alone: false }
    }

    /// The first letter is the token.
    fn words(options: &[(&str, Option<&str>)]) -> Option<Words> {
        Words::new(&item(options), |word| word.chars().next().map(u32::from))
    }

    #[test]
    fn an_option_is_the_words_of_its_name_and_description() {
        let outcome = |name, description| item(&[(name, description)]).outcomes.remove(0);
        assert_eq!(
            said(&outcome("lost_card", Some("The card, lost at the bank's door"))),
            ["lost", "card", "bank's", "door"]
        );
        assert_eq!(said(&outcome("it", None)), ["it"]);
        assert_eq!(said(&outcome("IT -- no", None)), ["IT", "no"]);
        assert!(said(&outcome("…!", None)).is_empty());
        assert_eq!(spellings("éTé"), ["été", "éTé"]);
    }

    #[test]
    fn options_that_words_do_not_tell_apart_have_none() {
        assert!(words(&[("red", None), ("blue", None)]).is_some());
        assert!(words(&[("red", None), ("rose", None)]).is_none());
        assert!(words(&[("red", None), ("!", None)]).is_none());
    }

    #[test]
    fn stand_ins_are_spread_over_the_options_in_any_order() {
        let two = item(&[("lost_card", Some("gone")), ("a", None)]);
        assert_eq!(stand_ins(&two), ["a", "lost card: gone"]);
        let mut many = item(&[("x", None); 40]);
        many.outcomes.iter_mut().enumerate().for_each(|(at, outcome)| outcome.name = format!("{at:02}"));
        let first = stand_ins(&many);
        assert_eq!((first.len(), first[1].as_str(), first[15].as_str()), (16, "02", "37"));
        many.outcomes.reverse();
        assert_eq!(stand_ins(&many), first);
    }

    #[test]
    fn spellings_add_up_and_words_are_averaged() {
        let Words { labels, outcomes } = words(&[("Ab bc", None), ("Cc", None)]).unwrap();
        let text: Vec<char> = labels.iter().map(|label| char::from_u32(*label).unwrap()).collect();
        assert_eq!(text, ['a', 'A', 'b', 'c', 'C']);
        let place = WordsPlace { branch: 0, slot: 0, labels: labels.len(), outcomes };
        let weights = [1.0_f32, 3.0, 1.0, 1.0, 1.0];
        let logits = vec![vec![weights.map(f32::ln).to_vec()]];
        let found: Vec<f64> = place.log_probabilities(&logits, 1.0).unwrap().iter().map(|log| log.exp()).collect();
        // The mean of the logs of 4 and 1 is that of 2, and so is the other.
        assert!(found.iter().all(|p| (p - 0.5).abs() < 1e-6), "{found:?}");
        assert_eq!(place.log_probabilities(&[], 1.0), Err(Unreadable::Mismatch));
        let broken = vec![vec![vec![f32::NAN; 5]]];
        assert_eq!(place.log_probabilities(&broken, 1.0), Err(Unreadable::NotFinite));
    }
}
