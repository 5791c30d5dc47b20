//! Qwen 3, and the masked diffusion models on it and on Llama.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Gguf, Kv, fixtures, safetensors};
use laneway_files::{
    Activation, Bytes, CanvasContext, Confidence, DiffusionConfig, DiffusionDefaults, Family, ModelConfig, Noise,
    RopePairs, Selection, Stop, Weights,
};
use serde_json::json;

fn from_json(config: &serde_json::Value) -> ModelConfig {
    Weights::from_safetensors(&config.to_string(), None, vec![]).unwrap().config().clone()
}

fn from_gguf(file: &Gguf) -> Weights {
    Weights::from_gguf(Bytes::from(file.write())).unwrap()
}

fn masked(canvas_length: usize, mask: u32, context: CanvasContext) -> DiffusionConfig {
    DiffusionConfig { canvas_length, noise: Noise::Masked { mask }, context, shift: false, self_conditioning: false }
}

#[test]
fn qwen3_is_llama_with_head_norms() {
    let qwen = safetensors("qwen3_tiny");
    let config = qwen.config();
    assert_eq!((config.family, config.embedding_scale), (Family::Qwen3, 1.0));
    assert_eq!(config.gated_activation, Activation::Silu);
    assert_eq!((config.diffusion, qwen.generation().diffusion), (None, None));
    let layer = &config.layers[1];
    assert_eq!((layer.heads, layer.kv_heads, layer.head_dim, layer.window), (4, 2, 32, None));
    assert_eq!((layer.has_qk_norm, layer.unit_value_norm, layer.value_from_key), (true, false, false));
    assert_eq!(layer.score_scale, 32f64.powf(-0.5) as f32);
    assert_eq!(layer.rope.inv_freq[1], 1e6f64.powf(-1.0 / 16.0) as f32);
    qwen.require("blk.1.attn_k_norm.weight", &[32]).unwrap();
    qwen.require("blk.1.ffn_norm.weight", &[64]).unwrap();
}

#[test]
fn masked_models_have_a_mask_and_see_as_they_were_trained() {
    let check = |name: &str, length: u32, context, selection| {
        let weights = safetensors(name);
        assert_eq!(weights.config().family, Family::Qwen3, "{name}");
        assert_eq!(weights.config().diffusion, Some(masked(length as usize, 511, context)), "{name}");
        let (t_max, t_min) = (0.0, 0.0);
        let expected = DiffusionDefaults { max_denoising_steps: length, t_max, t_min, selection, stop: Stop::Decided };
        assert_eq!(weights.generation().diffusion, Some(expected), "{name}");
    };
    let confidence = Confidence::Probability;
    check("qwen3_mdlm_tiny", 16, CanvasContext::Whole, Selection::Schedule(confidence));
    check("qwen3_bd3lm_tiny", 8, CanvasContext::Blocks, Selection::Threshold { confidence, least: 0.9, at_least: 1 });
}

#[test]
fn a_checkpoint_that_does_not_say_is_told_by_its_folder_and_tokenizer() {
    let source = fixtures().join("qwen3_bd3lm_tiny");
    let check = |kind: &str, expected| {
        let folder = std::env::temp_dir().join(format!("laneway-files-{}-Qwen3-{kind}-v0.1", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(source.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        let text = std::fs::read_to_string(source.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config.as_object_mut().unwrap().remove("diffusion");
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        assert!(Weights::open(&folder).unwrap_err().to_string().contains("`diffusion.mask_token_id` is missing"));
        let tokenizer = r#"{"added_tokens": [{"id": 510, "content": "<|mask|>"}]}"#;
        std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
        let read = Weights::open(&folder).unwrap().config().diffusion;
        assert_eq!(read, Some(masked(32, 510, expected)), "{kind}");
        std::fs::remove_dir_all(&folder).unwrap();
    };
    check("bd3lm", CanvasContext::Blocks);
    check("mdlm", CanvasContext::Whole);
}

/// `config.json` of the published Qwen3-0.6B conversions, which say nothing about diffusion.
fn tiny_a2d() -> serde_json::Value {
    json!({
        "model_type": "a2d-qwen3", "architectures": ["A2DQwen3LMHeadModel"], "attention_bias": false, "bos_token_id": 151643,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "layer_types": vec!["full_attention"; 28], "max_position_embeddings": 40960, "max_window_layers": 28,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
        "use_sliding_window": false, "vocab_size": 151936
    })
}

#[test]
fn the_published_masked_qwen3_relies_on_defaults() {
    let mut config = tiny_a2d();
    let read = from_json(&config);
    let layer = &read.layers[27];
    assert_eq!((read.family, read.layers.len(), layer.kv_heads), (Family::Qwen3, 28, 8));
    assert_eq!(layer.heads * layer.head_dim, 2048);
    let expected = |context| Some(masked(32, 151_669, context));
    assert_eq!(read.diffusion, expected(CanvasContext::Whole));
    config["_name_or_path"] = json!("dllm-hub/Qwen3-0.6B-diffusion-BD3LM-v0.1");
    assert_eq!(from_json(&config).diffusion, expected(CanvasContext::Blocks));
    config["diffusion"] = json!({"kind": "mdlm"});
    assert_eq!(from_json(&config).diffusion, expected(CanvasContext::Whole));
    config["model_type"] = json!("qwen3");
    assert_eq!(from_json(&config).diffusion, expected(CanvasContext::Whole));
    config.as_object_mut().unwrap().remove("diffusion");
    assert_eq!(from_json(&config).diffusion, None);
}

#[test]
fn a_masked_llama_needs_its_mask_stated() {
    let mut config = tiny_a2d();
    config["model_type"] = json!("a2d-llama");
    let message = Weights::from_safetensors(&config.to_string(), None, vec![]).unwrap_err().to_string();
    assert_eq!(message, "`diffusion.mask_token_id` is missing");
    config["mask_token_id"] = json!(9);
    config["diffusion"] = json!({"shift_logits": true});
    let read = from_json(&config);
    assert_eq!((read.family, read.layers[0].has_qk_norm), (Family::Llama, false));
    assert_eq!(read.diffusion, Some(DiffusionConfig { shift: true, ..masked(32, 9, CanvasContext::Whole) }));
}

#[test]
fn qwen3_reads_both_ways_of_writing_its_rotation() {
    let mut config = tiny_a2d();
    config["model_type"] = json!("qwen3");
    let plain = from_json(&config);
    let fields = config.as_object_mut().unwrap();
    fields.remove("rope_theta");
    fields.insert("rope_parameters".into(), json!({"rope_type": "default", "rope_theta": 1000000.0}));
    assert_eq!(from_json(&config), plain);
    config["rope_parameters"] = json!({"rope_type": "yarn", "factor": 4.0});
    let message = Weights::from_safetensors(&config.to_string(), None, vec![]).unwrap_err().to_string();
    assert!(message.contains("rope type `yarn` is not supported"), "{message}");
    config["layer_types"][0] = json!("sliding_attention");
    let message = Weights::from_safetensors(&config.to_string(), None, vec![]).unwrap_err().to_string();
    assert!(message.contains("layer type `sliding_attention` is not supported"), "{message}");
}

#[test]
fn generation_config_overrides_how_a_masked_model_is_run() {
    let read = |fields: serde_json::Value| {
        let generation = json!({"temperature": 0.6, "top_k": 20, "diffusion": fields}).to_string();
        let weights = Weights::from_safetensors(&tiny_a2d().to_string(), Some(&generation), vec![]).unwrap();
        weights.generation().diffusion.unwrap()
    };
    let usual = read(json!(null));
    assert_eq!((usual.max_denoising_steps, usual.t_max), (32, 0.0));
    let changed = read(json!({"max_denoising_steps": 16, "temperature": 0.5}));
    assert_eq!((changed.max_denoising_steps, changed.t_max, changed.t_min), (16, 0.5, 0.5));
    assert_eq!(changed.selection, usual.selection);
    let check = |fields, expected| assert_eq!(read(fields).selection, expected);
    let threshold = |confidence, least, at_least| Selection::Threshold { confidence, least, at_least };
    check(json!({"threshold": 0.75, "at_least": 2}), threshold(Confidence::Probability, 0.75, 2));
    check(json!({"selection": "threshold", "confidence": "margin"}), threshold(Confidence::Margin, 0.9, 1));
    check(json!({"threshold": -0.5, "confidence": "entropy"}), threshold(Confidence::Entropy, -0.5, 1));
    check(json!({"confidence": "margin"}), Selection::Schedule(Confidence::Margin));
    check(json!({"entropy_bound": 0.25}), Selection::EntropyBound(0.25));
}

#[test]
fn diffusion_gemma_overrides_the_released_sampler() {
    let config = std::fs::read_to_string(fixtures().join("diffusion_gemma_tiny/config.json")).unwrap();
    let generation = json!({
        "max_denoising_steps": 24, "t_min": 0.1, "t_max": 0.5, "sampler_config": {"entropy_bound": 1.0},
        "stability_threshold": 2, "confidence_threshold": 0.25, "diffusion": {"temperature": 9.0}
    });
    let weights = Weights::from_safetensors(&config, Some(&generation.to_string()), vec![]).unwrap();
    let expected = DiffusionDefaults {
        max_denoising_steps: 24,
        t_max: 0.5,
        t_min: 0.1,
        selection: Selection::EntropyBound(1.0),
        stop: Stop::Stable { passes: 2, entropy: 0.25 },
    };
    assert_eq!(weights.generation().diffusion, Some(expected));
}

/// The base file under another architecture's name.
fn of_architecture(arch: &'static str) -> Gguf {
    let mut file = Gguf::valid();
    for (key, _) in &mut file.kv {
        if let Some(rest) = key.strip_prefix("llama.") {
            *key = format!("{arch}.{rest}").leak();
        }
    }
    file.with("general.architecture", Kv::Str(arch))
}

#[test]
fn a_causal_switch_makes_a_gguf_file_a_masked_one() {
    let flag = |value: bool| Kv::Raw(7, vec![value.into()]);
    let qwen = || of_architecture("qwen3").with("tokenizer.ggml.mask_token_id", Kv::U32(2));
    let weights = from_gguf(&qwen());
    assert_eq!((weights.config().family, weights.config().rope_pairs), (Family::Qwen3, RopePairs::Half));
    assert_eq!(weights.config().diffusion, None);
    assert_eq!(from_gguf(&qwen().with("qwen3.attention.causal", flag(true))).config().diffusion, None);
    let file = qwen().with("qwen3.attention.causal", flag(false));
    assert_eq!(from_gguf(&file).config().diffusion, Some(masked(32, 2, CanvasContext::Whole)));
    let file = file.with("diffusion.block_length", Kv::U32(4)).with("diffusion.shift_logits", flag(true));
    let blocks = DiffusionConfig { shift: true, ..masked(4, 2, CanvasContext::Blocks) };
    assert_eq!(from_gguf(&file).config().diffusion, Some(blocks));
    let file = file.with("diffusion.threshold", Kv::F32(0.5)).with("diffusion.max_denoising_steps", Kv::U32(3));
    let read = from_gguf(&file).generation().diffusion.unwrap();
    let confidence = Confidence::Probability;
    assert_eq!(read.selection, Selection::Threshold { confidence, least: 0.5, at_least: 1 });
    assert_eq!(read.max_denoising_steps, 3);
}

#[test]
fn llada_is_a_masked_llama() {
    let tokens = Kv::Raw(9, common::strings(&["a", "b", "c", "<|mask|>"]));
    let weights = from_gguf(&of_architecture("llada").with("tokenizer.ggml.tokens", tokens));
    assert_eq!((weights.config().family, weights.config().rope_pairs), (Family::Llama, RopePairs::Interleaved));
    assert_eq!(weights.config().diffusion, Some(masked(32, 3, CanvasContext::Whole)));
}

#[test]
fn qwen3_gguf_files_with_a_window_or_experts_are_refused() {
    let cases = [("attention.sliding_window", "attention.sliding_window `8`"), ("expert_count", "qwen3 `experts`")];
    for (key, words) in cases {
        let file = of_architecture("qwen3").with(format!("qwen3.{key}").leak(), Kv::U32(8));
        let message = Weights::from_gguf(Bytes::from(file.write())).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
}
