//! The way out of a turn or read: counts it and tells the caller, exactly once.

use std::sync::Arc;

use crate::metrics::{Metrics, ReadRecord, TurnRecord};
use crate::read::ReadAnswer;
use crate::turn::{Event, Events, Finish, Source, TurnError};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Started,
    Ended,
}

/// A place in the books: queued, then started, then ended, each counted once.
struct Entry {
    metrics: Arc<Metrics>,
    source: Source,
    /// Tokens to compute, for the prediction of waits.
    work: u64,
    stage: Stage,
}

impl Entry {
    fn new(metrics: Arc<Metrics>, source: Source, work: u64) -> Self {
        Self { metrics, source, work, stage: Stage::Waiting }
    }

    fn start(&mut self) {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Started;
            self.metrics.start(self.source);
        }
    }

    /// False when it ended before; the caller counts how.
    fn end(&mut self) -> bool {
        let ends = self.stage != Stage::Ended;
        self.start();
        self.stage = Stage::Ended;
        ends
    }

    /// What to tell the caller of something that is dropped; one that never started is counted as rejected here.
    fn abandon(&mut self) -> Option<TurnError> {
        match self.stage {
            Stage::Ended => None,
            Stage::Waiting => {
                self.stage = Stage::Ended;
                self.metrics.reject(self.source, self.work);
                Some(TurnError::ShuttingDown)
            }
            Stage::Started => Some(TurnError::Internal),
        }
    }
}

/// Keeps the event order and the metrics true whatever happens to the turn, a panic included.
pub(crate) struct Outlet {
    events: Box<dyn Events + Send>,
    entry: Entry,
}

impl Outlet {
    /// The outlet of a turn that was counted as queued.
    pub fn new(events: Box<dyn Events + Send>, metrics: Arc<Metrics>, source: Source, work: u64) -> Self {
        Self { events, entry: Entry::new(metrics, source, work) }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.entry.metrics
    }

    pub fn source(&self) -> Source {
        self.entry.source
    }

    /// Counts the turn as started, once.
    pub fn start(&mut self) {
        self.entry.start();
    }

    pub fn send(&mut self, event: Event) {
        if self.entry.stage != Stage::Ended {
            self.events.send(event);
        }
    }

    pub fn end(&mut self, record: TurnRecord, result: Result<Finish, TurnError>) {
        if self.entry.end() {
            self.entry.metrics.end(record, self.entry.work);
            self.events.send(Event::Finished(result));
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let Some(error) = self.entry.abandon() else {
            return;
        };
        let record = TurnRecord {
            source: self.entry.source,
            ok: false,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            queue_ms: 0,
            ttft_ms: None,
            prefill_ms: 0,
            decode_ms: 0,
        };
        if self.entry.end() {
            self.entry.metrics.end(record, self.entry.work);
        }
        self.events.send(Event::Finished(Err(error)));
    }
}

/// Takes the outcome of a read.
pub(crate) type Answer = Box<dyn FnOnce(Result<ReadAnswer, TurnError>) + Send>;

/// The same for a read.
pub(crate) struct ReadOutlet {
    answer: Option<Answer>,
    entry: Entry,
}

impl ReadOutlet {
    /// The outlet of a read that was counted as queued.
    pub fn new(answer: Answer, metrics: Arc<Metrics>, source: Source, work: u64) -> Self {
        Self { answer: Some(answer), entry: Entry::new(metrics, source, work) }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.entry.metrics
    }

    pub fn source(&self) -> Source {
        self.entry.source
    }

    /// Counts the read as started, once.
    pub fn start(&mut self) {
        self.entry.start();
    }

    pub fn end(&mut self, record: ReadRecord, result: Result<ReadAnswer, TurnError>) {
        if self.entry.end() {
            self.entry.metrics.end_read(record, self.entry.work);
            self.tell(result);
        }
    }

    fn tell(&mut self, result: Result<ReadAnswer, TurnError>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }
}

impl Drop for ReadOutlet {
    fn drop(&mut self) {
        let Some(error) = self.entry.abandon() else {
            return;
        };
        let record = ReadRecord {
            source: self.entry.source,
            ok: false,
            prompt_tokens: 0,
            cached_tokens: 0,
            computed_tokens: 0,
            queue_ms: 0,
            read_ms: 0,
        };
        if self.entry.end() {
            self.entry.metrics.end_read(record, self.entry.work);
        }
        self.tell(Err(error));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_dropped_turn_is_counted_and_told() {
        let metrics = Arc::new(Metrics::default());
        let told = Arc::new(Mutex::new(Vec::new()));
        for start in [false, true] {
            assert!(metrics.enqueue(Source::Http, 9, 3));
            let sink = told.clone();
            let events = Box::new(move |event| sink.lock().unwrap().push(event));
            let mut outlet = Outlet::new(events, metrics.clone(), Source::Http, 3);
            if start {
                outlet.start();
            }
        }
        let expected = [TurnError::ShuttingDown, TurnError::Internal].map(|e| Event::Finished(Err(e)));
        assert_eq!(*told.lock().unwrap(), expected);
        let counts = metrics.snapshot().http;
        assert_eq!((counts.rejected, counts.failed), (1, 1));
        assert_eq!((counts.waiting(), counts.running()), (0, 0));
    }
}
