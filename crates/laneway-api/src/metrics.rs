//! `GET /metrics`: vLLM's names, which routers and dashboards know, and Laneway's own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use laneway_protocol::ApiError;
use laneway_session::{Finish, FinishReason, TurnError, TurnRecord};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::refusal::Refusal;
use crate::state::{ApiState, TextModel};
use crate::telemetry::Telemetry;

mod service;

use service::{ServiceCollector, SpanCollector};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const INTERVAL: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0,
];

/// Labels of vLLM's series; one engine a process.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ModelLabels {
    model_name: String,
    engine: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FinishLabels {
    model_name: String,
    engine: &'static str,
    finished_reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

impl ModelLabels {
    fn of(model: &TextModel) -> Self {
        Self { model_name: model.info.id.clone(), engine: "0" }
    }
}

/// The bucket bounds of a family.
#[derive(Clone)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

type Histograms = Family<ModelLabels, Histogram, Buckets>;

/// Figures that the HTTP side measures, and the registry they are read from.
pub(crate) struct ApiMetrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    finished: Family<FinishLabels, Counter>,
    first_token: Histograms,
    interval: Histograms,
    whole: Histograms,
    queue: Histograms,
    prefill: Histograms,
    decode: Histograms,
    inference: Histograms,
    prompt_tokens: Histograms,
    generation_tokens: Histograms,
    read: Histograms,
    read_queue: Histograms,
}

impl ApiMetrics {
    pub fn new(models: &[Arc<TextModel>], telemetry: Option<&Telemetry>) -> Self {
        let mut registry = Registry::default();
        if let Some(telemetry) = telemetry {
            registry.register_collector(Box::new(SpanCollector(telemetry.clone())));
        }
        registry.register_collector(Box::new(ServiceCollector::new(models)));
        let mut histograms = |name: &str, help: &str, buckets| {
            let family = Histograms::new_with_constructor(Buckets(buckets));
            registry.register(name, help, family.clone());
            // A series that is missing until its first value looks like a missing metric.
            for model in models {
                drop(family.get_or_create(&ModelLabels::of(model)));
            }
            family
        };
        let mut metrics = Self {
            first_token: histograms("vllm:time_to_first_token_seconds", "From submission to the first token", TTFT),
            interval: histograms("vllm:inter_token_latency_seconds", "Between two tokens of an answer", INTERVAL),
            whole: histograms("vllm:e2e_request_latency_seconds", "From submission to the last token", LATENCY),
            queue: histograms("vllm:request_queue_time_seconds", "From submission to start", LATENCY),
            prefill: histograms("vllm:request_prefill_time_seconds", "From start to the first token", LATENCY),
            decode: histograms("vllm:request_decode_time_seconds", "From the first token to the last", LATENCY),
            inference: histograms("vllm:request_inference_time_seconds", "From start to the last token", LATENCY),
            prompt_tokens: histograms("vllm:request_prompt_tokens", "Tokens of a prompt", TOKENS),
            generation_tokens: histograms("vllm:request_generation_tokens", "Tokens of an answer", TOKENS),
            read: histograms("laneway_read_time_seconds", "From start to end of a read", TTFT),
            read_queue: histograms("laneway_read_queue_time_seconds", "From submission to start of a read", TTFT),
            requests: Family::default(),
            finished: Family::default(),
            registry: Registry::default(),
        };
        registry.register("laneway_http_requests", "Answered requests", metrics.requests.clone());
        registry.register("vllm:request_success", "Turns with a complete answer", metrics.finished.clone());
        metrics.registry = registry;
        metrics
    }

    pub fn count_request(&self, route: &str, status: u16) {
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), status }).inc();
    }

    /// A chunk of `tokens` tokens came `time` after the one before.
    pub fn observe_interval(&self, model: &TextModel, time: Duration, tokens: usize) {
        let histogram = self.interval.get_or_create(&ModelLabels::of(model));
        for _ in 0..tokens {
            histogram.observe(time.as_secs_f64() / tokens as f64);
        }
    }

    pub fn count_finished(&self, model: &TextModel, result: &Result<Finish, TurnError>) {
        self.read_records(model);
        let finished_reason = match result {
            Ok(finish) if finish.reason == FinishReason::Length => "length",
            Ok(_) => "stop",
            Err(_) => return,
        };
        let ModelLabels { model_name, engine } = ModelLabels::of(model);
        self.finished.get_or_create(&FinishLabels { model_name, engine, finished_reason }).inc();
    }

    /// Takes the figures of ended turns and reads, before the service drops them.
    pub fn read_records(&self, model: &TextModel) {
        let labels = ModelLabels::of(model);
        let ended = model.service.metrics();
        for record in ended.drain_records().iter().filter(|record| record.ok) {
            self.observe(&labels, record);
        }
        for record in ended.drain_reads().iter().filter(|record| record.ok) {
            self.read.get_or_create(&labels).observe(seconds(record.read_ms));
            self.read_queue.get_or_create(&labels).observe(seconds(record.queue_ms));
        }
    }

    fn observe(&self, labels: &ModelLabels, record: &TurnRecord) {
        let mut values = vec![
            (&self.queue, seconds(record.queue_ms)),
            (&self.prefill, seconds(record.prefill_ms)),
            (&self.decode, seconds(record.decode_ms)),
            (&self.inference, seconds(record.prefill_ms + record.decode_ms)),
            (&self.prompt_tokens, record.prompt_tokens as f64),
            (&self.generation_tokens, record.completion_tokens as f64),
        ];
        if let Some(ttft_ms) = record.ttft_ms {
            values.push((&self.first_token, seconds(ttft_ms)));
            values.push((&self.whole, seconds(ttft_ms + record.decode_ms)));
        }
        for (family, value) in values {
            family.get_or_create(labels).observe(value);
        }
    }

    fn text(&self, models: &[Arc<TextModel>], is_open: bool) -> Result<String, fmt::Error> {
        for model in models {
            self.read_records(model);
        }
        let mut all = String::new();
        if is_open {
            text::encode(&mut all, &self.registry)?;
        } else {
            prometheus_text::encode(&mut all, &self.registry)?;
        }
        Ok(all)
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// All figures, as OpenMetrics text for those who ask for it and in Prometheus' own format for all others, some of whom
/// read no other.
pub(crate) async fn answer(State(state): State<Arc<ApiState>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_open = accepted.contains("application/openmetrics-text");
    let text = state
        .metrics
        .text(&state.models, is_open)
        .map_err(|_| ApiError::internal("the metrics could not be written"))?;
    let kind = if is_open { OPEN_METRICS } else { CLASSIC };
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
