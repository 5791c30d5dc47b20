//! Faults on demand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::EngineError;

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// [`EngineError::Step`].
    Step,
    /// [`EngineError::Lost`].
    Lost,
    /// A panic.
    Panic,
}

/// Injects faults into an engine that somebody else owns; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<FaultState>>);

#[derive(Debug, Default)]
struct FaultState {
    once: HashMap<&'static str, Fault>,
    poison: Option<u32>,
    blind: bool,
}

impl Faults {
    /// The next call of `begin`, `submit`, `collect`, `read_page` or `write_page` fails.
    pub fn inject(&self, call: &'static str, fault: Fault) {
        self.lock().once.insert(call, fault);
    }

    /// Every step that has this token fails when it is collected.
    pub fn poison(&self, token: Option<u32>) {
        self.lock().poison = token;
    }

    /// Logits and entropies are not numbers as long as this is set.
    pub fn blind(&self, blind: bool) {
        self.lock().blind = blind;
    }

    pub(super) fn poisoned(&self) -> Option<u32> {
        self.lock().poison
    }

    pub(super) fn is_blind(&self) -> bool {
        self.lock().blind
    }

    pub(super) fn check(&self, call: &'static str) -> Result<(), EngineError> {
        let fault = self.lock().once.remove(call);
        match fault {
            None => Ok(()),
            Some(Fault::Step) => Err(EngineError::Step(format!("{call} failed"))),
            Some(Fault::Lost) => Err(EngineError::Lost(format!("device lost in {call}"))),
            Some(Fault::Panic) => panic!("injected panic in {call}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
