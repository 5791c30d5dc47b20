//! The tiny models against transformers' own numbers, on our kernels and in burn's plain operations.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use burn::tensor::Device;
use common::{Reference, error, gpu, weights};
use laneway_files::Weights;
use laneway_kernels::plain::{PlainCache, PlainSpace, PlainStep};
use laneway_kernels::{AdapterClass, Gpu, GpuSpace, Runner, StateShape};
use laneway_model::{Label, Network, Pass, Row, Step};
use std::sync::Arc;

const FAMILIES: [&str; 6] =
    ["llama_tiny", "qwen3_tiny", "gemma3_tiny", "gemma4_dense_tiny", "gemma4_moe_tiny", "gemma4_ple_shared_tiny"];
const TOLERANCE: f32 = 1e-3;

fn rows(ids: &[u32], start: usize) -> Vec<Row> {
    let row = |(i, &token): (usize, &u32)| Row { token, position: (start + i) as u32, lane: 0, block: None };
    ids.iter().enumerate().map(row).collect()
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a vocabulary is not empty").0 as u32
}

fn runner(gpu: &Gpu, weights: &Weights) -> Runner {
    let mut space = GpuSpace::new(gpu);
    let network = Arc::new(Network::load(weights, &mut space).unwrap());
    let config = network.config();
    let shape = StateShape {
        lanes: 2,
        slots: 2,
        pages: 8,
        max_pages: 4,
        max_rows: 64,
        vocab: config.vocab_size,
        canvas_length: 0,
        hidden: config.hidden_size,
        kv_type: laneway_model::KvType::F32,
    };
    Runner::new(gpu, network, shape).unwrap()
}

fn autoregressive<'a>(rows: &'a [Row], tables: &'a [Vec<u32>], logits: &'a [u32]) -> Step<'a> {
    Step { rows, tables, logits, labels: &[], drafts: &[] }
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
            let step = autoregressive(&prefill, &tables, &[]);
            let seen = pollster::block_on(runner.observe(&step, Pass::Encode)).unwrap();
            assert_eq!(seen.len(), layers + 1, "{name}");
            for (i, hidden) in seen.iter().enumerate() {
                let key = if i == layers { "hidden.final_normed".to_string() } else { format!("hidden.{i}") };
                let e = error(hidden, &reference.floats(&key));
                assert!(e < TOLERANCE, "{name} {key}: {e}");
            }

            let all: Vec<u32> = (0..prompt.len() as u32).collect();
            let step = autoregressive(&prefill, &tables, &all);
            let logits = pollster::block_on(runner.logits(&step, Pass::Encode)).unwrap();
            let e = error(&logits, &reference.floats("prefill_logits"));
            assert!(e < TOLERANCE, "{name} prefill: {e}");

            let (ids, expected) = (reference.ids("decode_ids"), reference.floats("decode_logits"));
            let vocab = weights.config().vocab_size;
            for (i, &id) in ids.iter().enumerate() {
                let one = rows(&[id], prompt.len() + i);
                let step = autoregressive(&one, &tables, &[0]);
                let logits = pollster::block_on(runner.logits(&step, Pass::Encode)).unwrap();
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
        runner.submit(&autoregressive(&part_rows, tables, logits), Pass::Encode).unwrap();
    }
    let mut found = Vec::new();
    for i in 0..count {
        if i + 1 < count {
            // The next step feeds on the token the device just sampled, before the host has seen it.
            let next = rows(&[Row::SAMPLED], prompt.len() + i);
            runner.submit(&autoregressive(&next, tables, &[0]), Pass::Encode).unwrap();
        }
        found.push(pollster::block_on(runner.collect()).unwrap().sampled[0].1.token);
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
            let shape = StateShape {
                lanes: 1,
                slots: 1,
                pages: 4,
                max_pages: 4,
                max_rows: 64,
                vocab: network.config().vocab_size,
                canvas_length: 0,
                hidden: network.config().hidden_size,
                kv_type: laneway_model::KvType::F32,
            };
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
    let together = pollster::block_on(runner.logits(&autoregressive(&both, &tables, &ends), Pass::Encode)).unwrap();
    let vocab = weights.config().vocab_size;
    let expected = reference.floats("prefill_logits");
    assert!(error(&together, &expected[(prompt.len() - 1) * vocab..]) < TOLERANCE);
}

#[test]
fn labels_are_single_logits_however_many_there_are() {
    for class in [AdapterClass::Software, AdapterClass::Hardware] {
        let gpu = gpu().laid_out_for(class);
        let reference = Reference::of("gemma4_dense_tiny");
        let (prompt, expected) = (reference.ids("input_ids"), reference.floats("prefill_logits"));
        for (name, weights) in weights("gemma4_dense_tiny") {
            let mut runner = runner(&gpu, &weights);
            let (vocab, hidden) = (weights.config().vocab_size, weights.config().hidden_size);
            let (tables, prefill) = (tables(), rows(&prompt, 0));
            // More than the buffer at first has room for, then fewer again.
            for count in [3usize, 300, 1, 65] {
                let label = |i: usize| Label { row: (7 * i % prompt.len()) as u32, token: (31 * i % vocab) as u32 };
                let labels: Vec<Label> = (0..count).map(label).collect();
                let step = Step { labels: &labels, ..autoregressive(&prefill, &tables, &[]) };
                let before = runner.totals();
                runner.submit(&step, Pass::Encode).unwrap();
                let found = pollster::block_on(runner.collect()).unwrap();
                let each = labels.iter().map(|label| expected[label.row as usize * vocab + label.token as usize]);
                let e = error(&found.labels, &each.collect::<Vec<_>>());
                assert!(e < TOLERANCE, "{name} {class:?} {count}: {e}");
                assert!(found.sampled.is_empty() && found.drafts.is_empty());
                let after = runner.totals();
                assert_eq!(after.head_multiply_adds - before.head_multiply_adds, (count * hidden) as u64);
                assert_eq!(after.readback_bytes - before.readback_bytes, 4 * count as u64);
            }
        }
    }
}

#[test]
fn copied_pages_continue_as_their_originals_do() {
    let gpu = gpu();
    for family in FAMILIES {
        let reference = Reference::of(family);
        let (prompt, ids) = (reference.ids("input_ids"), reference.ids("decode_ids"));
        let [(name, weights), _] = weights(family);
        let mut runner = runner(&gpu, &weights);
        let tables = tables();
        let prefill = rows(&prompt, 0);
        runner.submit(&autoregressive(&prefill, &tables, &[]), Pass::Encode).unwrap();
        // Both lanes go on from the prompt: what one writes into its page must not show in the other's.
        let (original, copy) = (tables[0][0], tables[1][0]);
        runner.copy_pages(&[(original, 4), (original, copy), (original, 6)]).unwrap();
        let one = rows(&[ids[0]], prompt.len());
        let other = [Row { token: ids[0] ^ 1, lane: 1, ..one[0] }];
        runner.submit(&autoregressive(&other, &tables, &[]), Pass::Encode).unwrap();
        let vocab = weights.config().vocab_size;
        let expected = reference.floats("decode_logits");
        for (i, &id) in ids.iter().enumerate() {
            // More copies than one launch makes, of a page that nothing has written since.
            runner.copy_pages(&vec![(4, copy); 70]).unwrap();
            for lane in [0, 1] {
                let all: Vec<Row> = if lane == 0 {
                    rows(&[id], prompt.len() + i)
                } else {
                    rows(&ids[..=i], prompt.len()).into_iter().map(|row| Row { lane: 1, ..row }).collect()
                };
                let last = [all.len() as u32 - 1];
                let step = autoregressive(&all, &tables, &last);
                let logits = pollster::block_on(runner.logits(&step, Pass::Encode)).unwrap();
                let e = error(&logits, &expected[i * vocab..(i + 1) * vocab]);
                assert!(e < TOLERANCE, "{name} lane {lane} decode {i}: {e}");
            }
        }
    }
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
            let all = autoregressive(&prefill, &[], &all);
            let mut step = PlainStep::new(device, &all, &mut cache);
            let hidden = network.forward(Pass::Encode, &mut step);
            let logits: Vec<f32> = network.logits(&hidden, &mut step).into_data().try_to_vec().unwrap();
            let e = error(&logits, &reference.floats("prefill_logits"));
            assert!(e < TOLERANCE, "{name} on {device:?}: {e}");
            let vocab = weights.config().vocab_size;
            let mut next = argmax(&logits[(prompt.len() - 1) * vocab..]);
            for (i, &id) in expected.iter().enumerate() {
                assert_eq!(next, id, "{name} on {device:?}, token {i}");
                let one = rows(&[next], prompt.len() + i);
                let one = autoregressive(&one, &[], &[0]);
                let mut step = PlainStep::new(device, &one, &mut cache);
                let hidden = network.forward(Pass::Encode, &mut step);
                next = argmax(&network.logits(&hidden, &mut step).into_data().try_to_vec::<f32>().unwrap());
            }
        }
    }
}
