//! The way out of a turn: counts it and tells the caller, exactly once.

use std::sync::Arc;

use crate::metrics::{Metrics, TurnRecord};
use crate::turn::{Event, Events, Finish, Source, TurnError};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Started,
    Ended,
}

/// Keeps the event order and the metrics true whatever happens to the turn, a panic included.
pub(crate) struct Outlet {
    events: Box<dyn Events + Send>,
    metrics: Arc<Metrics>,
    source: Source,
    stage: Stage,
}

impl Outlet {
    /// The outlet of a turn that was counted as queued.
    pub fn new(events: Box<dyn Events + Send>, metrics: Arc<Metrics>, source: Source) -> Self {
        Self { events, metrics, source, stage: Stage::Waiting }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn source(&self) -> Source {
        self.source
    }

    /// Counts the turn as started, once.
    pub fn start(&mut self) {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Started;
            self.metrics.start(self.source);
        }
    }

    pub fn send(&mut self, event: Event) {
        if self.stage != Stage::Ended {
            self.events.send(event);
        }
    }

    pub fn end(&mut self, record: TurnRecord, result: Result<Finish, TurnError>) {
        if self.stage == Stage::Ended {
            return;
        }
        self.start();
        self.stage = Stage::Ended;
        self.metrics.end(record);
        self.events.send(Event::Finished(result));
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        match self.stage {
            Stage::Ended => {}
            Stage::Waiting => {
                self.stage = Stage::Ended;
                self.metrics.reject(self.source);
                self.events.send(Event::Finished(Err(TurnError::ShuttingDown)));
            }
            Stage::Started => {
                let record = TurnRecord {
                    source: self.source,
                    ok: false,
                    prompt_tokens: 0,
                    cached_tokens: 0,
                    completion_tokens: 0,
                    queue_ms: 0,
                    ttft_ms: None,
                    prefill_ms: 0,
                    decode_ms: 0,
                };
                self.end(record, Err(TurnError::Internal));
            }
        }
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
            assert!(metrics.enqueue(Source::Http, 9));
            let sink = told.clone();
            let events = Box::new(move |event| sink.lock().unwrap().push(event));
            let mut outlet = Outlet::new(events, metrics.clone(), Source::Http);
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
