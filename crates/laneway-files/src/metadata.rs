use std::collections::HashMap;

use crate::{FileError, Result};

/// A metadata value; integers and floats keep their value, not their width.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A metadata array, whose elements have one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    Unsigned(Vec<u64>),
    Signed(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Nested(Vec<Array>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Unsigned(items) => items.len(),
            Self::Signed(items) => items.len(),
            Self::Float(items) => items.len(),
            Self::Double(items) => items.len(),
            Self::Bool(items) => items.len(),
            Self::String(items) => items.len(),
            Self::Nested(items) => items.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// GGUF keys and values in file order; empty for safetensors.
///
/// Typed getters give `Ok(None)` for an absent key and an error for a value of another type.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

macro_rules! array_getter {
    ($(#[$doc:meta])* $name:ident, $variant:ident, $item:ty, $expected:literal) => {
        $(#[$doc])*
        pub fn $name(&self, key: &str) -> Result<Option<&[$item]>> {
            self.typed(key, $expected, |value| match value {
                Value::Array(Array::$variant(items)) => Some(items.as_slice()),
                Value::Array(other) if other.is_empty() => Some(&[]),
                _ => None,
            })
        }
    };
}

impl Metadata {
    pub(crate) fn insert(&mut self, key: String, value: Value) -> Result<()> {
        if self.index.contains_key(&key) {
            return Err(FileError::Duplicate { what: "metadata key", name: key });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer that is not negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer that is not negative", as_u64)
    }

    /// A number.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| match value {
            Value::Float(number) => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// True or false.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    array_getter!(
        /// An array of strings.
        strings, String, String, "an array of strings"
    );
    array_getter!(
        /// An array of 32-bit floats.
        floats, Float, f32, "an array of 32-bit floats"
    );
    array_getter!(
        /// An array of booleans.
        bools, Bool, bool, "an array of booleans"
    );

    /// An array of integers, none of them negative.
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.typed(key, "an array of integers that are not negative", |value| match value {
            Value::Array(Array::Unsigned(items)) => Some(items.clone()),
            Value::Array(Array::Signed(items)) => items.iter().map(|&item| item.try_into().ok()).collect(),
            Value::Array(other) if other.is_empty() => Some(Vec::new()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        get: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        get(value).map(Some).ok_or_else(|| FileError::WrongType { key: key.to_owned(), expected })
    }
}

fn as_u64(value: &Value) -> Option<u64> {
    match value {
        Value::Unsigned(number) => Some(*number),
        Value::Signed(number) => (*number).try_into().ok(),
        _ => None,
    }
}
