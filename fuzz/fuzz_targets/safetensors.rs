//! A shard and, after the first zero byte from its end, a `config.json` from a stranger: opened or refused, never a panic.
//!
//! `cargo +nightly fuzz run safetensors crates/laneway-files/tests/data/hostile`
#![no_main]

use laneway_files::{Bytes, Weights};
use libfuzzer_sys::fuzz_target;

const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 4, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "rms_norm_eps": 1e-5}"#;

fuzz_target!(|data: &[u8]| {
    let split = data.iter().rposition(|&byte| byte == 0);
    let tail = split
        .and_then(|at| str::from_utf8(&data[at + 1..]).ok())
        .filter(|tail| tail.starts_with('{'));
    let (shard, config) = match (split, tail) {
        (Some(at), Some(tail)) => (&data[..at], tail),
        _ => (data, LLAMA),
    };
    let shards = vec![Bytes::from(shard.to_vec())];
    let Ok(weights) = Weights::from_safetensors(config, Some(config), shards) else {
        return;
    };
    for tensor in weights.tensors() {
        assert_eq!(tensor.to_f32().len(), tensor.len());
    }
});
