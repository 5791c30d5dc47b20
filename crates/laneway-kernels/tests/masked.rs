//! The tiny masked diffusion models against recorded logits and runs.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::computer::{Computer, canvas_rows, ids, kernels, plain, step};
use common::{Reference, error, fixture, gpu};
use laneway_files::Weights;
use laneway_kernels::AdapterClass;
use laneway_model::{Draft, Pass};
use serde_json::Value;

const MASK: u32 = 511;
const TOLERANCE: f32 = 1e-3;

fn on_every_computer(model: &str, test: impl Fn(&mut dyn Computer, &str)) {
    let weights = Weights::open(fixture(model)).unwrap();
    test(&mut plain(&weights), &format!("{model} plain"));
    for class in [AdapterClass::Software, AdapterClass::Hardware] {
        let gpu = gpu().laid_out_for(class);
        test(&mut kernels(&gpu, &weights, 1), &format!("{model} {class:?}"));
    }
}

/// One pass over a block of `tokens`: the stream, then all logits.
fn states_match(computer: &mut dyn Computer, tokens: &[u32], start: usize, reference: &Reference, logits: &str) {
    let (rows, all) = (canvas_rows(tokens, start, false), (0..tokens.len() as u32).collect::<Vec<_>>());
    let seen = computer.observe(&step(&rows, &[], &[]), Pass::Denoise);
    for (i, hidden) in seen.iter().enumerate() {
        let key = if i + 1 == seen.len() { "hidden.final_normed".to_string() } else { format!("hidden.{i}") };
        let e = error(hidden, &reference.floats(&key));
        assert!(e < TOLERANCE, "{key}: {e}");
    }
    let e = error(&computer.logits(&step(&rows, &all, &[]), Pass::Denoise), &reference.floats(logits));
    assert!(e < TOLERANCE, "{logits}: {e}");
}

/// One recorded step of a block, of which the tokens `before` are in the same pass from position `start`.
fn step_matches(computer: &mut dyn Computer, recorded: &Value, params: &Value, before: &[u32], start: usize) {
    let tokens = ids(&recorded["tokens_in"]);
    let temperature = params["temperature"].as_f64().unwrap() as f32;
    let draws = recorded["u"].as_array();
    let masked: Vec<usize> = (0..tokens.len()).filter(|&i| tokens[i] == MASK).collect();
    let draft = |&i: &usize| Draft {
        row: (before.len() + i) as u32,
        temperature: if temperature > 0.0 { temperature } else { 1.0 },
        draw: draws.map_or(0.5, |draws| draws[i].as_f64().unwrap() as f32),
    };
    let drafts: Vec<Draft> = masked.iter().map(draft).collect();
    let rows = canvas_rows(&[before, &tokens].concat(), start, false);
    let found = computer.drafts(&step(&rows, &[], &drafts));
    assert_eq!(found.len(), masked.len());
    for (drafted, i) in found.iter().zip(&masked) {
        let (token, logprob) = match draws {
            Some(_) => (drafted.sampled, drafted.sampled_logprob),
            None => (drafted.argmax, drafted.argmax_logprob),
        };
        assert_eq!(u64::from(token), recorded["candidate"][i].as_u64().unwrap());
        let confidence = recorded["confidence"][i].as_f64().unwrap() as f32;
        assert!((logprob.exp() - confidence).abs() < 2e-5, "{} for {confidence}", logprob.exp());
    }
}

fn trace(model: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(model).join("trace.json")).unwrap()).unwrap()
}

#[test]
fn a_whole_canvas_is_seen_from_everywhere() {
    let (reference, trace) = (Reference::of("qwen3_mdlm_tiny"), trace("qwen3_mdlm_tiny"));
    on_every_computer("qwen3_mdlm_tiny", |computer, name| {
        println!("{name}");
        let tokens = [&reference.ids("input_ids")[..], &[MASK; 16]].concat();
        states_match(computer, &tokens, 0, &reference, "canvas_logits.step0");
        let mut checked = 0;
        for run in trace.as_object().unwrap().values() {
            for recorded in run["blocks"][0]["steps"].as_array().unwrap() {
                step_matches(computer, recorded, &run["params"], &ids(&run["prompt"]), 0);
                checked += 1;
            }
        }
        assert_eq!(checked, 12);
    });
}

#[test]
fn blocks_see_themselves_and_what_came_before() {
    let (reference, trace) = (Reference::of("qwen3_bd3lm_tiny"), trace("qwen3_bd3lm_tiny"));
    on_every_computer("qwen3_bd3lm_tiny", |computer, name| {
        println!("{name}");
        let prefix = canvas_rows(&reference.ids("input_ids")[..8], 0, false);
        let logits = computer.logits(&step(&prefix, &[0, 1, 2, 3, 4, 5, 6, 7], &[]), Pass::Encode);
        let e = error(&logits, &reference.floats("prefix_logits"));
        assert!(e < TOLERANCE, "{e}");
        states_match(computer, &reference.ids("block_ids.step0"), 8, &reference, "block_logits.step0");
        let (run, mut checked) = (&trace["threshold"], 0);
        for block in run["blocks"].as_array().unwrap() {
            let start = block["start"].as_u64().unwrap() as usize;
            let steps = block["steps"].as_array().unwrap();
            for recorded in steps {
                step_matches(computer, recorded, &run["params"], &[], start);
                checked += 1;
            }
            let finished = canvas_rows(&ids(&steps.last().unwrap()["tokens_out"]), start, false);
            computer.observe(&step(&finished, &[], &[]), Pass::Encode);
        }
        assert_eq!(checked, 10);
    });
}
