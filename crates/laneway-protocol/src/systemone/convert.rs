//! The same failure in the other API's envelope.

use crate::ApiError;
use crate::systemone::{DecisionError, Detail};

impl From<ApiError> for DecisionError {
    fn from(error: ApiError) -> Self {
        let retry_after_ms = error.retry_after_s.map(|seconds| seconds.saturating_mul(1000));
        let converted = match error.status {
            // What OpenAI's clients know as too many requests is here a full queue.
            429 => Self::overloaded(error.message, 1000),
            status => Self::typed(status, error_type(status), error.message),
        };
        Self { retry_after_ms: retry_after_ms.or(converted.retry_after_ms), ..converted }
    }
}

impl From<DecisionError> for ApiError {
    fn from(error: DecisionError) -> Self {
        let message = error.to_string();
        let converted = match error.status {
            401 | 403 => Self::unauthorized(message),
            422 => match error.detail {
                Detail::Shape(errors) => errors.into_iter().next().map(|first| first.into_api_error()),
                _ => None,
            }
            .unwrap_or_else(|| Self::invalid(message)),
            429 | 529 => Self::busy(1),
            503 => Self::unavailable("unavailable", message),
            504 => Self::timeout(message),
            status @ 500.. => Self { status, ..Self::internal(message) },
            status => Self { status, ..Self::invalid(message) },
        };
        let retry_after_s = error.retry_after_ms.map(|ms| ms.div_ceil(1000));
        Self { retry_after_s: retry_after_s.or(converted.retry_after_s), ..converted }
    }
}

fn error_type(status: u16) -> &'static str {
    match status {
        401 | 403 => "authentication_error",
        404 => "not_found",
        405 => "method_not_allowed",
        408 => "request_timeout",
        503 => "service_unavailable_error",
        504 => "timeout_error",
        500.. => "internal_error",
        _ => "api_usage_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_errors_keep_their_status_but_for_a_full_queue() {
        for (error, status, error_type, retry_after_ms) in [
            (ApiError::invalid("x"), 400, "api_usage_error", None),
            (ApiError::unauthorized("x"), 401, "authentication_error", None),
            (ApiError::body_timeout(1), 408, "request_timeout", None),
            (ApiError::body_too_large(1), 413, "api_usage_error", None),
            (ApiError::not_json("x"), 415, "api_usage_error", None),
            (ApiError::busy(3), 529, "overloaded_error", Some(3000)),
            (ApiError::internal("x"), 500, "internal_error", None),
            (ApiError::unavailable("loading", "x"), 503, "service_unavailable_error", Some(5000)),
            (ApiError::timeout("x"), 504, "timeout_error", None),
        ] {
            let message = error.message.clone();
            let converted = DecisionError::from(error);
            assert_eq!(converted.status, status);
            assert_eq!(converted.detail, Detail::Typed { error_type, message });
            assert_eq!(converted.retry_after_ms, retry_after_ms);
        }
    }

    #[test]
    fn system_one_errors_fit_openais_envelope() {
        for (error, status, kind, retry_after_s) in [
            (DecisionError::usage("x"), 400, "invalid_request_error", None),
            (DecisionError::sentence("x"), 400, "invalid_request_error", None),
            (DecisionError::shape(Vec::new()), 400, "invalid_request_error", None),
            (DecisionError::no_key(), 401, "authentication_error", None),
            (DecisionError::body_too_large(9), 413, "invalid_request_error", None),
            (DecisionError::rate_limited(10), 429, "rate_limit_error", Some(1)),
            (DecisionError::overloaded("x", 2500), 429, "rate_limit_error", Some(3)),
            (DecisionError::internal("x"), 500, "server_error", None),
            (DecisionError::unavailable("x"), 503, "service_unavailable_error", Some(5)),
            (DecisionError::timeout("x"), 504, "timeout_error", None),
        ] {
            let converted = ApiError::from(error);
            assert_eq!((converted.status, converted.kind), (status, kind));
            assert_eq!(converted.retry_after_s, retry_after_s);
        }
    }
}
