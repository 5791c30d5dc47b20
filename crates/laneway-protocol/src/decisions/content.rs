use serde_json::{Map, Value};

use crate::ApiError;
use crate::json::shown;
use crate::shape::{At, Errors};

const MOST_JSON_DEPTH: usize = 32;
const MOST_JSON_VALUES: usize = 10_000;
const MOST_JSON_BYTES: usize = 256 << 10;

/// What is wrong with a body so far.
#[derive(Default)]
pub(super) struct Notes {
    pub errors: Errors,
    unsupported: Option<ApiError>,
}

impl Notes {
    /// The first wrong shape; failing that, the first thing that this server cannot do.
    pub fn into_error(self) -> Option<ApiError> {
        self.errors.into_vec().into_iter().next().map(|error| error.into_api_error()).or(self.unsupported)
    }

    pub fn required<'v>(&mut self, at: At, object: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
        let value = object.get(name).filter(|value| !value.is_null());
        if value.is_none() {
            self.errors.missing(at.field(name));
        }
        value
    }

    /// A required string, which may be empty.
    pub fn string<'v>(&mut self, at: At, object: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
        let value = self.required(at, object, name)?;
        self.errors.string(at.field(name), value)
    }

    /// A required string that is not empty.
    pub fn text<'v>(&mut self, at: At, object: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
        let text = self.string(at, object, name)?;
        if text.is_empty() {
            self.errors.empty_string(at.field(name));
        }
        Some(text)
    }

    /// An optional string.
    pub fn optional<'v>(&mut self, at: At, object: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
        let value = object.get(name).filter(|value| !value.is_null())?;
        self.errors.string(at.field(name), value)
    }

    /// Notes a word that is none of those expected.
    pub fn unknown_word(&mut self, at: At, expected: &[&str], value: &str) {
        let listed = expected.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", ");
        let value = Value::String(shown(value, 40));
        self.errors.push(at, "literal_error", format!("input should be one of {listed}, not {value}"), None);
    }

    /// A string, or a list of parts of the given types.
    ///
    /// All text becomes one string, joined without a separator; a lone JSON part becomes its data.
    pub fn content(&mut self, at: At, value: &Value, parts: &[&str]) -> Option<Value> {
        let list = match value {
            Value::String(text) => return Some(Value::String(text.clone())),
            Value::Array(list) => list,
            _ => {
                self.errors.push(at, "union_type", "Input should be a string or a list of parts", None);
                return None;
            }
        };
        if list.is_empty() {
            self.errors.too_short(at, "List", 1, 0);
        }
        let read: Vec<Value> =
            list.iter().enumerate().filter_map(|(index, part)| self.part(at.index(index), part, parts)).collect();
        (read.len() == list.len()).then(|| join(read))
    }

    fn part(&mut self, at: At, part: &Value, parts: &[&str]) -> Option<Value> {
        let part = self.errors.object(at, part)?;
        let kind = self.string(at, part, "type")?;
        if !parts.contains(&kind) {
            self.unknown_word(at.field("type"), parts, kind);
            return None;
        }
        match kind {
            "input_json" => {
                let data = self.required(at, part, "data")?;
                self.json(at.field("data"), data)
            }
            "input_image" => {
                self.string(at, part, "image_url")?;
                let message = "this model reads text only, not `input_image` parts";
                let path = at.field("type").path();
                self.unsupported.get_or_insert_with(|| ApiError::unsupported(path, message));
                None
            }
            "refusal" => self.string(at, part, "refusal").map(Value::from),
            _ => self.string(at, part, "text").map(Value::from),
        }
    }

    /// An object or a list of objects, within OpenAI's limits.
    fn json(&mut self, at: At, data: &Value) -> Option<Value> {
        let of_objects = match data {
            Value::Object(_) => true,
            Value::Array(list) => list.iter().all(Value::is_object),
            _ => false,
        };
        let (depth, values) = measure(data);
        let problem = if !of_objects {
            "Input should be an object or a list of objects".to_owned()
        } else if depth > MOST_JSON_DEPTH {
            format!("JSON may be {MOST_JSON_DEPTH} levels deep, not {depth}")
        } else if values > MOST_JSON_VALUES {
            format!("JSON may hold {MOST_JSON_VALUES} values, not {values}")
        } else if data.to_string().len() > MOST_JSON_BYTES {
            format!("JSON may have {MOST_JSON_BYTES} bytes")
        } else {
            return Some(data.clone());
        };
        self.errors.push(at, "value_error", problem, None);
        None
    }
}

fn join(mut parts: Vec<Value>) -> Value {
    if parts.iter().all(Value::is_string) {
        Value::String(parts.iter().filter_map(Value::as_str).collect())
    } else if parts.len() == 1 {
        parts.remove(0)
    } else {
        Value::Array(parts)
    }
}

/// The container levels of a value, and the values it holds, itself included.
fn measure(value: &Value) -> (usize, usize) {
    let add = |(depth, values): (usize, usize), inner: &Value| {
        let (inner_depth, inner_values) = measure(inner);
        (depth.max(inner_depth + 1), values + inner_values)
    };
    match value {
        Value::Array(list) => list.iter().fold((1, 1), add),
        Value::Object(map) => map.values().fold((1, 1), add),
        _ => (0, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn depth_counts_containers_and_size_counts_values() {
        for (value, expected) in
            [(json!(1), (0, 1)), (json!({}), (1, 1)), (json!([1, 2]), (1, 3)), (json!({"a": [{"b": 1}]}), (3, 4))]
        {
            assert_eq!(measure(&value), expected, "{value}");
        }
    }
}
