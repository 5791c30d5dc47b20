//! The tiny masked diffusion models against recorded logits and runs.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Answer, Runner, Wishes, assert_close, canvas, reference};
use laneway_model::{Draft, Pass};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const MASK: u32 = 511;

fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures").join(model)
}

fn each_count(model: &str, test: impl Fn(Runner, HashMap<String, Vec<f32>>, Value)) {
    let trace = std::fs::read(folder(model).join("trace.json")).unwrap();
    for threads in [1, 2] {
        let data = reference(&folder(model).join("reference.safetensors"));
        test(Runner::new(&folder(model), threads, 1), data, serde_json::from_slice(&trace).unwrap());
    }
}

fn tokens(json: &Value) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// One pass over a block of `ids` from position `from`, with drafts of `draws`.
fn denoise(runner: &mut Runner, ids: &[u32], from: usize, drafts: &[Draft]) -> Answer {
    let logits: Vec<u32> = (0..ids.len() as u32).collect();
    let wishes = Wishes { logits: &logits, drafts, ..Wishes::default() };
    runner.run(Pass::Denoise, &canvas(0, ids, from, false), &wishes)
}

fn check_states(answer: &Answer, data: &HashMap<String, Vec<f32>>) {
    for i in 0..3 {
        assert_close(&format!("hidden.{i}"), &answer.seen[i], &data[&format!("hidden.{i}")], 1e-4);
    }
    assert_close("final", &answer.seen[3], &data["hidden.final_normed"], 1e-4);
}

/// One recorded step of a block at `start`, of which the tokens `before` are in the same pass from position `from`.
fn check_step(runner: &mut Runner, step: &Value, params: &Value, before: &[u32], from: usize) {
    let tokens_in = tokens(&step["tokens_in"]);
    let temperature = params["temperature"].as_f64().unwrap() as f32;
    let draws = step["u"].as_array();
    let masked: Vec<usize> = (0..tokens_in.len()).filter(|&i| tokens_in[i] == MASK).collect();
    let drafts: Vec<Draft> = masked
        .iter()
        .map(|&i| Draft {
            row: (before.len() + i) as u32,
            temperature: if temperature > 0.0 { temperature } else { 1.0 },
            draw: draws.map_or(0.5, |draws| draws[i].as_f64().unwrap() as f32),
        })
        .collect();
    let found = denoise(runner, &[before, &tokens_in].concat(), from, &drafts).drafts;
    for (drafted, i) in found.iter().zip(&masked) {
        let (token, logprob) = match draws {
            Some(_) => (drafted.sampled, drafted.sampled_logprob),
            None => (drafted.argmax, drafted.argmax_logprob),
        };
        assert_eq!(u64::from(token), step["candidate"][i].as_u64().unwrap());
        let confidence = step["confidence"][i].as_f64().unwrap() as f32;
        assert!((logprob.exp() - confidence).abs() < 2e-5, "{} for {confidence}", logprob.exp());
    }
}

#[test]
fn a_whole_canvas_is_seen_from_everywhere() {
    each_count("qwen3_mdlm_tiny", |mut runner, data, trace| {
        let prompt: Vec<u32> = data["input_ids"].iter().map(|&id| id as u32).collect();
        let found = denoise(&mut runner, &[&prompt[..], &[MASK; 16]].concat(), 0, &[]);
        assert_close("logits", &found.logits, &data["canvas_logits.step0"], 1e-4);
        check_states(&found, &data);
        let mut checked = 0;
        for recorded in trace.as_object().unwrap().values() {
            for step in recorded["blocks"][0]["steps"].as_array().unwrap() {
                check_step(&mut runner, step, &recorded["params"], &tokens(&recorded["prompt"]), 0);
                checked += 1;
            }
        }
        assert_eq!(checked, 12);
    });
}

#[test]
fn blocks_see_themselves_and_what_came_before() {
    each_count("qwen3_bd3lm_tiny", |mut runner, data, trace| {
        let prompt: Vec<u32> = data["input_ids"].iter().map(|&id| id as u32).collect();
        let prefix = denoise(&mut runner, &prompt[..8], 0, &[]);
        assert_close("prefix", &prefix.logits, &data["prefix_logits"], 1e-4);
        let block: Vec<u32> = data["block_ids.step0"].iter().map(|&id| id as u32).collect();
        let found = denoise(&mut runner, &block, 8, &[]);
        assert_close("logits", &found.logits, &data["block_logits.step0"], 1e-4);
        check_states(&found, &data);
        let recorded = &trace["threshold"];
        let mut checked = 0;
        for block in recorded["blocks"].as_array().unwrap() {
            let start = block["start"].as_u64().unwrap() as usize;
            let steps = block["steps"].as_array().unwrap();
            for step in steps {
                check_step(&mut runner, step, &recorded["params"], &[], start);
                checked += 1;
            }
            let finished = tokens(&steps.last().unwrap()["tokens_out"]);
            runner.run(Pass::Encode, &canvas(0, &finished, start, false), &Wishes::default());
        }
        assert_eq!(checked, 2 + 3 + 5);
    });
}
