use laneway_session::{Metrics, Read, Request, SubmitError, Turn};

use crate::state::{Health, TurnService};
use crate::worker::{HealthState, Worker};

/// One model of a [`Worker`]: every turn asks for the same engine settings.
pub struct WorkerService<K> {
    worker: Worker<K>,
    request: Request<K>,
    stuck_after_ms: u64,
}

impl<K> WorkerService<K> {
    /// Serves `request`'s model; work without progress for `stuck_after_ms` counts as a stuck engine.
    pub fn new(worker: Worker<K>, request: Request<K>, stuck_after_ms: u64) -> Self {
        Self { worker, request, stuck_after_ms }
    }
}

impl<K: Clone + PartialEq + Send + Sync + 'static> TurnService for WorkerService<K> {
    fn submit(&self, turn: Turn) -> Result<(), SubmitError> {
        self.worker.enqueue(self.request.clone(), turn)
    }

    fn read(&self, read: Read) -> Result<(), SubmitError> {
        self.worker.read(self.request.clone(), read)
    }

    fn wake(&self) {
        self.worker.wake();
    }

    fn health(&self) -> Health {
        let health = self.worker.health();
        match health.state {
            HealthState::Loading => Health::Loading,
            HealthState::Failed => Health::Failed("the model could not be loaded or its engine was lost".to_owned()),
            HealthState::Stopped => Health::Failed("the worker has stopped".to_owned()),
            HealthState::Draining => Health::Failed("the worker takes no more turns".to_owned()),
            HealthState::Ready if health.stalled_ms > self.stuck_after_ms => {
                Health::Stuck { since_ms: health.stalled_ms }
            }
            HealthState::Ready => Health::Ready,
        }
    }

    fn metrics(&self) -> &Metrics {
        self.worker.metrics()
    }
}
