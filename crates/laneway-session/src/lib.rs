//! The lifecycle that server and browser share: which turn runs in which lane, which pages it owns,
//! what is computed next, and what the caller is told.
//!
//! A state machine without GPU, threads, clock, executor, tensors and tokenizer. A driver asks
//! [`Service::plan`] what to do, does it on an [`Engine`], and reports through [`Service::commit`].
//! Turns and reads start in the order in which they were submitted, but for one that does not fit yet or of which less
//! is cached: a later one may start before it, up to [`ServiceConfig::max_overtaken`] times. Those for the loaded model
//! run together, one a lane; one for another model starts when those before it have ended.
//!
//! A turn is answered token after token, or canvas after canvas where the model revises one. A read yields
//! distributions and leaves nothing behind but its prompt. What was computed stays in a cache of prefixes as long as
//! nobody needs its pages; [`lifecycle`] says more.

#![forbid(unsafe_code)]

mod action;
pub mod canvas;
pub mod denoise;
mod engine;
pub mod fake;
#[doc = include_str!("lifecycle.md")]
pub mod lifecycle {}
mod gate;
mod intake;
mod lanes;
mod metrics;
mod observer;
mod outlet;
mod pages;
mod predict;
mod prefix;
mod random;
mod read;
mod reading;
mod run;
mod sampling;
mod scheduler;
mod service;
mod task;
mod transfer;
mod turn;

pub use action::{Action, EngineCall, Outcome};
pub use engine::{
    Block, Draft, Drafted, Engine, EngineError, EngineLimits, InvalidLimits, LabelRow, PageCopy, Pass, Row, Sampled,
    StepOutcome, StepPlan, Token,
};
pub use gate::{Gate, GateId, Gates, Registration};
pub use intake::{Intake, SubmitError, Ticket, default_queue_depth};
pub use lanes::{LaneRow, LaneStats};
pub use metrics::{Counts, Metrics, ModelState, ReadRecord, Snapshot, TurnRecord};
pub use observer::{CacheEvent, LaneEvent, Observer, PrefixEvent};
pub use pages::{Page, PagePool};
pub use random::SplitMix64;
pub use read::{Branch, BranchKind, Read, ReadAnswer, Slot, systemone_runnable};
pub use sampling::{InvalidSampling, Sampling, SamplingOptions};
pub use service::{Loaded, Request, Service, ServiceConfig};
pub use transfer::{Export, Exported, Import, Kept, Session, Target, TransferError};
pub use turn::{
    Cancel, Decoded, Decoder, Event, Events, Finish, FinishReason, Source, StopReason, TokenLogprob, Turn, TurnError,
};
