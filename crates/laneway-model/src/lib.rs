//! Networks as functions of (weights, tokens, cache), written once over [`Ops`] and run on any device.
//!
//! A network owns nothing that changes: tokens, positions and the KV cache belong to the step that the implementor
//! of [`Ops`] carries. This crate knows no GPU and no tensor library; `laneway-cpu` and `laneway-kernels` implement
//! [`Ops`] for their devices.

#![forbid(unsafe_code)]

mod error;
mod gemma3;
mod gemma4;
mod kv_type;
mod llama;
mod loader;
mod network;
mod ops;
pub mod sample;
mod step;

pub use error::ModelError;
pub use kv_type::{KvType, UnknownKvType, quantise};
pub use network::{KvShape, Network, cuts};
pub use ops::{Attention, DraftHead, ExpertShape, MatrixOf, NoSpace, Ops, Residual, VectorOf, WeightSpace};
pub use step::{Block, DRAFT_COLUMNS, Draft, Drafted, Label, PAGE_POSITIONS, Pass, Row, Step};
