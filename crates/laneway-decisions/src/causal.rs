//! Questions read one by one after a state: a prompt that ends with the state, a branch for each question.

use laneway_session::{Branch, BranchKind, Slot};

use crate::agenda::{Item, Kind};
use crate::error::PlanError;
use crate::labels::{Label, TextLabels};
use crate::plan::{Lens, Look, ReadPart};
use crate::prompt::Prompter;
use crate::stem::{self, Asked, Stem};
use crate::tree::{Node, Tree, Trie, TrieNode};
use crate::wording::{self, Frame, WORDS_CLOSING};
use crate::words::{Words, WordsPlace};

/// A question as it is asked in one order of its outcomes.
pub(crate) struct Asking<'a> {
    pub item: usize,
    pub order: usize,
    pub frame: &'static Frame,
    text: String,
    answer: Answer<'a>,
}

/// What its answer is read from.
enum Answer<'a> {
    Labels(Vec<(usize, &'a Label)>),
    Words(&'a Words),
}

/// How the questions of this model are labelled and ended.
pub(crate) struct CausalStyle {
    pub labels: TextLabels,
    /// Tokens that begin the answer.
    pub opening: Vec<u32>,
    pub sides_are_letters: bool,
    pub levels_are_letters: bool,
    pub options_are_words: bool,
}

impl Asking<'_> {
    /// Whether the options are told apart by their words.
    pub fn is_by_words(&self) -> bool {
        matches!(self.answer, Answer::Words(_))
    }
}

impl CausalStyle {
    /// What stands around every state: the same whatever is asked, so that a state is read once.
    pub fn frame(&self) -> &'static Frame {
        if self.options_are_words { &wording::WORDS_FRAME } else { &wording::TEXT_FRAME }
    }

    /// The words of a question's options, where they are to tell them apart and do.
    pub fn words(&self, prompter: &Prompter, item: &Item) -> Option<Words> {
        let is_wanted = self.options_are_words && item.kind == Kind::Choice && !item.is_forced();
        is_wanted.then(|| Words::new(item, |word| prompter.first_token(WORDS_CLOSING, word))).flatten()
    }

    /// The question whose options are words.
    pub fn asking_words<'a>(&self, index: usize, item: &Item, words: &'a Words) -> Asking<'a> {
        let (frame, text) = (&wording::WORDS_FRAME, wording::words_question(item));
        Asking { item: index, order: 0, frame, text, answer: Answer::Words(words) }
    }

    /// The question in an order of its outcomes, or how many labels there are if they do not suffice.
    pub fn asking<'a>(&'a self, index: usize, item: &Item, at: usize, order: &[usize]) -> Result<Asking<'a>, usize> {
        let wants_letters = match item.kind {
            Kind::Noul => self.sides_are_letters,
            Kind::Choice => true,
            Kind::Score => self.levels_are_letters,
        };
        let own = self.labels.own(item.kind).filter(|_| !wants_letters);
        let labels: Vec<(usize, &Label)> = match own {
            Some(own) => order.iter().filter_map(|&outcome| Some((outcome, own.get(outcome)?))).collect(),
            None => order.iter().copied().zip(self.labels.letters(order.len())?).collect(),
        };
        if labels.len() != order.len() {
            return Err(labels.len());
        }
        let shown: Vec<(usize, String)> =
            labels.iter().map(|(outcome, label)| (*outcome, label.text.clone())).collect();
        let mut text = wording::text_question(item, &shown, own.is_none());
        let frame = self.frame();
        if !frame.is_turn {
            text += wording::plain_closing();
        }
        Ok(Asking { item: index, order: at, frame, text, answer: Answer::Labels(labels) })
    }
}

/// What follows a state: the branches of its questions.
pub(crate) struct Section {
    pub part: ReadPart,
    pub looks: Vec<Look>,
    /// Tokens of each question up to its answer.
    pub question_tokens: Vec<usize>,
}

/// The read of some questions about a state, all in one frame.
pub(crate) fn section(
    prompter: &Prompter,
    opening: &[u32],
    state: &str,
    (frame, askings): (&Frame, &[&Asking]),
    (part, is_prior): (usize, bool),
    context: usize,
) -> Result<Section, PlanError> {
    let texts: Vec<&str> = askings.iter().map(|asking| asking.text.as_str()).collect();
    let Asked { prefix, suffixes } = Stem::new(prompter, frame, state)?.ask(&texts)?;
    let mut section = Section {
        part: ReadPart { prompt: prefix, branches: Vec::new() },
        looks: Vec::new(),
        question_tokens: Vec::new(),
    };
    for (asking, suffix) in askings.iter().zip(suffixes) {
        let (suffix, lens) = match &asking.answer {
            Answer::Labels(labels) => {
                let suffix = [suffix.as_slice(), opening].concat();
                let tree = branches(&suffix, labels, &mut section.part.branches);
                (suffix, Lens::Tree(tree))
            }
            Answer::Words(words) => {
                let place = words_place(words, suffix.clone(), &mut section.part.branches);
                (suffix, Lens::Words(place))
            }
        };
        section.question_tokens.push(suffix.len());
        section.looks.push(Look { item: asking.item, order: asking.order, part, lens, is_prior });
    }
    check_length(&section.part, context)?;
    Ok(section)
}

/// The read of what a question by words is answered with after texts that stand in for a state.
pub(crate) fn stand_in_section(
    prompter: &Prompter,
    asking: &Asking,
    stand_ins: &[String],
    part: usize,
    context: usize,
) -> Result<(ReadPart, Vec<Look>), PlanError> {
    // A line break that all begin with, so that they can be branches of one prompt.
    let ids = |text: &String| prompter.framed(asking.frame, &format!("\n{text}"), &asking.text);
    let ids = stand_ins.iter().map(ids).collect::<Result<Vec<_>, _>>()?;
    let shared = ids.iter().map(|other| stem::common(ids[0].iter(), other.iter()).min(other.len().saturating_sub(1)));
    let shared = shared.min().filter(|shared| *shared > 0).ok_or(PlanError::EmptyPrompt)?;
    let (mut read, mut looks) = (ReadPart { prompt: ids[0][..shared].to_vec(), branches: Vec::new() }, Vec::new());
    if let Answer::Words(words) = asking.answer {
        for ids in &ids {
            let lens = Lens::Words(words_place(words, ids[shared..].to_vec(), &mut read.branches));
            looks.push(Look { item: asking.item, order: asking.order, part, lens, is_prior: true });
        }
    }
    check_length(&read, context)?;
    Ok((read, looks))
}

fn check_length(part: &ReadPart, context: usize) -> Result<(), PlanError> {
    let longest = part.branches.iter().map(|branch| branch.tokens.len()).max().unwrap_or(0);
    let tokens = part.prompt.len().saturating_add(longest);
    if tokens > context { Err(PlanError::TooLong { tokens, context }) } else { Ok(()) }
}

/// Adds the branch after which words are read.
fn words_place(words: &Words, tokens: Vec<u32>, branches: &mut Vec<Branch>) -> WordsPlace {
    let Words { labels, outcomes } = words;
    let place = WordsPlace { branch: branches.len(), slot: 0, labels: labels.len(), outcomes: outcomes.clone() };
    let slots = vec![Slot { row: tokens.len() - 1, labels: labels.clone() }];
    branches.push(Branch { tokens, kind: BranchKind::Causal, slots });
    place
}

/// Adds the branches that read a question's labels.
fn branches(suffix: &[u32], labels: &[(usize, &Label)], branches: &mut Vec<Branch>) -> Tree {
    let sequences =
        labels.iter().flat_map(|(outcome, label)| label.spellings.iter().map(|it| (*outcome, it.as_slice())));
    let trie = Trie::new(sequences);
    let mut places: Vec<Option<(usize, usize)>> = vec![None; trie.nodes.len()];
    let is_inner =
        |node: usize| trie.nodes.iter().any(|other| other.line.len() > 1 && other.line[other.line.len() - 2] == node);
    for node in (0..trie.nodes.len()).filter(|&node| !is_inner(node)) {
        let branch = branches.len();
        let mut slots = Vec::new();
        for &passed in &trie.nodes[node].line {
            if places[passed].is_none() {
                places[passed] = Some((branch, slots.len()));
                let row = suffix.len() - 1 + trie.nodes[passed].path.len();
                slots.push(Slot { row, labels: trie.nodes[passed].labels.clone() });
            }
        }
        let tokens = [suffix, trie.nodes[node].path.as_slice()].concat();
        branches.push(Branch { tokens, kind: BranchKind::Causal, slots });
    }
    let node = |(node, place): (TrieNode, Option<(usize, usize)>)| {
        let (branch, slot) = place.expect("every node lies on the line of some last one");
        Node { branch, slot, children: node.children }
    };
    Tree { nodes: trie.nodes.into_iter().zip(places).map(node).collect() }
}
