//! Questions read one by one after a state: a prompt that ends with the state, a branch for each question.

use laneway_session::{Branch, BranchKind, Slot};

use crate::agenda::{Item, Kind};
use crate::error::PlanError;
use crate::labels::{Label, TextLabels};
use crate::plan::{Look, ReadPart};
use crate::prompt::Prompter;
use crate::tree::{Node, Tree, Trie, TrieNode};
use crate::wording;

/// States longer than this many bytes are encoded once, and their end again for each question.
const LONG_STATE: usize = 2048;
/// Bytes of that end.
const STATE_END: usize = 512;
/// Tokens before the question that must agree between a state and its end: no tokenizer looks further.
const SETTLED: usize = 32;
/// Questions that have nothing in common, not even the kind of their first character.
const PROBES: [&str; 2] = ["A", "0"];

/// A question as it is asked in one order of its outcomes.
pub(crate) struct Asking<'a> {
    pub item: usize,
    pub order: usize,
    text: String,
    labels: Vec<(usize, &'a Label)>,
}

/// How the questions of this model are labelled and ended.
pub(crate) struct CausalStyle {
    pub labels: TextLabels,
    /// Tokens that begin the answer.
    pub opening: Vec<u32>,
    pub sides_are_letters: bool,
    pub levels_are_letters: bool,
}

impl CausalStyle {
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
        let text = wording::text_question(item, &shown, own.is_none());
        Ok(Asking { item: index, order: at, text, labels })
    }
}

/// What follows a state: the branches of its questions.
pub(crate) struct Section {
    pub part: ReadPart,
    pub looks: Vec<Look>,
    /// Tokens of each question up to its answer.
    pub question_tokens: Vec<usize>,
}

/// The read of some questions about a state.
pub(crate) fn section(
    prompter: &Prompter,
    opening: &[u32],
    state: &str,
    askings: &[Asking],
    (part, is_prior): (usize, bool),
    context: usize,
) -> Result<Section, PlanError> {
    let texts: Vec<&str> = askings.iter().map(|asking| asking.text.as_str()).collect();
    let (prompt, suffixes) = share(prompter, state, &texts)?;
    let mut section =
        Section { part: ReadPart { prompt, branches: Vec::new() }, looks: Vec::new(), question_tokens: Vec::new() };
    for (asking, suffix) in askings.iter().zip(suffixes) {
        let suffix = [suffix.as_slice(), opening].concat();
        section.question_tokens.push(suffix.len());
        let tree = branches(&suffix, &asking.labels, &mut section.part.branches);
        section.looks.push(Look { item: asking.item, order: asking.order, part, tree, is_prior });
    }
    let longest = section.part.branches.iter().map(|branch| branch.tokens.len()).max().unwrap_or(0);
    let tokens = section.part.prompt.len().saturating_add(longest);
    if tokens > context {
        return Err(PlanError::TooLong { tokens, context });
    }
    Ok(section)
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

/// The tokens that all questions about a state share, which depend on the state alone, and those of each question
/// after them.
fn share(prompter: &Prompter, state: &str, questions: &[&str]) -> Result<(Vec<u32>, Vec<Vec<u32>>), PlanError> {
    let end = end_of(state);
    if end.len() < state.len() {
        let near = asked(prompter, end, questions)?;
        let whole = prompter.ids(None, &wording::text_user(state, PROBES[0]))?;
        let rest = near.probe.len() - near.common;
        if common(whole.iter().rev(), near.probe.iter().rev()) >= rest + SETTLED {
            return near.after(whole[..whole.len() - rest].to_vec());
        }
    }
    let near = asked(prompter, state, questions)?;
    let prefix = near.probe[..near.common].to_vec();
    near.after(prefix)
}

/// Prompts about one state.
struct Prompts {
    probe: Vec<u32>,
    /// Tokens with which all begin.
    common: usize,
    asked: Vec<Vec<u32>>,
}

impl Prompts {
    fn after(self, prefix: Vec<u32>) -> Result<(Vec<u32>, Vec<Vec<u32>>), PlanError> {
        if prefix.is_empty() {
            return Err(PlanError::EmptyPrompt);
        }
        Ok((prefix, self.asked.into_iter().map(|ids| ids[self.common..].to_vec()).collect()))
    }
}

fn asked(prompter: &Prompter, state: &str, questions: &[&str]) -> Result<Prompts, PlanError> {
    let ids = |question: &str| prompter.ids(None, &wording::text_user(state, question));
    let [probe, other] = [ids(PROBES[0])?, ids(PROBES[1])?];
    let mut shared = common(probe.iter(), other.iter());
    let asked = questions.iter().map(|question| ids(question)).collect::<Result<Vec<_>, _>>()?;
    for ids in &asked {
        shared = shared.min(common(probe.iter(), ids.iter())).min(ids.len().saturating_sub(1));
    }
    Ok(Prompts { probe, common: shared, asked })
}

fn common<'a>(a: impl Iterator<Item = &'a u32>, b: impl Iterator<Item = &'a u32>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

fn end_of(state: &str) -> &str {
    if state.len() <= LONG_STATE {
        return state;
    }
    let from = (state.len() - STATE_END..).find(|&at| state.is_char_boundary(at)).expect("the end is a boundary");
    &state[from..]
}
