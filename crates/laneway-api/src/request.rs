//! What every request gets: an id, a span, a count, and an answer even if its route panics.

use std::any::Any;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use laneway_protocol::ApiError;
use tracing::Instrument;
use uuid::Uuid;

use crate::refusal::Refusal;
use crate::state::ApiState;
use crate::systemone;
use crate::telemetry::{REQUEST, Span, SpanContext};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same under the name that System One's clients read.
const TYPESAFE_REQUEST_ID: HeaderName = HeaderName::from_static("x-typesafe-request-id");
/// What routers send the turns of a conversation to the same server by.
const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
const SESSION_TOKEN: HeaderName = HeaderName::from_static("x-session-token");
const LONGEST_ID: usize = 128;

/// Identifies, traces and counts a request.
pub(crate) async fn trace(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let (started, start) = (Instant::now(), SystemTime::now());
    let parent = request.headers().get("traceparent").and_then(|header| header.to_str().ok());
    let (context, parent) = SpanContext::of_request(parent);
    let id = request.headers().get(REQUEST_ID).filter(|id| is_valid(id)).cloned().unwrap_or_else(new_id);
    let session = [SESSION_ID, SESSION_TOKEN]
        .iter()
        .find_map(|name| request.headers().get(name).filter(|id| is_valid(id)).cloned());
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let shown = id.to_str().unwrap_or_default();
    let span = tracing::debug_span!("request", id = shown, method = %request.method(), path = request.uri().path());
    async {
        let mut response = REQUEST.scope(context, next.run(request)).await;
        let status = response.status().as_u16();
        tracing::debug!(status, ms = started.elapsed().as_millis() as u64, "answered");
        state.metrics.count_request(&route, status);
        if let Some(telemetry) = &state.options.telemetry {
            let attributes = vec![("http.response.status_code", status.into()), ("request_id", shown.into())];
            let (name, end) = (route.clone(), SystemTime::now());
            telemetry.send(Span { name, context, parent, start, end, attributes });
        }
        if systemone::is_path(&route) {
            response.headers_mut().insert(TYPESAFE_REQUEST_ID, id.clone());
        }
        response.headers_mut().insert(REQUEST_ID, id.clone());
        if route.starts_with("/v1/") {
            response.headers_mut().insert(SESSION_ID, session.unwrap_or_else(new_id));
        }
        response
    }
    .instrument(span.clone())
    .await
}

/// The answer of a route that panicked.
pub(crate) fn panicked(cause: Box<dyn Any + Send>) -> Response {
    let text = cause.downcast_ref::<&str>().copied().or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    tracing::error!(cause = text, "a route panicked");
    Refusal(ApiError::internal("internal error")).into_response()
}

fn is_valid(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    (1..=LONGEST_ID).contains(&bytes.len()) && bytes.iter().all(allowed)
}

fn new_id() -> HeaderValue {
    HeaderValue::from_str(&Uuid::new_v4().to_string()).expect("a UUID is ASCII")
}
