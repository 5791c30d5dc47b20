use std::ops::RangeInclusive;

use crate::ApiError;
use crate::body::Body;
use crate::loose::{Integer, Outline};

/// Most stop strings in one request.
pub const MAX_STOPS: usize = 16;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most answers one request may ask for: prompts times `n`.
pub const MAX_CHOICES: usize = 32;

/// A salt is shorter.
const MAX_SALT_BYTES: usize = 1024;

const MAX_N: i128 = 8;
const MAX_TOP_LOGPROBS: i128 = 20;
const MAX_TOKENS: i128 = 1 << 24;
const MAX_STEPS: i128 = 512;
const MAX_TOP_K: i128 = i32::MAX as i128;

/// How a turn is generated and delivered, valid in every field.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnSettings {
    pub sampling: SamplingOptions,
    /// Longest answer in tokens, at least 1; `None` leaves it to the endpoint.
    pub max_tokens: Option<u32>,
    /// Distinct stop strings, none empty.
    pub stop: Vec<String>,
    /// Answers for each prompt, at least 1.
    pub choices: u32,
    /// `Some(k)` asks for the log-probability of each token and its `k` best rivals.
    pub top_logprobs: Option<u8>,
    pub delivery: Delivery,
    /// Whether the model may think before it answers, where its template can say so; off unless asked for.
    pub thinking: bool,
    /// Whether a stream shows every revision of a canvas, as `x_laneway_draft` chunks.
    pub drafts: bool,
    /// Passes over a canvas at most, 1 to 512; `None` means the model's own number.
    pub denoising_steps: Option<u32>,
    /// Nothing of the turn's state is kept: a side task that must not displace a conversation.
    pub one_shot: bool,
    /// Requests with another salt share no cached prefix with this one.
    pub cache_salt: Option<String>,
}

/// Whether the answer comes in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    Stream { include_usage: bool },
}

/// What the caller said about sampling; `None` means the model's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    /// 0 to 2; 0 is greedy.
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    /// 0 keeps every token.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// 0.1 to 2.
    pub repetition_penalty: Option<f32>,
    pub seed: Option<u64>,
}

/// The two meanings of `logprobs` in OpenAI's API.
#[derive(Clone, Copy)]
pub(crate) enum LogprobStyle {
    Chat,
    Completion,
}

pub(crate) fn validate(body: &mut Body, style: LogprobStyle) -> Result<TurnSettings, ApiError> {
    refuse_unsupported(body)?;
    Ok(TurnSettings {
        sampling: sampling(body)?,
        max_tokens: max_tokens(body)?,
        stop: stop(body)?,
        choices: choices(body)?,
        top_logprobs: match style {
            LogprobStyle::Chat => chat_logprobs(body)?,
            LogprobStyle::Completion => completion_logprobs(body)?,
        },
        delivery: delivery(body),
        thinking: thinking(body)?,
        drafts: drafts(body)?,
        denoising_steps: integer("x_laneway_steps", body.x_laneway_steps, 1..=MAX_STEPS)?.map(|steps| steps as u32),
        one_shot: body.x_laneway_one_shot.unwrap_or(false),
        cache_salt: cache_salt(body)?,
    })
}

fn sampling(body: &Body) -> Result<SamplingOptions, ApiError> {
    let penalty = -2.0..=2.0;
    Ok(SamplingOptions {
        temperature: number("temperature", body.temperature, 0.0..=2.0)?,
        top_p: positive("top_p", body.top_p, 1.0)?,
        top_k: top_k(body.top_k)?,
        min_p: number("min_p", body.min_p, 0.0..=1.0)?,
        presence_penalty: number("presence_penalty", body.presence_penalty, penalty.clone())?,
        frequency_penalty: number("frequency_penalty", body.frequency_penalty, penalty)?,
        repetition_penalty: number("repetition_penalty", body.repetition_penalty, 0.1..=2.0)?,
        seed: seed(body.seed)?,
    })
}

fn number(param: &str, value: Option<f64>, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !range.contains(&value) => Err(ApiError::field(
            param,
            format!("`{param}` must be between {} and {}, not {value}", range.start(), range.end()),
        )),
        value => Ok(value.map(|value| value as f32)),
    }
}

fn positive(param: &str, value: Option<f64>, most: f64) -> Result<Option<f32>, ApiError> {
    match value {
        // Compared as f32: a smaller number would become the zero that is excluded.
        Some(value) if value as f32 <= 0.0 || value > most || value.is_nan() => {
            Err(ApiError::field(param, format!("`{param}` must be above 0 and at most {most}, not {value}")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

fn integer(param: &str, value: Option<Integer>, range: RangeInclusive<i128>) -> Result<Option<i128>, ApiError> {
    match value {
        Some(Integer(value)) if !range.contains(&value) => Err(ApiError::field(
            param,
            format!("`{param}` must be between {} and {}, not {value}", range.start(), range.end()),
        )),
        value => Ok(value.map(|Integer(value)| value)),
    }
}

fn top_k(value: Option<Integer>) -> Result<Option<u32>, ApiError> {
    let value = integer("top_k", value, -1..=MAX_TOP_K)?;
    Ok(value.map(|value| u32::try_from(value).unwrap_or(0)))
}

fn seed(value: Option<Integer>) -> Result<Option<u64>, ApiError> {
    let range = i128::from(i64::MIN)..=i128::from(u64::MAX);
    Ok(integer("seed", value, range)?.map(|value| value as u64))
}

fn max_tokens(body: &Body) -> Result<Option<u32>, ApiError> {
    let range = 1..=MAX_TOKENS;
    let older = integer("max_tokens", body.max_tokens, range.clone())?;
    let newer = integer("max_completion_tokens", body.max_completion_tokens, range)?;
    Ok(newer.or(older).map(|value| value as u32))
}

fn stop(body: &mut Body) -> Result<Vec<String>, ApiError> {
    let given = body.stop.take().map(|strings| strings.0).unwrap_or_default();
    if given.len() > MAX_STOPS {
        return Err(ApiError::field(
            "stop",
            format!("`stop` holds {} strings; at most {MAX_STOPS} are allowed", given.len()),
        ));
    }
    let mut stops: Vec<String> = Vec::with_capacity(given.len());
    for stop in given {
        if stop.len() > MAX_STOP_BYTES {
            return Err(ApiError::field(
                "stop",
                format!("a stop string may have at most {MAX_STOP_BYTES} bytes, not {}", stop.len()),
            ));
        }
        if !stop.is_empty() && !stops.contains(&stop) {
            stops.push(stop);
        }
    }
    Ok(stops)
}

fn choices(body: &Body) -> Result<u32, ApiError> {
    let n = integer("n", body.n, 1..=MAX_N)?.unwrap_or(1);
    match integer("best_of", body.best_of, 0..=MAX_CHOICES as i128)? {
        Some(best_of) if best_of > n => Err(ApiError::unsupported(
            "best_of",
            "`best_of` above `n` is not supported: no answer is generated and dropped",
        )),
        _ => Ok(n as u32),
    }
}

fn chat_logprobs(body: &Body) -> Result<Option<u8>, ApiError> {
    let top = integer("top_logprobs", body.top_logprobs, 0..=MAX_TOP_LOGPROBS)?;
    match (&body.logprobs, top) {
        (Some(Outline::Flag(true)), top) => Ok(Some(top.unwrap_or(0) as u8)),
        (None | Some(Outline::Flag(false)), None | Some(0)) => Ok(None),
        (None | Some(Outline::Flag(false)), Some(_)) => {
            Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
        (Some(_), _) => Err(ApiError::field("logprobs", "`logprobs` must be true or false")),
    }
}

fn completion_logprobs(body: &Body) -> Result<Option<u8>, ApiError> {
    match &body.logprobs {
        None | Some(Outline::Flag(false)) => Ok(None),
        Some(Outline::Number(value)) if value.fract() == 0.0 => {
            let top = integer("logprobs", Some(Integer(*value as i128)), 0..=MAX_TOP_LOGPROBS)?;
            Ok(top.map(|top| top as u8))
        }
        Some(_) => Err(ApiError::field("logprobs", "`logprobs` must be a whole number")),
    }
}

fn delivery(body: &Body) -> Delivery {
    if !body.stream.unwrap_or(false) {
        return Delivery::Whole;
    }
    let include_usage = body.stream_options.as_ref().and_then(|options| options.0.include_usage).unwrap_or(false);
    Delivery::Stream { include_usage }
}

/// `chat_template_kwargs.enable_thinking`, else whether `reasoning_effort` is anything but `none`.
fn thinking(body: &Body) -> Result<bool, ApiError> {
    let effort = match body.reasoning_effort.as_deref() {
        None | Some("none") => false,
        Some("minimal" | "low" | "medium" | "high" | "xhigh") => true,
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            let message =
                format!("`reasoning_effort` must be none, minimal, low, medium, high or xhigh, not `{shown}`");
            return Err(ApiError::field("reasoning_effort", message));
        }
    };
    Ok(body.chat_template_kwargs.as_ref().and_then(|options| options.0.enable_thinking).unwrap_or(effort))
}

fn cache_salt(body: &mut Body) -> Result<Option<String>, ApiError> {
    let salt = body.cache_salt.take();
    match salt.as_ref().map(String::len) {
        Some(0) => Err(ApiError::field("cache_salt", "`cache_salt` must not be empty")),
        Some(MAX_SALT_BYTES..) => {
            let message = format!("`cache_salt` must be shorter than {MAX_SALT_BYTES} bytes");
            Err(ApiError::field("cache_salt", message))
        }
        _ => Ok(salt),
    }
}

fn drafts(body: &Body) -> Result<bool, ApiError> {
    let wanted = body.x_laneway_drafts.unwrap_or(false);
    if wanted && !body.stream.unwrap_or(false) {
        return Err(ApiError::field("x_laneway_drafts", "`x_laneway_drafts` needs `stream` to be true"));
    }
    Ok(wanted)
}

/// Refuses what would change the answer: ignoring it in silence would be a wrong answer.
fn refuse_unsupported(body: &Body) -> Result<(), ApiError> {
    let wanted = |field: &Option<Outline>| field.as_ref().is_some_and(|value| !value.is_empty());
    let tools_off = matches!(&body.tool_choice, Some(Outline::Text(choice)) if choice == "none");
    let text_only = |kinds: &[String]| kinds.iter().all(|kind| kind == "text");

    let refused = [
        ("echo", wanted(&body.echo)),
        ("suffix", wanted(&body.suffix)),
        ("logit_bias", wanted(&body.logit_bias)),
        ("tools", wanted(&body.tools) && !tools_off),
        ("functions", wanted(&body.functions) && !tools_off),
        ("tool_choice", tool_choice_forces(&body.tool_choice)),
        ("response_format", body.response_format.as_ref().is_some_and(|format| !is_text_format(format))),
        ("modalities", body.modalities.as_ref().is_some_and(|modalities| !text_only(&modalities.0))),
        ("audio", wanted(&body.audio)),
        ("web_search_options", body.web_search_options.is_some()),
    ];
    match refused.into_iter().find(|(_, refused)| *refused) {
        Some((param, _)) => Err(ApiError::unsupported(param, format!("`{param}` is not supported by this server"))),
        None => Ok(()),
    }
}

fn tool_choice_forces(choice: &Option<Outline>) -> bool {
    match choice {
        None => false,
        Some(Outline::Text(choice)) => choice != "none" && choice != "auto",
        Some(other) => !other.is_empty(),
    }
}

fn is_text_format(format: &Outline) -> bool {
    match format {
        Outline::Object { kind, .. } => kind.as_deref() == Some("text"),
        other => other.is_empty(),
    }
}
