use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use laneway_protocol::ApiError;
use subtle::ConstantTimeEq;

use crate::refusal::Refusal;
use crate::state::{ApiOptions, ApiState};
use crate::systemone::{self, DecisionRefusal};

/// Lets a request pass only with the key that its path demands; probes and the page stay open.
pub(crate) async fn check(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let verified = match demanded(path, &state.options) {
        Demand::Nothing => Ok(()),
        Demand::Key(key) => verify(request.headers(), key),
        Demand::Unavailable => Err(ApiError::route_not_found(path)),
    };
    match verified {
        Ok(()) => next.run(request).await,
        Err(error) if systemone::is_path(path) => DecisionRefusal::from(error).into_response(),
        Err(error) => Refusal(error).into_response(),
    }
}

enum Demand<'a> {
    Nothing,
    Key(&'a str),
    /// The path is closed as long as its key is not set.
    Unavailable,
}

fn demanded<'a>(path: &str, options: &'a ApiOptions) -> Demand<'a> {
    if path.starts_with("/debug/") || path.starts_with("/admin/") {
        return options.admin_key.as_deref().map_or(Demand::Unavailable, Demand::Key);
    }
    let is_api = path.starts_with("/v1/") || systemone::is_path(path);
    options.api_key.as_deref().filter(|_| is_api).map_or(Demand::Nothing, Demand::Key)
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
