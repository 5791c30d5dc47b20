//! The lifecycle that server and browser share: which turn runs in which lane, which pages it owns,
//! what is computed next, and what the caller is told.
//!
//! A state machine without GPU, threads, clock, executor, tensors and tokenizer. A driver asks
//! [`Service::plan`] what to do, does it on an [`Engine`], and reports through [`Service::commit`].
//! Turns start in the order in which they were submitted. Turns for the loaded model run together,
//! one a lane; a turn for another model starts when those before it have ended.

#![forbid(unsafe_code)]

mod action;
mod engine;
pub mod fake;
mod intake;
mod lanes;
mod metrics;
mod outlet;
mod pages;
mod run;
mod sampling;
mod scheduler;
mod service;
mod turn;

pub use action::{Action, EngineCall, Outcome};
pub use engine::{Engine, EngineError, EngineLimits, InvalidLimits, Row, Sampled, StepOutcome, StepPlan, Token};
pub use intake::{Intake, SubmitError, Ticket, default_queue_depth};
pub use lanes::LaneStats;
pub use metrics::{Counts, Metrics, ModelState, Snapshot, TurnRecord};
pub use pages::{Page, PagePool};
pub use sampling::{InvalidSampling, Sampling, SamplingOptions};
pub use service::{Loaded, Request, Service, ServiceConfig};
pub use turn::{
    Cancel, Decoded, Decoder, Event, Events, Finish, FinishReason, Source, StopReason, TokenLogprob, Turn, TurnError,
};
