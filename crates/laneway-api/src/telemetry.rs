//! Spans of requests and turns, for a collector: times, counts and fixed classes, never content and no error's text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use laneway_session::{Finish, TurnError};
use serde_json::{Value, json};
use uuid::Uuid;

/// Spans that may wait for the thread; more are dropped and counted.
const QUEUE: usize = 2048;
/// Spans of one export.
const BATCH: usize = 128;
/// Spans that wait for a collector that does not answer.
const RETRY: usize = 8192;
/// Between a failed export and the next.
const BACK_OFF: Duration = Duration::from_millis(100);

/// How much is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TelemetryLevel {
    /// Nothing.
    #[default]
    Off,
    /// A span for each request and each turn.
    Summary,
    /// And one for each phase of a turn.
    Debug,
}

impl TelemetryLevel {
    /// The level where spans go to stderr: whoever looks there wants to see all, and never less than was asked for.
    pub fn for_stderr(self) -> Self {
        if self == Self::Off { Self::Debug } else { self }
    }
}

/// Takes batches of spans somewhere; on a thread of its own, where it may block for some seconds.
pub trait SpanSink: Send {
    /// Takes one OTLP request in JSON.
    ///
    /// # Errors
    /// The batch is tried again later.
    fn export(&mut self, batch: &str) -> Result<(), String>;
}

/// Prints batches, a line each.
pub struct StderrSink;

impl SpanSink for StderrSink {
    fn export(&mut self, batch: &str) -> Result<(), String> {
        eprintln!("{batch}");
        Ok(())
    }
}

/// Collects spans without ever making a request wait.
#[derive(Clone)]
pub struct Telemetry {
    level: TelemetryLevel,
    sender: SyncSender<Span>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Where a span belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    trace: [u8; 16],
    span: [u8; 8],
}

tokio::task_local! {
    /// The request that a task answers.
    pub(crate) static REQUEST: SpanContext;
}

pub(crate) struct Span {
    pub name: String,
    pub context: SpanContext,
    pub parent: Option<[u8; 8]>,
    pub start: SystemTime,
    pub end: SystemTime,
    pub attributes: Vec<(&'static str, Value)>,
}

impl SpanContext {
    /// A new span of the trace that a `traceparent` header names, or of a new trace.
    pub fn of_request(traceparent: Option<&str>) -> (Self, Option<[u8; 8]>) {
        let (trace, parent) = match traceparent.and_then(parse) {
            Some((trace, parent)) => (trace, Some(parent)),
            None => (Uuid::new_v4().into_bytes(), None),
        };
        (Self { trace, span: new_span() }, parent)
    }

    fn child(self) -> Self {
        Self { span: new_span(), ..self }
    }
}

fn new_span() -> [u8; 8] {
    Uuid::new_v4().as_u64_pair().0.to_be_bytes()
}

/// Trace and parent of `00-TRACE-SPAN-FLAGS`.
fn parse(header: &str) -> Option<([u8; 16], [u8; 8])> {
    let mut parts = header.trim().split('-');
    let (version, trace, parent) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hex(version, 2) || version == "ff" || !is_hex(trace, 32) || !is_hex(parent, 16) {
        return None;
    }
    let (trace, parent) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(parent, 16).ok()?);
    (trace != 0 && parent != 0).then(|| (trace.to_be_bytes(), parent.to_be_bytes()))
}

impl Telemetry {
    /// Starts the thread that hands spans to the sink.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(level: TelemetryLevel, sink: Box<dyn SpanSink>) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(QUEUE);
        let counts = Arc::<Counts>::default();
        let shared = counts.clone();
        std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || run(&receiver, sink, &shared))?;
        Ok(Self { level, sender, counts })
    }

    /// Spans that were given up because too many waited, and exports that failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.counts.dropped.load(Ordering::Relaxed), self.counts.failed.load(Ordering::Relaxed))
    }

    pub(crate) fn send(&self, span: Span) {
        if self.level > TelemetryLevel::Off && self.sender.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A turn of a request that has ended.
    pub(crate) fn turn(
        &self,
        request: SpanContext,
        model: &str,
        start: SystemTime,
        result: &Result<Finish, TurnError>,
    ) {
        let (end, context) = (SystemTime::now(), request.child());
        let mut attributes = vec![("model", json!(model)), ("outcome", json!(class(result)))];
        if let Ok(finish) = result {
            attributes.extend([
                ("prompt_tokens", json!(finish.prompt_tokens)),
                ("cached_tokens", json!(finish.cached_tokens)),
                ("completion_tokens", json!(finish.completion_tokens)),
            ]);
            if self.level >= TelemetryLevel::Debug {
                self.phases(context, end, finish);
            }
        }
        self.send(Span { name: "turn".to_owned(), context, parent: Some(request.span), start, end, attributes });
    }

    /// Queue, prefill and decode, which follow each other up to the end.
    fn phases(&self, turn: SpanContext, end: SystemTime, finish: &Finish) {
        let mut until = end;
        for (name, ms) in [("decode", finish.decode_ms), ("prefill", finish.prefill_ms), ("queue", finish.queue_ms)] {
            let start = until.checked_sub(Duration::from_millis(ms)).unwrap_or(until);
            let (context, parent) = (turn.child(), Some(turn.span));
            self.send(Span { name: name.to_owned(), context, parent, start, end: until, attributes: Vec::new() });
            until = start;
        }
    }
}

/// What became of a turn, in one of few words.
fn class(result: &Result<Finish, TurnError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(TurnError::Cancelled) => "cancelled",
        Err(TurnError::DeadlineExceeded | TurnError::QueueTimeout) => "timeout",
        Err(TurnError::ContextExceeded { .. } | TurnError::EmptyPrompt | TurnError::InvalidRead(_)) => "invalid_data",
        Err(TurnError::Refused) => "permission",
        Err(TurnError::Load(_) | TurnError::ShuttingDown) => "unavailable",
        Err(TurnError::Engine(_)) => "runtime",
        Err(TurnError::Internal) => "internal",
    }
}

fn run(receiver: &Receiver<Span>, mut sink: Box<dyn SpanSink>, counts: &Counts) {
    let mut waiting: VecDeque<Span> = VecDeque::new();
    let mut failed = false;
    loop {
        let next = match (waiting.is_empty(), failed) {
            (true, _) => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (false, true) => receiver.recv_timeout(BACK_OFF),
            (false, false) => Err(RecvTimeoutError::Timeout),
        };
        match next {
            Ok(span) => waiting.push_back(span),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.extend(receiver.try_iter().take(QUEUE));
        while waiting.len() > RETRY {
            waiting.pop_front();
            counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        let count = waiting.len().min(BATCH);
        failed = sink.export(&encoded(waiting.iter().take(count), counts)).is_err();
        if failed {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(BACK_OFF);
        } else {
            waiting.drain(..count);
        }
    }
}

/// An OTLP trace request in JSON.
fn encoded<'a>(spans: impl Iterator<Item = &'a Span>, counts: &Counts) -> String {
    let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let attribute = |(key, value): &(&'static str, Value)| {
        let value = match value {
            Value::String(text) => json!({"stringValue": text}),
            // Integers are strings in OTLP's JSON.
            other => json!({"intValue": other.to_string()}),
        };
        json!({"key": key, "value": value})
    };
    let spans: Vec<Value> = spans
        .map(|span| {
            let mut shown = json!({
                "traceId": hex(&span.context.trace),
                "spanId": hex(&span.context.span),
                "name": span.name,
                "kind": if span.parent.is_none() || span.name.starts_with('/') { 2 } else { 1 },
                "startTimeUnixNano": nanos(span.start),
                "endTimeUnixNano": nanos(span.end),
                "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
            });
            if let Some(parent) = span.parent {
                shown["parentSpanId"] = json!(hex(&parent));
            }
            shown
        })
        .collect();
    let resource = [
        ("service.name", json!("laneway")),
        ("laneway.spans_dropped", json!(counts.dropped.load(Ordering::Relaxed))),
        ("laneway.exports_failed", json!(counts.failed.load(Ordering::Relaxed))),
    ];
    let resource: Vec<Value> = resource.iter().map(attribute).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": "laneway"}, "spans": spans}],
    }]})
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S35
    #[test]
    fn stderr_lifts_off_and_never_lowers() {
        use TelemetryLevel::{Debug, Off, Summary};
        assert_eq!([Off, Summary, Debug].map(TelemetryLevel::for_stderr), [Debug, Summary, Debug]);
    }

    #[test]
    fn traces_are_continued_where_the_header_is_valid() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let (context, parent) = SpanContext::of_request(Some(good));
        assert_eq!((context.trace[0], parent.unwrap()[7]), (0x0a, 0x31));
        let zeros = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        for bad in ["", "00-x-y-01", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", &zeros] {
            assert_eq!(SpanContext::of_request(Some(bad)).1, None, "{bad}");
        }
    }

    struct Failing(std::sync::mpsc::Sender<String>, usize);

    impl SpanSink for Failing {
        fn export(&mut self, batch: &str) -> Result<(), String> {
            self.1 -= usize::from(self.1 > 0);
            if self.1 > 0 {
                return Err("no collector".to_owned());
            }
            self.0.send(batch.to_owned()).map_err(|error| error.to_string())
        }
    }

    /// S35: a collector that fails gets the same spans later, in batches, with what was lost.
    #[test]
    fn spans_wait_for_a_collector_that_fails() {
        let (sender, batches) = std::sync::mpsc::channel();
        let telemetry = Telemetry::start(TelemetryLevel::Debug, Box::new(Failing(sender, 3))).unwrap();
        let (request, _) = SpanContext::of_request(None);
        for _ in 0..100 {
            telemetry.turn(request, "m", SystemTime::now(), &Err(TurnError::Engine("a secret".to_owned())));
        }
        let mut seen = 0;
        while seen < 100 {
            let batch = batches.recv_timeout(Duration::from_secs(20)).unwrap();
            assert!(!batch.contains("secret") && batch.contains("runtime"), "{batch}");
            let batch: Value = serde_json::from_str(&batch).unwrap();
            let spans = batch["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
            assert!(spans.len() <= BATCH && spans[0]["traceId"].as_str().unwrap().len() == 32);
            seen += spans.len();
        }
        assert_eq!(telemetry.counts(), (0, 2));
    }

    struct Hanging;

    impl SpanSink for Hanging {
        fn export(&mut self, _: &str) -> Result<(), String> {
            loop {
                std::thread::park();
            }
        }
    }

    /// S35: nobody waits for a collector that hangs.
    #[test]
    fn a_hanging_collector_costs_spans_and_no_time() {
        let telemetry = Telemetry::start(TelemetryLevel::Summary, Box::new(Hanging)).unwrap();
        let (request, _) = SpanContext::of_request(None);
        // As many as the queue holds are with the thread, and as many wait.
        for _ in 0..4 * QUEUE {
            telemetry.turn(request, "m", SystemTime::now(), &Err(TurnError::Cancelled));
        }
        assert!(telemetry.counts().0 > QUEUE as u64, "{}", telemetry.counts().0);
    }
}
