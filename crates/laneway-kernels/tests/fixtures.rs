//! The tiny models against transformers' own numbers, on our kernels and in burn's plain operations.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use burn::tensor::Device;
use common::{FAMILIES, Reference, error, gpu, weights};
use laneway_files::Weights;
use laneway_kernels::plain::{PlainCache, PlainSpace, PlainStep};
use laneway_kernels::{AdapterClass, Gpu, GpuSpace, Runner, StateShape};
use laneway_model::{Network, Row, Step};
use std::sync::Arc;

const TOLERANCE: f32 = 1e-3;

fn rows(ids: &[u32], start: usize) -> Vec<Row> {
    let row = |(i, &token): (usize, &u32)| Row { token, position: (start + i) as u32, lane: 0 };
    ids.iter().enumerate().map(row).collect()
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a vocabulary is not empty").0 as u32
}

fn runner(gpu: &Gpu, weights: &Weights) -> Runner {
    let mut space = GpuSpace::new(gpu);
    let network = Arc::new(Network::load(weights, &mut space).unwrap());
    let shape = StateShape { lanes: 2, pages: 8, max_pages: 4, max_rows: 64, vocab: network.config().vocab_size };
    Runner::new(gpu, network, shape).unwrap()
}

/// Pages out of order, to see that tables are followed.
fn tables() -> Vec<Vec<u32>> {
    vec![vec![5, 2, 7, 0], vec![1, 3, 4, 6]]
}

#[test]
fn kernels_match_every_reference_tensor() {
    for class in [AdapterClass::Software, AdapterClass::Hardware] {
        kernels_match(&gpu().laid_out_for(class));
    }
}

fn kernels_match(gpu: &Gpu) {
    for family in FAMILIES {
        let reference = Reference::of(family);
        let prompt = reference.ids("input_ids");
        for (name, weights) in weights(family) {
            let mut runner = runner(gpu, &weights);
            let layers = weights.config().layers.len();
            let tables = tables();
            let prefill = rows(&prompt, 0);
            let step = Step { rows: &prefill, tables: &tables, logits: &[] };
            let seen = pollster::block_on(runner.observe(&step)).unwrap();
            assert_eq!(seen.len(), layers + 1, "{name}");
            for (i, hidden) in seen.iter().enumerate() {
                let key = if i == layers { "hidden.final_normed".to_string() } else { format!("hidden.{i}") };
                let e = error(hidden, &reference.floats(&key));
                assert!(e < TOLERANCE, "{name} {key}: {e}");
            }

            let all: Vec<u32> = (0..prompt.len() as u32).collect();
            let step = Step { rows: &prefill, tables: &tables, logits: &all };
            let logits = pollster::block_on(runner.logits(&step)).unwrap();
            let e = error(&logits, &reference.floats("prefill_logits"));
            assert!(e < TOLERANCE, "{name} prefill: {e}");

            let (ids, expected) = (reference.ids("decode_ids"), reference.floats("decode_logits"));
            let vocab = weights.config().vocab_size;
            for (i, &id) in ids.iter().enumerate() {
                let one = rows(&[id], prompt.len() + i);
                let step = Step { rows: &one, tables: &tables, logits: &[0] };
                let logits = pollster::block_on(runner.logits(&step)).unwrap();
                let e = error(&logits, &expected[i * vocab..(i + 1) * vocab]);
                assert!(e < TOLERANCE, "{name} decode {i}: {e}");
            }
        }
    }
}

/// Greedy ids through `submit` and `collect`, the prompt in chunks, each decode step submitted before the last is read.
fn greedy(runner: &mut Runner, prompt: &[u32], count: usize, chunk: usize, tables: &[Vec<u32>]) -> Vec<u32> {
    for (i, part) in prompt.chunks(chunk).enumerate() {
        let part_rows = rows(part, chunk * i);
        let last = [part.len() as u32 - 1];
        let ends = chunk * i + part.len() == prompt.len();
        let logits: &[u32] = if ends { &last } else { &[] };
        runner.submit(&Step { rows: &part_rows, tables, logits }).unwrap();
    }
    let mut found = Vec::new();
    for i in 0..count {
        if i + 1 < count {
            // The next step feeds on the token the device just sampled, before the host has seen it.
            let next = rows(&[Row::SAMPLED], prompt.len() + i);
            runner.submit(&Step { rows: &next, tables, logits: &[0] }).unwrap();
        }
        found.push(pollster::block_on(runner.collect()).unwrap()[0].1.token);
    }
    found
}

#[test]
fn real_models_reproduce_their_greedy_ids() {
    let Ok(folder) = std::env::var("LANEWAY_TEST_MODELS") else { return };
    let text = std::fs::read_to_string(common::fixture("real_models.json")).unwrap();
    let references: serde_json::Value = serde_json::from_str(&text).unwrap();
    let files = [("smollm2.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("gemma3-270m.gguf", "gemma-3-270m-q4_k_m.gguf")];
    for (file, name) in files {
        let weights = Weights::open(std::path::Path::new(&folder).join(file)).unwrap();
        for class in [AdapterClass::Software, AdapterClass::Hardware] {
            let gpu = gpu().laid_out_for(class);
            let mut space = GpuSpace::new(&gpu);
            let network = Arc::new(Network::load(&weights, &mut space).unwrap());
            let vocab = network.config().vocab_size;
            let shape = StateShape { lanes: 1, pages: 4, max_pages: 4, max_rows: 64, vocab };
            let mut runner = Runner::new(&gpu, network, shape).unwrap();
            for (case, reference) in references[name]["cases"].as_object().unwrap() {
                let ids = |key: &str| -> Vec<u32> {
                    reference[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
                };
                let (prompt, mut expected) = (ids("ids"), ids("greedy"));
                if class == AdapterClass::Hardware && gpu.summary().name.contains("llvmpipe") {
                    // Work laid out for GPUs is slow on a software adapter.
                    expected.truncate(4);
                }
                let tables = [vec![3, 1, 0, 2]];
                let found = greedy(&mut runner, &prompt, expected.len(), 32, &tables);
                assert_eq!(found, expected, "{file} {class:?}: {case}");
            }
            let cost = runner.cost(1, 1);
            let layers = weights.config().layers.len();
            assert!(cost.dispatches <= 8 * layers + 8, "{file}: {} dispatches for {layers} layers", cost.dispatches);
            assert!(
                cost.weight_bytes as f64 <= 1.05 * weights.total_bytes() as f64,
                "{file}: {} bytes bound for {}",
                cost.weight_bytes,
                weights.total_bytes()
            );
        }
    }
}

#[test]
fn kernels_reproduce_greedy_ids_with_steps_in_flight() {
    for class in [AdapterClass::Software, AdapterClass::Hardware] {
        kernels_reproduce_greedy_ids(&gpu().laid_out_for(class));
    }
}

fn kernels_reproduce_greedy_ids(gpu: &Gpu) {
    for family in FAMILIES {
        let reference = Reference::of(family);
        let (prompt, expected) = (reference.ids("input_ids"), reference.ids("greedy_ids"));
        for (name, weights) in weights(family) {
            let mut runner = runner(gpu, &weights);
            let tables = tables();
            // Chunks of 7: prefill in parts gives what prefill at once gives.
            let found = greedy(&mut runner, &prompt, expected.len(), 7, &tables);
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn two_lanes_in_one_step_do_not_see_each_other() {
    let gpu = gpu();
    let reference = Reference::of("gemma3_tiny");
    let prompt = reference.ids("input_ids");
    let [(_, weights), _] = weights("gemma3_tiny");
    let mut runner = runner(&gpu, &weights);
    let tables = tables();
    let mut both = rows(&prompt, 0);
    both.extend(rows(&prompt[3..], 0).into_iter().map(|row| Row { lane: 1, ..row }));
    let ends = [prompt.len() as u32 - 1];
    let together = pollster::block_on(runner.logits(&Step { rows: &both, tables: &tables, logits: &ends })).unwrap();
    let vocab = weights.config().vocab_size;
    let expected = reference.floats("prefill_logits");
    assert!(error(&together, &expected[(prompt.len() - 1) * vocab..]) < TOLERANCE);
}

#[test]
fn plain_operations_match_on_the_cpu_and_on_the_gpu() {
    let gpu = gpu();
    // The cpu backend takes every family and both files; on the GPU burn compiles kernels of its own, so one of each kind.
    plain_matches(&Device::flex(), &FAMILIES);
    plain_matches(gpu.tensors(), &["llama_tiny", "gemma4_moe_tiny"]);
}

fn plain_matches(device: &Device, families: &[&str]) {
    for family in families {
        let reference = Reference::of(family);
        let (prompt, expected) = (reference.ids("input_ids"), reference.ids("greedy_ids"));
        for (name, weights) in weights(family) {
            let network = Network::load(&weights, &mut PlainSpace::new(device)).unwrap();
            let mut cache = PlainCache::default();
            let (prefill, all) = (rows(&prompt, 0), (0..prompt.len() as u32).collect::<Vec<_>>());
            let mut step = PlainStep::new(device, &prefill, &all, &mut cache);
            let hidden = network.forward(&mut step);
            let logits: Vec<f32> = network.logits(&hidden, &mut step).into_data().try_to_vec().unwrap();
            let e = error(&logits, &reference.floats("prefill_logits"));
            assert!(e < TOLERANCE, "{name} on {device:?}: {e}");
            let vocab = weights.config().vocab_size;
            let mut next = argmax(&logits[(prompt.len() - 1) * vocab..]);
            for (i, &id) in expected.iter().enumerate() {
                assert_eq!(next, id, "{name} on {device:?}, token {i}");
                let one = rows(&[next], prompt.len() + i);
                let mut step = PlainStep::new(device, &one, &[0], &mut cache);
                let hidden = network.forward(&mut step);
                next = argmax(&network.logits(&hidden, &mut step).into_data().try_to_vec::<f32>().unwrap());
            }
        }
    }
}
