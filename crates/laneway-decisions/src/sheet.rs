//! How questions are written for a canvas, in prompts and in answers.

use laneway_session::Slot;

use crate::agenda::{Agenda, Kind};
use crate::canvas::{Canvas, CanvasStyle, Canvases};
use crate::error::PlanError;
use crate::layout::{Entry, Layout};
use crate::prompt::Prompter;
use crate::stem::Stem;
use crate::wording::{self, CANVAS_SIDES, DIGITS, Shown};

/// Canvases are a multiple of this long, where the model's is.
const GRAIN: usize = 16;
/// What the seeds of two canvases of one prompt differ by.
const GROUP_STRIDE: u64 = 104_729;

/// An item that is read, in each of its orders.
pub(crate) struct Live<'a> {
    pub item: usize,
    pub orders: &'a [Vec<usize>],
}

/// Questions in one layout.
pub(crate) struct Sheet<'a> {
    pub style: &'a CanvasStyle,
    pub prompter: &'a Prompter,
    pub agenda: &'a Agenda,
    pub layout: Layout,
    pub passes: u32,
}

/// An item in one order.
struct Posed<'a> {
    item: usize,
    /// Its place in the list of a prompt.
    index: usize,
    order: usize,
    outcomes: &'a [usize],
    labels: Vec<String>,
}

impl<'a> Sheet<'a> {
    /// Prompts that list all of the items, one for each round of orders, and canvases that answer them together.
    pub fn packed(&self, live: &[Live<'a>], state: &str, seed: u64) -> Result<Canvases, PlanError> {
        let rounds = live.iter().map(|live| live.orders.len()).max().unwrap_or(0);
        let mut planned = Canvases::default();
        for round in 0..rounds {
            let posed = live.iter().enumerate().map(|(index, live)| self.posed(live, index, round % live.orders.len()));
            let posed = posed.collect::<Result<Vec<_>, _>>()?;
            let groups = self.groups(posed.iter().filter(|posed| posed.order == round).collect())?;
            let shown: Vec<Shown> = posed.iter().map(|posed| self.shown(posed)).collect();
            let system = wording::canvas_system(&shown, self.layout, groups.len() > 1);
            let prompt = self.prompter.ids(Some(&system), state)?;
            if prompt.is_empty() {
                return Err(PlanError::EmptyPrompt);
            }
            for (number, group) in groups.iter().enumerate() {
                let seed = seed.wrapping_add((number as u64).wrapping_mul(GROUP_STRIDE));
                planned.canvases.push(Canvas { part: round, ..self.canvas(group, seed)? });
            }
            planned.prompts.push(prompt);
        }
        planned.input_tokens = planned.prompts.first().map_or(0, Vec::len);
        Ok(planned)
    }

    /// The prompt that asks one item in one order after the state, and the canvas that answers it.
    pub fn alone(
        &self,
        live: &Live<'a>,
        order: usize,
        stem: &Stem,
        seed: u64,
    ) -> Result<(Vec<u32>, Canvas), PlanError> {
        let posed = self.posed(live, 0, order)?;
        self.check_room(&posed)?;
        let canvas = self.canvas(&[&posed], seed)?;
        Ok((stem.prompt(&wording::alone_question(&self.shown(&posed), self.layout))?, canvas))
    }

    fn posed(&self, live: &Live<'a>, index: usize, order: usize) -> Result<Posed<'a>, PlanError> {
        let outcomes = live.orders[order].as_slice();
        Ok(Posed { item: live.item, index, order, outcomes, labels: self.labels(live.item, outcomes)? })
    }

    fn shown(&self, posed: &Posed) -> Shown<'a> {
        let labels = posed.outcomes.iter().copied().zip(posed.labels.iter().cloned()).collect();
        Shown { item: &self.agenda.items[posed.item], labels }
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

    /// Each item in the first group with room for it.
    fn groups<'p>(&self, posed: Vec<&'p Posed<'a>>) -> Result<Vec<Vec<&'p Posed<'a>>>, PlanError> {
        let mut groups: Vec<Vec<&Posed>> = Vec::new();
        for posed in posed {
            let fits = |group: &&mut Vec<&Posed<'a>>| {
                let joined: Vec<&Posed> = group.iter().copied().chain([posed]).collect();
                self.needed(&joined) <= self.style.most()
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(posed),
                None => groups.push(vec![posed]),
            }
            self.check_room(posed)?;
        }
        Ok(groups)
    }

    fn check_room(&self, posed: &Posed) -> Result<(), PlanError> {
        let (tokens, canvas) = (self.needed(&[posed]), self.style.most());
        if tokens > canvas {
            return Err(PlanError::CanvasTooSmall { question: self.agenda.id(posed.item), tokens, canvas });
        }
        Ok(())
    }

    fn needed(&self, group: &[&Posed]) -> usize {
        self.style.positions(self.layout.tokens(&self.prompter.tokenizer, &entries(group)).len())
    }

    /// A canvas of the first part.
    fn canvas(&self, group: &[&Posed], seed: u64) -> Result<Canvas, PlanError> {
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
        Ok(Canvas { part: 0, seed, tokens, slots, passes: self.passes, read })
    }
}

fn entries<'p>(group: &[&'p Posed]) -> Vec<Entry<'p>> {
    group.iter().map(|posed| Entry { index: posed.index, labels: &posed.labels }).collect()
}
