//! Greedy continuations of real files; runs where `LANEWAY_TEST_MODELS` names their folder.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Runner, argmax};
use std::path::{Path, PathBuf};

fn check(file: &str, entry: &str) {
    let Some(folder) = std::env::var_os("LANEWAY_TEST_MODELS") else { return };
    let json = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures/real_models.json");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    for threads in [1, 2] {
        let mut runner = Runner::new(&PathBuf::from(&folder).join(file), threads, 1);
        for (name, case) in json[entry]["cases"].as_object().unwrap() {
            let prompt = ids(&case["ids"]);
            let logits = runner.feed(0, &prompt, 0);
            let mut worst = 0.0f32;
            for pair in case["last_top8"].as_array().unwrap() {
                let (id, expected) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap() as f32);
                worst = worst.max((logits[id] - expected).abs());
            }
            println!("{file} {name}: top logits off by {worst}");
            assert!(worst < 0.02, "{file} {name}: top logits off by {worst}");
            let expected = ids(&case["greedy"]);
            assert_eq!(argmax(&logits), expected[0]);
            assert_eq!(runner.greedy(&prompt, expected.len()), expected, "{file} {name}, {threads} threads");
        }
    }
}

#[test]
fn smollm2_continues_as_the_reference() {
    check("smollm2.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf");
}

#[test]
fn gemma3_continues_as_the_reference() {
    check("gemma3-270m.gguf", "gemma-3-270m-q4_k_m.gguf");
}
