//! Delivery of an answer, whole or as server-sent events, in the shape of either endpoint.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use laneway_protocol::chat::TokenLogprob;
use laneway_protocol::{ApiError, Delivery, FinishReason, Usage};
use serde::Serialize;
use uuid::Uuid;

use crate::state::TextModel;
use crate::turns::{News, Turns};

/// Asks nginx not to collect events.
const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// What every object of one answer has in common.
pub(crate) struct Head {
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    pub model: String,
    pub fingerprint: String,
    /// `None` leaves `usage` out of the chunks; `Some(None)` is `null`.
    pub usage: Option<Option<Usage>>,
}

impl Head {
    pub fn new(prefix: &str, model: &TextModel, delivery: Delivery) -> Self {
        Self {
            id: format!("{prefix}-{}", Uuid::new_v4().simple()),
            created: unix_now_s(),
            model: model.info.id.clone(),
            fingerprint: model.fingerprint.clone(),
            usage: matches!(delivery, Delivery::Stream { include_usage: true }).then_some(None),
        }
    }
}

/// A complete answer.
#[derive(Default)]
pub(crate) struct Choice {
    pub text: String,
    /// What the model thought before it answered.
    pub reasoning: String,
    pub tokens: Vec<TokenLogprob>,
    pub finish: Option<FinishReason>,
}

/// How an endpoint writes its answers.
pub(crate) trait Shape: Send + 'static {
    type Whole: Serialize;
    type Chunk: Serialize;

    /// The answer in one piece.
    fn whole(&self, choices: Vec<Choice>, usage: Usage) -> Self::Whole;
    /// The first event of a choice, if the endpoint has one.
    fn opening(&self, choice: u32) -> Option<Self::Chunk>;
    /// More of a choice, or its end.
    fn news(&mut self, news: News) -> Self::Chunk;
    /// The event that only tells the usage.
    fn usage(&self, usage: Usage) -> Self::Chunk;
}

pub(crate) fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) async fn deliver<S: Shape>(turns: Turns, shape: S, delivery: Delivery) -> Result<Response, ApiError> {
    match delivery {
        Delivery::Whole => whole(turns, &shape).await,
        Delivery::Stream { include_usage } => Ok(streamed(turns, shape, include_usage)),
    }
}

async fn whole<S: Shape>(mut turns: Turns, shape: &S) -> Result<Response, ApiError> {
    let mut choices: Vec<Choice> = (0..turns.choices()).map(|_| Choice::default()).collect();
    while let Some(news) = turns.next().await {
        let news = news?;
        let choice = &mut choices[news.choice as usize];
        if news.reasoning {
            choice.reasoning.push_str(&news.text);
        } else {
            choice.text.push_str(&news.text);
        }
        choice.tokens.extend(news.tokens);
        choice.finish = news.finish.or(choice.finish);
    }
    Ok(Json(shape.whole(choices, turns.usage())).into_response())
}

fn streamed<S: Shape>(turns: Turns, shape: S, include_usage: bool) -> Response {
    let keep_alive = KeepAlive::new().interval(turns.keep_alive());
    let ready = (0..turns.choices()).filter_map(|choice| shape.opening(choice)).map(|chunk| event(&chunk)).collect();
    let transcript = Transcript { turns: Some(turns), shape, include_usage, ready };
    let events = stream::unfold(transcript, |mut transcript| async {
        let event = transcript.next().await?;
        Some((Ok::<_, Infallible>(event), transcript))
    });
    ([UNBUFFERED], Sse::new(events).keep_alive(keep_alive)).into_response()
}

/// The events of one streamed answer; dropped with the connection, and the turns with it.
struct Transcript<S> {
    /// `None` once the last event is ready.
    turns: Option<Turns>,
    shape: S,
    include_usage: bool,
    ready: VecDeque<Event>,
}

impl<S: Shape> Transcript<S> {
    async fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        let turns = self.turns.as_mut()?;
        match turns.next().await {
            Some(Ok(news)) => return Some(event(&self.shape.news(news))),
            Some(Err(error)) => {
                tracing::debug!("stream failed: {error}");
                self.ready.push_back(event(&error.envelope()));
            }
            None if self.include_usage => self.ready.push_back(event(&self.shape.usage(turns.usage()))),
            None => {}
        }
        self.turns = None;
        self.ready.push_back(Event::default().data("[DONE]"));
        self.ready.pop_front()
    }
}

fn event<T: Serialize>(value: &T) -> Event {
    Event::default().json_data(value).expect("answers have string keys and finite numbers")
}
