use serde_json::{Map, Value, json};

use crate::json::shown;
use crate::shape::{At, Errors};
use crate::systemone::{
    ChoiceOption, DecisionError, Described, MAX_LEVELS, MAX_OPTIONS, MAX_QUESTIONS, Question, QuestionKind,
};

/// Reads the map of questions. A question left out has an entry in one of the two lists.
pub(crate) fn read_questions(
    value: Option<&Value>,
    errors: &mut Errors,
    refusals: &mut Vec<DecisionError>,
) -> Vec<Question> {
    let body = At::BODY;
    let at = body.field("questions");
    let Some(value) = value else {
        errors.missing(at);
        return Vec::new();
    };
    let Some(map) = errors.object(at, value) else { return Vec::new() };
    if map.is_empty() {
        errors.too_short(at, "Dictionary", 1, 0);
    }
    if map.len() > MAX_QUESTIONS {
        let message = format!("{} questions were asked; at most {MAX_QUESTIONS} are allowed", map.len());
        refusals.push(DecisionError::sentence(message));
    }
    map.iter().filter_map(|(id, question)| read_question(at.field(id), id, question, errors, refusals)).collect()
}

fn read_question(
    at: At,
    id: &str,
    value: &Value,
    errors: &mut Errors,
    refusals: &mut Vec<DecisionError>,
) -> Option<Question> {
    if id.is_empty() {
        errors.empty_string(at);
    }
    let question = errors.object(at, value)?;
    let Some(tag) = question.get("type") else {
        let msg = "Unable to extract tag using discriminator 'type'";
        errors.push_with(at, "union_tag_not_found", msg, Some(value), Some(json!({"discriminator": "'type'"})));
        return None;
    };
    let tag = errors.string(at.field("type"), tag)?;
    let inside = at.field(tag);
    let instructions = Described::read_optional(inside.field("instructions"), question.get("instructions"), errors);
    let alone = match question.get("alone") {
        None | Some(Value::Null) => false,
        Some(value) => errors.flag(inside.field("alone"), value).unwrap_or(false),
    };
    let criteria = question.get("criteria");
    let kind = match tag {
        "noul" => noul(inside.field("criteria"), criteria, errors)?,
        "choice" => choice(inside.field("criteria"), criteria, errors)?,
        "score" => score(inside.field("criteria"), criteria, errors)?,
        "box" => {
            let message = format!("question `{}` asks for a box, which needs an image", shown(id, 100));
            refusals.push(DecisionError::usage(message));
            return None;
        }
        unknown => {
            let message = format!("Input should be 'noul', 'choice' or 'score', not '{}'", shown(unknown, 100));
            errors.push(inside.field("type"), "literal_error", message, None);
            return None;
        }
    };
    Some(Question { id: id.to_owned(), kind, instructions, alone })
}

fn noul(at: At, criteria: Option<&Value>, errors: &mut Errors) -> Option<QuestionKind> {
    let sides = match criteria {
        None | Some(Value::Null) => &Map::new(),
        Some(value) => errors.object(at, value)?,
    };
    let mut side = |name| Described::read_optional(at.field(name), sides.get(name), errors);
    Some(QuestionKind::Noul { yes: side("true"), no: side("false") })
}

fn choice(at: At, criteria: Option<&Value>, errors: &mut Errors) -> Option<QuestionKind> {
    let Some(criteria) = criteria else {
        errors.missing(at);
        return None;
    };
    let criteria = errors.object(at, criteria)?;
    if criteria.is_empty() {
        errors.too_short(at, "Dictionary", 1, 0);
    }
    if criteria.len() > MAX_OPTIONS {
        errors.too_long(at, "Dictionary", MAX_OPTIONS, criteria.len());
    }
    let mut option = |(name, description): (&String, &Value)| {
        let at = at.field(name);
        if name.is_empty() {
            errors.empty_string(at);
        }
        ChoiceOption { name: name.clone(), description: Described::read_optional(at, Some(description), errors) }
    };
    Some(QuestionKind::Choice(criteria.iter().map(&mut option).collect()))
}

fn score(at: At, criteria: Option<&Value>, errors: &mut Errors) -> Option<QuestionKind> {
    let Some(criteria) = criteria else {
        errors.missing(at);
        return None;
    };
    let criteria = errors.list(at, criteria)?;
    if criteria.is_empty() {
        errors.too_short(at, "List", 1, 0);
    }
    if criteria.len() > MAX_LEVELS {
        errors.too_long(at, "List", MAX_LEVELS, criteria.len());
    }
    let level = |(index, value)| Described::read(at.index(index), value, errors);
    Some(QuestionKind::Score(criteria.iter().enumerate().filter_map(level).collect()))
}
