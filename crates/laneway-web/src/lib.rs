//! A model in a browser's worker: the server's state machine, engine and kernels, called from JavaScript.
//!
//! Everything answers with a promise that always settles: bad input, a lost device and a panic reject it.
//! On other targets the crate is empty.

#![cfg(target_arch = "wasm32")]

mod clock;
mod driver;
mod error;
#[cfg(feature = "measure")]
mod measure;
mod model;
mod promise;
mod timings;

pub use model::Model;
