use std::fmt;

use serde::Serialize;
use serde_json::json;

use crate::json::{MOST_VALUES, Unreadable, shown};
use crate::shape::{At, Errors, ShapeError};

/// A System One request that is refused, or that failed: an HTTP status and the body's `detail`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{detail}")]
pub struct DecisionError {
    /// HTTP status.
    pub status: u16,
    pub detail: Detail,
    /// Milliseconds to wait before another try, for `retry-after-ms` and `retry-after`.
    pub retry_after_ms: Option<u32>,
}

/// The three shapes of `detail`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Detail {
    /// Every wrong place in the body; at least one.
    Shape(Vec<ShapeError>),
    /// A limit that the request passes, as a sentence.
    Sentence(String),
    /// Everything else.
    Typed {
        /// Machine-readable family.
        error_type: &'static str,
        message: String,
    },
}

/// The JSON body of an error.
#[derive(Debug, Serialize)]
pub struct DecisionErrorBody<'a> {
    pub detail: &'a Detail,
}

impl DecisionError {
    pub(super) fn typed(status: u16, error_type: &'static str, message: impl Into<String>) -> Self {
        Self { status, detail: Detail::Typed { error_type, message: message.into() }, retry_after_ms: None }
    }

    fn retry_after(mut self, retry_after_ms: u32) -> Self {
        self.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// 422 with every wrong place found.
    pub fn shape(errors: Vec<ShapeError>) -> Self {
        Self { status: 422, detail: Detail::Shape(errors), retry_after_ms: None }
    }

    /// 400 for a limit that is passed, as a sentence.
    pub fn sentence(message: impl Into<String>) -> Self {
        Self { status: 400, detail: Detail::Sentence(message.into()), retry_after_ms: None }
    }

    /// 400 for any other misuse.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::typed(400, "api_usage_error", message)
    }

    /// 400 for a field that would change the answer and that this model cannot honour.
    pub fn unsupported(field: &str, why: &str) -> Self {
        Self::usage(format!("`{field}` is not supported by this model: {why}"))
    }

    /// 400 for a model that is not served here.
    pub fn unknown_model(name: &str) -> Self {
        Self::usage(format!("the model `{}` is not served here; GET /v1/models lists those that are", shown(name, 100)))
    }

    /// 400 for a model that is served here and takes no decisions.
    pub fn no_decision_model(name: &str) -> Self {
        Self::usage(format!("the model `{}` does not answer decisions", shown(name, 100)))
    }

    /// 400 for a request that does not fit the context; both counts are in tokens.
    pub fn context_length(used: usize, allowed: usize) -> Self {
        Self::usage(format!("the request has {used} tokens, but this model's context holds {allowed}"))
    }

    /// 400 for one question that this model cannot read, e.g. for want of labels.
    pub fn question(id: &str, why: &str) -> Self {
        Self::usage(format!("question `{}` cannot be read by this model: {why}", shown(id, 100)))
    }

    /// 401 for a wrong key.
    pub fn wrong_key() -> Self {
        Self::typed(401, "authentication_error", "the API key is not valid here")
    }

    /// 403 for an absent key.
    pub fn no_key() -> Self {
        Self::typed(403, "authentication_error", "this server needs an API key in `Authorization: Bearer`")
    }

    /// 403 for a web page's origin that is not allowed.
    pub fn origin_not_allowed(origin: &str) -> Self {
        Self::typed(403, "permission_error", format!("the origin {} is not allowed", shown(origin, 100)))
    }

    /// 404 for an unknown path.
    pub fn route_not_found(path: &str) -> Self {
        Self::typed(404, "not_found", format!("no route for {}", shown(path, 200)))
    }

    /// 405 for a known path.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::typed(405, "method_not_allowed", format!("{method} is not allowed on {}", shown(path, 200)))
    }

    /// 408 for a body that did not arrive in time.
    pub fn body_timeout(limit_s: u64) -> Self {
        Self::typed(408, "request_timeout", format!("the request body did not arrive within {limit_s} s"))
    }

    /// 413 for a body over `limit` bytes.
    pub fn body_too_large(limit: usize) -> Self {
        Self::typed(413, "api_usage_error", format!("the request body is larger than {limit} bytes"))
    }

    /// 415 for a body of another kind or in an unknown encoding.
    pub fn media_type(message: impl Into<String>) -> Self {
        Self::typed(415, "api_usage_error", message)
    }

    /// 429 for a caller that asks too often.
    pub fn rate_limited(retry_after_ms: u32) -> Self {
        Self::typed(429, "rate_limit_error", "too many requests; try again later").retry_after(retry_after_ms)
    }

    /// 500 for a failure that the request did not cause.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::typed(500, "internal_error", message)
    }

    /// 503 while the model loads, the server drains or the engine has stopped.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::typed(503, "service_unavailable_error", message).retry_after(5000)
    }

    /// 504 for an answer that was not complete in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::typed(504, "timeout_error", message)
    }

    /// 529 for a full queue.
    pub fn overloaded(message: impl Into<String>, retry_after_ms: u32) -> Self {
        Self::typed(529, "overloaded_error", message).retry_after(retry_after_ms)
    }

    /// 422 for a body that could not be read at all.
    pub(crate) fn unreadable(why: Unreadable) -> Self {
        let (body, mut errors) = (At::BODY, Errors::default());
        match why {
            Unreadable::Syntax { offset, reason } => {
                errors.push_with(
                    body.index(offset),
                    "json_invalid",
                    "JSON decode error",
                    Some(&json!({})),
                    Some(json!({"error": reason})),
                );
            }
            Unreadable::TooManyValues => {
                let msg = format!("Body should have at most {MOST_VALUES} JSON values");
                errors.push_with(body, "too_long", msg, None, Some(json!({"max_length": MOST_VALUES})));
            }
        }
        Self::shape(errors.into_vec())
    }

    /// The JSON body of the answer.
    pub fn body(&self) -> DecisionErrorBody<'_> {
        DecisionErrorBody { detail: &self.detail }
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Sentence(message) | Self::Typed { message, .. } => f.write_str(message),
            Self::Shape(errors) => {
                for (index, error) in errors.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "; " })?;
                    write!(f, "{error}")?;
                }
                Ok(())
            }
        }
    }
}
