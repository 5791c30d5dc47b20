//! A GGUF file from a stranger: opened or refused, never a panic.
//!
//! `cargo +nightly fuzz run gguf crates/laneway-files/tests/data/hostile`
#![no_main]

use laneway_files::{Bytes, Weights};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(weights) = Weights::from_gguf(Bytes::from(data.to_vec())) else {
        return;
    };
    for tensor in weights.tensors() {
        assert_eq!(tensor.to_f32().len(), tensor.len());
    }
});
