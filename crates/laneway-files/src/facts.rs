use crate::{
    Activation, DiffusionConfig, Experts, Family, FileError, LayerConfig, ModelConfig, Noise, Result, RopeConfig,
    RopePairs, error::within, rope::Rope,
};

/// More than any known model by a wide margin, little enough that nothing sized by them can exhaust memory.
pub(crate) const MAX_LAYERS: u64 = 1024;
const MAX_HEADS: u64 = 1024;
const MAX_HEAD_DIM: u64 = 4096;
const MAX_WIDTH: u64 = 1 << 20;
const MAX_FF: u64 = 1 << 22;
const MAX_VOCAB: u64 = 1 << 24;
const MAX_CONTEXT: u64 = 1 << 30;
const MAX_EXPERTS: u64 = 1 << 16;

/// What both kinds of file say about a model, unchecked; [`Facts::build`] checks it and derives the rest.
pub(crate) struct Facts {
    pub family: Family,
    pub name: String,
    pub vocab: u64,
    pub hidden: u64,
    pub context: u64,
    pub eps: f64,
    pub softcap: Option<f64>,
    pub norm_offset: f32,
    pub rope_pairs: RopePairs,
    pub tied_head: bool,
    pub per_layer_input: u64,
    pub experts: Option<ExpertFacts>,
    pub layers: Vec<LayerFacts>,
    pub window: Option<u64>,
    /// The last layers, which use an earlier layer's keys and values.
    pub shared_kv: u64,
    pub local_rope: Rope,
    pub global_rope: Rope,
    /// Scores are divided by this number's root; the head's width when `None`.
    pub query_scalar: Option<f64>,
    /// How a diffusion model is run, its mask not yet compared with the vocabulary.
    pub diffusion: Option<DiffusionConfig>,
}

pub(crate) struct ExpertFacts {
    pub count: u64,
    pub used: u64,
    pub ff: u64,
}

pub(crate) struct LayerFacts {
    pub local: bool,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub ff: u64,
    pub value_from_key: bool,
}

impl Facts {
    pub fn build(self) -> Result<ModelConfig> {
        let gemma = self.family.is_gemma();
        let hidden_size = within("hidden size", self.hidden, 1, MAX_WIDTH)?;
        let rms_eps = self.eps as f32;
        if !(rms_eps > 0.0 && rms_eps < 1.0) {
            return Err(FileError::invalid(
                "rms norm epsilon",
                format!("is {}, expected more than 0 and less than 1", self.eps),
            ));
        }
        let final_softcap = self.softcap.map(|cap| cap as f32);
        if let Some(cap) = final_softcap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return Err(FileError::invalid("final soft-cap", format!("is {cap}, expected more than 0")));
        }
        let vocab_size = within("vocabulary size", self.vocab, 1, MAX_VOCAB)?;
        if let Some(mask) = self.diffusion.map(|diffusion| diffusion.noise).and_then(Noise::mask) {
            within("mask token", mask.into(), 0, vocab_size as u64 - 1)?;
        }
        Ok(ModelConfig {
            vocab_size,
            hidden_size,
            context_length: within("context length", self.context, 1, MAX_CONTEXT)?,
            rms_eps,
            embedding_scale: if gemma { (hidden_size as f32).sqrt() } else { 1.0 },
            final_softcap,
            per_layer_input: within("per-layer input width", self.per_layer_input, 0, MAX_WIDTH)?,
            experts: self.experts.as_ref().map(ExpertFacts::check).transpose()?,
            layers: self.layers()?,
            diffusion: self.diffusion,
            gated_activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            family: self.family,
            name: self.name,
            norm_offset: self.norm_offset,
            rope_pairs: self.rope_pairs,
            tied_head: self.tied_head,
        })
    }

    fn layers(&self) -> Result<Vec<LayerConfig>> {
        let count = within("layer count", self.layers.len() as u64, 1, MAX_LAYERS)?;
        let shared = within("shared KV layer count", self.shared_kv, 0, count as u64 - 1)?;
        let mut layers: Vec<LayerConfig> = Vec::new();
        for (index, facts) in self.layers.iter().enumerate() {
            let mut layer = self.layer(facts, index).map_err(|error| match error {
                FileError::OutOfRange { what, value, min, max } => {
                    FileError::OutOfRange { what: format!("{what} of layer {index}"), value, min, max }
                }
                other => other,
            })?;
            if index >= count - shared {
                let source = (0..count - shared).rev().find(|&other| self.layers[other].local == facts.local);
                let what = || format!("layer {index}");
                let source = source
                    .ok_or_else(|| FileError::invalid(what(), "has no earlier layer to share keys and values with"))?;
                if (layers[source].kv_heads, layers[source].head_dim) != (layer.kv_heads, layer.head_dim) {
                    return Err(FileError::invalid(
                        what(),
                        format!("has other KV heads than layer {source}, whose it shares"),
                    ));
                }
                (layer.kv_layer, layer.value_from_key) = (source, layers[source].value_from_key);
            }
            layers.push(layer);
        }
        Ok(layers)
    }

    fn layer(&self, facts: &LayerFacts, index: usize) -> Result<LayerConfig> {
        let heads = within("head count", facts.heads, 1, MAX_HEADS)?;
        let kv_heads = within("KV head count", facts.kv_heads, 1, MAX_HEADS)?;
        let head_dim = within("head width", facts.head_dim, 2, MAX_HEAD_DIM)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(FileError::invalid(
                format!("layer {index}"),
                format!("has {heads} heads, not a multiple of {kv_heads} KV heads"),
            ));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(FileError::invalid(
                format!("layer {index}"),
                format!("has the head width {head_dim}, expected an even number"),
            ));
        }
        let window = match (facts.local, self.window) {
            (false, _) => None,
            (true, Some(window)) => Some(within("sliding window", window, 1, MAX_CONTEXT)?),
            (true, None) => return Err(FileError::MissingKey("sliding_window".into())),
        };
        let rope = if facts.local { &self.local_rope } else { &self.global_rope };
        let unscaled = matches!(self.family, Family::Gemma4 | Family::DiffusionGemma);
        Ok(LayerConfig {
            window,
            heads,
            kv_heads,
            head_dim,
            ff: within("feed-forward width", facts.ff, 1, MAX_FF)?,
            rope: RopeConfig { inv_freq: rope.inv_freq(head_dim)? },
            score_scale: if unscaled { 1.0 } else { self.score_scale(head_dim)? },
            has_qk_norm: self.family != Family::Llama,
            unit_value_norm: unscaled,
            value_from_key: facts.value_from_key,
            kv_layer: index,
            has_experts: self.experts.is_some(),
        })
    }

    fn score_scale(&self, head_dim: usize) -> Result<f32> {
        let scalar = self.query_scalar.unwrap_or(head_dim as f64);
        let scale = scalar.sqrt().recip() as f32;
        if !(scale.is_finite() && scale > 0.0) {
            return Err(FileError::invalid("query_pre_attn_scalar", format!("is {scalar}, expected more than 0")));
        }
        Ok(scale)
    }
}

impl ExpertFacts {
    fn check(&self) -> Result<Experts> {
        let count = within("expert count", self.count, 1, MAX_EXPERTS)?;
        Ok(Experts {
            count,
            used: within("used expert count", self.used, 1, count as u64)?,
            ff: within("expert width", self.ff, 1, MAX_FF)?,
        })
    }
}
