//! The questions of a request as a model is asked them: without ids, equal ones once, in an order of their own.

use laneway_protocol::systemone::{ChoiceOption, DecisionRequest, Described, Question, QuestionKind};

/// What is asked.
pub(crate) struct Agenda {
    /// Different questions in the order of their content.
    pub items: Vec<Item>,
    /// One for each question of the request.
    pub asked: Vec<Asked>,
}

/// A question of the request.
pub(crate) struct Asked {
    /// As the request names it.
    pub id: String,
    /// Index into the items.
    pub item: usize,
    /// For each outcome of the request the item's.
    pub outcomes: Vec<usize>,
}

/// A question as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    pub kind: Kind,
    pub instructions: Option<String>,
    pub outcomes: Vec<Outcome>,
    /// Whether it has a prompt and a canvas of its own.
    pub alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Noul,
    Choice,
    Score,
}

/// An option, a level, or one side of a noul.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outcome {
    /// The name of an option; empty for levels and sides.
    pub name: String,
    pub description: Option<String>,
}

/// What a request is asked like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether the options of choices come in the order of their names.
    pub sorts_options: bool,
    pub alone: Alone,
}

/// Which questions are read by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    /// All, without a word: there is no other way.
    Unsaid,
    /// Those that ask for it.
    AsAsked,
    Always,
}

impl Agenda {
    pub fn new(request: &DecisionRequest, manner: Manner) -> Self {
        let read: Vec<(Item, Vec<usize>)> = request.questions.iter().map(|it| item(it, manner)).collect();
        let mut items: Vec<Item> = read.iter().map(|(item, _)| item.clone()).collect();
        items.sort();
        items.dedup();
        let asked = request.questions.iter().zip(read).map(|(question, (item, outcomes))| Asked {
            id: question.id.clone(),
            item: items.binary_search(&item).expect("every item is in the list"),
            outcomes,
        });
        Self { asked: asked.collect(), items }
    }

    /// The id under which an item was asked first, shortened for a message.
    pub fn id(&self, item: usize) -> String {
        const MOST_CHARS: usize = 100;
        let id = self.asked.iter().find(|asked| asked.item == item).map_or("", |asked| &asked.id);
        match id.char_indices().nth(MOST_CHARS) {
            Some((end, _)) => format!("{}…", &id[..end]),
            None => id.to_owned(),
        }
    }
}

impl Item {
    /// Whether there is but one answer.
    pub fn is_forced(&self) -> bool {
        self.outcomes.len() == 1
    }
}

fn item(question: &Question, manner: Manner) -> (Item, Vec<usize>) {
    let side =
        |description: &Option<Described>| Outcome { name: String::new(), description: text(description.as_ref()) };
    let (kind, outcomes) = match &question.kind {
        QuestionKind::Noul { yes, no } => (Kind::Noul, vec![side(yes), side(no)]),
        QuestionKind::Score(levels) => {
            let level = |level| Outcome { name: String::new(), description: text(Some(level)) };
            (Kind::Score, levels.iter().map(level).collect())
        }
        QuestionKind::Choice(options) => {
            let option = |option: &ChoiceOption| Outcome {
                name: option.name.clone(),
                description: text(option.description.as_ref()),
            };
            (Kind::Choice, options.iter().map(option).collect())
        }
    };
    let mut order: Vec<usize> = (0..outcomes.len()).collect();
    if manner.sorts_options && kind == Kind::Choice {
        order.sort_by(|&a, &b| outcomes[a].cmp(&outcomes[b]));
    }
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &outcome)| places[outcome] = place);
    let outcomes = order.iter().map(|&outcome| outcomes[outcome].clone()).collect();
    let instructions = text(question.instructions.as_ref());
    let alone = match manner.alone {
        Alone::Unsaid => false,
        Alone::AsAsked => question.alone,
        Alone::Always => true,
    };
    (Item { kind, instructions, outcomes, alone }, places)
}

fn text(described: Option<&Described>) -> Option<String> {
    let text = described?.text();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
