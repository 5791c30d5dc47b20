//! The reads behind one request for decisions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use laneway_decisions::{PartLogits, ReadPart};
use laneway_protocol::systemone::DecisionError;
use laneway_session::{Cancel, Read, ReadAnswer, Source, SubmitError, TurnError};
use tokio::sync::{oneshot, watch};

use crate::state::{ApiState, Phase, TextModel};

/// Reads of one request in the queue or at work; more would make everybody else wait behind it.
const WINDOW: usize = 2;

/// How soon a full queue is tried again by a request that has got answers already.
const PATIENCE: Duration = Duration::from_millis(20);

/// The reads of one request; dropping them cancels what has not ended.
pub(crate) struct Reads<'a> {
    model: &'a TextModel,
    running: VecDeque<(Cancel, oneshot::Receiver<Result<ReadAnswer, TurnError>>)>,
    phase: watch::Receiver<Phase>,
    /// When all of them must have ended.
    deadline: Option<Instant>,
    took: Took,
    /// Later rounds read prompts of the first one again, which counts as one prompt.
    is_first_round: bool,
    /// Whether a read of this request was queued ever: a full queue refuses only requests that have nothing yet.
    has_begun: bool,
}

/// What reads took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    pub cached_tokens: usize,
    pub computed_tokens: usize,
    /// The longest wait of a read for its start.
    pub queue: Duration,
    /// From the first submission to the last answer of each round.
    pub all: Duration,
}

impl<'a> Reads<'a> {
    /// No reads yet; those to come must end a turn's time from now.
    pub fn new(state: &ApiState, model: &'a TextModel) -> Self {
        Self {
            model,
            running: VecDeque::new(),
            phase: state.watch_phase(),
            deadline: state.options.turn_timeout.and_then(|limit| Instant::now().checked_add(limit)),
            took: Took::default(),
            is_first_round: true,
            has_begun: false,
        }
    }

    /// Runs the reads of one round and adds their logits in order.
    pub async fn run(&mut self, parts: &[ReadPart], logits: &mut Vec<PartLogits>) -> Result<(), DecisionError> {
        let started = Instant::now();
        for part in parts {
            self.model.prepare(0, &part.prompt).await;
        }
        let mut waiting = parts.iter().peekable();
        while waiting.peek().is_some() || !self.running.is_empty() {
            while self.running.len() < WINDOW
                && let Some(part) = waiting.peek()
                && self.submit(part)?
            {
                waiting.next();
            }
            if self.running.is_empty() {
                // The queue was full of others when the next read came up; what is done is not thrown away for that.
                tokio::time::sleep(PATIENCE).await;
                continue;
            }
            logits.push(self.next().await?);
        }
        self.took.all += started.elapsed();
        self.is_first_round = false;
        Ok(())
    }

    pub fn took(&self) -> Took {
        self.took
    }

    /// Queues a read; false if the queue is full and will have room when an earlier one has ended.
    fn submit(&mut self, part: &ReadPart) -> Result<bool, DecisionError> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(failure(TurnError::DeadlineExceeded));
        }
        let (sender, receiver) = oneshot::channel();
        let cancel = Cancel::new();
        let read = Read {
            prompt: part.prompt.clone(),
            branches: part.branches.clone(),
            // A client that left has set the cancel flag.
            answer: Box::new(move |result| drop(sender.send(result))),
            cancel: cancel.clone(),
            deadline_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            source: Source::Http,
            namespace: 0,
        };
        match self.model.service.read(read) {
            Ok(()) => {
                self.has_begun = true;
                self.running.push_back((cancel, receiver));
            }
            Err(SubmitError::QueueFull { .. }) if self.has_begun => return Ok(false),
            Err(SubmitError::QueueFull { .. }) => {
                return Err(DecisionError::overloaded("the queue is full; try again later", 1000));
            }
            Err(SubmitError::Stopped) => return Err(DecisionError::unavailable("the engine has stopped")),
        }
        Ok(true)
    }

    /// The logits of the read that was queued first.
    async fn next(&mut self) -> Result<PartLogits, DecisionError> {
        let lost = || DecisionError::internal("the engine stopped without an answer");
        let (_, receiver) = self.running.front_mut().ok_or_else(lost)?;
        let deadline = self.deadline;
        // The service knows the deadline too, but looks at it only between two steps.
        let late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let answered = tokio::select! {
            answered = receiver => answered,
            () = late => return Err(failure(TurnError::DeadlineExceeded)),
            _ = self.phase.wait_for(|phase| *phase == Phase::Stopping) => {
                return Err(DecisionError::unavailable("the server is shutting down"));
            }
        };
        self.running.pop_front();
        let answer = answered.map_err(|_| lost())?.map_err(failure)?;
        if self.is_first_round {
            self.took.cached_tokens += answer.cached_tokens;
        }
        self.took.computed_tokens += answer.computed_tokens;
        self.took.queue = self.took.queue.max(Duration::from_millis(answer.queue_ms));
        Ok(answer.logits)
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        for (cancel, _) in &self.running {
            cancel.cancel();
        }
        if !self.running.is_empty() {
            self.model.service.wake();
            tracing::debug!(reads = self.running.len(), "unfinished reads cancelled");
        }
    }
}

fn failure(error: TurnError) -> DecisionError {
    match error {
        TurnError::ContextExceeded { .. } | TurnError::EmptyPrompt => DecisionError::usage(error.to_string()),
        TurnError::QueueTimeout => DecisionError::overloaded("no lane became free in time; try again later", 1000),
        TurnError::DeadlineExceeded => DecisionError::timeout("the decision was not made in time"),
        TurnError::Load(_) | TurnError::ShuttingDown | TurnError::Cancelled => {
            DecisionError::unavailable(error.to_string())
        }
        TurnError::Engine(_) | TurnError::Internal | TurnError::InvalidRead(_) | TurnError::Refused => {
            DecisionError::internal(error.to_string())
        }
    }
}
