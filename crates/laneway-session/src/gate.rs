//! Leave that an embedding application gives for generation, token by token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names a gate; whoever knows it may ask for leave there, so it must not be guessable.
pub type GateId = [u8; 16];

/// Decides about the turns that name it. Is asked on the service's thread, without any lock held: it must not block for
/// long, and a turn that it refuses ends with [`TurnError::Refused`](crate::TurnError::Refused).
pub trait Gate: Send + Sync {
    /// The prompt of so many tokens is computed, and at most so many are to follow.
    fn prefilled(&self, input_tokens: usize, ceiling: usize) -> bool {
        let _ = (input_tokens, ceiling);
        true
    }

    /// A token is about to be committed as number `index` of the answer; of a model that revises a canvas, a pass over
    /// the canvas that begins there.
    fn before(&self, index: usize) -> bool;

    /// It is committed.
    fn after(&self, index: usize) -> bool {
        let _ = index;
        true
    }
}

/// The gates of an application; clones share them.
#[derive(Clone, Default)]
pub struct Gates(Arc<Mutex<HashMap<GateId, Arc<dyn Gate>>>>);

/// Keeps a gate registered until it is dropped.
#[must_use = "a dropped registration takes the gate away"]
pub struct Registration {
    gates: Gates,
    id: GateId,
}

impl Gates {
    /// Registers a gate; none if there is one of that name.
    pub fn register(&self, id: GateId, gate: Arc<dyn Gate>) -> Option<Registration> {
        let mut gates = self.lock();
        if gates.contains_key(&id) {
            return None;
        }
        gates.insert(id, gate);
        Some(Registration { gates: self.clone(), id })
    }

    pub(crate) fn find(&self, id: &GateId) -> Option<Arc<dyn Gate>> {
        self.lock().get(id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GateId, Arc<dyn Gate>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.gates.lock().remove(&self.id);
    }
}
