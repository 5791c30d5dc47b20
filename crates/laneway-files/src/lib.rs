//! Weight files: GGUF and safetensors read into one interface: tensors with a format and bytes, a [`ModelConfig`], and metadata.
//!
//! Readers work on byte slices and copy no tensor data. Tensor names are GGUF's for both kinds of file; shapes are row-major.
//! Only [`Weights::open`] touches the file system, and only outside wasm.
#![deny(unsafe_code)]

pub mod blocks;
mod config;
mod config_gguf;
mod config_hf;
mod diffusion;
mod error;
mod facts;
mod format;
mod generation;
mod gguf;
mod json;
mod metadata;
mod names;
#[cfg(not(target_arch = "wasm32"))]
pub mod native;
mod rope;
mod safetensors;
mod sampling;
mod sniff;
mod tensor;
mod weights;

pub use config::{
    Activation, CanvasContext, DiffusionConfig, Experts, Family, LayerConfig, ModelConfig, Noise, RopeConfig, RopePairs,
};
pub use error::{FileError, Result};
pub use format::Format;
pub use generation::GenerationConfig;
pub use metadata::{Array, Metadata, Value};
pub use sampling::{Confidence, DiffusionDefaults, Selection, Stop};
pub use tensor::{Bytes, Tensor};
pub use weights::{Sidecars, Weights};
