//! Laneway's HTTP API: routes, limits, streaming, authentication and metrics.
//!
//! [`router`] answers over an [`ApiState`], which names the served models; each
//! [`TextModel`] holds its tokenizer, its template and a [`TurnService`] that
//! generates. [`serve`] runs the router on a socket with the time limits that
//! keep slow and absent clients from holding it.
//!
//! The crate knows no engine and no device: [`TurnService`] is all the routes ask
//! for. [`Worker`] is its native form, one thread that drives a service and the
//! engine that the caller's opener yields; [`WorkerService`] joins the two.
#![forbid(unsafe_code)]

mod admin;
mod answer;
mod auth;
mod body;
mod chat;
mod completions;
mod cors;
mod decoder;
mod health;
mod metrics;
mod models;
mod reads;
mod refusal;
mod render;
mod request;
mod router;
mod serve;
mod sessions;
mod stall;
mod state;
mod systemone;
mod telemetry;
mod turns;
mod worker;
mod worker_service;

pub use decoder::TextDecoder;
pub use laneway_checkpoint as checkpoint;
pub use laneway_checkpoint::ElementType;
pub use router::router;
pub use serve::{ServeOptions, serve};
pub use sessions::{CheckpointOptions, KvLayout, ModelScope, SessionError, Sessions, StoreCodec};
pub use state::{ApiOptions, ApiState, Health, Phase, TextModel, TurnService};
pub use telemetry::{SpanSink, StderrSink, Telemetry, TelemetryLevel};
pub use worker::{Health as WorkerHealth, HealthState, Transfers, TurnHandle, TurnRequest, Worker};
pub use worker_service::WorkerService;
