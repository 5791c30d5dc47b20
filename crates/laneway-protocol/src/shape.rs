//! Shape errors of a JSON body, all of them, each with its place.

use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::ApiError;
use crate::json::{is_short, shown};

/// Most errors told about one body; the last of them counts the others.
pub const MAX_SHAPE_ERRORS: usize = 256;

const MOST_INPUT_BYTES: usize = 512;
const MOST_NAME_CHARS: usize = 200;

/// One wrong place in a body, as FastAPI describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShapeError {
    /// The path, from `body` on.
    pub loc: Vec<Loc>,
    pub msg: String,
    /// Machine-readable reason, pydantic's where it has one.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The wrong value, unless it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The limit that was passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx: Option<Value>,
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Loc {
    Field(String),
    Index(usize),
}

impl ShapeError {
    /// The same error in OpenAI's envelope.
    pub(crate) fn into_api_error(self) -> ApiError {
        let path = param(&self.loc);
        let mut said = self.msg;
        if let Some(first) = said.get_mut(..1) {
            first.make_ascii_lowercase();
        }
        match (path.is_empty(), self.kind) {
            (true, _) => ApiError::invalid(format!("the request body is not usable: {said}")),
            (false, "missing") => ApiError::field(&path, format!("`{path}` is required")),
            (false, _) => ApiError::field(&path, format!("`{path}`: {said}")),
        }
    }
}

/// A path as OpenAI writes it, such as `questions[0].choices`; empty for the body itself.
fn param(loc: &[Loc]) -> String {
    let mut path = String::new();
    for step in loc.iter().skip(1) {
        match step {
            Loc::Field(name) if path.is_empty() => path.push_str(name),
            Loc::Field(name) => path.extend([".", name]),
            Loc::Index(index) => path.push_str(&format!("[{index}]")),
        }
    }
    path
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (index, step) in self.loc.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "." })?;
            match step {
                Loc::Field(name) => f.write_str(name)?,
                Loc::Index(index) => write!(f, "{index}")?,
            }
        }
        write!(f, ": {}", self.msg)
    }
}

/// A place in the body, as a chain on the stack: paths are only built for errors.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    parent: Option<&'a At<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    pub const BODY: At<'static> = At { parent: None, step: Step::Field("body") };

    pub fn field(&'a self, name: &'a str) -> At<'a> {
        At { parent: Some(self), step: Step::Field(name) }
    }

    pub fn index(&'a self, index: usize) -> At<'a> {
        At { parent: Some(self), step: Step::Index(index) }
    }

    /// The place as OpenAI writes it, such as `questions[0].choices`.
    pub fn path(&self) -> String {
        param(&self.loc())
    }

    fn loc(&self) -> Vec<Loc> {
        let mut loc: Vec<Loc> = std::iter::successors(Some(self), |at| at.parent)
            .map(|at| match at.step {
                Step::Field(name) => Loc::Field(shown(name, MOST_NAME_CHARS)),
                Step::Index(index) => Loc::Index(index),
            })
            .collect();
        loc.reverse();
        loc
    }
}

/// Collects the errors of one body. Its readers return `None` where they recorded one.
#[derive(Default)]
pub(crate) struct Errors {
    found: Vec<ShapeError>,
    left_out: usize,
}

impl Errors {
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The errors in the order in which they were found.
    pub fn into_vec(mut self) -> Vec<ShapeError> {
        if self.left_out > 0 {
            self.found.push(ShapeError {
                loc: At::BODY.loc(),
                msg: format!("{} more errors are not listed", self.left_out),
                kind: "too_many_errors",
                input: None,
                ctx: None,
            });
        }
        self.found
    }

    pub fn push(&mut self, at: At, kind: &'static str, msg: impl Into<String>, input: Option<&Value>) {
        self.push_with(at, kind, msg, input, None);
    }

    pub fn push_with(
        &mut self,
        at: At,
        kind: &'static str,
        msg: impl Into<String>,
        input: Option<&Value>,
        ctx: Option<Value>,
    ) {
        if self.found.len() + 1 >= MAX_SHAPE_ERRORS {
            self.left_out += 1;
            return;
        }
        let input = input.filter(|value| is_short(value, MOST_INPUT_BYTES)).cloned();
        self.found.push(ShapeError { loc: at.loc(), msg: msg.into(), kind, input, ctx });
    }

    pub fn missing(&mut self, at: At) {
        self.push(at, "missing", "Field required", None);
    }

    pub fn too_short(&mut self, at: At, what: &str, least: usize, actual: usize) {
        let plural = if least == 1 { "item" } else { "items" };
        let msg = format!("{what} should have at least {least} {plural} after validation, not {actual}");
        self.push_with(at, "too_short", msg, None, Some(json!({"min_length": least, "actual_length": actual})));
    }

    pub fn too_long(&mut self, at: At, what: &str, most: usize, actual: usize) {
        let msg = format!("{what} should have at most {most} items after validation, not {actual}");
        self.push_with(at, "too_long", msg, None, Some(json!({"max_length": most, "actual_length": actual})));
    }

    pub fn empty_string(&mut self, at: At) {
        let ctx = Some(json!({"min_length": 1}));
        self.push_with(at, "string_too_short", "String should have at least 1 character", Some(&json!("")), ctx);
    }

    pub fn object<'v>(&mut self, at: At, value: &'v Value) -> Option<&'v Map<String, Value>> {
        if value.as_object().is_none() {
            self.push(at, "dict_type", "Input should be a valid dictionary", Some(value));
        }
        value.as_object()
    }

    pub fn list<'v>(&mut self, at: At, value: &'v Value) -> Option<&'v Vec<Value>> {
        if value.as_array().is_none() {
            self.push(at, "list_type", "Input should be a valid list", Some(value));
        }
        value.as_array()
    }

    pub fn string<'v>(&mut self, at: At, value: &'v Value) -> Option<&'v str> {
        if value.as_str().is_none() {
            self.push(at, "string_type", "Input should be a valid string", Some(value));
        }
        value.as_str()
    }

    pub fn flag(&mut self, at: At, value: &Value) -> Option<bool> {
        if value.as_bool().is_none() {
            self.push(at, "bool_type", "Input should be a valid boolean", Some(value));
        }
        value.as_bool()
    }

    /// A whole number in the range; `2.0` counts as `2`.
    pub fn integer(&mut self, at: At, value: &Value, range: RangeInclusive<u32>) -> Option<u32> {
        let Some(number) = value.as_f64() else {
            self.push(at, "int_type", "Input should be a valid integer", Some(value));
            return None;
        };
        let (least, most) = (*range.start(), *range.end());
        if number.fract() != 0.0 {
            let msg = "Input should be a valid integer, got a number with a fractional part";
            self.push(at, "int_from_float", msg, Some(value));
        } else if number < f64::from(least) {
            let msg = format!("Input should be greater than or equal to {least}");
            self.push_with(at, "greater_than_equal", msg, Some(value), Some(json!({"ge": least})));
        } else if number > f64::from(most) {
            let msg = format!("Input should be less than or equal to {most}");
            self.push_with(at, "less_than_equal", msg, Some(value), Some(json!({"le": most})));
        } else {
            return Some(number as u32);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_of_any_size_are_held_against_the_range() {
        for (value, expected) in [
            (json!(1), Ok(1)),
            (json!(8.0), Ok(8)),
            (json!(0), Err("greater_than_equal")),
            (json!(-0.0), Err("greater_than_equal")),
            (json!(i64::MIN), Err("greater_than_equal")),
            (json!(9), Err("less_than_equal")),
            (json!(u64::MAX), Err("less_than_equal")),
            (json!(1e300), Err("less_than_equal")),
            (json!(1.5), Err("int_from_float")),
            (json!("1"), Err("int_type")),
            (json!(true), Err("int_type")),
            (json!([1]), Err("int_type")),
        ] {
            let mut errors = Errors::default();
            let read = errors.integer(At::BODY, &value, 1..=8);
            let kind = errors.into_vec().first().map(|error| error.kind);
            assert_eq!(read.ok_or_else(|| kind.unwrap()), expected, "{value}");
        }
    }

    #[test]
    fn the_list_of_errors_is_bounded_and_says_so() {
        let mut errors = Errors::default();
        for index in 0..1000 {
            errors.missing(At::BODY.index(index));
        }
        let listed = errors.into_vec();
        assert_eq!(listed.len(), MAX_SHAPE_ERRORS);
        assert_eq!(listed.last().unwrap().msg, "745 more errors are not listed");
    }

    #[test]
    fn long_input_and_long_names_are_not_echoed() {
        let long = Value::String("x".repeat(10_000));
        let mut errors = Errors::default();
        errors.object(At::BODY.field(long.as_str().unwrap()), &long);
        let error = errors.into_vec().remove(0);
        assert_eq!(error.input, None);
        assert!(serde_json::to_string(&error).unwrap().len() < 400);
    }
}
