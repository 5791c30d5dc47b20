//! The tiny diffusion model against transformers' own tensors and sampler traces.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::computer::{CANVAS, Computer, canvas_rows, clean_rows, ids, kernels, numbers, plain, step};
use common::{Reference, error, fixture, gpu, weights};
use laneway_kernels::AdapterClass;
use laneway_model::{Draft, Pass};

const FAMILY: &str = "diffusion_gemma_tiny";
const TOLERANCE: f32 = 1e-3;

fn tensors_match(computer: &mut dyn Computer, name: &str) {
    let reference = Reference::of(FAMILY);
    let (prompt, canvas) = (reference.ids("input_ids"), reference.ids("canvas0"));
    let close = |found: &[f32], key: &str| {
        let e = error(found, &reference.floats(key));
        assert!(e < TOLERANCE, "{name} {key}: {e}");
    };
    let all: Vec<u32> = (0..32).collect();

    let rows = clean_rows(&prompt, 0);
    let seen = computer.observe(&step(&rows, &[], &[]), Pass::Encode);
    let layers = seen.len() - 1;
    for i in 0..layers - 1 {
        close(&seen[i + 1], &format!("encoder_out.{i}"));
    }
    let logits = computer.logits(&step(&rows, &all[..prompt.len()], &[]), Pass::Encode);
    close(&logits, "encoder_logits");

    let rows = canvas_rows(&canvas, prompt.len(), false);
    let seen = computer.observe(&step(&rows, &[], &[]), Pass::Denoise);
    close(&seen[0], "sc_out.step0");
    for i in 0..layers - 1 {
        close(&seen[i + 1], &format!("decoder_out.step0.{i}"));
    }
    let logits = computer.logits(&step(&rows, &all[..CANVAS], &[]), Pass::Denoise);
    close(&logits, "canvas_logits.step0");

    let drafts: Vec<Draft> = (0..CANVAS as u32).map(|row| Draft { row, temperature: 0.8, draw: 0.5 }).collect();
    computer.drafts(&step(&rows, &[], &drafts));
    close(&computer.soft(), "sc_soft.step1");
    let rows = canvas_rows(&canvas, prompt.len(), true);
    let seen = computer.observe(&step(&rows, &[], &[]), Pass::Denoise);
    close(&seen[0], "sc_out.step1");
    let logits = computer.logits(&step(&rows, &all[..CANVAS], &[]), Pass::Denoise);
    close(&logits, "canvas_logits.step1");
}

/// Every step of a run with the canvas that transformers had; between canvases the finished one is committed.
fn trace_matches(computer: &mut dyn Computer, run: &serde_json::Value, name: &str) {
    let mut todo = ids(&run["prompt"]);
    let mut position = 0;
    let mut worst = 0.0f32;
    for (c, canvas) in run["canvases"].as_array().unwrap().iter().enumerate() {
        computer.observe(&step(&clean_rows(&todo, position), &[], &[]), Pass::Encode);
        position += todo.len();
        for (s, expected) in canvas["steps"].as_array().unwrap().iter().enumerate() {
            let what = format!("{name} canvas {c} step {s}");
            let temperature = expected["temperature"].as_f64().unwrap() as f32;
            let draft = |(row, draw)| Draft { row: row as u32, temperature, draw };
            let drafts: Vec<Draft> = numbers(&expected["u"]).into_iter().enumerate().map(draft).collect();
            let rows = canvas_rows(&ids(&expected["canvas_in"]), position, s > 0);
            let found = computer.drafts(&step(&rows, &[], &drafts));
            todo = found.iter().map(|draft| draft.argmax).collect();
            assert_eq!(todo, ids(&expected["argmax"]), "{what}");
            assert_eq!(found.iter().map(|d| d.sampled).collect::<Vec<_>>(), ids(&expected["sampled"]), "{what}");
            for (i, (draft, entropy)) in found.iter().zip(numbers(&expected["entropy"])).enumerate() {
                let e = (draft.entropy - entropy).abs();
                worst = worst.max(e);
                assert!(e < TOLERANCE, "{what} row {i}: entropy {} for {entropy}", draft.entropy);
                assert!(
                    draft.second_logprob <= draft.argmax_logprob && draft.sampled_logprob <= 1e-5,
                    "{what}: {draft:?}"
                );
            }
        }
    }
    println!("{name}: entropies differ by {worst:e} at most");
}

fn traces_match(computer: impl Fn() -> Box<dyn Computer>, name: &str) {
    let text = std::fs::read_to_string(fixture(FAMILY).join("trace.json")).unwrap();
    let traces: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (run, trace) in traces.as_object().unwrap() {
        trace_matches(&mut *computer(), trace, &format!("{name} {run}"));
    }
}

#[test]
fn kernels_match_every_tensor_and_every_step_of_the_traces() {
    for class in [AdapterClass::Software, AdapterClass::Hardware] {
        let gpu = gpu().laid_out_for(class);
        for (lane, (name, weights)) in weights(FAMILY).into_iter().enumerate() {
            let name = format!("{name} {class:?}");
            // One file in a lane, the other in a slot past the lanes.
            tensors_match(&mut kernels(&gpu, &weights, lane as u32), &name);
            traces_match(|| Box::new(kernels(&gpu, &weights, lane as u32)), &name);
        }
    }
}

#[test]
fn plain_operations_match_every_tensor_and_every_step_of_the_traces() {
    for (name, weights) in weights(FAMILY) {
        tensors_match(&mut plain(&weights), &name);
        traces_match(|| Box::new(plain(&weights)), &name);
    }
}
