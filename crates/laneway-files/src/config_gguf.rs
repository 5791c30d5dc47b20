use crate::{
    Family, FileError, Metadata, ModelConfig, Result, RopePairs, Value, diffusion,
    error::within,
    facts::{ExpertFacts, Facts, LayerFacts, MAX_LAYERS},
    rope::{Rope, Scaling},
    weights::Tensors,
};

const ARCHITECTURES: &str = "llama, qwen3, gemma3, gemma4, diffusion-gemma, llada";
/// Gemma 3 27B, the one size whose scores are not scaled by the head's width.
const GEMMA3_27B_LAYERS: usize = 62;
/// One divisor per pair of the widest head.
const MAX_DIVISORS: usize = 2048;

/// Derives the configuration of a GGUF file from its metadata and the tensors that are there.
pub(crate) fn read(metadata: &Metadata, tensors: &Tensors) -> Result<ModelConfig> {
    let arch =
        metadata.str("general.architecture")?.ok_or_else(|| FileError::MissingKey("general.architecture".into()))?;
    let family = match arch {
        "llama" | "llada" => Family::Llama,
        "qwen3" => Family::Qwen3,
        "gemma3" => Family::Gemma3,
        "gemma4" => Family::Gemma4,
        "diffusion-gemma" => Family::DiffusionGemma,
        "dream" | "qwen2" => return Err(diffusion::biased(arch)),
        _ => {
            return Err(FileError::UnsupportedArchitecture { found: arch.to_owned(), supported: ARCHITECTURES });
        }
    };
    if let Some(count @ 2..) = metadata.u64("split.count")? {
        let found = format!("one of {count} parts");
        return Err(FileError::UnsupportedFeature {
            what: "GGUF file".into(),
            found,
            supported: "whole files; merge the parts first",
        });
    }
    Reader { metadata, tensors, arch, family }.facts()?.build()
}

struct Reader<'a> {
    metadata: &'a Metadata,
    tensors: &'a Tensors,
    arch: &'a str,
    family: Family,
}

impl Reader<'_> {
    fn facts(&self) -> Result<Facts> {
        self.refuse_unsupported()?;
        let layers = within(&self.key("block_count"), self.required("block_count")?, 1, MAX_LAYERS)?;
        let hidden = self.required("embedding_length")?;
        let heads = self.per_layer("attention.head_count", layers)?;
        let experts = match self.optional("expert_count")? {
            None | Some(0) => None,
            Some(count) => Some(ExpertFacts {
                count,
                used: self.required("expert_used_count")?,
                ff: self.required("expert_feed_forward_length")?,
            }),
        };
        let uses_ratio = self.family == Family::Gemma3 && layers == GEMMA3_27B_LAYERS;
        Ok(Facts {
            family: self.family,
            name: self.metadata.str("general.name")?.unwrap_or_default().to_owned(),
            vocab: self.vocab()?,
            hidden,
            context: self.required("context_length")?,
            eps: self
                .number("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| self.missing("attention.layer_norm_rms_epsilon"))?,
            softcap: self.number("final_logit_softcapping")?,
            norm_offset: 0.0,
            rope_pairs: if self.family == Family::Llama { RopePairs::Interleaved } else { RopePairs::Half },
            tied_head: self.tensors.get("output.weight").is_none(),
            per_layer_input: self.optional("embedding_length_per_layer_input")?.unwrap_or(0),
            experts,
            layers: self.layers(hidden, &heads)?,
            window: self.optional("attention.sliding_window")?,
            shared_kv: self.optional("attention.shared_kv_layers")?.unwrap_or(0),
            local_rope: Rope {
                theta: self.number("rope.freq_base_swa")?.unwrap_or(1e4),
                dims: self.optional("rope.dimension_count_swa")?,
                scaling: Scaling::None,
            },
            global_rope: self.global_rope()?,
            query_scalar: uses_ratio.then(|| hidden as f64 / heads[0].max(1) as f64),
            diffusion: diffusion::from_metadata(self.metadata, self.arch, self.family)?,
        })
    }

    fn layers(&self, hidden: u64, heads: &[u64]) -> Result<Vec<LayerFacts>> {
        let kv_heads = match self.metadata.get(&self.key("attention.head_count_kv")) {
            Some(_) => self.per_layer("attention.head_count_kv", heads.len())?,
            None => heads.to_vec(),
        };
        let ff = self.per_layer("feed_forward_length", heads.len())?;
        let local = self.local_layers(heads.len())?;
        let global_dim = self.head_dim("key_length", "value_length")?;
        let local_dim = self.head_dim("key_length_swa", "value_length_swa")?.or(global_dim);
        let mut layers = Vec::with_capacity(heads.len());
        for (index, &heads) in heads.iter().enumerate() {
            let stated = if local[index] { local_dim } else { global_dim };
            let head_dim = match stated {
                Some(dim) => dim,
                None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
                None => {
                    return Err(FileError::invalid(
                        self.key("embedding_length"),
                        format!("is {hidden}, not a multiple of {heads} heads"),
                    ));
                }
            };
            let (kv_heads, ff) = (kv_heads[index], ff[index]);
            let value_from_key = self.value_from_key(index, heads, kv_heads, head_dim);
            layers.push(LayerFacts { local: local[index], heads, kv_heads, head_dim, ff, value_from_key });
        }
        Ok(layers)
    }

    /// Gemma 4 files leave `attn_v` out, or the fused tensor's value rows, where the key is the value.
    fn value_from_key(&self, layer: usize, heads: u64, kv_heads: u64, head_dim: u64) -> bool {
        let tensor = |part: &str| self.tensors.get(&format!("blk.{layer}.{part}.weight"));
        if !matches!(self.family, Family::Gemma4 | Family::DiffusionGemma) || tensor("attn_v").is_some() {
            return false;
        }
        let rows = kv_heads.saturating_mul(2).saturating_add(heads).saturating_mul(head_dim);
        tensor("attn_qkv").is_none_or(|fused| (fused.rows() as u64) < rows)
    }

    fn local_layers(&self, layers: usize) -> Result<Vec<bool>> {
        let key = self.key("attention.sliding_window_pattern");
        let period = match (self.family, self.metadata.get(&key)) {
            (Family::Llama | Family::Qwen3, _) => return Ok(vec![false; layers]),
            (_, Some(Value::Array(_))) => {
                let pattern = self.metadata.bools(&key)?.unwrap_or_default();
                self.check_length(&key, pattern.len(), layers)?;
                return Ok(pattern.to_vec());
            }
            (_, Some(_)) => within(&key, self.required("attention.sliding_window_pattern")?, 1, MAX_LAYERS)?,
            (Family::Gemma3, None) => 6,
            (_, None) => return Err(FileError::MissingKey(key)),
        };
        Ok((1..=layers).map(|number| !number.is_multiple_of(period)).collect())
    }

    fn global_rope(&self) -> Result<Rope> {
        let default = if self.family.is_gemma() { 1e6 } else { 1e4 };
        let theta = self.number("rope.freq_base")?.unwrap_or(default);
        let dims = self.optional("rope.dimension_count")?;
        let kind = self.key("rope.scaling.type");
        let scaling = match (self.tensors.get("rope_freqs.weight"), self.metadata.str(&kind)?.unwrap_or("none")) {
            (Some(divisors), "none") if divisors.len() <= MAX_DIVISORS => Scaling::Divisors(divisors.to_f32()),
            (Some(_), "none") => {
                return Err(FileError::invalid("rope_freqs.weight", "is longer than any head"));
            }
            (None, "none") => Scaling::None,
            (None, "linear") => Scaling::Linear(self.number("rope.scaling.factor")?.unwrap_or(1.0)),
            (_, found) => {
                let supported = "none, or linear without rope_freqs.weight";
                return Err(FileError::UnsupportedFeature { what: kind, found: found.to_owned(), supported });
            }
        };
        Ok(Rope { theta, dims, scaling })
    }

    fn refuse_unsupported(&self) -> Result<()> {
        let plain = !self.family.is_gemma();
        if plain && self.optional("expert_count")?.is_some_and(|count| count > 0) {
            return Err(FileError::UnsupportedFeature {
                what: self.arch.into(),
                found: "experts".into(),
                supported: "dense models",
            });
        }
        if let (Family::Qwen3, Some(window @ 1..)) = (self.family, self.optional("attention.sliding_window")?) {
            let (what, found) = (self.key("attention.sliding_window"), window.to_string());
            return Err(FileError::UnsupportedFeature { what, found, supported: "none" });
        }
        let biased =
            ["blk.0.attn_q.bias", "blk.0.ffn_up.bias"].into_iter().find(|name| self.tensors.get(name).is_some());
        if let Some(name) = biased {
            return Err(FileError::UnsupportedFeature {
                what: "tensor".into(),
                found: name.into(),
                supported: "layers without biases",
            });
        }
        for (kind, wants) in
            [("rope.dimension_count", "attention.key_length"), ("rope.dimension_count_swa", "attention.key_length_swa")]
        {
            let (Some(dims), Some(head)) = (self.optional(kind)?, self.optional(wants)?) else {
                continue;
            };
            if self.family != Family::Llama && dims != head {
                let found = format!("{dims} of {head}");
                return Err(FileError::UnsupportedFeature {
                    what: self.key(kind),
                    found,
                    supported: "rotation of the whole head",
                });
            }
        }
        Ok(())
    }

    fn head_dim(&self, key_length: &str, value_length: &str) -> Result<Option<u64>> {
        let key = self.optional(&format!("attention.{key_length}"))?;
        let value = self.optional(&format!("attention.{value_length}"))?;
        match (key, value) {
            (Some(key), Some(value)) if key != value => {
                let what = self.key(&format!("attention.{value_length}"));
                Err(FileError::invalid(what, format!("is {value}, expected {key_length} {key}")))
            }
            _ => Ok(key),
        }
    }

    fn vocab(&self) -> Result<u64> {
        if let Some(embedding) = self.tensors.get("token_embd.weight") {
            return Ok(embedding.rows() as u64);
        }
        self.optional("vocab_size")?.ok_or_else(|| FileError::MissingTensor("token_embd.weight".into()))
    }

    fn per_layer(&self, name: &str, layers: usize) -> Result<Vec<u64>> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(vec![self.required(name)?; layers]);
        }
        let values = self.metadata.u64s(&key)?.unwrap_or_default();
        self.check_length(&key, values.len(), layers)?;
        Ok(values)
    }

    fn check_length(&self, key: &str, found: usize, layers: usize) -> Result<()> {
        if found == layers {
            return Ok(());
        }
        Err(FileError::invalid(key, format!("has {found} elements, expected one for each of {layers} layers")))
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn missing(&self, name: &str) -> FileError {
        FileError::MissingKey(self.key(name))
    }

    fn optional(&self, name: &str) -> Result<Option<u64>> {
        self.metadata.u64(&self.key(name))
    }

    fn required(&self, name: &str) -> Result<u64> {
        self.optional(name)?.ok_or_else(|| self.missing(name))
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.metadata.f64(&self.key(name))
    }
}
