//! Files made to break a reader: each is refused with a reason, none panics.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Gguf, Kv, LLAMA_CONFIG, Random, SHARD_HEADER, array, exercise, hostile, shard, string};
use laneway_files::{Bytes, Weights};

/// File name, content, words of the message.
fn cases() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let valid = Gguf::valid;
    let tensor = |dims: Vec<u64>, kind, offset| Gguf { tensors: vec![("t", dims, kind, offset)], ..valid() }.write();
    let raw = |kind, bytes| valid().with("x", Kv::Raw(kind, bytes)).write();
    let named = |name, file: Gguf, words| (name, file.write(), words);
    let header = |json: &str| shard(json, 16);
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        header(&format!(
            r#"{{"model.norm.weight": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}"#
        ))
    };
    let mut nested = Vec::new();
    (0..100_000).for_each(|_| nested.extend(array(9, 1)));
    vec![
        ("magic_only.gguf", b"GGUF".to_vec(), "the version needs 4 bytes, 0 are left"),
        named("version_1.gguf", Gguf { version: 1, ..valid() }, "version 1 is not supported"),
        named("big_endian.gguf", Gguf { version: 3 << 24, ..valid() }, "big-endian"),
        named(
            "kv_count_max.gguf",
            Gguf { counts: Some((0, u64::MAX)), ..valid() },
            "metadata needs 18446744073709551615 bytes",
        ),
        named("tensor_count_max.gguf", Gguf { counts: Some((u64::MAX, 10)), ..valid() }, "tensor descriptions needs"),
        (
            "string_length_max.gguf",
            raw(8, u64::MAX.to_le_bytes().to_vec()),
            "a string needs 18446744073709551615 bytes",
        ),
        ("array_length_max.gguf", raw(9, array(4, u64::MAX)), "more than 16777216"),
        ("array_past_end.gguf", raw(9, array(10, 1 << 20)), "an array needs 8388608 bytes"),
        ("strings_past_end.gguf", raw(9, array(8, 1 << 20)), "an array needs 8388608 bytes"),
        ("array_nested_deep.gguf", raw(9, nested), "nested more than 4 deep"),
        ("array_type.gguf", raw(9, array(13, 0)), "array element type of `x` is 13"),
        ("value_type.gguf", raw(99, vec![]), "value type of `x` is 99"),
        named(
            "key_twice.gguf",
            Gguf { kv: [valid().kv, valid().kv].concat(), ..valid() },
            "metadata key `general.architecture` occurs twice",
        ),
        named("alignment_0.gguf", valid().with("general.alignment", Kv::U32(0)), "general.alignment is 0"),
        named("alignment_48.gguf", valid().with("general.alignment", Kv::U32(48)), "a power of two"),
        named(
            "alignment_text.gguf",
            valid().with("general.alignment", Kv::Str("32")),
            "`general.alignment` should be an integer",
        ),
        ("no_dims.gguf", tensor(vec![], 0, 0), "dimension count is 0"),
        ("five_dims.gguf", tensor(vec![1; 5], 0, 0), "dimension count is 5"),
        ("zero_dim.gguf", tensor(vec![8, 0], 0, 0), "no elements"),
        ("dims_overflow.gguf", tensor(vec![1 << 32, 1 << 32], 0, 0), "too large"),
        ("dim_max.gguf", tensor(vec![u64::MAX], 0, 0), "too large"),
        ("partial_block.gguf", tensor(vec![33], 2, 0), "whole blocks of 32"),
        ("unknown_format.gguf", tensor(vec![256], 18, 0), "IQ3_XXS (type 18) is not supported (supported: F32"),
        ("misaligned.gguf", tensor(vec![8], 0, 4), "offset 4 is not a multiple of the alignment 32"),
        ("past_end.gguf", tensor(vec![64], 0, 0), "ends at byte 256 of a data section of 178 bytes"),
        ("offset_max.gguf", tensor(vec![8], 0, u64::MAX - 31), "offset past end"),
        named(
            "overlap.gguf",
            Gguf { tensors: vec![("a", vec![16], 0, 0), ("b", vec![8], 0, 32)], ..valid() },
            "tensors `a` and `b` overlap",
        ),
        named(
            "tensor_twice.gguf",
            Gguf { tensors: vec![("a", vec![8], 0, 0), ("a", vec![8], 0, 32)], ..valid() },
            "tensor `a` occurs twice",
        ),
        named("no_architecture.gguf", valid().without("general.architecture"), "`general.architecture` is missing"),
        named(
            "architecture.gguf",
            valid().with("general.architecture", Kv::Str("mamba")),
            "`mamba` is not supported (supported: llama, qwen3, gemma3",
        ),
        named(
            "layers_max.gguf",
            valid().with("llama.block_count", Kv::U32(u32::MAX)),
            "llama.block_count is 4294967295, expected 1 to 1024",
        ),
        named("layers_0.gguf", valid().with("llama.block_count", Kv::U32(0)), "llama.block_count is 0"),
        named("heads_0.gguf", valid().with("llama.attention.head_count", Kv::U32(0)), "not a multiple of 0 heads"),
        named(
            "kv_heads_0.gguf",
            valid().with("llama.attention.head_count_kv", Kv::U32(0)),
            "KV head count of layer 0 is 0",
        ),
        named(
            "kv_heads_3.gguf",
            valid().with("llama.attention.head_count_kv", Kv::U32(3)),
            "2 heads, not a multiple of 3 KV heads",
        ),
        named(
            "kv_heads_negative.gguf",
            valid().with("llama.attention.head_count_kv", Kv::Raw(5, (-1i32).to_le_bytes().into())),
            "not negative",
        ),
        named(
            "head_dim_odd.gguf",
            valid().with("llama.attention.key_length", Kv::U32(5)),
            "head width 5, expected an even number",
        ),
        named(
            "eps_nan.gguf",
            valid().with("llama.attention.layer_norm_rms_epsilon", Kv::F32(f32::NAN)),
            "epsilon is NaN",
        ),
        named("eps_0.gguf", valid().with("llama.attention.layer_norm_rms_epsilon", Kv::F32(0.0)), "epsilon is 0"),
        named("theta_inf.gguf", valid().with("llama.rope.freq_base", Kv::F32(f32::INFINITY)), "rope theta is inf"),
        named("hidden_0.gguf", valid().with("llama.embedding_length", Kv::U32(0)), "hidden size is 0"),
        named("context_0.gguf", valid().with("llama.context_length", Kv::U32(0)), "context length is 0"),
        named("experts.gguf", valid().with("llama.expert_count", Kv::U32(8)), "llama `experts` is not supported"),
        named("split.gguf", valid().with("split.count", Kv::Raw(2, vec![3, 0])), "merge the parts first"),
        named(
            "ff_per_layer.gguf",
            valid().with("llama.feed_forward_length", Kv::Raw(9, array(4, 0))),
            "has 0 elements, expected one for each of 1 layers",
        ),
        (
            "header_past_end.safetensors",
            [&99u64.to_le_bytes()[..], b"{}"].concat(),
            "header needs 99 bytes, 2 are left",
        ),
        ("header_length_max.safetensors", [&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "expected a safetensors file"),
        ("header_list.safetensors", header("{]"), "safetensors header: "),
        (
            "header_deep.safetensors",
            header(&format!("{{\"__metadata__\": {}", "[".repeat(100_000))),
            "safetensors header: EOF",
        ),
        ("offsets_backwards.safetensors", entry("F32", "[2]", "[8, 0]"), "run backwards"),
        (
            "offsets_past_end.safetensors",
            entry("F32", "[2]", "[16, 24]"),
            "ends at byte 24 of a data section of 16 bytes",
        ),
        ("offsets_max.safetensors", entry("F32", "[2]", "[18446744073709551615, 18446744073709551615]"), "past end"),
        ("offsets_short.safetensors", entry("F32", "[2]", "[0, 4]"), "span 4 bytes, the shape needs 8"),
        ("shape_overflow.safetensors", entry("F32", "[4294967296, 4294967296]", "[0, 16]"), "too large"),
        ("shape_negative.safetensors", entry("F32", "[-1]", "[0, 4]"), "invalid value"),
        ("shape_zero.safetensors", entry("F32", "[0, 4]", "[0, 0]"), "no elements"),
        (
            "dtype.safetensors",
            entry("F8_E4M3", "[16]", "[0, 16]"),
            "dtype `F8_E4M3` is not supported (supported: F32, F16, BF16)",
        ),
        (
            "overlap.safetensors",
            header(
                r#"{"model.norm.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                    "lm_head.weight": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}"#,
            ),
            "tensors `output_norm.weight` and `output.weight` overlap",
        ),
        (
            "tensor_twice.safetensors",
            header(
                r#"{"model.norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "model.norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}"#,
            ),
            "tensor `output_norm.weight` occurs twice",
        ),
        ("web_page.safetensors", b"<!DOCTYPE html><html>".to_vec(), "probably a web page"),
    ]
}

#[test]
fn the_base_files_are_valid() {
    exercise(Gguf::valid().write()).unwrap();
    exercise(Gguf { version: 2, ..Gguf::valid() }.write()).unwrap();
    exercise(shard(SHARD_HEADER, 144)).unwrap();
    let aligned = Gguf { alignment: 64, ..Gguf::valid() }.with("general.alignment", Kv::U32(64));
    exercise(Gguf { tensors: vec![("token_embd.weight", vec![2, 3], 0, 64)], ..aligned }.write()).unwrap();
}

#[test]
fn each_hostile_file_is_refused_with_its_reason() {
    for (name, bytes, words) in cases() {
        let message = exercise(bytes).expect_err(name).to_string();
        assert!(message.contains(words), "{name}: {message}");
    }
}

#[test]
fn stored_hostile_files_are_refused() {
    let mut count = 0;
    for file in std::fs::read_dir(hostile()).unwrap() {
        let path = file.unwrap().path();
        assert!(exercise(std::fs::read(&path).unwrap()).is_err(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 50, "only {count} files in the corpus");
}

/// Writes the cases to the folder that the fuzz targets start from.
#[test]
#[ignore = "regenerates tests/data/hostile"]
fn write_the_corpus() {
    for (name, bytes, _) in cases().into_iter().filter(|(_, bytes, _)| bytes.len() < 10_000) {
        std::fs::write(hostile().join(name), bytes).unwrap();
    }
}

#[test]
fn mutated_files_never_panic() {
    for seed in [Gguf::valid().write(), shard(SHARD_HEADER, 144)] {
        let mut random = Random(7);
        let mut accepted = 0;
        for _ in 0..20_000 {
            accepted += usize::from(exercise(mutated(&seed, &mut random)).is_ok());
        }
        assert!(accepted > 0 && accepted < 20_000, "{accepted} accepted: the mutations reach too little");
    }
}

fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len().max(1));
        let extreme = [0, 1, 0x7f, 0xff, 0x80, b'{'][random.below(6)];
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            2 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = extreme),
            3 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = extreme),
            4 => drop(bytes.drain(at..(at + random.below(16)).min(bytes.len()))),
            _ => bytes.splice(at..at, string("x").into_iter().take(random.below(10))).for_each(drop),
        }
    }
    bytes
}

#[test]
fn real_sized_headers_survive_every_short_truncation() {
    let whole = std::fs::read(common::fixtures().join("diffusion_gemma_tiny_gguf/model.gguf")).unwrap();
    for length in (0..1200).chain((1200..whole.len()).step_by(9973)) {
        assert!(Weights::from_gguf(Bytes::from(whole[..length].to_vec())).is_err(), "{length}");
    }
}

#[test]
fn hostile_configurations_are_refused() {
    let open = |json: &str| Weights::from_safetensors(json, None, vec![]).map(|weights| weights.config().clone());
    open(LLAMA_CONFIG).unwrap();
    let check = |key: &str, value: serde_json::Value, words: &str| {
        let mut config: serde_json::Value = serde_json::from_str(LLAMA_CONFIG).unwrap();
        config[key] = value.clone();
        let message = open(&config.to_string()).expect_err(&format!("{key} = {value}")).to_string();
        assert!(message.contains(words), "{key} = {value}: {message}");
    };
    use serde_json::json;
    check("model_type", json!("mamba"), "`mamba` is not supported (supported: llama, qwen3, gemma3_text");
    check("model_type", json!("dream"), "`dream` is not supported (supported: networks whose queries, keys and values");
    check("model_type", json!("a2d-qwen2"), "have no biases");
    check("model_type", json!("llada"), "llada as a GGUF file");
    check("model_type", json!(null), "`model_type` is missing");
    check("num_hidden_layers", json!(4_294_967_296u64), "is 4294967296, expected 1 to 1024");
    check("num_hidden_layers", json!(-1), "not negative");
    check("num_hidden_layers", json!(1.5), "not negative");
    check("num_attention_heads", json!(0), "not a multiple of 0 heads");
    check("num_attention_heads", json!(u64::MAX), "not a multiple of");
    check("num_key_value_heads", json!(0), "KV head count of layer 0 is 0");
    check("num_key_value_heads", json!(3), "not a multiple of 3");
    check("head_dim", json!(5), "even number");
    check("head_dim", json!(1u64 << 40), "head width of layer 0 is");
    check("vocab_size", json!(0), "vocabulary size is 0");
    check("hidden_size", json!(1u64 << 40), "hidden size is 1099511627776");
    check("intermediate_size", json!(0), "feed-forward width of layer 0 is 0");
    check("rms_norm_eps", json!(-1e-5), "epsilon is -0.00001");
    check("rms_norm_eps", json!(1e-60), "epsilon is");
    check("rms_norm_eps", json!("1e-5"), "`rms_norm_eps` should be a number");
    check("max_position_embeddings", json!(0), "context length is 0");
    check("rope_theta", json!(0), "rope theta is 0");
    check("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), "rope type `yarn` is not supported");
    check("rope_scaling", json!({"type": "linear", "factor": 0}), "rope factor is 0");
    check("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}), "`low_freq_factor` is missing");
    check("hidden_act", json!("relu"), "activation `relu` is not supported");
    check("attention_bias", json!(true), "attention_bias `true`");
    check("eos_token_id", json!(-1), "`eos_token_id` should be a token id");
    assert!(open("[]").unwrap_err().to_string().contains("should be a JSON object"));
    assert!(open(&"[".repeat(100_000)).unwrap_err().to_string().contains("recursion limit"));
}

#[test]
fn hostile_gemma_configurations_are_refused() {
    let original = std::fs::read_to_string(common::fixtures().join("gemma4_ple_shared_tiny/config.json")).unwrap();
    let check = |key: &str, value: serde_json::Value, words: &str| {
        let mut config: serde_json::Value = serde_json::from_str(&original).unwrap();
        config[key] = value;
        let message = Weights::from_safetensors(&config.to_string(), None, vec![]).expect_err(key).to_string();
        assert!(message.contains(words), "{key}: {message}");
    };
    use serde_json::json;
    check("sliding_window", json!(0), "sliding window of layer 0 is 0");
    check("sliding_window", json!(null), "`sliding_window` is missing");
    check("layer_types", json!(["full_attention"]), "has 1 elements, expected 6");
    check("layer_types", json!([1, 2, 3, 4, 5, 6]), "should be a list of");
    check("num_kv_shared_layers", json!(6), "shared KV layer count is 6, expected 0 to 5");
    check("num_kv_shared_layers", json!(5), "has no earlier layer to share");
    check("final_logit_softcapping", json!(-30.0), "soft-cap is -30");
    check("enable_moe_block", json!(true), "`num_experts` is missing");
    check(
        "rope_parameters",
        json!({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 2.0}}),
        "expected 0 to 1",
    );
}

#[test]
fn hostile_masked_configurations_are_refused() {
    use serde_json::json;
    let original = json!({
        "model_type": "a2d-qwen3", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "use_sliding_window": false,
        "diffusion": {"kind": "bd3lm", "block_length": 8, "mask_token_id": 511}
    });
    let open = |config: &serde_json::Value, generation: &serde_json::Value| {
        Weights::from_safetensors(&config.to_string(), Some(&generation.to_string()), vec![])
    };
    open(&original, &json!({})).unwrap();
    let check = |key: &str, value: serde_json::Value, words: &str| {
        let mut config = original.clone();
        let fields = if config.get(key).is_some() { &mut config } else { &mut config["diffusion"] };
        fields[key] = value.clone();
        let message = open(&config, &json!({})).expect_err(&format!("{key} = {value}")).to_string();
        assert!(message.contains(words), "{key} = {value}: {message}");
    };
    check("kind", json!("ssd"), "diffusion.kind `ssd` is not supported (supported: mdlm, bd3lm)");
    check("kind", json!(3), "`kind` should be a string");
    check("block_length", json!(0), "diffusion.block_length is 0, expected 1 to 32767");
    check("block_length", json!(32_768), "diffusion.block_length is 32768");
    check("block_length", json!(u64::MAX), "diffusion.block_length is 18446744073709551615");
    check("block_length", json!(-8), "not negative");
    check("mask_token_id", json!(512), "mask token is 512, expected 0 to 511");
    check("mask_token_id", json!(u64::MAX), "mask_token_id is 18446744073709551615");
    check("mask_token_id", json!("<|mask|>"), "`mask_token_id` should be an integer");
    check("mask_token_id", json!(null), "`diffusion.mask_token_id` is missing");
    check("shift_logits", json!("no"), "`shift_logits` should be true or false");
    check("diffusion", json!([]), "`diffusion` should be a JSON object");
    check("use_sliding_window", json!(true), "use_sliding_window `true` is not supported");
    let refused = |fields: serde_json::Value, words: &str| {
        let message = open(&original, &json!({"diffusion": fields})).expect_err(words).to_string();
        assert!(message.contains(words), "{fields}: {message}");
    };
    refused(json!({"max_denoising_steps": 0}), "max_denoising_steps is 0");
    refused(json!({"temperature": -1.0}), "temperature is -1");
    refused(json!({"selection": "dice"}), "diffusion.selection `dice` is not supported");
    refused(json!({"confidence": 1}), "`confidence` should be a string");
    refused(json!({"threshold": 1.5}), "diffusion.threshold is 1.5, expected 0 to 1");
    refused(json!({"threshold": 0.5, "confidence": "entropy"}), "is 0.5, expected 0 or less");
    refused(json!({"at_least": 0}), "at_least is 0");
}

#[test]
fn hostile_masked_gguf_files_are_refused() {
    let open = || Gguf::valid().with("llama.attention.causal", Kv::Raw(7, vec![0]));
    let mask = "tokenizer.ggml.mask_token_id";
    let masked = || open().with(mask, Kv::U32(3));
    exercise(masked().write()).unwrap();
    let check = |file: Gguf, words: &str| {
        let message = exercise(file.write()).expect_err(words).to_string();
        assert!(message.contains(words), "{words}: {message}");
    };
    check(open(), "`tokenizer.ggml.mask_token_id` is missing");
    check(open().with(mask, Kv::U32(4)), "mask token is 4, expected 0 to 3");
    check(open().with(mask, Kv::Str("<|mask|>")), "should be an integer");
    check(masked().with("diffusion.block_length", Kv::U32(0)), "diffusion.block_length is 0");
    check(masked().with("diffusion.block_length", Kv::U32(u32::MAX)), "diffusion.block_length is 4294967295");
    check(masked().with("diffusion.shift_logits", Kv::U32(1)), "`diffusion.shift_logits` should be true or false");
    check(masked().with("diffusion.threshold", Kv::F32(f32::NAN)), "diffusion.threshold is NaN");
    check(Gguf::valid().with("llama.attention.causal", Kv::U32(0)), "should be true or false");
    for arch in ["dream", "qwen2"] {
        check(Gguf::valid().with("general.architecture", Kv::Str(arch)), "queries, keys and values have no biases");
    }
}
