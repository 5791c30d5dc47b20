use crate::loader::Loader;
use crate::{Attention, ModelError, Ops, Residual, WeightSpace};
use laneway_files::{LayerConfig, ModelConfig};
use std::ops::Range;

/// Llama, SmolLM2 and LLaDA: pre-norm blocks and a silu-gated MLP; Qwen 3 adds head norms of queries and keys.
pub(crate) struct Llama<S: WeightSpace> {
    /// Number of the first layer.
    first: usize,
    layers: Vec<Layer<S>>,
    /// Absent where another stage goes on.
    output_norm: Option<S::Vector>,
}

struct Layer<S: WeightSpace> {
    attn_norm: S::Vector,
    qkv: S::Matrix,
    head_norms: Option<[S::Vector; 2]>,
    inv_freq: S::Vector,
    output: S::Matrix,
    ffn_norm: S::Vector,
    gate_up: S::Matrix,
    down: S::Matrix,
}

impl<S: WeightSpace> Llama<S> {
    pub fn load(loader: &mut Loader<'_, S>, span: Range<usize>) -> Result<Self, ModelError> {
        let hidden = loader.config().hidden_size;
        let mut layers = Vec::new();
        for index in span.clone() {
            let config = loader.layer(index);
            layers.push(Layer {
                attn_norm: loader.norm("attn_norm.weight", hidden)?,
                qkv: loader.qkv(config, true)?,
                head_norms: if config.has_qk_norm {
                    let mut norm = |name| loader.norm(name, config.head_dim);
                    Some([norm("attn_q_norm.weight")?, norm("attn_k_norm.weight")?])
                } else {
                    None
                },
                inv_freq: loader.inv_freq(config)?,
                output: loader.matrix("attn_output.weight", [hidden, config.heads * config.head_dim])?,
                ffn_norm: loader.norm("ffn_norm.weight", hidden)?,
                gate_up: loader.gate_up(config.ff)?,
                down: loader.matrix("ffn_down.weight", [hidden, config.ff])?,
            });
        }
        let is_last = span.end == loader.config().layers.len();
        loader.model();
        let output_norm = if is_last { Some(loader.norm("output_norm.weight", hidden)?) } else { None };
        Ok(Self { first: span.start, layers, output_norm })
    }

    pub fn forward<O: Ops<Space = S>>(&self, config: &ModelConfig, embed: Option<&S::Matrix>, ops: &mut O) -> O::Act {
        let residual = Residual { post: None, scale: 1.0, eps: config.rms_eps };
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
            h = ops.add_norm(&mut x, &a, residual, &layer.ffn_norm);
            let m = ops.gated_linear(&h, &layer.gate_up, config.gated_activation);
            let m = ops.linear(&m, &layer.down);
            let next = self.layers.get(at + 1).map(|l| &l.attn_norm).or(self.output_norm.as_ref());
            let Some(next) = next else {
                ops.add(&mut x, &m, residual);
                return x;
            };
            h = ops.add_norm(&mut x, &m, residual, next);
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
            q_norm: self.head_norms.as_ref().map(|[q, _]| q),
            k_norm: self.head_norms.as_ref().map(|[_, k]| k),
            unit_value_norm: false,
            value_from_key: false,
            inv_freq: &self.inv_freq,
            pairs: config.rope_pairs,
        }
    }
}
