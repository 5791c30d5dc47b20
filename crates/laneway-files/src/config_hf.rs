use crate::{
    Family, FileError, ModelConfig, Result, RopePairs,
    diffusion::{self, Beside},
    error::within,
    facts::{ExpertFacts, Facts, LayerFacts, MAX_LAYERS},
    json::Fields,
    rope::{Rope, Scaling},
    weights::Tensors,
};

const MODEL_TYPES: &str =
    "llama, qwen3, gemma3_text, gemma3, gemma4_text, gemma4, diffusion_gemma, a2d-llama, a2d-qwen3";

/// The family that a `config.json` names.
pub(crate) fn family(root: Fields) -> Result<Family> {
    match root.str("model_type")?.ok_or_else(|| FileError::MissingKey("model_type".into()))? {
        "llama" | "a2d-llama" => Ok(Family::Llama),
        "qwen3" | "a2d-qwen3" => Ok(Family::Qwen3),
        "gemma3_text" | "gemma3" => Ok(Family::Gemma3),
        "gemma4_text" | "gemma4" => Ok(Family::Gemma4),
        "diffusion_gemma" => Ok(Family::DiffusionGemma),
        biased @ ("dream" | "Dream" | "qwen2" | "a2d-qwen2") => Err(diffusion::biased(biased)),
        "llada" => Err(FileError::UnsupportedFeature {
            what: "checkpoint of the architecture".into(),
            found: "llada".into(),
            supported: "llada as a GGUF file",
        }),
        other => Err(FileError::UnsupportedArchitecture { found: other.to_owned(), supported: MODEL_TYPES }),
    }
}

/// Derives the configuration of a safetensors checkpoint from its `config.json` and the tensors that are there.
pub(crate) fn read(root: Fields, beside: Beside, tensors: &Tensors) -> Result<ModelConfig> {
    let family = family(root)?;
    let text = root.object("text_config")?.unwrap_or(root);
    Reader { root, text, beside, tensors, family }.facts()?.build()
}

struct Reader<'a> {
    root: Fields<'a>,
    text: Fields<'a>,
    beside: Beside<'a>,
    tensors: &'a Tensors,
    family: Family,
}

impl Reader<'_> {
    fn facts(&self) -> Result<Facts> {
        self.refuse_unsupported()?;
        let text = self.text;
        let default_context = match self.family {
            Family::Llama => 2048,
            Family::Qwen3 => 32_768,
            _ => 131_072,
        };
        let tied = self.root.bool("tie_word_embeddings")?.or(text.bool("tie_word_embeddings")?);
        let (local_rope, global_rope) = self.ropes()?;
        Ok(Facts {
            family: self.family,
            name: self.root.str("_name_or_path")?.unwrap_or_default().to_owned(),
            vocab: self.sized("vocab_size", 262_208)?,
            hidden: self.sized("hidden_size", 2304)?,
            context: text.u64("max_position_embeddings")?.unwrap_or(default_context),
            eps: text.f64("rms_norm_eps")?.unwrap_or(1e-6),
            softcap: text.f64("final_logit_softcapping")?,
            norm_offset: if self.family == Family::Gemma3 { 1.0 } else { 0.0 },
            rope_pairs: RopePairs::Half,
            tied_head: tied.unwrap_or_else(|| self.tensors.get("output.weight").is_none()),
            per_layer_input: self.per_layer_input()?,
            experts: self.experts()?,
            layers: self.layers()?,
            window: text.u64("sliding_window")?.or((self.family == Family::Gemma3).then_some(4096)),
            shared_kv: text.u64("num_kv_shared_layers")?.unwrap_or(0),
            local_rope,
            global_rope,
            query_scalar: match self.family {
                Family::Gemma3 => Some(text.f64("query_pre_attn_scalar")?.unwrap_or(256.0)),
                _ => None,
            },
            diffusion: diffusion::from_json(self.root, self.family, self.beside)?,
        })
    }

    /// A number that only published Gemma 3 configurations leave to the library's default.
    fn sized(&self, key: &str, gemma3_default: u64) -> Result<u64> {
        match self.family {
            Family::Gemma3 => Ok(self.text.u64(key)?.unwrap_or(gemma3_default)),
            _ => self.text.required(key),
        }
    }

    fn per_layer_input(&self) -> Result<u64> {
        if self.family != Family::Gemma4 {
            return Ok(0);
        }
        let norm = self.tensors.get("per_layer_proj_norm.weight").map_or(0, |norm| norm.len() as u64);
        Ok(self.text.u64("hidden_size_per_layer_input")?.unwrap_or(norm))
    }

    fn experts(&self) -> Result<Option<ExpertFacts>> {
        let enabled = match self.family {
            Family::DiffusionGemma => self.text.bool("enable_moe_block")?.unwrap_or(true),
            Family::Gemma4 => self.text.bool("enable_moe_block")?.unwrap_or(false),
            Family::Llama | Family::Qwen3 | Family::Gemma3 => false,
        };
        let read = || {
            Ok(ExpertFacts {
                count: self.text.required("num_experts")?,
                used: self.text.required("top_k_experts")?,
                ff: self.text.required("moe_intermediate_size")?,
            })
        };
        enabled.then(read).transpose()
    }

    fn layers(&self) -> Result<Vec<LayerFacts>> {
        let text = self.text;
        let count = within("num_hidden_layers", self.sized("num_hidden_layers", 26)?, 1, MAX_LAYERS)?;
        let heads = self.sized("num_attention_heads", 8)?;
        let default_kv_heads = if self.family == Family::Gemma3 { 4 } else { heads };
        let kv_heads = text.u64("num_key_value_heads")?.unwrap_or(default_kv_heads);
        let ff = self.sized("intermediate_size", 9216)?;
        let head_dim = self.head_dim(heads)?;
        let gemma4 = matches!(self.family, Family::Gemma4 | Family::DiffusionGemma);
        let global_dim = if gemma4 { text.u64("global_head_dim")?.unwrap_or(512) } else { head_dim };
        let key_is_value = gemma4 && text.bool("attention_k_eq_v")?.unwrap_or(self.family == Family::DiffusionGemma);
        let global_kv_heads =
            if key_is_value { text.u64("num_global_key_value_heads")?.unwrap_or(kv_heads) } else { kv_heads };
        let wide = text.bool("use_double_wide_mlp")?.unwrap_or(false);
        let shared = text.u64("num_kv_shared_layers")?.unwrap_or(0);
        let overrides = text.object("per_layer_config")?;
        let mut layers = Vec::with_capacity(count);
        for (index, local) in self.local_layers(count)?.into_iter().enumerate() {
            let doubled = wide && index as u64 >= (count as u64).saturating_sub(shared);
            let mut layer = LayerFacts {
                local,
                heads,
                kv_heads: if local { kv_heads } else { global_kv_heads },
                head_dim: if local { head_dim } else { global_dim },
                ff: if doubled { ff.saturating_mul(2) } else { ff },
                value_from_key: key_is_value && !local,
            };
            if let Some(own) = overrides.map(|all| all.object(&index.to_string())).transpose()?.flatten() {
                layer.head_dim = own.u64("head_dim")?.unwrap_or(layer.head_dim);
                layer.kv_heads = own.u64("num_key_value_heads")?.unwrap_or(layer.kv_heads);
            }
            layers.push(layer);
        }
        Ok(layers)
    }

    fn head_dim(&self, heads: u64) -> Result<u64> {
        if let Some(dim) = self.text.u64("head_dim")? {
            return Ok(dim);
        }
        match self.family {
            Family::Llama => {}
            Family::Qwen3 => return Ok(128),
            _ => return Ok(256),
        }
        let hidden = self.text.required("hidden_size")?;
        match hidden.checked_div(heads) {
            Some(dim) if hidden.is_multiple_of(heads) => Ok(dim),
            _ => Err(FileError::invalid("hidden_size", format!("is {hidden}, not a multiple of {heads} heads"))),
        }
    }

    fn local_layers(&self, count: usize) -> Result<Vec<bool>> {
        if !self.family.is_gemma() {
            return Ok(vec![false; count]);
        }
        if let Some(types) = self.text.get("layer_types") {
            let wrong = || FileError::WrongType {
                key: "layer_types".into(),
                expected: "a list of sliding_attention and full_attention",
            };
            let types = types.as_array().ok_or_else(wrong)?;
            if types.len() != count {
                return Err(FileError::invalid(
                    "layer_types",
                    format!("has {} elements, expected {count}", types.len()),
                ));
            }
            let local = types.iter().map(|kind| match kind.as_str() {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(wrong()),
            });
            return local.collect();
        }
        let period =
            self.text.u64("sliding_window_pattern")?.or(self.text.u64("_sliding_window_pattern")?).unwrap_or(6);
        let period = within("sliding_window_pattern", period, 1, MAX_LAYERS)?;
        let mut local: Vec<_> = (1..=count).map(|number| !number.is_multiple_of(period)).collect();
        if self.family != Family::Gemma3 {
            local[count - 1] = false;
        }
        Ok(local)
    }

    /// The rotary embeddings of local and of global layers.
    fn ropes(&self) -> Result<(Rope, Rope)> {
        let text = self.text;
        let (theta, local_theta) = (text.f64("rope_theta")?, text.f64("rope_local_base_freq")?.unwrap_or(1e4));
        let default = theta.unwrap_or(if self.family.is_gemma() { 1e6 } else { 1e4 });
        let all = text.object("rope_parameters")?;
        let kind = |name| all.map(|all| all.object(name)).transpose().map(Option::flatten);
        let (local, global) = (kind("sliding_attention")?, kind("full_attention")?);
        let nested = local.is_some() || global.is_some();
        let local = local.map_or_else(|| Ok(Rope::plain(local_theta)), |fields| rope(fields, local_theta))?;
        let global = match (global, if nested { None } else { all }, text.object("rope_scaling")?) {
            (Some(fields), ..) | (None, Some(fields), _) | (None, None, Some(fields)) => rope(fields, default)?,
            (None, None, None) if matches!(self.family, Family::Gemma4 | Family::DiffusionGemma) => {
                Rope { theta: default, dims: None, scaling: Scaling::Proportional { fraction: 0.25, factor: 1.0 } }
            }
            (None, None, None) => Rope::plain(default),
        };
        Ok((local, global))
    }

    fn refuse_unsupported(&self) -> Result<()> {
        let text = self.text;
        let unsupported = |what: &str, found: String, supported| {
            Err(FileError::UnsupportedFeature { what: what.into(), found, supported })
        };
        for key in ["attention_bias", "mlp_bias"] {
            if text.bool(key)? == Some(true) {
                return unsupported(key, "true".into(), "false");
            }
        }
        if self.family == Family::Qwen3 {
            if text.bool("use_sliding_window")? == Some(true) {
                return unsupported("use_sliding_window", "true".into(), "false");
            }
            let kinds = text.get("layer_types").and_then(|kinds| kinds.as_array()).into_iter().flatten();
            if let Some(kind) = kinds.into_iter().find(|kind| kind.as_str() != Some("full_attention")) {
                return unsupported("layer type", kind.as_str().unwrap_or("?").to_owned(), "full_attention");
            }
        }
        if self.family == Family::Gemma3 && text.bool("use_bidirectional_attention")? == Some(true) {
            return unsupported("use_bidirectional_attention", "true".into(), "false");
        }
        if let Some(cap) = text.f64("attn_logit_softcapping")? {
            return unsupported("attn_logit_softcapping", cap.to_string(), "none");
        }
        if let Some(part) = text.f64("partial_rotary_factor")?.filter(|part| !self.family.is_gemma() && *part != 1.0) {
            return unsupported("partial_rotary_factor", part.to_string(), "1");
        }
        let expected = if self.family.is_gemma() { "gelu_pytorch_tanh" } else { "silu" };
        match text.str("hidden_activation")?.or(text.str("hidden_act")?) {
            Some(found) if found != expected => unsupported("activation", found.to_owned(), expected),
            _ => Ok(()),
        }
    }
}

fn rope(fields: Fields, default_theta: f64) -> Result<Rope> {
    let theta = fields.f64("rope_theta")?.unwrap_or(default_theta);
    let factor = || fields.f64("factor").map(|factor| factor.unwrap_or(1.0));
    let number = |key: &str| fields.f64(key)?.ok_or_else(|| FileError::MissingKey(key.to_owned()));
    let scaling = match fields.str("rope_type")?.or(fields.str("type")?).unwrap_or("default") {
        "default" => Scaling::None,
        "linear" => Scaling::Linear(factor()?),
        "proportional" => {
            Scaling::Proportional { fraction: fields.f64("partial_rotary_factor")?.unwrap_or(1.0), factor: factor()? }
        }
        "llama3" => Scaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        },
        other => {
            let supported = "default, linear, proportional, llama3";
            return Err(FileError::UnsupportedFeature { what: "rope type".into(), found: other.to_owned(), supported });
        }
    };
    Ok(Rope { theta, dims: None, scaling })
}
