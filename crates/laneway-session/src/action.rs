//! What a driver does for the service, and what it reports back.

use crate::Sampling;
use crate::engine::{Engine, EngineError, EngineLimits, StepOutcome, StepPlan};
use crate::turn::Cancel;

/// The next thing to do.
#[derive(Clone, Debug)]
pub enum Action<K> {
    /// Open a model and answer [`Outcome::Loaded`]; the driver holds no engine at this point.
    Load {
        /// Which model.
        settings: K,
        /// Set when the load is no longer wanted; look at it between the steps of loading.
        cancel: Cancel,
    },
    /// Drop the engine, if there is one, and answer [`Outcome::Unloaded`].
    Unload,
    /// Call the engine and commit the outcome.
    Engine(EngineCall),
    /// Nothing to do until a command or a cancellation arrives, or until a time.
    Wait {
        /// When to plan again at the latest.
        until: Option<u64>,
    },
    /// Nothing will ever be to do again; the engine was dropped.
    Stop,
}

/// A call of the engine.
#[derive(Clone, Debug)]
pub enum EngineCall {
    /// [`Engine::begin`].
    Begin {
        /// The lane.
        lane: usize,
        /// How its tokens are chosen.
        sampling: Sampling,
        /// Prompt ids, and generated ids when the turn was preempted.
        prompt: Vec<u32>,
    },
    /// [`Engine::submit`].
    Submit(StepPlan),
    /// [`Engine::collect`].
    Collect,
    /// [`Engine::read_page`].
    ReadPage {
        /// The page.
        page: u32,
        /// Its leading positions that are wanted.
        positions: usize,
    },
    /// [`Engine::write_page`].
    WritePage {
        /// The page.
        page: u32,
        /// Its leading positions that are written.
        positions: usize,
        /// What they are to hold.
        content: Vec<u8>,
    },
}

/// The result of an [`Action`].
#[derive(Clone, Debug)]
pub enum Outcome {
    /// A model was opened, or why not.
    Loaded(Result<EngineLimits, String>),
    /// The engine was dropped.
    Unloaded,
    /// A turn was started on a lane.
    Begun(usize, Result<(), EngineError>),
    /// A step was enqueued.
    Submitted(Result<(), EngineError>),
    /// The oldest step ended.
    Collected(Result<StepOutcome, EngineError>),
    /// A page was read.
    PageRead(Result<Vec<u8>, EngineError>),
    /// A page was written.
    PageWritten(Result<(), EngineError>),
}

impl Outcome {
    /// The engine's error, if this is one.
    pub fn engine_error(&self) -> Option<&EngineError> {
        match self {
            Self::Begun(_, result) | Self::Submitted(result) | Self::PageWritten(result) => result.as_ref().err(),
            Self::Collected(result) => result.as_ref().err(),
            Self::PageRead(result) => result.as_ref().err(),
            Self::Loaded(_) | Self::Unloaded => None,
        }
    }
}

impl EngineCall {
    /// Makes the call; without an engine the outcome is a lost engine.
    pub async fn execute<E: Engine>(self, engine: Option<&mut E>) -> Outcome {
        let absent = || EngineError::Lost("no engine is loaded".to_owned());
        match (self, engine) {
            (Self::Begin { lane, sampling, prompt }, Some(engine)) => {
                Outcome::Begun(lane, engine.begin(lane, &sampling, &prompt))
            }
            (Self::Submit(plan), Some(engine)) => Outcome::Submitted(engine.submit(&plan)),
            (Self::Collect, Some(engine)) => Outcome::Collected(engine.collect().await),
            (Self::ReadPage { page, positions }, Some(engine)) => {
                Outcome::PageRead(engine.read_page(page, positions).await)
            }
            (Self::WritePage { page, positions, content }, Some(engine)) => {
                Outcome::PageWritten(engine.write_page(page, positions, &content))
            }
            (Self::ReadPage { .. }, None) => Outcome::PageRead(Err(absent())),
            (Self::WritePage { .. }, None) => Outcome::PageWritten(Err(absent())),
            (Self::Begin { lane, .. }, None) => Outcome::Begun(lane, Err(absent())),
            (Self::Submit(_), None) => Outcome::Submitted(Err(absent())),
            (Self::Collect, None) => Outcome::Collected(Err(absent())),
        }
    }
}
