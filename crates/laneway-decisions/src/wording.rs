//! Every word that a model is told; instructions, names and descriptions come from the request.

use crate::agenda::{Item, Kind, Outcome};
use crate::layout::Layout;

/// Stands in for a state where the model's habits without one are wanted.
pub(crate) const NO_STATE: &str = "N/A";
/// What a noul answers on a canvas, yes first.
pub(crate) const CANVAS_SIDES: [&str; 2] = ["yes", "no"];
/// What a noul is answered with in text, yes first.
pub(crate) const TEXT_SIDES: [&str; 2] = ["Yes", "No"];
/// Labels of the levels of a score.
pub(crate) const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

const CANVAS_TASK: &str = "Read the user's text and decide the questions below about it, each by one of its labels.";
const LINES_REPLY: &str =
    "Reply with one line per question and nothing else: its name, a colon, a space and the label you decide on.";
const INDEXED_REPLY: &str = "Reply with a single line and nothing else: for each question its name directly followed \
    by the label you decide on, a space between one question and the next.";
const SPLIT_REPLY: &str = "A reply may cover only some of the questions.";

const ALONE_TASK: &str =
    "The user sends a text and then a question about it. Decide the question by one of its labels.";

const TEXT_OPENING: &str = "Read the text and answer the question about it.\n\nText:\n";
/// Ends with a line break, which tokenizers keep apart from the words after it: what comes before is the same tokens
/// whatever is asked.
const QUESTION_HEADING: &str = "Question:\n";
/// What comes before a word.
pub(crate) const WORDS_CLOSING: &str = "Keywords:";
const PLAIN_CLOSING: &str = "\n\nAnswer:";

/// What stands around a state and a question that follows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Whether it is a turn of a conversation, not bare text.
    pub is_turn: bool,
    pub system: Option<&'static str>,
    opening: &'static str,
    heading: &'static str,
}

/// Questions read one by one by a model that predicts the next token.
pub(crate) const TEXT_FRAME: Frame =
    Frame { is_turn: true, system: None, opening: TEXT_OPENING, heading: QUESTION_HEADING };
/// Questions whose options are told apart by their words.
pub(crate) const WORDS_FRAME: Frame = Frame { is_turn: false, system: None, opening: "", heading: "" };
/// Questions read one by one on canvases.
pub(crate) const ALONE_FRAME: Frame =
    Frame { is_turn: true, system: Some(ALONE_TASK), opening: "", heading: QUESTION_HEADING };

impl Frame {
    /// The user message, or the text.
    pub fn user(&self, state: &str, question: &str) -> String {
        let Self { opening, heading, .. } = self;
        format!("{opening}{state}\n\n{heading}{question}")
    }
}

/// An item as a prompt shows it: its outcomes in order, each with its label.
pub(crate) struct Shown<'a> {
    pub item: &'a Item,
    pub labels: Vec<(usize, String)>,
}

/// The system message of a canvas with all these questions.
pub(crate) fn canvas_system(shown: &[Shown], layout: Layout, is_split: bool) -> String {
    let mut text = String::from(CANVAS_TASK);
    for (index, shown) in shown.iter().enumerate() {
        text += "\n\n";
        text += &canvas_question(index, shown, layout);
    }
    text += "\n\n";
    text += match layout {
        Layout::Lines => LINES_REPLY,
        Layout::Indexed => INDEXED_REPLY,
    };
    if is_split {
        text += " ";
        text += SPLIT_REPLY;
    }
    text
}

/// The only question of a canvas, and how to reply.
pub(crate) fn alone_question(shown: &Shown, layout: Layout) -> String {
    let reply = match layout {
        Layout::Lines => "the question's name, a colon, a space and the label you decide on",
        Layout::Indexed => "the question's name directly followed by the label you decide on",
    };
    format!("{}\n\nReply with one line and nothing else: {reply}.", canvas_question(0, shown, layout))
}

fn canvas_question(index: usize, shown: &Shown, layout: Layout) -> String {
    let mut text = format!("{}: {}", layout.name(index), instructions(shown.item));
    for (outcome, label) in &shown.labels {
        text += &format!("\n  {}", labelled(label, &shown.item.outcomes[*outcome]));
    }
    text
}

/// A question with its labelled outcomes, and how to reply.
pub(crate) fn text_question(item: &Item, labels: &[(usize, String)], are_letters: bool) -> String {
    let mut text = instructions(item).to_owned();
    let is_listed = are_letters || item.kind != Kind::Noul || item.outcomes.iter().any(|it| it.description.is_some());
    text += "\n";
    for (outcome, label) in labels.iter().filter(|_| is_listed) {
        let mut described = item.outcomes[*outcome].clone();
        if are_letters && item.kind == Kind::Noul {
            described.name = TEXT_SIDES[*outcome].to_owned();
        }
        text += &format!("\n{}", labelled(label, &described));
    }
    text += if is_listed { "\n\n" } else { "\n" };
    text += match (item.kind, are_letters) {
        (_, true) => "Reply with the letter of the best answer only.",
        (Kind::Noul, _) => "Reply with Yes or No only.",
        (_, false) => "Reply with the number of the best answer only.",
    };
    text
}

/// A question after which words of the right option are likely.
pub(crate) fn words_question(item: &Item) -> String {
    item.instructions.as_ref().map_or_else(|| WORDS_CLOSING.to_owned(), |it| format!("{it}\n{WORDS_CLOSING}"))
}

/// What a model without turns is given after the question.
pub(crate) fn plain_closing() -> &'static str {
    PLAIN_CLOSING
}

fn instructions(item: &Item) -> &str {
    item.instructions.as_deref().unwrap_or(match item.kind {
        Kind::Noul => "Does this hold for the text?",
        Kind::Choice => "Which of these fits the text best?",
        Kind::Score => "Which level fits the text best?",
    })
}

fn labelled(label: &str, outcome: &Outcome) -> String {
    let name = one_line(&outcome.name);
    let description = outcome.description.as_deref().map(one_line);
    match (name.is_empty(), description) {
        (true, Some(description)) => format!("{label}: {description}"),
        (true, None) => label.to_owned(),
        (false, Some(description)) => format!("{label}: {name} ({description})"),
        (false, None) => format!("{label}: {name}"),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
