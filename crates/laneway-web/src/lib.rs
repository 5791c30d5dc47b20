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

use wasm_bindgen::prelude::wasm_bindgen;

unsafe extern "C" {
    /// The linker's list of constructors, by which crates like `inventory` register things.
    ///
    /// Unless the module calls it itself, the linker makes every export run it first, the tiny ones that keep
    /// references to JavaScript objects included: then each call of WebGPU costs a millisecond.
    safe fn __wasm_call_ctors();
}

#[wasm_bindgen(start)]
fn start() {
    __wasm_call_ctors();
    promise::reject_on_panic();
}
