//! A read on its way: what is read already, and what a step reads next.

mod group;

pub(crate) use group::Group;

use crate::EngineLimits;
use crate::metrics::ReadRecord;
use crate::outlet::ReadOutlet;
use crate::read::{Branch, BranchKind, Read, ReadAnswer};
use crate::turn::{Cancel, TurnError};

pub(crate) struct Reading {
    outlet: ReadOutlet,
    pub cancel: Cancel,
    pub namespace: u64,
    pub deadline_at: Option<u64>,
    pub prompt: Vec<u32>,
    branches: Vec<Branch>,
    /// By branch and slot; slots are added as they are read.
    logits: Vec<Vec<Vec<f32>>>,
    /// Branches between two of their passes.
    pub group: Option<Group>,
    pub submitted: u64,
    started: Option<u64>,
    cached: usize,
    computed: usize,
}

impl Reading {
    pub fn new(now: u64, namespace: u64, read: Read, outlet: ReadOutlet) -> Self {
        let Read { prompt, branches, cancel, deadline_ms, .. } = read;
        Self {
            outlet,
            cancel,
            namespace,
            deadline_at: deadline_ms.map(|ms| now.saturating_add(ms)),
            prompt,
            logits: vec![Vec::new(); branches.len()],
            branches,
            group: None,
            submitted: now,
            started: None,
            cached: 0,
            computed: 0,
        }
    }

    /// The read leaves the queue.
    pub fn start(&mut self, now: u64) {
        self.started.get_or_insert(now);
        self.outlet.start();
    }

    /// Why the read can never be made on an engine, if so.
    pub fn refused(&self, limits: &EngineLimits) -> Option<TurnError> {
        let (length, limit) = (self.reservation(), limits.turn_positions());
        let may_be_empty = limits.canvas.is_some_and(|canvas| canvas.is_whole());
        if self.prompt.is_empty() && !may_be_empty {
            return Some(TurnError::EmptyPrompt);
        }
        if self.branches.is_empty() {
            return Some(TurnError::InvalidRead("it has no branch"));
        }
        if let Some(what) = self.branches.iter().find_map(|branch| self.fault(branch, limits)) {
            return Some(TurnError::InvalidRead(what));
        }
        (length > limit).then_some(TurnError::ContextExceeded { prompt: length, limit })
    }

    /// Positions of the prompt and the longest branch.
    pub fn reservation(&self) -> usize {
        let longest = self.branches.iter().map(|branch| branch.tokens.len()).max().unwrap_or(0);
        self.prompt.len().saturating_add(longest)
    }

    /// The read got a lane that holds `cached` tokens of its prompt.
    pub fn admitted(&mut self, cached: usize) {
        self.cached = cached;
        let prompt_tokens = self.prompt.len() as u64;
        self.outlet.metrics().update(|m| {
            m.prompt_tokens += prompt_tokens;
            m.cached_tokens += cached as u64;
        });
    }

    /// `rows` were computed.
    pub fn computed(&mut self, rows: usize) {
        self.computed += rows;
    }

    pub fn finish(&mut self, now: u64, result: Result<(), TurnError>) {
        let started = self.started.unwrap_or(now);
        let record = ReadRecord {
            source: self.outlet.source(),
            ok: result.is_ok(),
            prompt_tokens: self.prompt.len(),
            cached_tokens: self.cached,
            computed_tokens: self.computed,
            queue_ms: started.saturating_sub(self.submitted),
            read_ms: now.saturating_sub(started),
        };
        let answer = result.map(|()| ReadAnswer {
            logits: std::mem::take(&mut self.logits),
            prompt_tokens: record.prompt_tokens,
            cached_tokens: record.cached_tokens,
            computed_tokens: record.computed_tokens,
            queue_ms: record.queue_ms,
            read_ms: record.read_ms,
        });
        self.outlet.end(record, answer);
    }

    /// What is wrong with a branch, if anything.
    fn fault(&self, branch: &Branch, limits: &EngineLimits) -> Option<&'static str> {
        let slots = &branch.slots;
        if branch.tokens.is_empty() {
            return Some("a branch has no tokens");
        }
        if slots.is_empty() || slots.iter().any(|slot| slot.labels.is_empty()) {
            return Some("a branch has no slot, or a slot no label");
        }
        if slots.iter().any(|slot| slot.row >= branch.tokens.len()) || !slots.is_sorted_by(|a, b| a.row < b.row) {
            return Some("slots are outside their branch or not in ascending order");
        }
        let vocabulary = limits.canvas.map_or(u32::MAX, |canvas| canvas.vocabulary);
        if slots.iter().flat_map(|slot| &slot.labels).any(|label| *label >= vocabulary) {
            return Some("a label is outside the vocabulary");
        }
        let base = limits.encoded(self.prompt.len());
        match (branch.kind, limits.canvas) {
            (BranchKind::Causal, Some(canvas)) if !canvas.is_causal() => {
                Some("the model reads blocks, the branch is causal")
            }
            (BranchKind::Causal, _) => None,
            (BranchKind::Canvas { .. }, None) => Some("the model has no canvas"),
            (BranchKind::Canvas { passes: 0 }, _) => Some("a branch has no pass"),
            (BranchKind::Canvas { .. }, Some(canvas)) => {
                if self.prompt.len() - base + branch.tokens.len() > limits.max_rows {
                    return Some("a canvas is longer than a step");
                }
                let first = self.prompt.len() - base + slots[0].row;
                (canvas.shift && first == 0).then_some("the first position of all has no row before it")
            }
        }
    }
}
