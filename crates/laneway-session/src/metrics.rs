//! Counters and gauges of the service, readable from anywhere at any time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lanes::{LaneRow, LaneStats};
use crate::predict::Predictor;
use crate::turn::Source;

/// Finished turns kept for the reader of [`Metrics::drain_records`].
const RECORDS: usize = 1024;

/// What happened to the turns and reads of one source: `queued = started + waiting + rejected` and
/// `started = finished + failed + running`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Turns handed in.
    pub queued: u64,
    /// Turns taken from the queue.
    pub started: u64,
    /// Turns with an answer.
    pub finished: u64,
    /// Turns with an error, also those cancelled while they waited.
    pub failed: u64,
    /// Turns refused because the queue was full or the service stops.
    pub rejected: u64,
}

impl Counts {
    /// Turns in the queue.
    pub fn waiting(&self) -> u64 {
        self.queued - self.started - self.rejected
    }

    /// Turns taken from the queue and not ended.
    pub fn running(&self) -> u64 {
        self.started - self.finished - self.failed
    }

    fn end(&mut self, ok: bool) {
        if ok {
            self.finished += 1;
        } else {
            self.failed += 1;
        }
    }
}

/// What the service does with its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelState {
    /// No model is loaded.
    #[default]
    Unloaded,
    /// A model is being loaded.
    Loading,
    /// A model is loaded.
    Loaded,
    /// The last attempt failed, or the engine was lost.
    Failed,
}

/// All figures at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Turns of API clients.
    pub http: Counts,
    /// Turns of the built-in chat.
    pub local_chat: Counts,
    /// Loads begun: `loaded + load_failed`, and one more while loading.
    pub loading: u64,
    /// Loads that succeeded: `unloaded`, and one more while a model is loaded.
    pub loaded: u64,
    /// Loads that failed.
    pub load_failed: u64,
    /// Models dropped.
    pub unloaded: u64,
    /// What the service does with its model.
    pub model: ModelState,
    /// Duration of the last successful load.
    pub load_ms: u64,
    /// When the service last changed these figures, in milliseconds of its clock; reading them never waits for it.
    pub captured_ms: u64,
    /// Steps collected from the engine.
    pub steps: u64,
    /// Time in which the engine was at work, in nanoseconds, as the driver measures it: once a step, however many lanes
    /// the step has.
    pub busy_ns: u64,
    /// Sequences whose pages were read for somebody else.
    pub exported: u64,
    /// Sequences whose pages came from elsewhere.
    pub imported: u64,
    /// Transfers of either kind that came to nothing.
    pub transfers_failed: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Passes over canvases of turns.
    pub passes: u64,
    /// Turns sent back to the queue for want of pages.
    pub preempted: u64,
    /// Prompt tokens of admitted turns and reads.
    pub prompt_tokens: u64,
    /// Prompt tokens whose K/V was reused.
    pub cached_tokens: u64,
    /// Turns and reads that began with tokens of the prefix cache.
    pub prefix_hits: u64,
    /// Turns and reads that did not.
    pub prefix_misses: u64,
    /// Tokens computed of prompts, those of preempted turns again; branches of reads apart.
    pub prefill_rows: u64,
    /// Tokens computed one by one, after those of prompts.
    pub decode_rows: u64,
    /// Turns and reads that started before one that had waited longer, because that one did not fit.
    pub overtaken: u64,
    /// How long a turn handed in now would wait for a lane, as far as earlier ones tell; 0 when nothing is to be done.
    pub predicted_wait_ms: u64,
    /// Tokens sampled.
    pub completion_tokens: u64,
    /// Time from admission to the first token or the first pass over a canvas, over all turns.
    pub prefill_ms: u64,
    /// Time from there to the end, over all turns.
    pub decode_ms: u64,
    /// Positions written, as last reported by a turn.
    pub context_used: usize,
    /// Positions a turn can have.
    pub context_limit: usize,
    /// Prompt speed last reported.
    pub prefill_tokens_per_s: f64,
    /// Generation speed last reported.
    pub decode_tokens_per_s: f64,
    /// Lanes and pages.
    pub lanes: LaneStats,
}

impl Snapshot {
    /// The counts over all sources.
    pub fn total(&self) -> Counts {
        let (a, b) = (&self.http, &self.local_chat);
        Counts {
            queued: a.queued + b.queued,
            started: a.started + b.started,
            finished: a.finished + b.finished,
            failed: a.failed + b.failed,
            rejected: a.rejected + b.rejected,
        }
    }

    fn counts(&mut self, source: Source) -> &mut Counts {
        match source {
            Source::Http => &mut self.http,
            Source::LocalChat => &mut self.local_chat,
        }
    }
}

/// Raw numbers of one ended turn, for histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnRecord {
    /// Where it came from.
    pub source: Source,
    /// Whether it has an answer.
    pub ok: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose K/V was reused.
    pub cached_tokens: usize,
    /// Tokens sampled.
    pub completion_tokens: usize,
    /// From submission to start.
    pub queue_ms: u64,
    /// From submission to the first token; none if there was none.
    pub ttft_ms: Option<u64>,
    /// From admission to the first token, or to the first pass over a canvas.
    pub prefill_ms: u64,
    /// From there to the end.
    pub decode_ms: u64,
}

/// Raw numbers of one ended read, for histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    /// Where it came from.
    pub source: Source,
    /// Whether it has an answer.
    pub ok: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose K/V was reused.
    pub cached_tokens: usize,
    /// Tokens computed, prompt and branches, all passes.
    pub computed_tokens: usize,
    /// From submission to start.
    pub queue_ms: u64,
    /// From start to end.
    pub read_ms: u64,
}

/// The figures of one service; the lock is held for single updates only, never during inference.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    snapshot: Snapshot,
    lanes: Vec<LaneRow>,
    predictor: Predictor,
    records: VecDeque<TurnRecord>,
    reads: VecDeque<ReadRecord>,
}

impl Metrics {
    /// All figures at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot.clone()
    }

    /// What every lane of the loaded model does, in the order of their numbers; empty without a model.
    pub fn lanes(&self) -> Vec<LaneRow> {
        self.lock().lanes.clone()
    }

    /// The turns that ended since the last call; the oldest are dropped when nobody calls.
    pub fn drain_records(&self) -> Vec<TurnRecord> {
        self.lock().records.drain(..).collect()
    }

    /// The reads that ended since the last call; the oldest are dropped when nobody calls.
    pub fn drain_reads(&self) -> Vec<ReadRecord> {
        self.lock().reads.drain(..).collect()
    }

    /// Counts a turn or read of `work` tokens as queued, or as rejected if `depth` turns wait already or it would wait
    /// longer than it may.
    pub(crate) fn enqueue(&self, source: Source, depth: usize, work: u64) -> bool {
        let State { snapshot, predictor, .. } = &mut *self.lock();
        let fits = snapshot.total().waiting() < depth as u64 && predictor.admits();
        let counts = snapshot.counts(source);
        counts.queued += 1;
        counts.rejected += u64::from(!fits);
        if fits {
            predictor.add(work);
            snapshot.predicted_wait_ms = predictor.wait_ms();
        }
        fits
    }

    pub(crate) fn reject(&self, source: Source, work: u64) {
        let state = &mut *self.lock();
        state.snapshot.counts(source).rejected += 1;
        state.complete(work);
    }

    /// How many turns run at the same time, and how long one may wait; 0 is for ever.
    pub(crate) fn predict(&self, concurrency: usize, timeout_ms: u64) {
        self.lock().predictor.set(concurrency, timeout_ms);
    }

    /// Adds time in which the engine worked; for drivers.
    pub fn record_busy(&self, duration: std::time::Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.update(|m| m.busy_ns = m.busy_ns.saturating_add(ns));
    }

    pub(crate) fn publish(&self, stats: LaneStats, rows: impl Iterator<Item = LaneRow>) {
        let state = &mut *self.lock();
        state.snapshot.lanes = stats;
        state.lanes.clear();
        state.lanes.extend(rows);
    }

    pub(crate) fn start(&self, source: Source) {
        self.lock().snapshot.counts(source).started += 1;
    }

    pub(crate) fn end(&self, record: TurnRecord, work: u64) {
        let state = &mut *self.lock();
        if record.ok {
            let tokens = record.prompt_tokens.saturating_sub(record.cached_tokens) + record.completion_tokens;
            state.predictor.sample(record.prefill_ms + record.decode_ms, tokens);
        }
        state.complete(work);
        state.snapshot.counts(record.source).end(record.ok);
        state.snapshot.prefill_ms += record.prefill_ms;
        state.snapshot.decode_ms += record.decode_ms;
        push(&mut state.records, record);
    }

    pub(crate) fn end_read(&self, record: ReadRecord, work: u64) {
        let state = &mut *self.lock();
        if record.ok {
            state.predictor.sample(record.read_ms, record.computed_tokens);
        }
        state.complete(work);
        state.snapshot.counts(record.source).end(record.ok);
        state.snapshot.reads += u64::from(record.ok);
        push(&mut state.reads, record);
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.lock().snapshot);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn complete(&mut self, work: u64) {
        self.predictor.remove(work);
        self.snapshot.predicted_wait_ms = self.predictor.wait_ms();
    }
}

fn push<T>(records: &mut VecDeque<T>, record: T) {
    if records.len() == RECORDS {
        records.pop_front();
    }
    records.push_back(record);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L63
    #[test]
    fn busy_time_adds_up() {
        let metrics = Metrics::default();
        metrics.record_busy(std::time::Duration::from_millis(3));
        metrics.record_busy(std::time::Duration::from_millis(4));
        assert_eq!(metrics.snapshot().busy_ns, 7_000_000);
    }

    /// G32
    #[test]
    fn counts_are_conserved_and_bounded_by_the_depth() {
        let metrics = Metrics::default();
        assert!(metrics.enqueue(Source::Http, 2, 1));
        assert!(metrics.enqueue(Source::LocalChat, 2, 1));
        assert!(!metrics.enqueue(Source::Http, 2, 1));
        metrics.start(Source::LocalChat);
        assert!(metrics.enqueue(Source::Http, 2, 1));
        metrics.reject(Source::Http, 1);
        let snapshot = metrics.snapshot();
        assert_eq!((snapshot.http.waiting(), snapshot.local_chat.running()), (1, 1));
        let total = Counts { queued: 4, started: 1, rejected: 2, ..Default::default() };
        assert_eq!(snapshot.total(), total);
    }

    #[test]
    fn records_are_bounded_and_read_once() {
        let metrics = Metrics::default();
        for prompt_tokens in 0..RECORDS + 3 {
            metrics.start(Source::Http);
            metrics.end(
                TurnRecord {
                    source: Source::Http,
                    ok: true,
                    prompt_tokens,
                    cached_tokens: 0,
                    completion_tokens: 0,
                    queue_ms: 0,
                    ttft_ms: None,
                    prefill_ms: 1,
                    decode_ms: 2,
                },
                0,
            );
        }
        let records = metrics.drain_records();
        assert_eq!((records.len(), records[0].prompt_tokens), (RECORDS, 3));
        assert!(metrics.drain_records().is_empty());
        assert_eq!(metrics.snapshot().decode_ms, 2 * (RECORDS as u64 + 3));
    }
}
