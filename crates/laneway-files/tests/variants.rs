//! Configurations as published, and what GGUF files may hold besides the fixtures.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Gguf, Kv, array, fixtures};
use laneway_files::{Bytes, Experts, ModelConfig, Weights};
use serde_json::json;

fn from_json(config: &serde_json::Value) -> ModelConfig {
    Weights::from_safetensors(&config.to_string(), None, vec![]).unwrap().config().clone()
}

fn from_gguf(file: &Gguf) -> Weights {
    Weights::from_gguf(Bytes::from(file.write())).unwrap()
}

#[test]
fn the_released_diffusion_gemma_leaves_switches_out() {
    let kinds: Vec<_> =
        (1..=30).map(|number| if number % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let config = json!({
        "model_type": "diffusion_gemma", "canvas_length": 256, "eos_token_id": [1, 106], "tie_word_embeddings": true, "vision_config": {},
        "text_config": {
            "model_type": "diffusion_gemma_text", "vocab_size": 262144, "hidden_size": 2816, "num_hidden_layers": 30, "intermediate_size": 2112,
            "moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
            "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "sliding_window": 1024, "layer_types": kinds,
            "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0, "attention_bias": false,
            "max_position_embeddings": 262144, "use_bidirectional_attention": "vision",
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}
            }
        }
    });
    let read = from_json(&config);
    assert_eq!(
        (read.experts, read.diffusion.map(|d| d.canvas_length), read.per_layer_input),
        (Some(Experts { count: 128, used: 8, ff: 704 }), Some(256), 0)
    );
    let (local, global) = (&read.layers[4], &read.layers[29]);
    assert_eq!((local.kv_heads, local.head_dim, local.window, local.kv_layer), (8, 256, Some(1024), 4));
    assert_eq!((global.kv_heads, global.head_dim, global.value_from_key), (2, 512, true));
    assert_eq!(global.rope.inv_freq.iter().filter(|&&f| f > 0.0).count(), 64);

    let mut resaved = config;
    let text = resaved["text_config"].as_object_mut().unwrap();
    text.remove("global_head_dim");
    text.remove("num_global_key_value_heads");
    let own = |layer: usize| (layer.to_string(), json!({"head_dim": 512, "num_key_value_heads": 2}));
    text.insert("per_layer_config".into(), [5, 11, 17, 23, 29].map(own).into_iter().collect());
    assert_eq!(from_json(&resaved), read);
}

#[test]
fn gemma3_4b_relies_on_defaults() {
    let read = from_json(&json!({
        "model_type": "gemma3", "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
        }
    }));
    let (local, global) = (&read.layers[0], &read.layers[5]);
    assert_eq!((read.vocab_size, read.context_length, read.layers.len()), (262_208, 131_072, 34));
    assert_eq!(
        (local.heads, local.kv_heads, local.head_dim, local.window, local.score_scale),
        (8, 4, 256, Some(1024), 0.0625)
    );
    assert_eq!((local.rope.inv_freq[0], global.rope.inv_freq[0], global.window), (1.0, 0.125, None));
    assert_eq!(read.layers.iter().filter(|layer| layer.window.is_none()).count(), 5);
}

#[test]
fn gemma3_27b_scales_scores_by_the_width_of_a_head_share() {
    let file = Gguf { kv: vec![("general.architecture", Kv::Str("gemma3"))], ..Gguf::valid() };
    let file = [("block_count", 62), ("embedding_length", 5376), ("context_length", 64), ("feed_forward_length", 64)]
        .into_iter()
        .chain([
            ("attention.head_count", 32),
            ("attention.head_count_kv", 16),
            ("attention.key_length", 128),
            ("attention.sliding_window", 8),
        ])
        .fold(file, |file, (key, value)| file.with(format!("gemma3.{key}").leak(), Kv::U32(value)))
        .with("gemma3.attention.layer_norm_rms_epsilon", Kv::F32(1e-6))
        .with("gemma3.rope.scaling.type", Kv::Str("linear"))
        .with("gemma3.rope.scaling.factor", Kv::F32(8.0));
    let weights = from_gguf(&file);
    let layers = &weights.config().layers;
    assert_eq!(layers[0].score_scale, 168f64.powf(-0.5) as f32);
    assert_eq!((layers[0].rope.inv_freq[0], layers[5].rope.inv_freq[0]), (1.0, 0.125));
    let weights = from_gguf(&file.with("gemma3.attention.sliding_window_pattern", Kv::U32(2)));
    let windows: Vec<_> = weights.config().layers[..4].iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(8), None, Some(8), None]);
}

#[test]
fn llama_divides_its_frequencies_by_rope_freqs() {
    let mut file = Gguf::valid().with("llama.attention.key_length", Kv::U32(4));
    file.tensors.push(("rope_freqs.weight", vec![2], 0, 192));
    file.data = 200;
    let mut bytes = file.write();
    let at = bytes.len() - 8;
    bytes[at..at + 4].copy_from_slice(&1f32.to_le_bytes());
    bytes[at + 4..].copy_from_slice(&8f32.to_le_bytes());
    let weights = Weights::from_gguf(Bytes::from(bytes)).unwrap();
    assert_eq!(weights.config().layers[0].rope.inv_freq, [1.0, 0.01 / 8.0]);
    assert!(Weights::from_gguf(Bytes::from(file.write())).unwrap_err().to_string().contains("not all positive"));
}

#[test]
fn an_nvfp4_tensor_carries_its_scale() {
    let mut file = Gguf::valid();
    file.tensors = vec![
        ("token_embd.weight", vec![8, 4], 0, 0),
        ("blk.0.ffn_up.scale", vec![1], 0, 128),
        ("blk.0.ffn_up.weight", vec![64, 1], 40, 160),
    ];
    file.data = 196;
    let mut bytes = file.write();
    let data = bytes.len() - 196;
    bytes[data + 128..data + 132].copy_from_slice(&0.5f32.to_le_bytes());
    bytes[data + 160] = 0x38;
    bytes[data + 164] = 0x72;
    let weights = Weights::from_gguf(Bytes::from(bytes)).unwrap();
    let tensor = weights.tensor("blk.0.ffn_up.weight").unwrap();
    let values = tensor.to_f32();
    assert_eq!((tensor.scale, values[0], values[8], values[16]), (0.5, 0.5, 3.0, 0.0));
    assert_eq!(tensor.row_range(0, 1).unwrap().scale, 0.5);
    assert_eq!(weights.tensor("token_embd.weight").unwrap().scale, 1.0);
}

#[test]
fn split_and_fused_tensors_stay_as_the_file_has_them() {
    let fused = |rows| {
        let mut file = Gguf { kv: vec![("general.architecture", Kv::Str("gemma4"))], ..Gguf::valid() };
        let numbers = [("block_count", 1), ("embedding_length", 2), ("context_length", 8), ("feed_forward_length", 4)];
        let attention = [("head_count", 2), ("head_count_kv", 1), ("key_length", 4), ("sliding_window", 8)];
        file =
            numbers.iter().fold(file, |file, (key, value)| file.with(format!("gemma4.{key}").leak(), Kv::U32(*value)));
        file = attention
            .iter()
            .fold(file, |file, (key, value)| file.with(format!("gemma4.attention.{key}").leak(), Kv::U32(*value)));
        file = file.with("gemma4.attention.layer_norm_rms_epsilon", Kv::F32(1e-6));
        file = file.with("gemma4.attention.sliding_window_pattern", Kv::Raw(9, [array(7, 1), vec![0]].concat()));
        file.tensors = vec![("token_embd.weight", vec![2, 4], 0, 0), ("blk.0.attn_qkv.weight", vec![2, rows], 0, 32)];
        from_gguf(&file)
    };
    let weights = fused(16);
    assert!(!weights.config().layers[0].value_from_key);
    assert_eq!(weights.tensor("blk.0.attn_qkv.weight").unwrap().row_range(8, 12).unwrap().shape, [4, 2]);
    assert!(fused(12).config().layers[0].value_from_key);
}

#[test]
fn a_multimodal_checkpoint_gives_its_text_tensors() {
    let mut config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(fixtures().join("gemma3_tiny/config.json")).unwrap()).unwrap();
    config["model_type"] = json!("gemma3");
    let header = r#"{"language_model.model.embed_tokens.weight": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]},
        "vision_tower.vision_model.embeddings.position_ids": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]},
        "language_model.model.layers.0.self_attn.q_norm.weight": {"dtype": "F32", "shape": [], "data_offsets": [16, 20]}}"#;
    let shard = Bytes::from(common::shard(header, 20));
    let weights = Weights::from_safetensors(&config.to_string(), None, vec![shard]).unwrap();
    let names: Vec<_> = weights.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["token_embd.weight", "blk.0.attn_q_norm.weight"]);
    assert_eq!(weights.tensors()[1].shape, [1]);
}
