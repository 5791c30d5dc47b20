//! `POST /v1/systemone` and `POST /v1/decisions`: typed questions about a state, answered by reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use laneway_decisions::{PartLogits, Plan, PlanError, Reader};
use laneway_protocol::ApiError;
use laneway_protocol::decisions::{DecisionsRequest, DecisionsResponse};
use laneway_protocol::models::DECISION_ALIASES;
use laneway_protocol::systemone::{Answers, DecisionError, DecisionRequest, ReadUsage, Reading, SystemOneResponse};
use serde::Deserialize;

use crate::body;
use crate::reads::{Reads, Took};
use crate::refusal::Refusal;
use crate::state::{ApiState, Phase, TextModel};

/// Whether errors on this path have System One's form.
pub(crate) fn is_path(path: &str) -> bool {
    matches!(path, "/v1/systemone" | "/systemone" | "/debug/systemone")
}

/// `POST /v1/systemone`.
pub(crate) async fn answer(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, DecisionRefusal> {
    let started = Instant::now();
    let bytes = body::read_form(request, &state).await?;
    let asked = parse(&state, bytes, DecisionRequest::from_json).await??;
    let model = find(&state, asked.model.as_deref())?;
    let (answers, report) = decide(&state, &model, asked, started).await?;
    let response = SystemOneResponse::new(&model.info.id, answers, report.usage());
    Ok(([report.timing()], Json(response)).into_response())
}

/// `POST /v1/decisions`.
pub(crate) async fn decisions(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, Refusal> {
    let started = Instant::now();
    let bytes = body::read(request, &state).await?;
    let DecisionsRequest { request, shape } = parse(&state, bytes, DecisionsRequest::from_json).await??;
    let name = request.model.clone().unwrap_or_default();
    let model = state.find_for_decisions(&name).ok_or_else(|| ApiError::model_not_found(&name))?;
    let (answers, report) = decide(&state, &model, request, started).await.map_err(ApiError::from)?;
    let response = DecisionsResponse::new(&model.info.id, &shape, answers, report.usage());
    Ok(([report.timing()], Json(response)).into_response())
}

#[derive(Deserialize)]
pub(crate) struct Rendered {
    /// A request as `POST /v1/systemone` takes it.
    request: String,
}

/// `GET /debug/systemone?request=JSON`: what a model would read for a request, as text.
pub(crate) async fn render(
    State(state): State<Arc<ApiState>>,
    query: Result<Query<Rendered>, QueryRejection>,
) -> Result<Response, DecisionRefusal> {
    let Query(query) = query.map_err(|error| DecisionError::usage(format!("`request` is not usable: {error}")))?;
    let asked = DecisionRequest::from_json(query.request.as_bytes())?;
    let model = find(&state, asked.model.as_deref())?;
    let reader = reader(&model)?;
    let context = model.info.context_length;
    let described = move || reader.plan(&asked, context).map(|plan| reader.describe(&plan));
    let text = state.tokenise(query.request.len(), described).await?.map_err(unplanned)?;
    Ok(text.into_response())
}

async fn parse<T: Send + 'static>(
    state: &ApiState,
    bytes: Bytes,
    read: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Result<T, ApiError> {
    state.tokenise(bytes.len(), move || read(&bytes)).await
}

/// The model of a request; one that names none means the usual alias.
fn find(state: &ApiState, name: Option<&str>) -> Result<Arc<TextModel>, DecisionError> {
    let name = name.unwrap_or(DECISION_ALIASES[0]);
    state.find_for_decisions(name).ok_or_else(|| DecisionError::unknown_model(name))
}

fn reader(model: &TextModel) -> Result<Arc<Reader>, DecisionError> {
    let name = &model.info.id;
    model.reader.clone().map_err(|reason| DecisionError::usage(format!("{name} answers no decisions: {reason}")))
}

fn unplanned(error: PlanError) -> DecisionError {
    match error {
        PlanError::TooLong { tokens, context } => DecisionError::context_length(tokens, context),
        other => DecisionError::usage(other.to_string()),
    }
}

/// What answering took.
struct Report {
    started: Instant,
    input_tokens: usize,
    took: Took,
}

impl Report {
    fn usage(&self) -> ReadUsage {
        ReadUsage {
            input_tokens: self.input_tokens as u64,
            // Prompts that repeat the state count it once, as the input does.
            cached_tokens: self.took.cached_tokens.min(self.input_tokens) as u64,
            computed_tokens: self.took.computed_tokens as u64,
            ..ReadUsage::default()
        }
    }

    fn timing(&self) -> (HeaderName, HeaderValue) {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let (queue, model) = (self.took.queue, self.took.all.saturating_sub(self.took.queue));
        let total = self.started.elapsed();
        let text = format!("queue;dur={:.1}, model;dur={:.1}, total;dur={:.1}", ms(queue), ms(model), ms(total));
        (HeaderName::from_static("server-timing"), HeaderValue::from_str(&text).expect("digits are a header"))
    }
}

async fn decide(
    state: &ApiState,
    model: &TextModel,
    request: DecisionRequest,
    started: Instant,
) -> Result<(Answers, Report), DecisionError> {
    if state.phase() >= Phase::Closing {
        return Err(DecisionError::unavailable("the server is shutting down"));
    }
    let (reader, context) = (reader(model)?, model.info.context_length);
    let planned = move || reader.plan(&request, context).map(|plan| (request, plan));
    let (request, plan) = state.tokenise(usize::MAX, planned).await?.map_err(unplanned)?;
    let input_tokens = plan.input_tokens();
    let mut reads = Reads::new(state, model);
    let mut logits = Vec::new();
    let read = reads.run(plan.parts(), &mut logits).await;
    let answers = match read {
        Ok(()) => judge(state, plan, logits, &mut reads).await,
        Err(error) => Err(error),
    };
    state.metrics.read_records(model);
    let answers = Answers::new(&request, answers?);
    let answers = answers.ok_or_else(|| DecisionError::internal("the readings do not match the questions"))?;
    Ok((answers, Report { started, input_tokens, took: reads.took() }))
}

/// What the logits say, and those of the further reads that they ask for.
async fn judge(
    state: &ApiState,
    plan: Plan,
    logits: Vec<PartLogits>,
    reads: &mut Reads<'_>,
) -> Result<Vec<Reading>, DecisionError> {
    let asked = move || {
        let more = plan.more(&logits);
        (plan, logits, more)
    };
    let (plan, mut logits, more) = state.tokenise(usize::MAX, asked).await?;
    if let Some(more) = more {
        reads.run(&more, &mut logits).await?;
    }
    let readings = state.tokenise(usize::MAX, move || plan.readings(&logits)).await?;
    readings.map_err(|error| DecisionError::internal(error.to_string()))
}

/// A [`DecisionError`] as an answer.
pub(crate) struct DecisionRefusal(pub DecisionError);

impl<E: Into<DecisionError>> From<E> for DecisionRefusal {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for DecisionRefusal {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        tracing::debug!(status = error.status, "refused: {error}");
        let mut response = (status, Json(error.body())).into_response();
        let headers = response.headers_mut();
        if let Some(ms) = error.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
            headers.insert(HeaderName::from_static("retry-after-ms"), HeaderValue::from(ms));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
