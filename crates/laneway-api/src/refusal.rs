use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_protocol::ApiError;

/// An [`ApiError`] as an answer.
pub(crate) struct Refusal(pub ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        tracing::debug!(status = error.status, param = error.param, code = error.code, "refused: {error}");
        let mut response = (status, Json(error.envelope())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = error.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
