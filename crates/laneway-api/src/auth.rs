use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use laneway_protocol::ApiError;
use subtle::ConstantTimeEq;

use crate::refusal::Refusal;
use crate::state::ApiState;

/// Lets a request under `/v1/` pass only with the key; probes and the page stay open.
pub(crate) async fn check(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let key = state.options.api_key.as_deref();
    match key.filter(|_| request.uri().path().starts_with("/v1/")) {
        Some(key) => match verify(request.headers(), key) {
            Ok(()) => next.run(request).await,
            Err(error) => Refusal(error).into_response(),
        },
        None => next.run(request).await,
    }
}

fn verify(headers: &HeaderMap, key: &str) -> Result<(), ApiError> {
    let given = headers
        .get(header::AUTHORIZATION)
        .ok_or_else(|| ApiError::unauthorized("no API key: send it as `Authorization: Bearer KEY`"))?;
    let given = bearer(given.as_bytes())
        .ok_or_else(|| ApiError::unauthorized("the authorization header is not of the form `Bearer KEY`"))?;
    if bool::from(given.ct_eq(key.as_bytes())) { Ok(()) } else { Err(ApiError::unauthorized("the API key is wrong")) }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
}
