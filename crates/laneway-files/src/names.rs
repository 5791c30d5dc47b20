use crate::Family;

/// Backbone prefixes of the checkpoints, the longer ones first.
const PREFIXES: [&str; 5] =
    ["model.language_model.model.", "language_model.model.", "model.language_model.", "model.decoder.", "model."];

const TOP: [(&str, &str); 9] = [
    ("embed_tokens.weight", "token_embd.weight"),
    ("norm.weight", "output_norm.weight"),
    ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
    ("self_conditioning.pre_norm.weight", "self_cond_pre_norm.weight"),
    ("self_conditioning.gate_proj.weight", "self_cond_gate.weight"),
    ("self_conditioning.up_proj.weight", "self_cond_up.weight"),
    ("self_conditioning.down_proj.weight", "self_cond_down.weight"),
];

const LAYER: [(&str, &str); 24] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("router.proj.weight", "ffn_gate_inp.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("experts.down_proj", "ffn_down_exps.weight"),
    ("per_layer_input_gate.weight", "inp_gate.weight"),
    ("per_layer_projection.weight", "proj.weight"),
    ("post_per_layer_input_norm.weight", "post_norm.weight"),
];

/// The GGUF name of a checkpoint's text tensor, or `None` for everything else (vision, audio, buffers).
pub(crate) fn canonical(family: Family, name: &str) -> Option<String> {
    if matches!(name, "lm_head.weight" | "language_model.lm_head.weight" | "model.language_model.lm_head.weight") {
        return Some("output.weight".into());
    }
    if family == Family::DiffusionGemma
        && let Some(rest) = name.strip_prefix("model.encoder.language_model.layers.")
    {
        let layer = rest.strip_suffix(".layer_scalar")?;
        return Some(format!("blk.{}.enc_layer_output_scale.weight", number(layer)?));
    }
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let Some(rest) = rest.strip_prefix("layers.") else {
        return lookup(&TOP, rest).map(str::to_owned);
    };
    let (layer, part) = rest.split_once('.')?;
    let part = match (family, part) {
        (Family::Llama | Family::Qwen3, "post_attention_layernorm.weight") => "ffn_norm.weight",
        (_, "layer_scalar") => "layer_output_scale.weight",
        _ => lookup(&LAYER, part)?,
    };
    Some(format!("blk.{}.{part}", number(layer)?))
}

fn lookup(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
}

/// A layer number without leading zeros, so that no two names map to one.
fn number(text: &str) -> Option<&str> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
    (plain && (text == "0" || !text.starts_with('0'))).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_names_become_gguf_names() {
        let check = |family, name: &str, expected: Option<&str>| {
            assert_eq!(canonical(family, name).as_deref(), expected, "{name}")
        };
        use Family::{DiffusionGemma, Gemma3, Gemma4, Llama, Qwen3};
        check(Llama, "model.layers.3.post_attention_layernorm.weight", Some("blk.3.ffn_norm.weight"));
        check(Qwen3, "model.layers.3.post_attention_layernorm.weight", Some("blk.3.ffn_norm.weight"));
        check(Qwen3, "model.layers.3.self_attn.q_norm.weight", Some("blk.3.attn_q_norm.weight"));
        check(
            Gemma3,
            "language_model.model.layers.3.post_attention_layernorm.weight",
            Some("blk.3.post_attention_norm.weight"),
        );
        check(Gemma4, "model.language_model.embed_tokens_per_layer.weight", Some("per_layer_token_embd.weight"));
        check(Gemma4, "model.language_model.layers.12.router.scale", Some("blk.12.ffn_gate_inp.scale"));
        check(Gemma4, "model.layers.12.layer_scalar", Some("blk.12.layer_output_scale.weight"));
        check(
            DiffusionGemma,
            "model.encoder.language_model.layers.7.layer_scalar",
            Some("blk.7.enc_layer_output_scale.weight"),
        );
        check(DiffusionGemma, "model.decoder.self_conditioning.up_proj.weight", Some("self_cond_up.weight"));
        check(Llama, "lm_head.weight", Some("output.weight"));
        check(DiffusionGemma, "model.encoder.vision_tower.patch_embedder.weight", None);
        check(Gemma4, "model.vision_tower.layers.0.layer_scalar", None);
        check(Llama, "model.layers.00.mlp.up_proj.weight", None);
        check(Llama, "model.layers.0.self_attn.rotary_emb.inv_freq", None);
    }

    #[test]
    fn every_text_tensor_of_the_released_diffusion_gemma_has_a_name_of_its_own() {
        let own = |name: &str| canonical(Family::DiffusionGemma, name).unwrap_or_else(|| panic!("{name} is left out"));
        let mut names = std::collections::BTreeSet::new();
        let conditioning = ["pre_norm", "gate_proj", "up_proj", "down_proj"];
        names.extend(conditioning.map(|part| own(&format!("model.decoder.self_conditioning.{part}.weight"))));
        names.extend(["embed_tokens", "norm"].map(|part| own(&format!("model.decoder.{part}.weight"))));
        let parts = LAYER.iter().map(|(part, _)| *part).filter(|part| !part.contains("per_layer"));
        let parts: Vec<_> = parts.chain(["layer_scalar"]).collect();
        for layer in 0..30 {
            let is_local = layer % 6 != 5;
            let held = parts.iter().filter(|part| is_local || !part.contains("v_proj"));
            names.extend(held.map(|part| own(&format!("model.decoder.layers.{layer}.{part}"))));
            names.insert(own(&format!("model.encoder.language_model.layers.{layer}.layer_scalar")));
        }
        // 661 of the decoder and 30 scalars of the encoder; the published GGUF has `rope_freqs.weight` beside them.
        assert_eq!(names.len(), 691);
    }
}
