use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::decisions::content::Notes;
use crate::shape::At;
use crate::systemone::State;

const TEXT_PARTS: &[&str] = &["input_text"];
const USER_PARTS: &[&str] = &["input_text", "input_image", "input_json"];
const ASSISTANT_PARTS: &[&str] = &["output_text", "refusal"];
const TOOL_PARTS: &[&str] = &["input_text", "input_image"];

/// Reads `input`. A string, or a single message of the user, is the state itself;
/// a longer conversation is a JSON list of its messages and calls.
pub(super) fn read_input(at: At, input: Option<Value>, notes: &mut Notes) -> State {
    let nothing = State::Text(String::new());
    let items = match input {
        Some(Value::String(text)) => return State::Text(text),
        Some(Value::Array(items)) => items,
        None | Some(Value::Null) => {
            notes.errors.missing(at);
            return nothing;
        }
        Some(_) => {
            notes.errors.push(at, "union_type", "Input should be a string or a list of messages", None);
            return nothing;
        }
    };
    if items.is_empty() {
        notes.errors.too_short(at, "List", 1, 0);
    }
    let calls: HashSet<(&str, &str)> = items.iter().filter_map(call).collect();
    let mut read: Vec<Value> =
        items.iter().enumerate().filter_map(|(index, item)| read_item(at.index(index), item, &calls, notes)).collect();
    match read.as_mut_slice() {
        [only] if only["role"] == "user" => match only["content"].take() {
            Value::String(text) => State::Text(text),
            content => State::Json(content),
        },
        _ => State::Json(Value::Array(read)),
    }
}

/// The type and id of a call that an output may refer to.
fn call(item: &Value) -> Option<(&str, &str)> {
    let kind = item.get("type")?.as_str()?;
    matches!(kind, "function_call" | "custom_tool_call").then_some(())?;
    Some((kind, item.get("call_id")?.as_str()?))
}

fn read_item(at: At, item: &Value, calls: &HashSet<(&str, &str)>, notes: &mut Notes) -> Option<Value> {
    let item = notes.errors.object(at, item)?;
    let kind = notes.optional(at, item, "type").unwrap_or("message");
    match kind {
        "message" => read_message(at, item, notes),
        "function_call" => read_call(at, item, kind, "arguments", notes),
        "custom_tool_call" => read_call(at, item, kind, "input", notes),
        "function_call_output" => read_output(at, item, kind, "function_call", calls, notes),
        "custom_tool_call_output" => read_output(at, item, kind, "custom_tool_call", calls, notes),
        unknown => {
            let expected =
                ["message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"];
            notes.unknown_word(at.field("type"), &expected, unknown);
            None
        }
    }
}

fn read_message(at: At, item: &Map<String, Value>, notes: &mut Notes) -> Option<Value> {
    let role = notes.string(at, item, "role")?;
    let parts = match role {
        "user" => USER_PARTS,
        "developer" | "system" => TEXT_PARTS,
        "assistant" => ASSISTANT_PARTS,
        unknown => {
            notes.unknown_word(at.field("role"), &["user", "developer", "system", "assistant"], unknown);
            return None;
        }
    };
    let content = notes.required(at, item, "content")?;
    let content = notes.content(at.field("content"), content, parts)?;
    Some(json!({"role": role, "content": content}))
}

fn read_call(at: At, item: &Map<String, Value>, kind: &str, input: &str, notes: &mut Notes) -> Option<Value> {
    let call_id = notes.string(at, item, "call_id");
    let name = notes.string(at, item, "name");
    let given = notes.string(at, item, input);
    Some(json!({"type": kind, "call_id": call_id?, "name": name?, input: given?}))
}

fn read_output(
    at: At,
    item: &Map<String, Value>,
    kind: &str,
    call_kind: &str,
    calls: &HashSet<(&str, &str)>,
    notes: &mut Notes,
) -> Option<Value> {
    let call_id = notes.string(at, item, "call_id")?;
    if !calls.contains(&(call_kind, call_id)) {
        let msg = format!("Input should be the id of a {call_kind} in the same list");
        notes.errors.push(at.field("call_id"), "value_error", msg, None);
    }
    let output = notes.required(at, item, "output")?;
    let output = notes.content(at.field("output"), output, TOOL_PARTS)?;
    Some(json!({"type": kind, "call_id": call_id, "output": output}))
}
