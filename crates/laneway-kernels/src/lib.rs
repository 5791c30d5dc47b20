//! The wgpu device: WGSL kernels over burn's tensors, recorded into plans.
//!
//! burn owns the memory: every weight, page and activation is a burn tensor on a device that this crate opens and burn
//! shares. The steps of a network do not go through burn's operations, whose launch costs some 15 µs each: [`Runner`]
//! records a network's [`Ops`](laneway_model::Ops) once per shape of step into a list of pipelines and bind groups over
//! the buffers behind those tensors, and runs the list as one compute pass in one submission. [`plain`] is the same
//! vocabulary in burn's own operations: the slow path that says what the kernels must compute, on any burn device.

mod buffer;
mod device;
mod draft;
mod error;
mod labels;
mod pages;
mod pipeline;
pub mod plain;
mod plan;
mod readback;
mod recorder;
pub mod repack;
mod runner;
mod sampling;
mod scratch;
mod shader;
mod state;
mod weights;

#[cfg(test)]
mod draft_tests;
#[cfg(test)]
mod kernel_tests;

pub use buffer::Buffer;
pub use device::{AdapterChoice, AdapterClass, AdapterSummary, Gpu, adapters};
pub use error::GpuError;
pub use pipeline::declared_bindings;
pub use plan::PlanCost;
pub use runner::{Collected, Runner, Totals};
pub use shader::{Shader, Variant};
pub use state::StateShape;
pub use weights::{GpuMatrix, GpuSpace, GpuVector, MatrixPart};
