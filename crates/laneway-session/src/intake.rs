//! The bounded queue's entrance, open to any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::metrics::Metrics;
use crate::outlet::{Outlet, ReadOutlet};
use crate::read::Read;
use crate::turn::{Event, Source, Turn};

/// Why a turn or read was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many turns and reads wait as may, or they would keep this one waiting for longer than it may.
    #[error("the queue is full ({depth} turns)")]
    QueueFull {
        /// Turns that may wait.
        depth: usize,
    },
    /// The service takes no more turns.
    #[error("the service is stopped")]
    Stopped,
}

/// Tokens an answer is taken to have at most when waits are predicted.
const ANSWER_TOKENS: usize = 512;

/// Waiting turns allowed by default for an engine with `lanes` lanes.
pub fn default_queue_depth(lanes: usize) -> usize {
    lanes.saturating_mul(8).clamp(16, 256)
}

/// Takes turns and reads into the queue; clones share it.
#[derive(Clone, Debug)]
pub struct Intake {
    metrics: Arc<Metrics>,
    depth: usize,
    open: Arc<AtomicBool>,
}

/// A turn or read with its place in the queue; dropping it gives the place back.
pub struct Ticket {
    pub(crate) work: Work,
    pub(crate) namespace: u64,
}

impl Ticket {
    fn new(work: Work, namespace: u64) -> Self {
        Self { work, namespace }
    }

    /// Keeps the prefix cache of this turn or read apart from that of other namespaces than this one.
    pub fn with_cache_namespace(self, namespace: u64) -> Self {
        Self { namespace, ..self }
    }
}

pub(crate) enum Work {
    Turn(Box<Turn>, Outlet),
    Read(Box<Read>, ReadOutlet),
}

impl Intake {
    /// An open queue for `depth` waiting turns and reads.
    pub fn new(depth: usize) -> Self {
        Self { metrics: Arc::default(), depth, open: Arc::new(AtomicBool::new(true)) }
    }

    /// Reserves a place for the turn, or counts it as rejected.
    pub fn admit(&self, mut turn: Turn) -> Result<Ticket, SubmitError> {
        let work = turn.prompt.len().saturating_add(turn.max_tokens.unwrap_or(ANSWER_TOKENS).min(ANSWER_TOKENS)) as u64;
        self.reserve(turn.source, work)?;
        let events = std::mem::replace(&mut turn.events, Box::new(|_: Event| {}));
        let outlet = Outlet::new(events, self.metrics.clone(), turn.source, work);
        let namespace = turn.namespace;
        Ok(Ticket::new(Work::Turn(Box::new(turn), outlet), namespace))
    }

    /// Reserves a place for the read, or counts it as rejected.
    pub fn admit_read(&self, mut read: Read) -> Result<Ticket, SubmitError> {
        let work = read.work();
        self.reserve(read.source, work)?;
        let answer = std::mem::replace(&mut read.answer, Box::new(|_| {}));
        let outlet = ReadOutlet::new(answer, self.metrics.clone(), read.source, work);
        let namespace = read.namespace;
        Ok(Ticket::new(Work::Read(Box::new(read), outlet), namespace))
    }

    fn reserve(&self, source: Source, work: u64) -> Result<(), SubmitError> {
        let open = self.is_open();
        if self.metrics.enqueue(source, if open { self.depth } else { 0 }, work) {
            return Ok(());
        }
        Err(if open { SubmitError::QueueFull { depth: self.depth } } else { SubmitError::Stopped })
    }

    /// Takes no more turns and reads.
    pub fn close(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// Whether turns and reads are taken.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The figures of the service behind this queue.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S5
    #[test]
    fn the_default_depth_follows_the_lanes_within_bounds() {
        assert_eq!([1, 4, 32, usize::MAX].map(default_queue_depth), [16, 32, 256, 256]);
    }
}
