//! Smaller types of the K/V cache: how far they are from f32.

use laneway_engine::{DeviceChoice, EngineSettings, KvType, ModelEngine};
use laneway_files::Weights;

fn open(weights: &Weights, device: &str, kv_type: KvType) -> ModelEngine {
    let device = device.parse::<DeviceChoice>().expect("any text is a choice");
    let settings = EngineSettings { device, lanes: 1, context_length: Some(256), kv_type, ..EngineSettings::default() };
    pollster::block_on(ModelEngine::open(weights, &settings)).expect("tests need lavapipe")
}

fn logits(weights: &Weights, device: &str, kv_type: KvType, ids: &[u32]) -> Vec<f32> {
    pollster::block_on(open(weights, device, kv_type).prefill_logits(ids)).expect("the device is there")
}

/// The largest difference, relative to the largest logit.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let scale = b.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / scale
}

/// Rows whose likeliest token is the same.
fn agreement(a: &[f32], b: &[f32], vocab: usize) -> f32 {
    let best = |row: &[f32]| (0..vocab).max_by(|i, j| row[*i].total_cmp(&row[*j]));
    let rows = a.len() / vocab;
    let same = a.chunks_exact(vocab).zip(b.chunks_exact(vocab)).filter(|(a, b)| best(a) == best(b)).count();
    same as f32 / rows as f32
}

#[test]
fn smaller_types_stay_close_to_f32() {
    for model in
        ["llama_tiny_gguf/model.gguf", "qwen3_tiny", "gemma3_tiny", "gemma4_dense_tiny", "gemma4_ple_shared_tiny"]
    {
        let path = format!("{}/../../tests/data/fixtures/{model}", env!("CARGO_MANIFEST_DIR"));
        let weights = Weights::open(path).expect("fixtures are valid");
        let ids: Vec<u32> = (0..77).map(|at| (at * 37 + 5) % 500).collect();
        let expected = logits(&weights, "cpu", KvType::F32, &ids);
        // Gemma 4's tiny models have scores so sharp that eight bits of a key decide between positions.
        let q8 = if model.starts_with("gemma4") { 0.25 } else { 0.08 };
        for (kv_type, bound) in [(KvType::F16, 6e-3), (KvType::Q8, q8)] {
            let on_cpu = logits(&weights, "cpu", kv_type, &ids);
            let far = apart(&on_cpu, &expected);
            assert!(far > 0.0 && far <= bound, "{model} in {kv_type}: {far}");
            let on_gpu = logits(&weights, "lavapipe", kv_type, &ids);
            let far = apart(&on_gpu, &on_cpu);
            assert!(far <= bound, "{model} in {kv_type} on lavapipe: {far}");
        }
    }
}

/// Figures of a real model; the memory is what `row_bytes` says.
#[test]
fn a_real_model_says_the_same_with_smaller_types() {
    let Ok(folder) = std::env::var("LANEWAY_TEST_MODELS") else { return };
    let weights = Weights::open(format!("{folder}/smollm2.gguf")).expect("a model");
    let vocab = weights.config().vocab_size;
    let ids: Vec<u32> = (0..160).map(|at| 300 + (at * at * 7 + at * 131) % 20_000).collect();
    let expected = logits(&weights, "cpu", KvType::F32, &ids);
    for (kv_type, least) in [(KvType::F16, 0.98), (KvType::Q8, 0.9)] {
        let found = logits(&weights, "cpu", kv_type, &ids);
        let (same, far) = (agreement(&found, &expected, vocab), apart(&found, &expected));
        println!("{kv_type}: {:.1} % of tokens, logits {far:.4} apart", 100.0 * same);
        assert!(same >= least, "{kv_type}: {same}");
    }
}

#[test]
fn rows_without_whole_blocks_are_refused() {
    let shape = laneway_model::KvShape { kv_heads: 1, head_dim: 24 };
    let error = KvType::Q8.check(&[Some(shape)]).expect_err("24 is no multiple of 32").to_string();
    assert!(error.contains("not 24"), "{error}");
    assert!(KvType::F16.check(&[Some(shape)]).is_err() && KvType::F32.check(&[Some(shape)]).is_ok());
}
