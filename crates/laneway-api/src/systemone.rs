//! `POST /v1/systemone` and `POST /v1/decisions`: typed questions about a state, answered by reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use laneway_decisions::{PartLogits, PlanError, ReadPart, Reader};
use laneway_protocol::ApiError;
use laneway_protocol::decisions::{DecisionsRequest, DecisionsResponse};
use laneway_protocol::models::DECISION_ALIASES;
use laneway_protocol::systemone::{Answers, DecisionError, DecisionRequest, ReadUsage, SystemOneResponse};
use laneway_session::{Cancel, Read, ReadAnswer, Source, SubmitError, TurnError};
use serde::Deserialize;
use tokio::sync::{oneshot, watch};

use crate::body;
use crate::refusal::Refusal;
use crate::state::{ApiState, Phase, TextModel};

/// Whether errors on this path have System One's form.
pub(crate) fn is_path(path: &str) -> bool {
    matches!(path, "/v1/systemone" | "/systemone" | "/debug/systemone")
}

/// `POST /v1/systemone`.
pub(crate) async fn answer(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, DecisionRefusal> {
    let started = Instant::now();
    let bytes = body::read_form(request, &state.options).await?;
    let asked = parse(&state, bytes, DecisionRequest::from_json).await??;
    let model = find(&state, asked.model.as_deref())?;
    let (answers, report) = decide(&state, &model, asked).await?;
    let response = SystemOneResponse::new(&model.info.id, answers, report.usage());
    Ok(([report.timing(started)], Json(response)).into_response())
}

/// `POST /v1/decisions`.
pub(crate) async fn decisions(State(state): State<Arc<ApiState>>, request: Request) -> Result<Response, Refusal> {
    let started = Instant::now();
    let bytes = body::read(request, &state.options).await?;
    let DecisionsRequest { request, shape } = parse(&state, bytes, DecisionsRequest::from_json).await??;
    let name = request.model.clone().unwrap_or_default();
    let model = state.find_for_decisions(&name).ok_or_else(|| ApiError::model_not_found(&name))?;
    let (answers, report) = decide(&state, &model, request).await.map_err(ApiError::from)?;
    let response = DecisionsResponse::new(&model.info.id, &shape, answers, report.usage());
    Ok(([report.timing(started)], Json(response)).into_response())
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

/// What the reads of a request took.
#[derive(Default)]
struct Report {
    input_tokens: usize,
    cached_tokens: usize,
    computed_tokens: usize,
    queue: Duration,
    read: Duration,
}

impl Report {
    fn usage(&self) -> ReadUsage {
        ReadUsage {
            input_tokens: self.input_tokens as u64,
            cached_tokens: self.cached_tokens as u64,
            computed_tokens: self.computed_tokens as u64,
            ..ReadUsage::default()
        }
    }

    fn add(&mut self, answer: &ReadAnswer) {
        self.cached_tokens += answer.cached_tokens;
        self.computed_tokens += answer.computed_tokens;
        self.queue += Duration::from_millis(answer.queue_ms);
        self.read += Duration::from_millis(answer.read_ms);
    }

    fn timing(&self, started: Instant) -> (HeaderName, HeaderValue) {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let total = started.elapsed();
        let text = format!("queue;dur={:.1}, model;dur={:.1}, total;dur={:.1}", ms(self.queue), ms(self.read), ms(total));
        (HeaderName::from_static("server-timing"), HeaderValue::from_str(&text).expect("digits are a header"))
    }
}

async fn decide(
    state: &Arc<ApiState>,
    model: &Arc<TextModel>,
    request: DecisionRequest,
) -> Result<(Answers, Report), DecisionError> {
    if state.phase() >= Phase::Closing {
        return Err(DecisionError::unavailable("the server is shutting down"));
    }
    let (reader, context) = (reader(model)?, model.info.context_length);
    let planned = move || reader.plan(&request, context).map(|plan| (request, plan));
    let (request, plan) = state.tokenise(usize::MAX, planned).await?.map_err(unplanned)?;
    let mut report = Report { input_tokens: plan.input_tokens(), ..Report::default() };
    let mut logits = Vec::new();
    run(state, model, plan.parts(), &mut logits, &mut report).await?;
    if let Some(more) = plan.more(&logits) {
        run(state, model, &more, &mut logits, &mut report).await?;
    }
    let readings = plan.readings(&logits).map_err(|error| DecisionError::internal(error.to_string()))?;
    let answers = Answers::new(&request, readings);
    Ok((answers.ok_or_else(|| DecisionError::internal("the readings do not match the questions"))?, report))
}

async fn run(
    state: &ApiState,
    model: &Arc<TextModel>,
    parts: &[ReadPart],
    logits: &mut Vec<PartLogits>,
    report: &mut Report,
) -> Result<(), DecisionError> {
    for read in Reads::start(state, model, parts)?.finish().await? {
        report.add(&read);
        logits.push(read.logits);
    }
    Ok(())
}

/// Reads under way; dropping them cancels what has not ended.
struct Reads {
    model: Arc<TextModel>,
    running: Vec<(Cancel, oneshot::Receiver<Result<ReadAnswer, TurnError>>)>,
    phase: watch::Receiver<Phase>,
}

impl Reads {
    fn start(state: &ApiState, model: &Arc<TextModel>, parts: &[ReadPart]) -> Result<Self, DecisionError> {
        let mut reads = Self { model: model.clone(), running: Vec::new(), phase: state.watch_phase() };
        for part in parts {
            let (sender, receiver) = oneshot::channel();
            let cancel = Cancel::new();
            let read = Read {
                prompt: part.prompt.clone(),
                branches: part.branches.clone(),
                // A client that left has set the cancel flag.
                answer: Box::new(move |result| drop(sender.send(result))),
                cancel: cancel.clone(),
                deadline_ms: state.options.turn_timeout.map(|limit| limit.as_millis() as u64),
                source: Source::Http,
            };
            model.service.read(read).map_err(|error| match error {
                SubmitError::QueueFull { .. } => DecisionError::overloaded("the queue is full; try again later", 1000),
                SubmitError::Stopped => DecisionError::unavailable("the engine has stopped"),
            })?;
            reads.running.push((cancel, receiver));
        }
        Ok(reads)
    }

    async fn finish(mut self) -> Result<Vec<ReadAnswer>, DecisionError> {
        let mut answers = Vec::with_capacity(self.running.len());
        for (_, receiver) in &mut self.running {
            let answered = tokio::select! {
                answered = receiver => answered,
                _ = self.phase.wait_for(|phase| *phase == Phase::Stopping) => {
                    return Err(DecisionError::unavailable("the server is shutting down"));
                }
            };
            let answered = answered.map_err(|_| DecisionError::internal("the engine stopped without an answer"))?;
            answers.push(answered.map_err(failure)?);
        }
        self.running.clear();
        Ok(answers)
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        for (cancel, _) in &self.running {
            cancel.cancel();
        }
        if !self.running.is_empty() {
            self.model.service.wake();
        }
    }
}

fn failure(error: TurnError) -> DecisionError {
    match error {
        TurnError::ContextExceeded { .. } | TurnError::EmptyPrompt => DecisionError::usage(error.to_string()),
        TurnError::DeadlineExceeded => DecisionError::timeout("the decision was not made in time"),
        TurnError::Load(_) | TurnError::ShuttingDown | TurnError::Cancelled => {
            DecisionError::unavailable(error.to_string())
        }
        TurnError::Engine(_) | TurnError::Internal | TurnError::InvalidRead(_) => DecisionError::internal(error.to_string()),
    }
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
