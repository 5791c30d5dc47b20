use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::shape::{At, Errors};

/// Most denoising passes over one reading.
pub const MAX_STEPS: u32 = 8;
/// Most readings that are averaged.
pub const MAX_SAMPLES: u32 = 32;
/// Most tokens of thought before a reading.
pub const MAX_THINK: u32 = 4096;
/// Most orders of the options that are averaged.
pub const MAX_PERMUTATIONS: u32 = 8;

/// How a decision is read, valid in every field; whether a model can do it is for its server to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Denoising passes, 1 to [`MAX_STEPS`]; `steps`.
    pub steps: u32,
    /// Noise fills that are averaged; `samples`.
    pub samples: Samples,
    /// Tokens of thought generated first, 0 to [`MAX_THINK`]; `think`.
    pub think: u32,
    /// Whether earlier answers are written into the prompt of later questions; `sequential`.
    pub sequential: bool,
    /// Orders of the options that are averaged, 1 to [`MAX_PERMUTATIONS`]; `x_permutations`.
    pub permutations: u32,
    /// Whether the model's habit without a state is divided out; `x_prior_correction`.
    pub prior_correction: bool,
}

/// How many noise fills are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// The server reads again where one reading is unsure.
    Auto,
    /// 1 to [`MAX_SAMPLES`].
    Fixed(u32),
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { steps: 1, samples: Samples::Auto, think: 0, sequential: false, permutations: 1, prior_correction: false }
    }
}

/// Reads the knobs at the top of a body; `null` is the default.
pub(crate) fn read(body: &Map<String, Value>, errors: &mut Errors) -> ReadOptions {
    let default = ReadOptions::default();
    ReadOptions {
        steps: integer(body, "steps", 1..=MAX_STEPS, errors).unwrap_or(default.steps),
        samples: samples(body, errors).unwrap_or(default.samples),
        think: integer(body, "think", 0..=MAX_THINK, errors).unwrap_or(default.think),
        sequential: flag(body, "sequential", errors).unwrap_or(default.sequential),
        permutations: integer(body, "x_permutations", 1..=MAX_PERMUTATIONS, errors).unwrap_or(default.permutations),
        prior_correction: flag(body, "x_prior_correction", errors).unwrap_or(default.prior_correction),
    }
}

fn given<'v>(body: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    body.get(name).filter(|value| !value.is_null())
}

fn integer(body: &Map<String, Value>, name: &str, range: RangeInclusive<u32>, errors: &mut Errors) -> Option<u32> {
    errors.integer(At::BODY.field(name), given(body, name)?, range)
}

fn flag(body: &Map<String, Value>, name: &str, errors: &mut Errors) -> Option<bool> {
    errors.flag(At::BODY.field(name), given(body, name)?)
}

fn samples(body: &Map<String, Value>, errors: &mut Errors) -> Option<Samples> {
    let at = At::BODY;
    let at = at.field("samples");
    match given(body, "samples")? {
        Value::String(word) if word == "auto" => Some(Samples::Auto),
        value @ Value::String(_) => {
            errors.push(at, "int_type", "Input should be 'auto' or a valid integer", Some(value));
            None
        }
        value => errors.integer(at, value, 1..=MAX_SAMPLES).map(Samples::Fixed),
    }
}
