//! Answers on canvases: a token of noise where each label stands.

use laneway_protocol::systemone::DecisionRequest;
use laneway_session::canvas::{CanvasContext, CanvasLimits, Noise};
use laneway_session::{Branch, BranchKind, Slot};

use crate::agenda::Agenda;
use crate::error::{PlanError, ReaderError};
use crate::labels::canvas_letters;
use crate::layout::{Entry, Layout};
use crate::noise::SplitMix64;
use crate::plan::{Lens, Look, ReadPart};
use crate::prompt::Prompter;
use crate::seed::{self, AloneSeeds};
use crate::sheet::{Live, Sheet};
use crate::stem::Stem;
use crate::tree::{Child, Node, Tree};
use crate::wording::{self, CANVAS_SIDES, DIGITS};

/// Longest canvas of a read: what is beyond answers nothing and costs as much.
const MOST_POSITIONS: usize = 64;

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
    /// Of the noise of its first sample.
    pub seed: u64,
    pub tokens: Vec<u32>,
    pub slots: Vec<Slot>,
    pub passes: u32,
    /// For each slot the item, the order, and the outcomes of its labels.
    pub read: Vec<(usize, usize, Vec<usize>)>,
}

/// The parts of a request and the canvases of each.
#[derive(Default)]
pub(crate) struct Canvases {
    pub prompts: Vec<Vec<u32>>,
    pub canvases: Vec<Canvas>,
    /// Tokens of the prompts in the first order of each item, those of a shared state once.
    pub input_tokens: usize,
}

impl Canvas {
    /// The branch of a sample, and what it lets see.
    pub fn fill(&self, limits: &CanvasLimits, sample: u64, part: usize, branch: usize) -> (Branch, Vec<Look>) {
        let mut random = SplitMix64::new(self.seed.wrapping_add(sample.wrapping_mul(7919)));
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
            Look { item: *item, order: *order, part, lens: Lens::Tree(tree), is_prior: false }
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
    /// # Errors
    /// A canvas that can hold no answer. The length of blocks is no bound: an answer may go on in the next one.
    pub fn new(prompter: &Prompter, limits: CanvasLimits) -> Result<Self, ReaderError> {
        let CanvasLimits { length, vocabulary, .. } = limits;
        if length == 0 || vocabulary == 0 {
            return Err(ReaderError::Canvas { length, vocabulary });
        }
        let tokenizer = &prompter.tokenizer;
        let layouts = [Layout::Lines, Layout::Indexed];
        let letters = layouts.map(|layout| canvas_letters(tokenizer, layout, vocabulary));
        let style = Self { limits, scaffold: prompter.missing_thought()?, close: prompter.turn_close(), letters };
        let own = [&CANVAS_SIDES[..], &DIGITS].map(|labels| labels.iter().map(|&it| it.to_owned()).collect());
        let mut shortest: Option<Vec<u32>> = None;
        for (layout, letters) in layouts.into_iter().zip(&style.letters) {
            for labels in own.iter().chain([letters]) {
                if let Ok(laid) = layout.lay(tokenizer, &[Entry { index: 0, labels }])
                    && shortest.as_ref().is_none_or(|shortest| laid.tokens.len() < shortest.len())
                {
                    shortest = Some(laid.tokens);
                }
            }
        }
        let answer = shortest.ok_or(ReaderError::NoLabels)?;
        let (tokens, canvas) = (style.positions(answer.len()), style.most());
        if tokens > canvas {
            return Err(ReaderError::CanvasTooSmall { tokens, canvas });
        }
        let filler = match limits.noise {
            Noise::Uniform => None,
            Noise::Masked { mask } => Some(mask),
        };
        let ends = [("padding", Some(limits.pad)), ("mask", filler), ("end of turn", style.close)];
        let ends = ends.into_iter().filter_map(|(what, token)| Some((what, token?)));
        let written = style.scaffold.iter().chain(&answer).map(|token| ("token", *token));
        match ends.chain(written).find(|(_, token)| *token >= vocabulary) {
            Some((what, token)) => Err(ReaderError::OutsideVocabulary { what, token, vocabulary }),
            None => Ok(style),
        }
    }

    /// Lays the questions out; `orders` are those of each item, none for what needs no read.
    pub fn plan(
        &self,
        prompter: &Prompter,
        agenda: &Agenda,
        request: &DecisionRequest,
        orders: &[Vec<Vec<usize>>],
    ) -> Result<Canvases, PlanError> {
        let live = orders.iter().enumerate().filter(|(_, orders)| !orders.is_empty());
        let live = live.map(|(item, orders)| Live { item, orders });
        let (alone, packed): (Vec<Live>, Vec<Live>) = live.partition(|live| agenda.items[live.item].alone);
        let state = request.state.text();
        let state = state.trim();
        let passes = request.options.steps;
        let sheet = |layout| Sheet { style: self, prompter, agenda, layout, passes };
        let mut planned = Canvases::default();
        if !packed.is_empty() {
            let items: Vec<_> = packed.iter().map(|live| &agenda.items[live.item]).collect();
            let seed = seed::packed(&request.state, &items);
            planned = in_some_layout(packed.len(), |layout| sheet(layout).packed(&packed, state, seed))?;
        }
        if !alone.is_empty() {
            let (stem, seeds) = (Stem::new(prompter, &wording::ALONE_FRAME, state)?, AloneSeeds::new(&request.state));
            planned.input_tokens += stem.len();
            for live in &alone {
                let seed = seeds.of(&agenda.items[live.item]);
                for order in 0..live.orders.len() {
                    let laid = |layout| sheet(layout).alone(live, order, &stem, seed);
                    let (prompt, mut canvas) = in_some_layout(1, laid)?;
                    if order == 0 {
                        planned.input_tokens += prompt.len().saturating_sub(stem.len());
                    }
                    canvas.part = planned.prompts.len();
                    planned.prompts.push(prompt);
                    planned.canvases.push(canvas);
                }
            }
        }
        Ok(planned)
    }

    /// Most positions that a canvas of a read can have: only where a canvas is a unit of its own is its length a bound.
    pub fn most(&self) -> usize {
        match self.limits.context {
            CanvasContext::Causal => self.limits.length.min(MOST_POSITIONS),
            CanvasContext::Blocks | CanvasContext::Whole => MOST_POSITIONS,
        }
    }

    /// Positions that answers of so many tokens need.
    pub fn positions(&self, answers: usize) -> usize {
        self.scaffold.len() + answers + usize::from(self.close.is_some())
    }
}

/// Lays questions out in the better layout, or in the other where only that can hold them.
fn in_some_layout<T>(questions: usize, lay: impl Fn(Layout) -> Result<T, PlanError>) -> Result<T, PlanError> {
    let [first, second] = Layout::preferred(questions);
    lay(first).or_else(|error| match error {
        PlanError::TooManyOptions { .. } | PlanError::Slot { .. } | PlanError::CanvasTooSmall { .. } => {
            lay(second).map_err(|_| error)
        }
        other => Err(other),
    })
}

/// Parts with the prompts of a plan and no branches yet.
pub(crate) fn parts(prompts: &[Vec<u32>]) -> Vec<ReadPart> {
    prompts.iter().map(|prompt| ReadPart { prompt: prompt.clone(), branches: Vec::new() }).collect()
}
