use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::json::spaced;
use crate::shape::{At, Errors};

/// Instructions or a description exactly as sent: a string, an object or an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Described(Value);

impl Described {
    /// `None` for a value that describes nothing: `null`, a number or a boolean.
    pub fn new(value: Value) -> Option<Self> {
        matches!(value, Value::String(_) | Value::Object(_) | Value::Array(_)).then_some(Self(value))
    }

    /// The JSON value as it was sent.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// What the model reads: a string as it is, anything else as JSON text.
    pub fn text(&self) -> Cow<'_, str> {
        text(&self.0)
    }

    /// Reads a description; `null` is an error.
    pub(crate) fn read(at: At, value: &Value, errors: &mut Errors) -> Option<Self> {
        let read = Self::new(value.clone());
        if read.is_none() {
            errors.push(at, "union_type", "Input should be a valid string, dictionary or list", Some(value));
        }
        read
    }

    /// Reads a description that may be absent or `null`.
    pub(crate) fn read_optional(at: At, value: Option<&Value>, errors: &mut Errors) -> Option<Self> {
        value.filter(|value| !value.is_null()).and_then(|value| Self::read(at, value, errors))
    }
}

impl From<String> for Described {
    fn from(text: String) -> Self {
        Self(Value::String(text))
    }
}

impl From<&str> for Described {
    fn from(text: &str) -> Self {
        Self(Value::String(text.to_owned()))
    }
}

pub(crate) fn text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(spaced(other)),
    }
}
