//! Loading into [`NoSpace`]: every tensor that a network needs is in the files, in the shape that it needs.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

use laneway_files::Weights;
use laneway_model::{Network, NoSpace};
use std::path::PathBuf;

fn open(name: &str) -> Weights {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures").join(name);
    let gguf = folder.join("model.gguf");
    Weights::open(if gguf.exists() { gguf } else { folder }).unwrap()
}

#[test]
fn every_fixture_loads() {
    let both = [
        "llama_tiny",
        "qwen3_tiny",
        "gemma3_tiny",
        "gemma4_dense_tiny",
        "gemma4_ple_shared_tiny",
        "gemma4_moe_tiny",
        "diffusion_gemma_tiny",
    ];
    let all = both.iter().flat_map(|name| [name.to_string(), format!("{name}_gguf")]);
    for name in all.chain(["qwen3_mdlm_tiny".into(), "qwen3_bd3lm_tiny".into()]) {
        let weights = open(&name);
        let network = Network::load(&weights, &mut NoSpace).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(network.kv_shapes().len(), weights.config().layers.len(), "{name}");
    }
}

/// The released model's geometry in a file that is mostly a hole: 51 GB that take no room.
#[cfg(target_os = "linux")]
mod released {
    use super::*;

    /// Name and shape of every text tensor of `google/diffusiongemma-26B-A4B-it`.
    fn tensors() -> Vec<(String, Vec<usize>)> {
        let (hidden, ff) = (2816, 2112);
        let top = [
            ("embed_tokens", vec![262_144, hidden]),
            ("norm", vec![hidden]),
            ("self_conditioning.pre_norm", vec![hidden]),
            ("self_conditioning.gate_proj", vec![ff, hidden]),
            ("self_conditioning.up_proj", vec![ff, hidden]),
            ("self_conditioning.down_proj", vec![hidden, ff]),
        ];
        let mut all: Vec<_> =
            top.into_iter().map(|(name, shape)| (format!("model.decoder.{name}.weight"), shape)).collect();
        for layer in 0..30 {
            let (head_dim, kv_heads) = if layer % 6 == 5 { (512, 2) } else { (256, 8) };
            let (q, kv) = (16 * head_dim, kv_heads * head_dim);
            let norms = [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
                "post_feedforward_layernorm_1",
                "post_feedforward_layernorm_2",
                "pre_feedforward_layernorm_2",
            ];
            let norms = norms.map(|name| (format!("{name}.weight"), vec![hidden]));
            let mut parts: Vec<(String, Vec<usize>)> = norms.into();
            let matrices = [
                ("self_attn.q_proj.weight", vec![q, hidden]),
                ("self_attn.k_proj.weight", vec![kv, hidden]),
                ("self_attn.o_proj.weight", vec![hidden, q]),
                ("self_attn.q_norm.weight", vec![head_dim]),
                ("self_attn.k_norm.weight", vec![head_dim]),
                ("mlp.gate_proj.weight", vec![ff, hidden]),
                ("mlp.up_proj.weight", vec![ff, hidden]),
                ("mlp.down_proj.weight", vec![hidden, ff]),
                ("router.proj.weight", vec![128, hidden]),
                ("router.scale", vec![hidden]),
                ("router.per_expert_scale", vec![128]),
                ("experts.gate_up_proj", vec![128, 1408, hidden]),
                ("experts.down_proj", vec![128, hidden, 704]),
                ("layer_scalar", vec![1]),
            ];
            parts.extend(matrices.map(|(name, shape)| (name.to_owned(), shape)));
            if kv_heads == 8 {
                parts.push(("self_attn.v_proj.weight".into(), vec![kv, hidden]));
            }
            all.extend(parts.into_iter().map(|(name, shape)| (format!("model.decoder.layers.{layer}.{name}"), shape)));
            all.push((format!("model.encoder.language_model.layers.{layer}.layer_scalar"), vec![1]));
        }
        all
    }

    fn config() -> String {
        let kinds: Vec<_> =
            (0..30).map(|l| if l % 6 == 5 { "\"full_attention\"" } else { "\"sliding_attention\"" }).collect();
        format!(
            r#"{{"model_type": "diffusion_gemma", "canvas_length": 256, "tie_word_embeddings": true, "text_config": {{
                "vocab_size": 262144, "hidden_size": 2816, "num_hidden_layers": 30, "intermediate_size": 2112,
                "moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8, "num_attention_heads": 16,
                "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512,
                "sliding_window": 1024, "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0, "layer_types": [{}]}}}}"#,
            kinds.join(", ")
        )
    }

    /// Writes the files with the tensors as `change` leaves them, opens and loads them.
    fn load(name: &str, change: impl Fn(&mut Vec<(String, Vec<usize>)>)) -> Result<u64, String> {
        let mut tensors = tensors();
        change(&mut tensors);
        let mut at = 0;
        let entries: Vec<_> = tensors
            .iter()
            .map(|(name, shape)| {
                let start = at;
                at += 2 * shape.iter().map(|&dim| dim as u64).product::<u64>();
                format!(r#""{name}": {{"dtype": "BF16", "shape": {shape:?}, "data_offsets": [{start}, {at}]}}"#)
            })
            .collect();
        let header = format!("{{{}}}", entries.join(", "));
        let folder = std::env::temp_dir().join(format!("laneway-model-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), config()).unwrap();
        let path = folder.join("model.safetensors");
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(8 + header.len() as u64 + at).unwrap();
        let weights = Weights::open(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        Network::load(&weights, &mut NoSpace).map(|_| weights.total_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_released_geometry_fits_its_network() {
        assert_eq!(tensors().len(), 691);
        // 25.25 billion parameters in bf16.
        let bytes = load("released", |_| ()).unwrap();
        assert!((50_400_000_000..50_600_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_self_conditioning_block_may_have_a_width_of_its_own() {
        let resize = |tensors: &mut Vec<(String, Vec<usize>)>, names: &[&str]| {
            for (name, shape) in tensors.iter_mut().filter(|(name, _)| name.contains("self_conditioning")) {
                if names.iter().any(|part| name.contains(part)) {
                    shape.iter_mut().filter(|dim| **dim == 2112).for_each(|dim| *dim = 704);
                }
            }
        };
        load("narrow", |tensors| resize(tensors, &["gate", "up", "down"])).unwrap();
        let message = load("torn", |tensors| resize(tensors, &["gate", "up"])).unwrap_err();
        assert!(
            message.contains("`self_cond_down.weight` should have shape [2816, 704], found [2816, 2112]"),
            "{message}"
        );
    }
}
