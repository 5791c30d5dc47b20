//! Seeds of what is read together.

use laneway_protocol::systemone::{
    ChoiceOption, DecisionRequest, Described, Question, QuestionKind, ReadOptions, State,
};

use crate::agenda::{Item, Kind, Outcome};
use crate::noise::SplitMix64;

/// The seed of questions that are read together, in this order.
pub(crate) fn packed(state: &State, items: &[&Item]) -> u64 {
    of(state.clone(), items)
}

/// Seeds of questions that are read by themselves; each depends on the state and that question's content.
pub(crate) struct AloneSeeds(u64);

impl AloneSeeds {
    pub fn new(state: &State) -> Self {
        Self(of(state.clone(), &[]))
    }

    pub fn of(&self, item: &Item) -> u64 {
        let own = of(State::Text(String::new()), &[item]);
        // Scattered first: equal bits in both would cancel out.
        SplitMix64::new(SplitMix64::new(self.0).next() ^ own).next()
    }
}

/// The seed that the protocol gives to such a request.
fn of(state: State, items: &[&Item]) -> u64 {
    let questions = items.iter().map(|item| question(item)).collect();
    DecisionRequest { model: None, state, questions, options: ReadOptions::default() }.seed()
}

/// The question that an item stands for: questions of one item may differ in how they are written.
fn question(item: &Item) -> Question {
    let described = |text: &Option<String>| text.as_deref().map(Described::from);
    let side = |at: usize| item.outcomes.get(at).and_then(|outcome| described(&outcome.description));
    let level = |outcome: &Outcome| Described::from(outcome.description.as_deref().unwrap_or_default());
    let option =
        |outcome: &Outcome| ChoiceOption { name: outcome.name.clone(), description: described(&outcome.description) };
    let kind = match item.kind {
        Kind::Noul => QuestionKind::Noul { yes: side(0), no: side(1) },
        Kind::Choice => QuestionKind::Choice(item.outcomes.iter().map(option).collect()),
        Kind::Score => QuestionKind::Score(item.outcomes.iter().map(level).collect()),
    };
    Question { id: String::new(), kind, instructions: described(&item.instructions), alone: false }
}
