//! The generation service: a queue of commands, one model, and what the driver must do next.

mod admit;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::action::{Action, EngineCall, Outcome};
use crate::engine::{EngineError, EngineLimits};
use crate::gate::Gates;
use crate::intake::{Intake, SubmitError, Ticket};
use crate::lanes::LaneStats;
use crate::metrics::{Metrics, ModelState};
use crate::observer::Observer;
use crate::read::Read;
use crate::scheduler::Scheduler;
use crate::task::Task;
use crate::transfer::{Export, Import, Kept, Session, TransferError};
use crate::turn::{Cancel, Turn, TurnError};

/// How a service behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Turns and reads that may wait.
    pub queue_depth: usize,
    /// Time after the last turn at which the model is dropped, until a turn says otherwise.
    pub idle_timeout_ms: u64,
    /// New tokens of a turn that pages are reserved for at admission; beyond that it grows page by page,
    /// and may have to give way to older turns and be computed again.
    pub reserved_tokens: usize,
    /// Prompts of fewer tokens are not kept for reuse, nor are shorter common prefixes used.
    pub min_prefix_tokens: usize,
    /// Sequences kept for reuse at most, each with all that leads to it; 0 keeps none.
    pub max_prefixes: usize,
    /// Lanes that stay ready between turns; others are given up and count as free. Costs nothing either way.
    pub idle_lanes: usize,
    /// Time after which a turn or read that found no lane ends with [`TurnError::QueueTimeout`]; one that would wait
    /// longer, as far as can be told, is refused at once. 0 waits for ever.
    pub admission_timeout_ms: u64,
    /// Times that one may be overtaken by later ones that fit when it does not, or of which more is cached; then it is
    /// next, whatever becomes free. 0 keeps strictly to the order of submission.
    pub max_overtaken: u32,
    /// One turn at a time, however many lanes the engine has.
    pub safe_mode: bool,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            queue_depth: crate::default_queue_depth(1),
            idle_timeout_ms: 15 * 60 * 1000,
            reserved_tokens: 512,
            min_prefix_tokens: 4,
            max_prefixes: 4096,
            idle_lanes: usize::MAX,
            admission_timeout_ms: 0,
            max_overtaken: 32,
            safe_mode: false,
        }
    }
}

/// Settings of a command, which select the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<K> {
    /// The model is kept while these are equal.
    pub settings: K,
    /// Replaces the idle timeout from the moment this command is taken from the queue.
    pub idle_timeout_ms: Option<u64>,
}

/// Told how a preload ended.
pub type Loaded = Box<dyn FnOnce(Result<(), String>) + Send>;

enum Job {
    Task(Task),
    Preload(Loaded),
}

struct Command<K> {
    request: Request<K>,
    job: Job,
    /// Times that a later one was started before it.
    overtaken: u32,
}

impl<K> Command<K> {
    fn new(request: Request<K>, job: Job) -> Self {
        Self { request, job, overtaken: 0 }
    }
}

struct Model<K> {
    settings: K,
    scheduler: Scheduler,
}

/// The state machine that native threads and browser workers drive.
///
/// The driver calls [`plan`](Self::plan), does what the [`Action`] says, hands the result to
/// [`commit`](Self::commit), and starts over. Time is any count of milliseconds that does not go back.
pub struct Service<K> {
    intake: Intake,
    metrics: Arc<Metrics>,
    queue: VecDeque<Command<K>>,
    model: Option<Model<K>>,
    /// When loading of the front command's model began.
    loading_since: Option<u64>,
    /// The driver still holds an engine that the service has given up.
    drop_engine: bool,
    idle_timeout_ms: u64,
    config: ServiceConfig,
    observer: Option<Arc<dyn Observer>>,
    on_kept: Option<Box<dyn FnMut(Kept) + Send>>,
    gates: Gates,
    last_used: u64,
    /// Of the engine when nobody who waits could be admitted; none after the queue has changed.
    elected: Option<(u64, bool)>,
}

impl<K: PartialEq + Clone> Service<K> {
    /// An empty service.
    pub fn new(config: ServiceConfig) -> Self {
        Self::with_intake(config, Intake::new(config.queue_depth))
    }

    /// An empty service behind a queue that others may already use.
    pub fn with_intake(config: ServiceConfig, intake: Intake) -> Self {
        Self {
            metrics: intake.metrics().clone(),
            intake,
            queue: VecDeque::new(),
            model: None,
            loading_since: None,
            drop_engine: false,
            idle_timeout_ms: config.idle_timeout_ms,
            config,
            observer: None,
            on_kept: None,
            gates: Gates::default(),
            last_used: 0,
            elected: None,
        }
    }

    /// The entrance to the queue, to reserve places from elsewhere.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// The figures of this service.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Tells an observer of lanes and pages, of every model that is loaded from now on.
    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Looks up the gates that turns name in these.
    pub fn with_gates(self, gates: Gates) -> Self {
        Self { gates, ..self }
    }

    /// Forgets all prefixes that no turn or read uses.
    pub fn clear_prefixes(&mut self) {
        if let Some(model) = &mut self.model {
            model.scheduler.clear_cache();
        }
    }

    /// Reads the pages of a kept sequence, one between every two steps.
    ///
    /// Neither waits for the queue, nor loads a model, nor keeps it loaded.
    pub fn export(&mut self, export: Export) {
        match &mut self.model {
            Some(model) => model.scheduler.export(export),
            None => (export.done)(Err(TransferError::NotLoaded)),
        }
    }

    /// Writes pages, one between every two steps, and keeps them for reuse; see [`export`](Self::export).
    pub fn import(&mut self, import: Import) {
        match &mut self.model {
            Some(model) => model.scheduler.import(import),
            None => (import.done)(Err(TransferError::NotLoaded)),
        }
    }

    /// Leading tokens whose K/V a turn would find; changes nothing.
    pub fn peek(&self, namespace: u64, tokens: &[u32]) -> usize {
        self.model.as_ref().map_or(0, |model| model.scheduler.peek(namespace, tokens))
    }

    /// The sequences in the prefix cache, those that were used last first.
    pub fn sessions(&self) -> Vec<Session> {
        self.model.as_ref().map_or_else(Vec::new, |model| model.scheduler.sessions())
    }

    /// Tells of every sequence that a turn or read leaves behind in the prefix cache; one-shot turns leave none.
    pub fn on_kept(&mut self, kept: Box<dyn FnMut(Kept) + Send>) {
        self.on_kept = Some(kept);
        if let Some(model) = &mut self.model {
            model.scheduler.note_all_kept();
        }
    }

    fn tell_kept(&mut self) {
        if let (Some(model), Some(on_kept)) = (&mut self.model, &mut self.on_kept) {
            model.scheduler.take_kept().into_iter().for_each(on_kept);
        }
    }

    /// Whether nothing waits, runs or loads.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.model.as_ref().is_none_or(|m| m.scheduler.running() == 0)
    }

    /// Queues a turn, or refuses it at once.
    pub fn submit(&mut self, now: u64, request: Request<K>, turn: Turn) -> Result<(), SubmitError> {
        let ticket = self.intake.admit(turn)?;
        self.enqueue(now, request, ticket);
        Ok(())
    }

    /// Queues a read, or refuses it at once; it takes a place like a turn and starts in the same order.
    pub fn submit_read(&mut self, now: u64, request: Request<K>, read: Read) -> Result<(), SubmitError> {
        let ticket = self.intake.admit_read(read)?;
        self.enqueue(now, request, ticket);
        Ok(())
    }

    /// Queues a turn or read whose place was reserved; one that can never fit the loaded model ends at once.
    pub fn enqueue(&mut self, now: u64, request: Request<K>, ticket: Ticket) {
        let mut task = Task::new(now, ticket);
        if !task.resolve_gate(&self.gates) {
            task.finish(now, Err(TurnError::Refused));
            return;
        }
        let model = self.model.as_ref().filter(|model| model.settings == request.settings);
        if let Some(error) = model.and_then(|model| task.refused(model.scheduler.limits())) {
            task.finish(now, Err(error));
            return;
        }
        self.push_back(Command::new(request, Job::Task(task)));
    }

    /// Queues loading of a model without a turn.
    pub fn preload(&mut self, request: Request<K>, loaded: Loaded) {
        if self.intake.is_open() {
            self.push_back(Command::new(request, Job::Preload(loaded)));
        } else {
            loaded(Err(TurnError::ShuttingDown.to_string()));
        }
    }

    /// Takes no more turns, completes those it has, then stops.
    pub fn drain(&mut self) {
        self.intake.close();
    }

    /// Ends all turns and stops.
    pub fn shutdown(&mut self, now: u64) {
        self.drain();
        while let Some(command) = self.queue.pop_front() {
            match command.job {
                Job::Task(mut task) => task.finish(now, Err(TurnError::ShuttingDown)),
                Job::Preload(loaded) => loaded(Err(TurnError::ShuttingDown.to_string())),
            }
        }
        if let Some(model) = &mut self.model {
            model.scheduler.fail_all(now, &TurnError::ShuttingDown);
        }
    }

    /// What the driver must do now.
    pub fn plan(&mut self, now: u64) -> Action<K> {
        self.metrics.update(|m| m.captured_ms = now);
        self.sweep(now);
        self.tell_kept();
        if self.drop_engine {
            return Action::Unload;
        }
        self.settle_preloads();
        self.admit(now).unwrap_or_else(|| self.step_or_switch(now))
    }

    /// Takes the result of the action planned last.
    pub fn commit(&mut self, now: u64, outcome: Outcome) {
        match outcome {
            Outcome::Loaded(result) => self.loaded(now, result),
            Outcome::Unloaded => self.drop_engine = false,
            Outcome::Begun(lane, result) => self.on_engine(now, result, |scheduler, now, result| {
                scheduler.begun(now, lane, result);
            }),
            Outcome::Submitted(result) => self.on_engine(now, result, |scheduler, now, result| {
                if let Err(error) = result {
                    scheduler.refused(now, error);
                }
            }),
            Outcome::Collected(result) => self.on_engine(now, result, Scheduler::collected),
            Outcome::PageRead(result) => {
                self.on_engine(now, result, |scheduler, _, result| scheduler.page_read(result))
            }
            Outcome::PageWritten(result) => {
                self.on_engine(now, result, |scheduler, _, result| scheduler.page_written(result));
            }
        }
        self.tell_kept();
    }

    /// Recovers after a panic anywhere: the driver has dropped its engine, running turns end, waiting ones stay.
    ///
    /// May be called again when it panics itself.
    pub fn reset(&mut self, now: u64) {
        self.drop_engine = false;
        if self.loading_since.take().is_some() {
            self.metrics.update(|m| (m.load_failed, m.model) = (m.load_failed + 1, ModelState::Failed));
            self.fail_front(now, TurnError::Internal);
        }
        self.fail_model(now, &TurnError::Internal);
    }

    fn sweep(&mut self, now: u64) {
        let timeout_ms = self.config.admission_timeout_ms;
        let mut index = 0;
        while let Some(command) = self.queue.get_mut(index) {
            let Job::Task(task) = &mut command.job else {
                index += 1;
                continue;
            };
            let waited = now.saturating_sub(task.submitted());
            let is_late = timeout_ms > 0 && waited >= timeout_ms && !task.is_preempted();
            let Some(error) = task.interrupted(now).or(is_late.then_some(TurnError::QueueTimeout)) else {
                index += 1;
                continue;
            };
            task.finish(now, Err(error));
            self.elected = None;
            let timeout = command.request.idle_timeout_ms;
            self.queue.remove(index);
            self.idle_timeout_ms = timeout.unwrap_or(self.idle_timeout_ms);
        }
        self.with_scheduler(now, |scheduler, now| scheduler.sweep(now));
    }

    /// Answers preloads of the model that is loaded already.
    fn settle_preloads(&mut self) {
        while let (Some(model), Some(front)) = (&self.model, self.queue.front())
            && matches!(front.job, Job::Preload(_))
            && front.request.settings == model.settings
        {
            let front = self.queue.pop_front();
            if let Some(Command { job: Job::Preload(loaded), request, .. }) = front {
                self.idle_timeout_ms = request.idle_timeout_ms.unwrap_or(self.idle_timeout_ms);
                loaded(Ok(()));
            }
        }
    }

    fn step_or_switch(&mut self, now: u64) -> Action<K> {
        let Some(model) = &mut self.model else {
            return self.load_or_stop(now);
        };
        let scheduler = &mut model.scheduler;
        if let Some(call) = scheduler.transfer(false) {
            return Action::Engine(call);
        }
        let step = scheduler.plan(now);
        for run in scheduler.take_preempted() {
            let request = Request { settings: model.settings.clone(), idle_timeout_ms: None };
            self.queue.push_front(Command::new(request, Job::Task(Task::Turn(Box::new(run)))));
            self.elected = None;
        }
        if let Some(plan) = step {
            return Action::Engine(EngineCall::Submit(plan));
        }
        if scheduler.in_flight() > 0 {
            return Action::Engine(EngineCall::Collect);
        }
        if let Some(call) = scheduler.transfer(true) {
            return Action::Engine(call);
        }
        let idle_at = self.last_used.saturating_add(self.idle_timeout_ms);
        // The front command is for another model here, else it would have been admitted.
        if !self.queue.is_empty() || now >= idle_at || !self.intake.is_open() {
            self.unload(ModelState::Unloaded);
            return Action::Unload;
        }
        Action::Wait { until: Some(idle_at) }
    }

    fn load_or_stop(&mut self, now: u64) -> Action<K> {
        let Some(front) = self.queue.front_mut() else {
            return match self.intake.is_open() {
                true => Action::Wait { until: None },
                false => Action::Stop,
            };
        };
        self.idle_timeout_ms = front.request.idle_timeout_ms.unwrap_or(self.idle_timeout_ms);
        self.loading_since = Some(now);
        self.metrics.update(|m| (m.loading, m.model) = (m.loading + 1, ModelState::Loading));
        let cancel = match &mut front.job {
            Job::Task(task) => {
                task.start(now);
                task.tell_loading();
                task.cancel().clone()
            }
            Job::Preload(_) => Cancel::new(),
        };
        Action::Load { settings: front.request.settings.clone(), cancel }
    }

    fn loaded(&mut self, now: u64, result: Result<EngineLimits, String>) {
        let Some(since) = self.loading_since.take() else {
            return;
        };
        self.last_used = now;
        self.elected = None;
        let scheduler = result.and_then(|limits| {
            let scheduler = Scheduler::new(limits, &self.config, self.metrics.clone());
            let mut scheduler = scheduler.map_err(|error| error.to_string())?;
            if let Some(observer) = &self.observer {
                scheduler.observe(observer.clone());
            }
            if self.on_kept.is_some() {
                scheduler.note_all_kept();
            }
            Ok(scheduler)
        });
        match (scheduler, self.queue.front()) {
            (Ok(scheduler), Some(front)) => {
                let limit = scheduler.limits().turn_positions();
                let lanes = if self.config.safe_mode { 1 } else { scheduler.limits().lanes };
                self.metrics.predict(lanes, self.config.admission_timeout_ms);
                self.model = Some(Model { settings: front.request.settings.clone(), scheduler });
                self.metrics.update(|m| {
                    m.loaded += 1;
                    m.model = ModelState::Loaded;
                    m.load_ms = now.saturating_sub(since);
                    m.context_limit = limit;
                });
                self.refuse(now);
            }
            (scheduler, _) => {
                self.drop_engine = true;
                self.metrics.update(|m| (m.load_failed, m.model) = (m.load_failed + 1, ModelState::Failed));
                let message = scheduler.err().unwrap_or_else(|| TurnError::ShuttingDown.to_string());
                self.fail_front(now, TurnError::Load(message));
            }
        }
    }

    /// Ends the command whose model was being loaded.
    fn fail_front(&mut self, now: u64, error: TurnError) {
        let Some(command) = self.queue.pop_front() else {
            return;
        };
        match command.job {
            Job::Task(mut task) => {
                let error = task.interrupted(now).unwrap_or(error);
                task.finish(now, Err(error));
            }
            Job::Preload(loaded) => loaded(Err(match error {
                TurnError::Load(message) => message,
                error => error.to_string(),
            })),
        }
    }

    /// Hands an engine's answer to the scheduler; a lost engine ends all its turns.
    fn on_engine<T>(
        &mut self,
        now: u64,
        result: Result<T, EngineError>,
        take: impl FnOnce(&mut Scheduler, u64, Result<T, EngineError>),
    ) {
        match result {
            Err(EngineError::Lost(reason)) => {
                self.drop_engine = true;
                self.fail_model(now, &TurnError::Engine(reason));
            }
            result => self.with_scheduler(now, |scheduler, now| take(scheduler, now, result)),
        }
    }

    fn with_scheduler(&mut self, now: u64, use_it: impl FnOnce(&mut Scheduler, u64)) {
        if let Some(model) = &mut self.model {
            if model.scheduler.running() > 0 {
                self.last_used = now;
            }
            use_it(&mut model.scheduler, now);
        }
    }

    /// Drops the model, then ends its turns: who hears of the end sees the figures after it.
    fn fail_model(&mut self, now: u64, error: &TurnError) {
        self.last_used = now;
        if let Some(mut model) = self.unload(ModelState::Failed) {
            model.scheduler.fail_all(now, error);
        }
        self.metrics.publish(LaneStats::default(), std::iter::empty());
    }

    fn unload(&mut self, state: ModelState) -> Option<Model<K>> {
        let model = self.model.take()?;
        self.metrics.update(|m| {
            m.unloaded += 1;
            m.model = state;
            m.context_used = 0;
        });
        self.metrics.publish(LaneStats::default(), std::iter::empty());
        Some(model)
    }
}
