use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::decisions::MAX_QUESTIONS;
use crate::decisions::answer::{ChoiceValue, Echo, Outcomes};
use crate::decisions::content::Notes;
use crate::shape::At;
use crate::systemone::{ChoiceOption, Described, MAX_LEVELS, MAX_OPTIONS, Question, QuestionKind};

const PARTS: &[&str] = &["input_text", "input_image", "input_json"];

/// Reads the list of questions. A question left out has a note.
pub(super) fn read_questions(body: At, fields: &Map<String, Value>, notes: &mut Notes) -> Vec<(Question, Echo)> {
    let at = body.field("questions");
    let Some(list) = read_list(body, fields, "questions", 1..=MAX_QUESTIONS, notes) else { return Vec::new() };
    list.iter()
        .enumerate()
        .filter_map(|(index, question)| read_question(at.index(index), index, question, notes))
        .collect()
}

fn read_question(at: At, index: usize, value: &Value, notes: &mut Notes) -> Option<(Question, Echo)> {
    let question = notes.errors.object(at, value)?;
    let kind = notes.string(at, question, "type")?;
    let name = notes.optional(at, question, "name").map(str::to_owned);
    let instructions = read_instructions(at, question, notes);
    let (kind, outcomes) = match kind {
        "predicate" => (QuestionKind::Noul { yes: None, no: None }, Outcomes::Predicate),
        "choice" => read_choices(at, question, notes)?,
        "score" => read_levels(at, question, notes)?,
        unknown => {
            notes.unknown_word(at.field("type"), &["predicate", "choice", "score"], unknown);
            return None;
        }
    };
    let question = Question { id: index.to_string(), kind, instructions: Some(instructions?), alone: false };
    Some((question, Echo { name, outcomes }))
}

fn read_instructions(at: At, question: &Map<String, Value>, notes: &mut Notes) -> Option<Described> {
    let value = notes.required(at, question, "instructions")?;
    let at = at.field("instructions");
    let content = notes.content(at, value, PARTS)?;
    if content == "" {
        notes.errors.empty_string(at);
    }
    Described::new(content)
}

fn read_choices(at: At, question: &Map<String, Value>, notes: &mut Notes) -> Option<(QuestionKind, Outcomes)> {
    let list = read_list(at, question, "choices", 2..=MAX_OPTIONS, notes)?;
    let at = at.field("choices");
    let mut seen = HashSet::new();
    let (mut options, mut values) = (Vec::new(), Vec::new());
    for (index, choice) in list.iter().enumerate() {
        let at = at.index(index);
        let Some(choice) = notes.errors.object(at, choice) else { continue };
        let value = match notes.required(at, choice, "value") {
            Some(Value::String(text)) => ChoiceValue::Text(text.clone()),
            Some(Value::Bool(flag)) => ChoiceValue::Flag(*flag),
            Some(other) => {
                let msg = "Input should be a string or a boolean";
                notes.errors.push(at.field("value"), "union_type", msg, Some(other));
                continue;
            }
            None => continue,
        };
        if !seen.insert(value.clone()) {
            notes.errors.push(at.field("value"), "value_error", "Input should differ from the other choices", None);
        }
        let description = notes.optional(at, choice, "description").map(Described::from);
        options.push(ChoiceOption { name: value.name(), description });
        values.push(value);
    }
    Some((QuestionKind::Choice(options), Outcomes::Choice(values)))
}

fn read_levels(at: At, question: &Map<String, Value>, notes: &mut Notes) -> Option<(QuestionKind, Outcomes)> {
    let list = read_list(at, question, "levels", 2..=MAX_LEVELS, notes)?;
    let at = at.field("levels");
    let (mut levels, mut labels) = (Vec::new(), Vec::new());
    for (index, level) in list.iter().enumerate() {
        let at = at.index(index);
        let Some(level) = notes.errors.object(at, level) else { continue };
        let Some(label) = notes.string(at, level, "label") else { continue };
        levels.push(match notes.optional(at, level, "description") {
            Some(description) => Described::from(format!("{label}: {description}")),
            None => Described::from(label),
        });
        labels.push(label.to_owned());
    }
    Some((QuestionKind::Score(levels), Outcomes::Score(labels)))
}

/// A required list whose length is in the range.
fn read_list<'v>(
    at: At,
    object: &'v Map<String, Value>,
    name: &str,
    range: std::ops::RangeInclusive<usize>,
    notes: &mut Notes,
) -> Option<&'v Vec<Value>> {
    let value = notes.required(at, object, name)?;
    let at = at.field(name);
    let list = notes.errors.list(at, value)?;
    if list.len() < *range.start() {
        notes.errors.too_short(at, "List", *range.start(), list.len());
    } else if list.len() > *range.end() {
        notes.errors.too_long(at, "List", *range.end(), list.len());
    }
    Some(list)
}
