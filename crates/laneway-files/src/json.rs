use serde_json::{Map, Value};

use crate::{FileError, Result};

/// A JSON object with typed fields; `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub fn of(what: &'static str, value: &'a Value) -> Result<Self> {
        value.as_object().map(Self).ok_or(FileError::WrongType { key: what.into(), expected: "a JSON object" })
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer that is not negative", Value::as_u64)
    }

    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub fn object(&self, key: &str) -> Result<Option<Self>> {
        self.typed(key, "a JSON object", |value| value.as_object().map(Self))
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn str(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn required(&self, key: &str) -> Result<u64> {
        self.u64(key)?.ok_or_else(|| FileError::MissingKey(key.to_owned()))
    }

    fn typed<T>(&self, key: &str, expected: &'static str, get: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        get(value).map(Some).ok_or_else(|| FileError::WrongType { key: key.to_owned(), expected })
    }
}
