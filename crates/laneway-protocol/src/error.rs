use serde::Serialize;

/// A request that is refused, or that failed: an HTTP status and OpenAI's error body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Machine-readable family, OpenAI's `type`.
    pub kind: &'static str,
    /// One sentence for the person who sent the request.
    pub message: String,
    /// The field at fault, as a path such as `messages[0].content`.
    pub param: Option<String>,
    /// Machine-readable reason.
    pub code: Option<&'static str>,
    /// Seconds to wait before another try, for `Retry-After`.
    pub retry_after_s: Option<u32>,
}

impl ApiError {
    fn new(status: u16, kind: &'static str, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code, retry_after_s: None }
    }

    /// 400 that names the field at fault.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(message).with_param(param)
    }

    /// 400 for a field that would change the answer and is not supported.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", Some("unsupported_parameter"), message).with_param(param)
    }

    /// 400 without a field, e.g. for a body that is no JSON.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", None, message)
    }

    /// 400 for a prompt that leaves no room in the context; both counts are in tokens.
    pub fn context_length(param: impl Into<String>, prompt: usize, context: usize) -> Self {
        let message =
            format!("the prompt has {prompt} tokens, but this model's context holds {context} tokens, answer included");
        Self::new(400, "invalid_request_error", Some("context_length_exceeded"), message).with_param(param)
    }

    /// 401 for an absent or wrong key.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(401, "authentication_error", Some("invalid_api_key"), message)
    }

    /// 403 for what the application that embeds the server does not allow.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "permission_error", Some("refused"), message)
    }

    /// 404 for a model that is not served here.
    pub fn model_not_found(name: &str) -> Self {
        let shown: String = name.chars().take(100).collect();
        let message = format!("the model `{shown}` is not served here; GET /v1/models lists those that are");
        Self::new(404, "invalid_request_error", Some("model_not_found"), message).with_param("model")
    }

    /// 404 for an unknown path.
    pub fn route_not_found(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        Self::new(404, "invalid_request_error", Some("not_found"), format!("no route for {shown}"))
    }

    /// 405 for a known path.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("{method} is not allowed on {path}");
        Self::new(405, "invalid_request_error", Some("method_not_allowed"), message)
    }

    /// 408 for a body that did not arrive in time.
    pub fn body_timeout(limit_s: u64) -> Self {
        let message = format!("the request body did not arrive within {limit_s} s");
        Self::new(408, "invalid_request_error", Some("request_timeout"), message)
    }

    /// 413 for a body over `limit` bytes.
    pub fn body_too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than {limit} bytes");
        Self::new(413, "invalid_request_error", Some("request_too_large"), message)
    }

    /// 415 for a body that says it is something other than JSON.
    pub fn not_json(content_type: &str) -> Self {
        let shown: String = content_type.chars().take(100).collect();
        let message = format!("expected content type application/json, not {shown}");
        Self::new(415, "invalid_request_error", Some("unsupported_media_type"), message)
    }

    /// 415 for a compressed body that cannot be unpacked here.
    pub fn unknown_coding(coding: &str) -> Self {
        let shown: String = coding.chars().take(40).collect();
        let message = format!("bodies may be encoded as gzip, deflate or zstd, not {shown}");
        Self::new(415, "invalid_request_error", Some("unsupported_encoding"), message)
    }

    /// 429 for a full queue.
    pub fn busy(retry_after_s: u32) -> Self {
        let message = "all lanes are busy and the queue is full; try again later";
        let mut error = Self::new(429, "rate_limit_error", Some("rate_limit_exceeded"), message);
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// 500 for a failure that the request did not cause.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "server_error", Some("internal_error"), message)
    }

    /// 503 while the model loads, the server drains or the engine has stopped.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(503, "service_unavailable_error", Some(code), message);
        error.retry_after_s = Some(5);
        error
    }

    /// 504 for an answer that was not complete in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "timeout_error", Some("timeout"), message)
    }

    /// The same error with the field at fault.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The JSON body of the answer.
    pub fn envelope(&self) -> ErrorEnvelope<'_> {
        ErrorEnvelope {
            error: ErrorBody { message: &self.message, kind: self.kind, param: self.param.as_deref(), code: self.code },
        }
    }
}

/// OpenAI's error body.
#[derive(Debug, Serialize)]
pub struct ErrorEnvelope<'a> {
    pub error: ErrorBody<'a>,
}

/// The object under `error`; absent values are `null`.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    pub message: &'a str,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub param: Option<&'a str>,
    pub code: Option<&'static str>,
}
