//! The tiny models, from both kinds of file, against transformers' numbers.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Runner, argmax, assert_close, reference, rows};
use std::collections::HashMap;
use std::path::PathBuf;

const MODELS: [&str; 6] =
    ["llama_tiny", "qwen3_tiny", "gemma3_tiny", "gemma4_dense_tiny", "gemma4_ple_shared_tiny", "gemma4_moe_tiny"];

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/fixtures"))
}

fn ids(reference: &HashMap<String, Vec<f32>>, name: &str) -> Vec<u32> {
    reference[name].iter().map(|&id| id as u32).collect()
}

fn each_file(test: impl Fn(&str, PathBuf, HashMap<String, Vec<f32>>)) {
    for model in MODELS {
        let data = || reference(&folder().join(model).join("reference.safetensors"));
        test(model, folder().join(model), data());
        test(&format!("{model} gguf"), folder().join(format!("{model}_gguf/model.gguf")), data());
    }
}

#[test]
fn every_hidden_state_and_logit_matches() {
    each_file(|name, path, data| {
        for threads in [1, 2] {
            let mut runner = Runner::new(&path, threads, 1);
            let prompt = ids(&data, "input_ids");
            let all: Vec<u32> = (0..prompt.len() as u32).collect();
            let (logits, seen) = runner.step(&rows(0, &prompt, 0), &all, &[]);
            let (last, layers) = seen.split_last().unwrap();
            for (i, state) in layers.iter().enumerate() {
                assert_close(&format!("{name} hidden.{i}"), state, &data[&format!("hidden.{i}")], 1e-4);
            }
            assert_close(&format!("{name} final"), last, &data["hidden.final_normed"], 1e-4);
            assert_close(&format!("{name} logits"), &logits, &data["prefill_logits"], 1e-4);
            let mut decoded = Vec::new();
            for (i, id) in ids(&data, "decode_ids").into_iter().enumerate() {
                decoded.extend(runner.feed(0, &[id], prompt.len() + i));
            }
            assert_close(&format!("{name} decode"), &decoded, &data["decode_logits"], 1e-4);
        }
    });
}

#[test]
fn greedy_continuations_match() {
    each_file(|name, path, data| {
        let expected = ids(&data, "greedy_ids");
        let found = Runner::new(&path, 2, 1).greedy(&ids(&data, "input_ids"), expected.len());
        assert_eq!(found, expected, "{name}");
    });
}

#[test]
fn chunks_lanes_and_shared_pages_give_the_logits_of_one_pass() {
    each_file(|name, path, data| {
        let mut runner = Runner::new(&path, 2, 3);
        let prompt = ids(&data, "input_ids");
        let long: Vec<u32> = prompt.iter().cycle().take(75).copied().collect();
        let whole = runner.feed(0, &long, 0);

        let mut chunked = Vec::new();
        for (from, to) in [(0, 7), (7, 8), (8, 41), (41, 75)] {
            chunked = runner.feed(1, &long[from..to], from);
        }
        assert_close(&format!("{name} chunked"), &chunked, &whole, 1e-4);

        // Lane 2 reads lane 0's first two pages and computes the rest beside another prompt in lane 1.
        let prefix = [runner.tables[0][0], runner.tables[0][1]];
        runner.tables[2][..2].copy_from_slice(&prefix);
        let mut together = rows(1, &prompt, 0);
        let wanted = [prompt.len() as u32 - 1, (prompt.len() + 75 - 64) as u32 - 1];
        together.extend(rows(2, &long[64..], 64));
        let (logits, _) = runner.step(&together, &wanted, &[]);
        let (first, second) = logits.split_at(whole.len());
        assert_close(&format!("{name} shared prefix"), second, &whole, 1e-4);
        assert_close(
            &format!("{name} beside it"),
            first,
            &data["prefill_logits"][(prompt.len() - 1) * first.len()..],
            1e-4,
        );
        assert_eq!(argmax(second), argmax(&whole));
    });
}
