//! The cpu device: networks of `laneway-model` computed at once in host memory.
//!
//! Weights are repacked on loading ([`CpuSpace`]), keys and values live in a paged [`KvCache`], what canvases predicted
//! last in a [`SoftStore`], and a [`CpuStep`] computes one step over all three. The instruction set is chosen at run
//! time ([`Tier`]).

#![deny(unsafe_code)]

mod attention;
mod check;
mod draft;
mod experts;
mod input;
mod kv;
mod math;
mod matmul;
mod matrix;
#[allow(unsafe_code)]
mod memory;
mod norm;
mod ops;
mod pack;
mod pool;
mod recipe;
pub mod reference;
mod rope;
#[allow(unsafe_code)]
mod simd;
mod soft;
mod soften;
mod space;
mod spread;
#[cfg(test)]
mod test_data;
#[allow(unsafe_code)]
mod tiles;

pub use kv::KvCache;
pub use matrix::CpuMatrix;
pub use ops::{Act, CpuStep};
pub use simd::Tier;
pub use soft::SoftStore;
pub use space::CpuSpace;
