//! JSON bodies read at a bounded cost, and JSON as a model reads it.

use std::io;

use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use serde_json::ser::Formatter;

/// Most JSON values in one body: each takes some 70 bytes once parsed, however short its text.
pub(crate) const MOST_VALUES: usize = 1 << 20;

/// Why a body is no JSON value.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// `offset` counts characters.
    Syntax {
        offset: usize,
        reason: String,
    },
    TooManyValues,
}

/// Parses a whole body; nesting is limited by serde_json, the number of values by [`MOST_VALUES`].
pub(crate) fn read(bytes: &[u8]) -> Result<Value, Unreadable> {
    if values_at_most(bytes) > MOST_VALUES {
        return Err(Unreadable::TooManyValues);
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let full = error.to_string();
        let position = format!(" at line {} column {}", error.line(), error.column());
        let reason = shown(full.strip_suffix(&position).unwrap_or(&full), 120);
        Unreadable::Syntax { offset: offset(bytes, &error), reason }
    })
}

/// An upper bound of the number of values: each but the first follows a comma or opens a container.
fn values_at_most(bytes: &[u8]) -> usize {
    let (mut in_string, mut escaped) = (false, false);
    let mut values = 1;
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

fn offset(bytes: &[u8], error: &serde_json::Error) -> usize {
    let end = if error.is_eof() {
        bytes.len()
    } else {
        let newlines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        let line = std::iter::once(0).chain(newlines).nth(error.line().saturating_sub(1)).unwrap_or(0);
        line.saturating_add(error.column().saturating_sub(1)).min(bytes.len())
    };
    bytes[..end].iter().filter(|byte| **byte & 0xC0 != 0x80).count()
}

/// The first `most` characters, with an ellipsis where some are left out.
pub(crate) fn shown(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether the value's text is at most about `budget` bytes, at no more cost than that.
pub(crate) fn is_short(value: &Value, budget: usize) -> bool {
    fn spend(value: &Value, left: &mut usize) -> bool {
        let own = match value {
            Value::String(text) => text.len() + 2,
            _ => 2,
        };
        match left.checked_sub(own) {
            Some(rest) => *left = rest,
            None => return false,
        }
        match value {
            Value::Array(list) => list.iter().all(|element| spend(element, left)),
            Value::Object(map) => map.iter().all(|(key, member)| {
                let rest = left.checked_sub(key.len() + 2);
                *left = rest.unwrap_or(0);
                rest.is_some() && spend(member, left)
            }),
            _ => true,
        }
    }
    spend(value, &mut { budget })
}

/// About how many bytes the value's text has.
pub(crate) fn len_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(list) => list.iter().map(|element| len_bytes(element) + 2).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(key, member)| key.len() + len_bytes(member) + 6).sum::<usize>() + 2,
        _ => 4,
    }
}

/// JSON text with `", "` and `": "` as Python's `json.dumps` writes it, characters beyond ASCII kept.
pub(crate) fn spaced(value: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Spaced);
    value.serialize(&mut serializer).expect("a JSON value has string keys and a Vec takes every write");
    String::from_utf8(text).expect("serde_json writes UTF-8")
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A value whose objects serialise with their keys in byte order, at every depth.
pub(crate) struct Sorted<'a>(pub &'a Value);

impl Serialize for Sorted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(list) => serializer.collect_seq(list.iter().map(Sorted)),
            Value::Object(map) => {
                let mut members: Vec<_> = map.iter().map(|(key, member)| (key, Sorted(member))).collect();
                members.sort_by_key(|(key, _)| *key);
                serializer.collect_map(members)
            }
            scalar => scalar.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_spaced_as_in_python_and_keeps_other_scripts() {
        let value = json!({"b": [1, 2.5, null, true], "a": {"é": "환불\n\"x\""}, "e": [], "o": {}});
        assert_eq!(spaced(&value), r#"{"b": [1, 2.5, null, true], "a": {"é": "환불\n\"x\""}, "e": [], "o": {}}"#);
    }

    #[test]
    fn sorting_reaches_objects_within_lists() {
        let value = json!({"z": [{"b": 1, "a": 2}], "a": 0});
        assert_eq!(serde_json::to_string(&Sorted(&value)).unwrap(), r#"{"a":0,"z":[{"a":2,"b":1}]}"#);
    }

    #[test]
    fn syntax_errors_count_characters_to_where_they_are() {
        for (text, expected) in
            [("", 0), ("x", 0), ("{\"a\":", 5), ("[1,\n2,\n  x]", 9), ("[\"한\", x]", 6), ("{}x", 2)]
        {
            match read(text.as_bytes()) {
                Err(Unreadable::Syntax { offset, .. }) => assert_eq!(offset, expected, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn commas_in_strings_are_no_values() {
        assert_eq!(values_at_most(br#"[1,2,{"a":"b,c\",[{"}]"#), 5);
        let commas = format!("\"{}\"", ",".repeat(MOST_VALUES + 1));
        assert!(read(commas.as_bytes()).is_ok());
        let values = format!("[{}0]", "0,".repeat(MOST_VALUES));
        assert!(matches!(read(values.as_bytes()), Err(Unreadable::TooManyValues)));
    }

    #[test]
    fn shortness_counts_keys_strings_and_containers() {
        assert!(is_short(&json!({"a": "b"}), 8));
        assert!(!is_short(&json!({"a": "b"}), 7));
        assert!(!is_short(&json!([[[[]]]]), 7));
    }
}
