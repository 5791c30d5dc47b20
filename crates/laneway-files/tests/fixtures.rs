//! The same model from both kinds of file, and the configuration of each family.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{MODELS, fixtures, gguf, safetensors};
use laneway_files::{Activation, DiffusionDefaults, Experts, Family, ModelConfig, RopePairs, Weights};

#[test]
fn both_kinds_of_file_give_one_configuration() {
    for name in MODELS {
        let (from_json, from_gguf) = (safetensors(name), gguf(name));
        let expected = ModelConfig {
            norm_offset: from_json.config().norm_offset,
            rope_pairs: from_json.config().rope_pairs,
            name: from_json.config().name.clone(),
            ..from_gguf.config().clone()
        };
        assert_eq!(from_json.config(), &expected, "{name}");
        assert_eq!(from_json.config().norm_offset, if name == "gemma3_tiny" { 1.0 } else { 0.0 });
        assert_eq!(from_json.config().rope_pairs, RopePairs::Half);
        assert_eq!(from_gguf.config().norm_offset, 0.0);
        let pairs = if name == "llama_tiny" { RopePairs::Interleaved } else { RopePairs::Half };
        assert_eq!(from_gguf.config().rope_pairs, pairs);
    }
}

#[test]
fn both_kinds_of_file_hold_the_same_tensors() {
    for name in MODELS {
        let (from_json, from_gguf) = (safetensors(name), gguf(name));
        let config = from_json.config();
        let extra = from_gguf.tensors().iter().filter(|tensor| from_json.tensor(&tensor.name).is_none());
        assert!(extra.map(|tensor| tensor.name.as_str()).all(|name| name == "rope_freqs.weight"), "{name}");
        for tensor in from_json.tensors() {
            let other = from_gguf.require(&tensor.name, &tensor.shape).unwrap();
            let mut values = tensor.to_f32();
            if tensor.name.ends_with("norm.weight") {
                values.iter_mut().for_each(|x| *x += config.norm_offset);
            }
            if config.family == Family::Llama
                && (tensor.name.ends_with("attn_q.weight") || tensor.name.ends_with("attn_k.weight"))
            {
                values = interleaved(&values, config.layers[0].head_dim, tensor.cols());
            }
            assert_eq!(values, other.to_f32(), "{name} {}", tensor.name);
        }
    }
}

/// Row `2j + s` of a head is row `s·d/2 + j` of the checkpoint.
fn interleaved(values: &[f32], head_dim: usize, cols: usize) -> Vec<f32> {
    let rows = values.len() / cols;
    let source = |row: usize| row / head_dim * head_dim + row % 2 * (head_dim / 2) + row % head_dim / 2;
    (0..rows).flat_map(|row| &values[source(row) * cols..][..cols]).copied().collect()
}

#[test]
fn llama_and_gemma3_follow_their_papers() {
    let llama = safetensors("llama_tiny");
    let config = llama.config();
    assert_eq!(
        (config.family, config.vocab_size, config.hidden_size, config.context_length),
        (Family::Llama, 512, 64, 512)
    );
    assert_eq!((config.rms_eps, config.embedding_scale, config.tied_head), (1e-5, 1.0, true));
    assert_eq!((config.gated_activation, config.final_softcap, config.layers.len()), (Activation::Silu, None, 3));
    let layer = &config.layers[2];
    assert_eq!((layer.heads, layer.kv_heads, layer.head_dim, layer.ff, layer.window), (4, 2, 16, 96, None));
    assert_eq!((layer.score_scale, layer.kv_layer, layer.has_qk_norm, layer.unit_value_norm), (0.25, 2, false, false));
    assert_eq!((layer.rope.inv_freq.len(), layer.rope.inv_freq[1]), (8, 1e5f64.powf(-0.125) as f32));

    let gemma = gguf("gemma3_tiny");
    let config = gemma.config();
    assert_eq!((config.gated_activation, config.embedding_scale), (Activation::GeluTanh, 8.0));
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(8), Some(8), Some(8), Some(8), Some(8), None]);
    assert_eq!(config.layers[0].score_scale, (32f64.powf(-0.5)) as f32);
    assert_eq!(config.layers[0].rope.inv_freq[1], 1e4f64.powf(-1.0 / 16.0) as f32);
    assert_eq!(config.layers[5].rope.inv_freq[1], 1e6f64.powf(-1.0 / 16.0) as f32);
    assert!(config.layers[0].has_qk_norm && !config.layers[0].unit_value_norm);
}

#[test]
fn gemma4_layers_differ_by_kind() {
    let config = gguf("gemma4_moe_tiny").config().clone();
    assert_eq!(config.experts, Some(Experts { count: 4, used: 2, ff: 16 }));
    assert_eq!(config.final_softcap, Some(30.0));
    let (local, global) = (&config.layers[0], &config.layers[3]);
    assert_eq!((local.kv_heads, local.head_dim, local.window, local.value_from_key), (2, 16, Some(8), false));
    assert_eq!((global.kv_heads, global.head_dim, global.window, global.value_from_key), (1, 32, None, true));
    assert_eq!((global.score_scale, global.has_experts, global.unit_value_norm), (1.0, true, true));
    assert!(global.rope.inv_freq[3] > 0.0 && global.rope.inv_freq[4..].iter().all(|&f| f == 0.0));
    assert_eq!(global.rope.inv_freq.len(), 16);

    let config = safetensors("gemma4_ple_shared_tiny").config().clone();
    assert_eq!((config.per_layer_input, config.experts), (16, None));
    let sources: Vec<_> = config.layers.iter().map(|layer| layer.kv_layer).collect();
    assert_eq!(sources, [0, 1, 2, 3, 2, 3]);
    assert_eq!((config.layers[3].ff, config.layers[4].ff), (96, 192));
    assert!(!config.layers[1].value_from_key && !config.layers[5].value_from_key);
    assert!(!safetensors("gemma4_dense_tiny").config().layers[3].value_from_key);
}

#[test]
fn diffusion_gemma_has_a_canvas_and_its_own_scalars() {
    for weights in [safetensors("diffusion_gemma_tiny"), gguf("diffusion_gemma_tiny")] {
        assert_eq!(
            (weights.config().family, weights.config().diffusion.map(|d| d.canvas_length)),
            (Family::DiffusionGemma, Some(16))
        );
        assert_eq!(weights.generation().diffusion, Some(DiffusionDefaults::default()));
        assert!(weights.config().layers[3].value_from_key && weights.config().layers[3].has_experts);
        weights.require("blk.3.enc_layer_output_scale.weight", &[1]).unwrap();
        weights.require("blk.3.layer_output_scale.weight", &[1]).unwrap();
        weights.require("self_cond_gate.weight", &[64, 64]).unwrap();
        weights.require("blk.0.ffn_gate_up_exps.weight", &[4, 32, 64]).unwrap();
        weights.require("blk.0.ffn_down_exps.scale", &[4]).unwrap();
    }
    assert_eq!(safetensors("diffusion_gemma_tiny").generation().eos_token_ids, [1, 106, 50]);
    assert_eq!(gguf("diffusion_gemma_tiny").generation().eos_token_ids, [1]);
}

#[test]
fn metadata_keeps_order_and_types() {
    let weights = gguf("gemma3_tiny");
    let metadata = weights.metadata();
    assert_eq!(metadata.iter().next().unwrap().0, "general.architecture");
    assert_eq!(metadata.str("tokenizer.ggml.model").unwrap(), Some("llama"));
    assert_eq!(metadata.u64("tokenizer.ggml.bos_token_id").unwrap(), Some(2));
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!((tokens.len(), tokens[4].as_str(), tokens[511].as_str()), (512, "<mask>", "t511"));
    assert_eq!(metadata.floats("tokenizer.ggml.scores").unwrap().unwrap()[7], -1000.0);
    assert_eq!(metadata.u64s("tokenizer.ggml.token_type").unwrap().unwrap()[..6], [3, 3, 3, 3, 3, 1]);
    assert_eq!(metadata.u64("absent").unwrap(), None);
    assert!(metadata.u64("tokenizer.ggml.tokens").unwrap_err().to_string().contains("should be an integer"));
    assert!(safetensors("gemma3_tiny").metadata().is_empty());
    assert_eq!(weights.total_bytes(), weights.tensors().iter().map(|tensor| tensor.bytes().len() as u64).sum::<u64>());
}

#[test]
fn a_wrong_shape_names_both() {
    let weights = gguf("llama_tiny");
    let message = weights.require("token_embd.weight", &[512, 65]).unwrap_err().to_string();
    assert_eq!(message, "tensor `token_embd.weight` should have shape [512, 65], found [512, 64]");
    assert_eq!(weights.require("output.weight", &[1]).unwrap_err().to_string(), "tensor `output.weight` is missing");
}

#[test]
fn shards_listed_by_an_index_are_one_checkpoint() {
    let source = fixtures().join("llama_tiny");
    let folder = std::env::temp_dir().join(format!("laneway-files-shards-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(source.join("config.json"), folder.join("config.json")).unwrap();
    let header = |name: &str| format!(r#"{{"{name}": {{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}}}"#);
    std::fs::write(folder.join("a.safetensors"), common::shard(&header("model.norm.weight"), 8)).unwrap();
    std::fs::write(folder.join("b.safetensors"), common::shard(&header("lm_head.weight"), 8)).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let index = |shard: &str| {
        format!(r#"{{"weight_map": {{"model.norm.weight": "a.safetensors", "lm_head.weight": "{shard}"}}}}"#)
    };
    let write = |shard: &str| std::fs::write(folder.join("model.safetensors.index.json"), index(shard)).unwrap();
    write("b.safetensors");
    let weights = Weights::open(&folder).unwrap();
    assert!(weights.tensor("output_norm.weight").is_some() && weights.tensor("output.weight").is_some());
    assert_eq!(weights.sidecars.tokenizer.as_deref(), Some("{}"));
    write("../b.safetensors");
    assert!(Weights::open(&folder).unwrap_err().to_string().contains("not a file beside it"));
    write("c.safetensors");
    assert!(Weights::open(&folder).unwrap_err().to_string().contains("c.safetensors"));
    std::fs::remove_dir_all(&folder).unwrap();
}
