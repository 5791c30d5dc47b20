//! The tiny diffusion model, from both kinds of file, against transformers' numbers.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Runner, Wishes, assert_close, canvas, reference, rows};
use laneway_model::{Draft, Drafted, Label, Pass, Row};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

type Reference = HashMap<String, Vec<f32>>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures/diffusion_gemma_tiny")
}

/// Calls `test` with both files and one or two threads.
fn each_file(lanes: usize, test: impl Fn(&str, Runner, &Reference)) {
    let data = reference(&folder().join("reference.safetensors"));
    let gguf = folder().with_file_name("diffusion_gemma_tiny_gguf").join("model.gguf");
    for (kind, path) in [("safetensors", folder()), ("gguf", gguf)] {
        for threads in [1, 2] {
            test(&format!("{kind}, {threads} threads"), Runner::new(&path, threads, lanes), &data);
        }
    }
}

fn ids(values: &[f32]) -> Vec<u32> {
    values.iter().map(|&id| id as u32).collect()
}

fn tokens(json: &Value) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn floats(json: &Value) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn all(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}

/// Drafts of the rows from `first`.
fn drafts(first: usize, temperature: f32, draws: &[f32]) -> Vec<Draft> {
    (first as u32..).zip(draws).map(|(row, &draw)| Draft { row, temperature, draw }).collect()
}

fn encode(runner: &mut Runner, lane: u32, ids: &[u32], from: usize) {
    runner.run(Pass::Encode, &rows(lane, ids, from), &Wishes::default());
}

#[test]
fn every_state_and_logit_of_both_passes_matches() {
    each_file(1, |name, mut runner, data| {
        let close = |what: &str, found: &[f32]| assert_close(&format!("{name} {what}"), found, &data[what], 1e-4);
        let prompt = ids(&data["input_ids"]);
        let wishes = Wishes { logits: &all(prompt.len()), ..Wishes::default() };
        let encoded = runner.run(Pass::Encode, &rows(0, &prompt, 0), &wishes);
        // The last layer's output is seen only normed; the logits vouch for it.
        for i in 0..3 {
            close(&format!("encoder_out.{i}"), &encoded.seen[i + 1]);
        }
        close("encoder_logits", &encoded.logits);

        let start = ids(&data["canvas0"]);
        let (logits, drafts) = (all(start.len()), drafts(0, 0.8, &[0.5; 16]));
        let wishes = Wishes { logits: &logits, drafts: &drafts, ..Wishes::default() };
        let fresh = canvas(0, &start, prompt.len(), false);
        let first = runner.run(Pass::Denoise, &fresh, &wishes);
        close("sc_out.step0", &first.seen[0]);
        for i in 0..3 {
            close(&format!("decoder_out.step0.{i}"), &first.seen[i + 1]);
        }
        close("canvas_logits.step0", &first.logits);
        assert!(runner.condition(&fresh).iter().all(|&x| x == 0.0));

        let conditioned = canvas(0, &start, prompt.len(), true);
        close("sc_soft.step1", &runner.condition(&conditioned));
        let second = runner.run(Pass::Denoise, &conditioned, &wishes);
        close("sc_out.step1", &second.seen[0]);
        close("canvas_logits.step1", &second.logits);

        // A canvas's keys and values give way to those of the next pass, and the prompt's stay.
        let again = runner.run(Pass::Denoise, &fresh, &wishes);
        assert_eq!(again.logits, first.logits);
    });
}

/// One recorded step at `from`, with everything it reads forced, and what it should come to.
fn check_step(name: &str, runner: &mut Runner, step: &Value, from: usize, logits_over_t: Option<&Vec<f32>>) {
    let (start, draws) = (tokens(&step["canvas_in"]), floats(&step["u"]));
    let temperature = step["temperature"].as_f64().unwrap() as f32;
    let is_first = step["cur_step"].as_u64().unwrap() == 24;
    let canvas = canvas(0, &start, from, !is_first);
    let (logits, drafts) = (all(start.len()), drafts(0, temperature, &draws));
    let found = runner.run(Pass::Denoise, &canvas, &Wishes { logits: &logits, drafts: &drafts, ..Wishes::default() });
    if let Some(expected) = logits_over_t {
        let divided: Vec<f32> = found.logits.iter().map(|x| x / temperature).collect();
        assert_close(&format!("{name} logits"), &divided, expected, 1e-4);
    }
    let of = |part: fn(&Drafted) -> u32| found.drafts.iter().map(part).collect::<Vec<_>>();
    assert_eq!(of(|drafted| drafted.argmax), tokens(&step["argmax"]), "{name}");
    assert_eq!(of(|drafted| drafted.sampled), tokens(&step["sampled"]), "{name}");
    let entropies: Vec<f32> = found.drafts.iter().map(|drafted| drafted.entropy).collect();
    assert_close(&format!("{name} entropy"), &entropies, &floats(&step["entropy"]), 1e-4);
    let mean = entropies.iter().sum::<f32>() / 16.0;
    assert!((mean - step["mean_entropy"].as_f64().unwrap() as f32).abs() < 2e-5, "{name}: mean entropy {mean}");
    for (drafted, logits) in found.drafts.iter().zip(found.logits.chunks_exact(512)) {
        check_logprobs(name, drafted, logits, temperature);
    }
}

fn check_logprobs(name: &str, drafted: &Drafted, logits: &[f32], temperature: f32) {
    let z: Vec<f64> = logits.iter().map(|&x| f64::from(x) / f64::from(temperature)).collect();
    let total = z.iter().map(|z| z.exp()).sum::<f64>().ln();
    let close = |found: f32, z: f64| (f64::from(found) - (z - total)).abs() < 2e-4;
    assert!(close(drafted.argmax_logprob, z[drafted.argmax as usize]), "{name}");
    assert!(close(drafted.sampled_logprob, z[drafted.sampled as usize]), "{name}");
    let others = (0..z.len()).filter(|&token| token != drafted.argmax as usize).map(|token| z[token]);
    assert!(close(drafted.second_logprob, others.fold(f64::NEG_INFINITY, f64::max)), "{name}");
}

#[test]
fn every_step_of_the_recorded_runs_matches() {
    let trace: Value = serde_json::from_slice(&std::fs::read(folder().join("trace.json")).unwrap()).unwrap();
    each_file(1, |name, mut runner, data| {
        let mut checked = 0;
        for (run, recorded) in trace.as_object().unwrap() {
            let prompt = tokens(&recorded["prompt"]);
            let mut from = prompt.len();
            encode(&mut runner, 0, &prompt, 0);
            for (c, recorded) in recorded["canvases"].as_array().unwrap().iter().enumerate() {
                let steps = recorded["steps"].as_array().unwrap();
                for (s, step) in steps.iter().enumerate() {
                    let key = format!("trace.{run}.canvas{c}.step{s}.logits_over_T");
                    assert_eq!(data.contains_key(&key), s < 2, "{key}");
                    check_step(&format!("{name} {run} {c} {s}"), &mut runner, step, from, data.get(&key));
                    checked += 1;
                }
                let finished = tokens(&steps.last().unwrap()["argmax"]);
                encode(&mut runner, 0, &finished, from);
                from += finished.len();
            }
        }
        assert_eq!(checked, 8 + 24 + 5 + 5);
    });
}

#[test]
fn labels_are_the_logits_of_their_tokens() {
    each_file(1, |name, mut runner, data| {
        let prompt = ids(&data["input_ids"]);
        encode(&mut runner, 0, &prompt, 0);
        let canvas = canvas(0, &ids(&data["canvas0"]), prompt.len(), false);
        let label = |(row, token)| Label { row, token };
        let wanted = [(3, 17), (15, 511), (0, 0), (3, 17), (3, 18), (0, 511), (9, 300)].map(label);
        let logits = all(canvas.len());
        let found =
            runner.run(Pass::Denoise, &canvas, &Wishes { logits: &logits, labels: &wanted, ..Wishes::default() });
        assert_close(name, &found.logits, &data["canvas_logits.step0"], 1e-4);
        let expected: Vec<f32> =
            wanted.iter().map(|label| found.logits[(label.row * 512 + label.token) as usize]).collect();
        assert_eq!(found.labels, expected, "{name}");
        assert_eq!(found.multiply_adds, (16 * 512 + wanted.len() as u64) * 64);

        let outside = [label((0, 512)), label((1, 5)), label((0, u32::MAX))];
        let found = runner.run(Pass::Denoise, &canvas, &Wishes { labels: &outside, ..Wishes::default() });
        assert!(found.labels[0].is_nan() && found.labels[1].is_finite() && found.labels[2].is_nan());
        assert_eq!(found.multiply_adds, 3 * 64);
    });
}

/// Prompts of different lengths, and canvases after them of which some are conditioned, revised together.
#[test]
fn canvases_of_several_lanes_in_one_step_are_as_if_alone() {
    each_file(3, |name, mut runner, data| {
        let prompt: Vec<u32> = ids(&data["input_ids"]).into_iter().cycle().take(50).collect();
        let start: Vec<u32> = ids(&data["canvas0"]).into_iter().rev().cycle().take(40).collect();
        let draws: Vec<f32> = (0..40).map(|i| i as f32 / 40.0).collect();
        let lanes: [(u32, usize, usize); 3] = [(0, 21, 16), (1, 50, 7), (2, 3, 40)];
        let mut alone = Vec::new();
        let (mut together, mut all_drafts): (Vec<Row>, Vec<Draft>) = Default::default();
        for (lane, from, len) in lanes {
            encode(&mut runner, lane, &prompt[..from], 0);
            let pass = |runner: &mut Runner, is_conditioned| {
                let drafts = drafts(0, 0.7, &draws[..len]);
                let canvas = canvas(lane, &start[..len], from, is_conditioned);
                runner.run(Pass::Denoise, &canvas, &Wishes { drafts: &drafts, ..Wishes::default() })
            };
            let mut expected = pass(&mut runner, false);
            if lane != 1 {
                expected = pass(&mut runner, true);
                // What is kept for the lane is once more what the unconditioned pass predicts.
                pass(&mut runner, false);
            }
            alone.extend(expected.drafts);
            all_drafts.extend(drafts(together.len(), 0.7, &draws[..len]));
            together.extend(canvas(lane, &start[..len], from, lane != 1));
        }
        let found = runner.run(Pass::Denoise, &together, &Wishes { drafts: &all_drafts, ..Wishes::default() });
        assert_eq!(found.drafts.len(), alone.len());
        for (i, (found, alone)) in found.drafts.iter().zip(&alone).enumerate() {
            assert_eq!((found.argmax, found.sampled), (alone.argmax, alone.sampled), "{name} row {i}");
            assert!((found.entropy - alone.entropy).abs() < 1e-5, "{name} row {i}: {found:?} {alone:?}");
        }
    });
}
