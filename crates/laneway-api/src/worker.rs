//! Drives a generation service and its engine on a thread of their own.

mod transfer;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use laneway_session::{
    Action, Cancel, Decoder, Engine, Event, Intake, Metrics, ModelState, Outcome, Read, Request, Sampling, Service,
    ServiceConfig, Source, SubmitError, Ticket, Turn,
};
use tokio::sync::{mpsc, oneshot};

pub use transfer::Transfers;

/// The longest sleep of an idle worker; it wakes at once for commands and cancellations.
const TICK: Duration = Duration::from_secs(1);

/// A turn for a worker.
pub struct TurnRequest<K> {
    /// Which model, and how long to keep it.
    pub request: Request<K>,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; none takes the remaining context.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The text side.
    pub decoder: Box<dyn Decoder + Send>,
    /// Milliseconds after submission at which the turn fails.
    pub deadline_ms: Option<u64>,
    /// Where the turn comes from.
    pub source: Source,
}

/// The caller's end of a turn; dropping it cancels the turn.
pub struct TurnHandle {
    events: mpsc::UnboundedReceiver<Event>,
    cancel: Cancel,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// Whether a worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// What the worker is able to do.
    pub state: HealthState,
    /// Milliseconds since anything was completed while turns wait or run; 0 without work.
    pub stalled_ms: u64,
}

/// What a worker is able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthState {
    /// Takes turns; the model is loaded, or will be by the next turn.
    Ready,
    /// Takes turns; a model is being loaded.
    Loading,
    /// Takes turns, but the last load or the engine failed.
    Failed,
    /// Takes no more turns, completes those it has.
    Draining,
    /// The thread has ended.
    Stopped,
}

/// A handle of a worker thread; clones share it, and the thread ends after the last one is dropped.
pub struct Worker<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Worker<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

enum Message<K> {
    Turn(Request<K>, Ticket),
    Preload(Request<K>, oneshot::Sender<Result<(), String>>),
    Order(transfer::Order),
    Wake,
    Drain,
    Shutdown,
}

struct Shared<K> {
    sender: Sender<Message<K>>,
    intake: Intake,
    pulse: Arc<Pulse>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Signs of life, written by the thread.
struct Pulse {
    state: Mutex<PulseState>,
}

struct PulseState {
    last: Instant,
    loading: Option<Cancel>,
    preloading: bool,
    ended: bool,
}

impl<K: PartialEq + Clone + Send + 'static> Worker<K> {
    /// Starts a named thread that opens engines with `opener`, one at a time.
    ///
    /// The opener runs on that thread and should give up when its [`Cancel`] is set.
    pub fn spawn<E, O>(name: &str, config: ServiceConfig, opener: O) -> std::io::Result<Self>
    where
        E: Engine,
        O: FnMut(&K, &Cancel) -> Result<E, String> + Send + 'static,
    {
        let (sender, receiver) = channel();
        let intake = Intake::new(config.queue_depth);
        let pulse = Arc::new(Pulse::new());
        let service = Service::with_intake(config, intake.clone());
        let thread_pulse = pulse.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // The flag is set however the thread ends.
            let _ended = Ended(thread_pulse.clone());
            let start = Instant::now();
            Drive { service, opener, engine: None, receiver, pulse: thread_pulse, start }.run();
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { shared: Arc::new(Shared { sender, intake, pulse, thread }) })
    }

    /// Queues a turn and returns at once, or says why not.
    pub fn submit(&self, request: TurnRequest<K>) -> Result<TurnHandle, SubmitError> {
        let (events, receiver) = mpsc::unbounded_channel();
        let cancel = Cancel::new();
        let turn = Turn {
            prompt: request.prompt,
            max_tokens: request.max_tokens,
            sampling: request.sampling,
            decoder: request.decoder,
            // A receiver that is gone has set the cancel flag.
            events: Box::new(move |event| drop(events.send(event))),
            cancel: cancel.clone(),
            deadline_ms: request.deadline_ms,
            source: request.source,
            denoising: None,
            wants_drafts: false,
            gate: None,
            namespace: 0,
            target: laneway_session::Target::default(),
        };
        self.enqueue(request.request, turn)?;
        let sender = self.shared.sender.clone();
        let wake = Box::new(move || drop(sender.send(Message::Wake)));
        Ok(TurnHandle { events: receiver, cancel, wake })
    }

    /// Queues a turn whose events and cancel flag the caller keeps; [`wake`](Self::wake) goes with the flag.
    pub fn enqueue(&self, request: Request<K>, turn: Turn) -> Result<(), SubmitError> {
        if !self.has_work() {
            self.shared.pulse.beat();
        }
        let ticket = self.shared.intake.admit(turn)?;
        let message = Message::Turn(request, ticket);
        self.shared.sender.send(message).map_err(|_| SubmitError::Stopped)
    }

    /// Queues a read whose answer and cancel flag the caller keeps; [`wake`](Self::wake) goes with the flag.
    pub fn read(&self, request: Request<K>, read: Read) -> Result<(), SubmitError> {
        if !self.has_work() {
            self.shared.pulse.beat();
        }
        let message = Message::Turn(request, self.shared.intake.admit_read(read)?);
        self.shared.sender.send(message).map_err(|_| SubmitError::Stopped)
    }

    /// Makes the thread look at cancel flags at once, also while it is idle.
    pub fn wake(&self) {
        self.send(Message::Wake);
    }

    /// Loads a model without a turn; resolves when it is loaded, or with the reason why not.
    ///
    /// From this call on, [`Worker::health`] says that it is loading.
    pub fn preload(&self, request: Request<K>) -> impl Future<Output = Result<(), String>> + Send + use<K> {
        let (done, loaded) = oneshot::channel();
        if !self.has_work() {
            self.shared.pulse.beat();
        }
        self.shared.pulse.lock().preloading = true;
        let sent = self.shared.sender.send(Message::Preload(request, done)).is_ok();
        async move {
            let stopped = || SubmitError::Stopped.to_string();
            if sent { loaded.await.map_err(|_| stopped())? } else { Err(stopped()) }
        }
    }

    /// The figures; reading them does not wait for the worker.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.shared.intake.metrics()
    }

    /// Whether the worker works, seen from outside its thread.
    pub fn health(&self) -> Health {
        let pulse = self.shared.pulse.lock();
        let model = self.metrics().snapshot().model;
        let state = match model {
            _ if pulse.ended => HealthState::Stopped,
            _ if !self.shared.intake.is_open() => HealthState::Draining,
            ModelState::Loading => HealthState::Loading,
            ModelState::Unloaded if pulse.preloading => HealthState::Loading,
            ModelState::Failed => HealthState::Failed,
            ModelState::Loaded | ModelState::Unloaded => HealthState::Ready,
        };
        let busy = self.has_work() || pulse.preloading;
        let stalled_ms = if busy { millis(pulse.last.elapsed()) } else { 0 };
        Health { state, stalled_ms }
    }

    /// Takes no more turns; those it has are completed, then the thread ends.
    pub fn drain(&self) {
        self.shared.intake.close();
        self.send(Message::Drain);
    }

    /// Ends all turns with an error, also a load in progress, then the thread ends.
    pub fn shutdown(&self) {
        self.shared.stop();
    }

    /// Waits until the thread has ended, after [`drain`](Self::drain) or [`shutdown`](Self::shutdown); blocks.
    pub fn join(&self) {
        self.shared.join();
    }

    fn send(&self, message: Message<K>) {
        // A thread that has ended needs no message.
        drop(self.shared.sender.send(message));
    }

    fn has_work(&self) -> bool {
        let total = self.metrics().snapshot().total();
        total.waiting() + total.running() > 0
    }
}

impl<K> Shared<K> {
    fn stop(&self) {
        self.intake.close();
        if let Some(cancel) = &self.pulse.lock().loading {
            cancel.cancel();
        }
        drop(self.sender.send(Message::Shutdown));
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            // The last handle may be dropped by an engine or a text side on the thread itself.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("a worker thread ended by a panic");
        }
    }
}

impl<K> Drop for Shared<K> {
    fn drop(&mut self) {
        self.stop();
        self.join();
    }
}

impl TurnHandle {
    /// The next event; none after `Finished`.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The events, for use with `select!` or from blocking code.
    pub fn events(&mut self) -> &mut mpsc::UnboundedReceiver<Event> {
        &mut self.events
    }

    /// Stops the turn between two steps; its `Finished` event still arrives.
    pub fn cancel(&self) {
        self.cancel.cancel();
        (self.wake)();
    }
}

impl Drop for TurnHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

struct Drive<K, E, O> {
    service: Service<K>,
    opener: O,
    engine: Option<E>,
    receiver: Receiver<Message<K>>,
    pulse: Arc<Pulse>,
    start: Instant,
}

impl<K, E, O> Drive<K, E, O>
where
    K: PartialEq + Clone,
    E: Engine,
    O: FnMut(&K, &Cancel) -> Result<E, String>,
{
    fn run(mut self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn_over())) {
                Ok(true) => {}
                Ok(false) => return,
                Err(panic) => self.recover(&*panic),
            }
        }
    }

    /// Takes commands and does one action; false when nothing will ever be to do.
    fn turn_over(&mut self) -> bool {
        while let Ok(message) = self.receiver.try_recv() {
            self.take(message);
        }
        let outcome = match self.service.plan(self.now()) {
            Action::Load { settings, cancel } => Outcome::Loaded(self.load(&settings, &cancel)),
            Action::Unload => {
                self.engine = None;
                tracing::info!("model unloaded");
                Outcome::Unloaded
            }
            Action::Engine(call) => {
                let started = Instant::now();
                let outcome = block_on(call.execute(self.engine.as_mut()));
                if matches!(outcome, Outcome::Submitted(_) | Outcome::Collected(_)) {
                    self.service.metrics().record_busy(started.elapsed());
                }
                if let Some(error) = outcome.engine_error() {
                    tracing::warn!(%error, "the engine failed");
                }
                outcome
            }
            Action::Wait { until } => {
                self.sleep(until);
                return true;
            }
            Action::Stop => return false,
        };
        self.service.commit(self.now(), outcome);
        self.pulse.beat();
        true
    }

    fn load(&mut self, settings: &K, cancel: &Cancel) -> Result<laneway_session::EngineLimits, String> {
        tracing::info!("loading a model");
        self.engine = None;
        self.pulse.lock().loading = Some(cancel.clone());
        let opened = (self.opener)(settings, cancel);
        self.pulse.lock().loading = None;
        match opened {
            Ok(engine) => Ok(self.engine.insert(engine).limits()),
            Err(error) => {
                tracing::warn!(%error, "the model could not be loaded");
                Err(error)
            }
        }
    }

    fn take(&mut self, message: Message<K>) {
        let now = self.now();
        match message {
            Message::Turn(request, ticket) => self.service.enqueue(now, request, ticket),
            Message::Preload(request, done) => {
                let pulse = self.pulse.clone();
                let loaded = Box::new(move |result| {
                    pulse.lock().preloading = false;
                    // The caller may have stopped waiting.
                    drop(done.send(result));
                });
                self.service.preload(request, loaded);
            }
            Message::Order(order) => order.take(&mut self.service),
            Message::Wake => {}
            Message::Drain => self.service.drain(),
            Message::Shutdown => self.service.shutdown(now),
        }
    }

    fn sleep(&mut self, until: Option<u64>) {
        let now = self.now();
        let left = until.map_or(TICK, |until| Duration::from_millis(until.saturating_sub(now)));
        match self.receiver.recv_timeout(left.min(TICK)) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.service.shutdown(now),
        }
    }

    /// GPU handles are not unwind-safe, so the engine goes and the next turn loads it again.
    fn recover(&mut self, panic: &(dyn Any + Send)) {
        tracing::error!(reason = reason(panic), "internal error, the engine is reset");
        self.pulse.lock().loading = None;
        if let Some(engine) = self.engine.take()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(engine)))
        {
            tracing::error!(reason = reason(&*panic), "dropping the engine failed");
        }
        // Each attempt ends at least the turn whose events or text side panicked.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.service.reset(self.now()))) {
            tracing::error!(reason = reason(&*panic), "resetting the service failed");
        }
    }

    fn now(&self) -> u64 {
        millis(self.start.elapsed())
    }
}

impl Pulse {
    fn new() -> Self {
        let last = Instant::now();
        Self { state: Mutex::new(PulseState { last, loading: None, preloading: false, ended: false }) }
    }

    fn beat(&self) {
        self.lock().last = Instant::now();
    }

    fn lock(&self) -> MutexGuard<'_, PulseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Ended(Arc<Pulse>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.lock().ended = true;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
