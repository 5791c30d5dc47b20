//! The figures of the generation services, read at each scrape.

use std::fmt;
use std::sync::{Arc, Weak};

use laneway_session::{Counts, Snapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::ModelLabels;
use crate::state::{Health, TextModel};
use crate::telemetry::Telemetry;

type Read<S, T> = fn(&S) -> T;
/// Counts of a store, and notes that were dropped.
type Stored = (laneway_checkpoint::Stats, u64);

const GAUGES: &[(&str, &str, Read<Snapshot, f64>)] = &[
    ("vllm:num_requests_waiting", "Turns in the queue", |s| s.total().waiting() as f64),
    ("vllm:num_requests_running", "Turns being worked on", |s| s.total().running() as f64),
    ("vllm:kv_cache_usage_perc", "Pages in use, as a fraction of all", page_use),
    ("laneway_lanes_active", "Lanes that a turn holds", |s| s.lanes.active as f64),
    ("laneway_lanes_idle", "Lanes that were used and hold no turn", |s| s.lanes.idle as f64),
    ("laneway_context_used_tokens", "Positions written, as last reported by a turn", |s| s.context_used as f64),
    ("laneway_context_limit_tokens", "Positions a turn can have", |s| s.context_limit as f64),
    ("laneway_prefill_tokens_per_second", "Prompt speed last reported", |s| s.prefill_tokens_per_s),
    ("laneway_decode_tokens_per_second", "Generation speed last reported", |s| s.decode_tokens_per_s),
    ("laneway_load_seconds", "Duration of the last load", |s| s.load_ms as f64 / 1000.0),
];

const COUNTERS: &[(&str, &str, Read<Snapshot, u64>)] = &[
    ("vllm:prompt_tokens", "Prompt tokens of admitted turns", |s| s.prompt_tokens),
    ("vllm:generation_tokens", "Tokens generated", |s| s.completion_tokens),
    ("vllm:num_preemptions", "Turns sent back to the queue for want of pages", |s| s.preempted),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache", |s| s.prompt_tokens),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the cache", |s| s.cached_tokens),
    ("laneway_reads", "Reads that were answered", |s| s.reads),
    ("laneway_exports", "Sessions whose pages were read", |s| s.exported),
    ("laneway_imports", "Sessions whose pages came from elsewhere", |s| s.imported),
    ("laneway_transfer_failures", "Exports and imports that came to nothing", |s| s.transfers_failed),
    ("laneway_steps", "Steps collected from the engine", |s| s.steps),
    ("laneway_model_loads", "Loads that succeeded", |s| s.loaded),
    ("laneway_model_load_failures", "Loads that failed", |s| s.load_failed),
    ("laneway_model_unloads", "Models dropped", |s| s.unloaded),
];

const CHECKPOINT_GAUGES: &[(&str, &str, Read<Stored, f64>)] = &[
    ("laneway_checkpoint_bytes", "Bytes that stored sessions take", |(s, _)| s.used_bytes as f64),
    ("laneway_checkpoints", "Stored sessions", |(s, _)| s.checkpoints as f64),
];

const CHECKPOINT_COUNTERS: &[(&str, &str, Read<Stored, u64>)] = &[
    ("laneway_checkpoint_written_bytes", "Bytes written to the store", |(s, _)| s.written_bytes),
    ("laneway_checkpoint_saves", "Sessions stored", |(s, _)| s.saved),
    ("laneway_checkpoint_refusals", "Sessions that were not stored", |(s, _)| s.refused),
    ("laneway_checkpoint_evictions", "Stored sessions given up for want of room", |(s, _)| s.evicted),
    ("laneway_checkpoint_hits", "Stored sessions read back", |(s, _)| s.hits),
    ("laneway_checkpoint_misses", "Stored sessions that could not be read back", |(s, _)| s.misses),
    ("laneway_checkpoint_quarantined", "Objects set aside because they were not what was written", |(s, _)| {
        s.quarantined
    }),
    ("laneway_checkpoint_dropped", "Sessions not looked at because too many waited", |(_, dropped)| *dropped),
];

const TURNS: &[(&str, Read<Counts, u64>)] = &[
    ("queued", |c| c.queued),
    ("started", |c| c.started),
    ("finished", |c| c.finished),
    ("failed", |c| c.failed),
    ("rejected", |c| c.rejected),
];

#[derive(EncodeLabelSet)]
struct TurnLabels {
    model_name: String,
    source: &'static str,
    stage: &'static str,
}

#[derive(EncodeLabelSet)]
struct CacheLabels {
    model_name: String,
    engine: &'static str,
    block_size: u64,
    num_gpu_blocks: u64,
}

pub(super) struct ServiceCollector {
    models: Vec<Weak<TextModel>>,
}

impl ServiceCollector {
    pub fn new(models: &[Arc<TextModel>]) -> Self {
        Self { models: models.iter().map(Arc::downgrade).collect() }
    }
}

impl fmt::Debug for ServiceCollector {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ServiceCollector").field("models", &self.models.len()).finish()
    }
}

impl Collector for ServiceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let models: Vec<_> = self.models.iter().filter_map(Weak::upgrade).collect();
        let read: Vec<_> =
            models.iter().map(|model| (ModelLabels::of(model), model.service.metrics().snapshot())).collect();
        for (name, help, value) in GAUGES {
            let each = read.iter().map(|(labels, snapshot)| (labels, ConstGauge::new(value(snapshot))));
            write(&mut encoder, name, help, each)?;
        }
        for (name, help, value) in COUNTERS {
            let each = read.iter().map(|(labels, snapshot)| (labels, ConstCounter::new(value(snapshot))));
            write(&mut encoder, name, help, each)?;
        }
        let turns: Vec<_> = read.iter().flat_map(turn_counts).collect();
        write(
            &mut encoder,
            "laneway_turns",
            "Turns by source and stage",
            turns.iter().map(|(l, n)| (l, ConstCounter::new(*n))),
        )?;
        let pages: Vec<_> =
            read.iter().zip(&models).filter_map(|((_, snapshot), model)| cache(model, snapshot)).collect();
        let one = |labels| (labels, ConstGauge::new(1i64));
        write(&mut encoder, "vllm:cache_config_info", "Page size and count", pages.iter().map(one))?;
        write(
            &mut encoder,
            "laneway_busy_seconds",
            "Time in which the engine was at work",
            read.iter().map(|(l, s)| (l, ConstCounter::new(s.busy_ns as f64 / 1e9))),
        )?;
        let stored: Vec<_> = models
            .iter()
            .filter_map(|model| Some((ModelLabels::of(model), model.sessions.as_ref()?.stats()?)))
            .collect();
        for (name, help, value) in CHECKPOINT_GAUGES {
            let each = stored.iter().map(|(labels, stats)| (labels, ConstGauge::new(value(stats))));
            write(&mut encoder, name, help, each)?;
        }
        for (name, help, value) in CHECKPOINT_COUNTERS {
            let each = stored.iter().map(|(labels, stats)| (labels, ConstCounter::new(value(stats))));
            write(&mut encoder, name, help, each)?;
        }
        let ready: Vec<_> =
            models.iter().map(|model| (ModelLabels::of(model), model.service.health() == Health::Ready)).collect();
        write(
            &mut encoder,
            "laneway_ready",
            "Whether the model answers",
            ready.iter().map(|(l, r)| (l, ConstGauge::new(i64::from(*r)))),
        )
    }
}

/// What became of spans that did not reach their collector.
pub(super) struct SpanCollector(pub Telemetry);

impl fmt::Debug for SpanCollector {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("SpanCollector")
    }
}

impl Collector for SpanCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let (dropped, failed) = self.0.counts();
        let figures = [
            ("laneway_spans_dropped", "Spans that were given up", dropped),
            ("laneway_span_exports_failed", "Batches of spans that the collector did not take", failed),
        ];
        for (name, help, value) in figures {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}

fn write<'a, L: EncodeLabelSet + 'a, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (&'a L, M)>,
) -> fmt::Result {
    let mut values = values.peekable();
    let Some((_, first)) = values.peek() else {
        return Ok(());
    };
    let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    values.try_for_each(|(labels, metric)| metric.encode(family.encode_family(labels)?))
}

fn page_use(snapshot: &Snapshot) -> f64 {
    match snapshot.lanes.pages_total {
        0 => 0.0,
        total => snapshot.lanes.pages_used.saturating_sub(snapshot.lanes.pages_cached) as f64 / total as f64,
    }
}

fn turn_counts((labels, snapshot): &(ModelLabels, Snapshot)) -> Vec<(TurnLabels, u64)> {
    let sources = [("http", &snapshot.http), ("local_chat", &snapshot.local_chat)];
    let label = |source, stage| TurnLabels { model_name: labels.model_name.clone(), source, stage };
    sources
        .into_iter()
        .flat_map(|(source, counts)| TURNS.iter().map(move |(stage, count)| (label(source, *stage), count(counts))))
        .collect()
}

fn cache(model: &TextModel, snapshot: &Snapshot) -> Option<CacheLabels> {
    let pages = snapshot.lanes.pages_total as u64;
    (pages > 0).then(|| CacheLabels {
        model_name: model.info.id.clone(),
        engine: "0",
        block_size: model.page_positions as u64,
        num_gpu_blocks: pages,
    })
}
