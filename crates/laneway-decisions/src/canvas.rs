//! Questions read together: a prompt that lists them, canvases with a token of noise where each label stands.

use laneway_session::canvas::{CanvasContext, CanvasLimits, Noise};
use laneway_session::{Branch, BranchKind, Slot};

use crate::agenda::{Agenda, Item, Kind};
use crate::error::PlanError;
use crate::layout::{Entry, Layout};
use crate::noise::SplitMix64;
use crate::plan::{Look, ReadPart};
use crate::prompt::Prompter;
use crate::tree::{Child, Node, Tree};
use crate::wording::{self, CANVAS_SIDES, DIGITS};

/// Longest canvas of a read: what is beyond answers nothing and costs as much.
const MOST_POSITIONS: usize = 64;
/// Canvases are a multiple of this long, where the model's is.
const GRAIN: usize = 16;

/// What a canvas of this model is like.
pub(crate) struct CanvasStyle {
    pub limits: CanvasLimits,
    /// Tokens before the answers.
    pub scaffold: Vec<u32>,
    /// Token after them.
    pub close: Option<u32>,
    /// Labels of options in lines, and glued to names.
    pub letters: [Vec<String>; 2],
}

/// Answers that are read together, before the slots are filled.
#[derive(Clone, Debug)]
pub(crate) struct Canvas {
    pub part: usize,
    group: u64,
    tokens: Vec<u32>,
    slots: Vec<Slot>,
    passes: u32,
    /// For each slot the item, the order, and the outcomes of its labels.
    read: Vec<(usize, usize, Vec<usize>)>,
}

/// The parts of a request and the canvases of each.
pub(crate) struct Canvases {
    pub prompts: Vec<Vec<u32>>,
    pub canvases: Vec<Canvas>,
}

impl Canvas {
    /// The branch of a sample, and what it lets see.
    pub fn fill(
        &self,
        limits: &CanvasLimits,
        seed: u64,
        sample: u64,
        part: usize,
        branch: usize,
    ) -> (Branch, Vec<Look>) {
        let shifted = seed.wrapping_add(sample.wrapping_mul(7919)).wrapping_add(self.group.wrapping_mul(104_729));
        let mut random = SplitMix64::new(shifted);
        let mut tokens = self.tokens.clone();
        for slot in &self.slots {
            tokens[slot.row] = match limits.noise {
                Noise::Uniform => random.below(limits.vocabulary),
                Noise::Masked { mask } => mask,
            };
        }
        let kind = BranchKind::Canvas { passes: self.passes };
        let look = |(slot, (item, order, outcomes)): (usize, &(usize, usize, Vec<usize>))| {
            let children = outcomes.iter().map(|&outcome| Child::Outcome(outcome)).collect();
            let tree = Tree { nodes: vec![Node { branch, slot, children }] };
            Look { item: *item, order: *order, part, tree, is_prior: false }
        };
        let looks = self.read.iter().enumerate().map(look).collect();
        (Branch { tokens, kind, slots: self.slots.clone() }, looks)
    }

    /// The items that are read on it, each with its order.
    pub fn looks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.read.iter().map(|(item, order, _)| (*item, *order))
    }
}

impl CanvasStyle {
    /// Lays the questions out; `orders` are those of each item, none for what needs no read.
    pub fn plan(
        &self,
        prompter: &Prompter,
        agenda: &Agenda,
        state: &str,
        orders: &[Vec<Vec<usize>>],
        passes: u32,
    ) -> Result<Canvases, PlanError> {
        let live = orders.iter().filter(|orders| !orders.is_empty()).count();
        let [first, second] = Layout::preferred(live);
        let plan = |layout| Sheet { style: self, prompter, agenda, orders, layout }.plan(state, passes);
        plan(first).or_else(|error| match error {
            PlanError::TooManyOptions { .. } | PlanError::Slot { .. } | PlanError::CanvasTooSmall { .. } => {
                plan(second).map_err(|_| error)
            }
            other => Err(other),
        })
    }

    /// Most positions that a canvas of a read can have: only where a canvas is a unit of its own is its length a bound.
    fn most(&self) -> usize {
        match self.limits.context {
            CanvasContext::Causal => self.limits.length.min(MOST_POSITIONS),
            CanvasContext::Blocks | CanvasContext::Whole => MOST_POSITIONS,
        }
    }

    fn positions(&self, answers: usize) -> usize {
        self.scaffold.len() + answers + usize::from(self.close.is_some())
    }
}

/// A request in one layout.
struct Sheet<'a> {
    style: &'a CanvasStyle,
    prompter: &'a Prompter,
    agenda: &'a Agenda,
    orders: &'a [Vec<Vec<usize>>],
    layout: Layout,
}

/// An item in one order.
struct Posed<'a> {
    item: usize,
    /// Its place among those that are asked.
    index: usize,
    order: usize,
    outcomes: &'a [usize],
    labels: Vec<String>,
}

impl<'a> Sheet<'a> {
    fn plan(&self, state: &str, passes: u32) -> Result<Canvases, PlanError> {
        let rounds = self.orders.iter().map(Vec::len).max().unwrap_or(0);
        let mut planned = Canvases { prompts: Vec::new(), canvases: Vec::new() };
        for round in 0..rounds {
            let posed = self.posed(round)?;
            let groups = self.groups(posed.iter().filter(|posed| posed.order == round).collect())?;
            let shown: Vec<(&Item, Vec<(usize, String)>)> = posed
                .iter()
                .map(|it| {
                    (&self.agenda.items[it.item], it.outcomes.iter().copied().zip(it.labels.iter().cloned()).collect())
                })
                .collect();
            let is_split = groups.len() > 1;
            let system = wording::canvas_system(&shown, self.layout, is_split);
            let prompt = self.prompter.ids(Some(&system), state)?;
            if prompt.is_empty() {
                return Err(PlanError::EmptyPrompt);
            }
            for (number, group) in groups.iter().enumerate() {
                planned.canvases.push(self.canvas(group, round, number as u64, passes)?);
            }
            planned.prompts.push(prompt);
        }
        Ok(planned)
    }

    fn posed(&self, round: usize) -> Result<Vec<Posed<'a>>, PlanError> {
        let live = self.orders.iter().enumerate().filter(|(_, orders)| !orders.is_empty());
        live.enumerate()
            .map(|(index, (item, orders))| {
                let order = round % orders.len();
                let outcomes = orders[order].as_slice();
                Ok(Posed { item, index, order, outcomes, labels: self.labels(item, outcomes)? })
            })
            .collect()
    }

    fn labels(&self, item: usize, outcomes: &[usize]) -> Result<Vec<String>, PlanError> {
        let own =
            |labels: &[&str]| outcomes.iter().filter_map(|&it| labels.get(it).map(|it| (*it).to_owned())).collect();
        let letters = &self.style.letters[usize::from(self.layout == Layout::Indexed)];
        let labels: Vec<String> = match self.agenda.items[item].kind {
            Kind::Noul => own(&CANVAS_SIDES),
            Kind::Score => own(&DIGITS),
            Kind::Choice => letters.iter().take(outcomes.len()).cloned().collect(),
        };
        if labels.len() < outcomes.len() {
            let (question, options) = (self.agenda.id(item), outcomes.len());
            return Err(PlanError::TooManyOptions { question, options, labels: labels.len() });
        }
        Ok(labels)
    }

    /// Each item in the first group with room for it; those that want to be alone are.
    fn groups<'p>(&self, posed: Vec<&'p Posed<'a>>) -> Result<Vec<Vec<&'p Posed<'a>>>, PlanError> {
        let mut groups: Vec<Vec<&Posed>> = Vec::new();
        for posed in posed {
            let is_alone = |posed: &Posed| self.agenda.items[posed.item].alone;
            let fits = |group: &&mut Vec<&Posed<'a>>| {
                let joined: Vec<&Posed> = group.iter().copied().chain([posed]).collect();
                !is_alone(posed) && !is_alone(group[0]) && self.needed(&joined) <= self.style.most()
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(posed),
                None => groups.push(vec![posed]),
            }
            let needed = self.needed(&[posed]);
            if needed > self.style.most() {
                let question = self.agenda.id(posed.item);
                return Err(PlanError::CanvasTooSmall { question, tokens: needed, canvas: self.style.most() });
            }
        }
        Ok(groups)
    }

    fn needed(&self, group: &[&Posed]) -> usize {
        self.style.positions(self.layout.tokens(&self.prompter.tokenizer, &entries(group)).len())
    }

    fn canvas(&self, group: &[&Posed], part: usize, number: u64, passes: u32) -> Result<Canvas, PlanError> {
        let laid = self.layout.lay(&self.prompter.tokenizer, &entries(group)).map_err(|error| PlanError::Slot {
            question: self.agenda.id(group[error.entry].item),
            tokens: error.tokens,
        })?;
        let CanvasStyle { limits, scaffold, close, .. } = self.style;
        let mut tokens = [scaffold.as_slice(), &laid.tokens].concat();
        tokens.extend(close);
        let length = tokens.len().next_multiple_of(GRAIN).min(self.style.most()).max(tokens.len());
        tokens.resize(length, limits.pad);
        let mut read: Vec<_> = laid
            .slots
            .into_iter()
            .zip(group)
            .map(|(slot, posed)| {
                let slot = Slot { row: scaffold.len() + slot.row, labels: slot.labels };
                (slot, (posed.item, posed.order, posed.outcomes.to_vec()))
            })
            .collect();
        read.sort_by_key(|(slot, _)| slot.row);
        let (slots, read) = read.into_iter().unzip();
        Ok(Canvas { part, group: number, tokens, slots, passes, read })
    }
}

fn entries<'p>(group: &[&'p Posed]) -> Vec<Entry<'p>> {
    group.iter().map(|posed| Entry { index: posed.index, labels: &posed.labels }).collect()
}

/// Parts with the prompts of a plan and no branches yet.
pub(crate) fn parts(prompts: &[Vec<u32>]) -> Vec<ReadPart> {
    prompts.iter().map(|prompt| ReadPart { prompt: prompt.clone(), branches: Vec::new() }).collect()
}
