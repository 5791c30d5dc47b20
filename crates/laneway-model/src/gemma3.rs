use crate::loader::Loader;
use crate::{Attention, ModelError, Ops, Residual, WeightSpace};
use laneway_files::{LayerConfig, ModelConfig};
use std::ops::Range;

/// Gemma 3 text: norms before and after each block, head norms, local and global layers.
pub(crate) struct Gemma3<S: WeightSpace> {
    /// Number of the first layer.
    first: usize,
    layers: Vec<Layer<S>>,
    /// Absent where another stage goes on.
    output_norm: Option<S::Vector>,
}

struct Layer<S: WeightSpace> {
    attn_norm: S::Vector,
    qkv: S::Matrix,
    q_norm: S::Vector,
    k_norm: S::Vector,
    inv_freq: S::Vector,
    output: S::Matrix,
    post_attention_norm: S::Vector,
    ffn_norm: S::Vector,
    gate_up: S::Matrix,
    down: S::Matrix,
    post_ffw_norm: S::Vector,
}

impl<S: WeightSpace> Gemma3<S> {
    pub fn load(loader: &mut Loader<'_, S>, span: Range<usize>) -> Result<Self, ModelError> {
        let hidden = loader.config().hidden_size;
        let mut layers = Vec::new();
        for index in span.clone() {
            let config = loader.layer(index);
            layers.push(Layer {
                attn_norm: loader.norm("attn_norm.weight", hidden)?,
                qkv: loader.qkv(config, true)?,
                q_norm: loader.norm("attn_q_norm.weight", config.head_dim)?,
                k_norm: loader.norm("attn_k_norm.weight", config.head_dim)?,
                inv_freq: loader.inv_freq(config)?,
                output: loader.matrix("attn_output.weight", [hidden, config.heads * config.head_dim])?,
                post_attention_norm: loader.norm("post_attention_norm.weight", hidden)?,
                ffn_norm: loader.norm("ffn_norm.weight", hidden)?,
                gate_up: loader.gate_up(config.ff)?,
                down: loader.matrix("ffn_down.weight", [hidden, config.ff])?,
                post_ffw_norm: loader.norm("post_ffw_norm.weight", hidden)?,
            });
        }
        let is_last = span.end == loader.config().layers.len();
        loader.model();
        let output_norm = if is_last { Some(loader.norm("output_norm.weight", hidden)?) } else { None };
        Ok(Self { first: span.start, layers, output_norm })
    }

    pub fn forward<O: Ops<Space = S>>(&self, config: &ModelConfig, embed: Option<&S::Matrix>, ops: &mut O) -> O::Act {
        let residual = |post| Residual { post: Some(post), scale: 1.0, eps: config.rms_eps };
        let mut x = match embed {
            Some(embed) => ops.embed(embed, config.embedding_scale),
            None => ops.boundary(config.hidden_size),
        };
        let mut h = ops.norm(&x, config.hidden_size, config.rms_eps, Some(&self.layers[0].attn_norm));
        for (at, layer) in self.layers.iter().enumerate() {
            let index = self.first + at;
            ops.observe(index, &x);
            let qkv = ops.linear(&h, &layer.qkv);
            let a = ops.attention(&qkv, &layer.attention(index, &config.layers[index], config));
            let a = ops.linear(&a, &layer.output);
            h = ops.add_norm(&mut x, &a, residual(&layer.post_attention_norm), &layer.ffn_norm);
            let m = ops.gated_linear(&h, &layer.gate_up, config.gated_activation);
            let m = ops.linear(&m, &layer.down);
            let next = self.layers.get(at + 1).map(|l| &l.attn_norm).or(self.output_norm.as_ref());
            let Some(next) = next else {
                ops.add(&mut x, &m, residual(&layer.post_ffw_norm));
                return x;
            };
            h = ops.add_norm(&mut x, &m, residual(&layer.post_ffw_norm), next);
        }
        ops.observe(self.first + self.layers.len(), &h);
        h
    }
}

impl<S: WeightSpace> Layer<S> {
    fn attention(&self, index: usize, layer: &LayerConfig, config: &ModelConfig) -> Attention<'_, S::Vector> {
        Attention {
            kv_layer: index,
            writes_kv: true,
            heads: layer.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            window: layer.window,
            scale: layer.score_scale,
            eps: config.rms_eps,
            q_norm: Some(&self.q_norm),
            k_norm: Some(&self.k_norm),
            unit_value_norm: false,
            value_from_key: false,
            inv_freq: &self.inv_freq,
            pairs: config.rope_pairs,
        }
    }
}
