use crate::loader::Loader;
use crate::{Attention, ModelError, Ops, Residual, WeightSpace};
use laneway_files::{LayerConfig, ModelConfig};

/// Llama, SmolLM2 and LLaDA: pre-norm blocks and a silu-gated MLP; Qwen 3 adds head norms of queries and keys.
pub(crate) struct Llama<S: WeightSpace> {
    layers: Vec<Layer<S>>,
    output_norm: S::Vector,
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
    pub fn load(loader: &mut Loader<'_, S>) -> Result<Self, ModelError> {
        let hidden = loader.config().hidden_size;
        let mut layers = Vec::new();
        for index in 0..loader.config().layers.len() {
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
        loader.model();
        Ok(Self { layers, output_norm: loader.norm("output_norm.weight", hidden)? })
    }

    pub fn forward<O: Ops<Space = S>>(&self, config: &ModelConfig, embed: &S::Matrix, ops: &mut O) -> O::Act {
        let residual = Residual { post: None, scale: 1.0, eps: config.rms_eps };
        let mut x = ops.embed(embed, config.embedding_scale);
        let mut h = ops.norm(&x, config.hidden_size, config.rms_eps, Some(&self.layers[0].attn_norm));
        for (index, layer) in self.layers.iter().enumerate() {
            ops.observe(index, &x);
            let qkv = ops.linear(&h, &layer.qkv);
            let a = ops.attention(&qkv, &layer.attention(index, &config.layers[index], config));
            let a = ops.linear(&a, &layer.output);
            h = ops.add_norm(&mut x, &a, residual, &layer.ffn_norm);
            let m = ops.gated_linear(&h, &layer.gate_up, config.gated_activation);
            let m = ops.linear(&m, &layer.down);
            let next = self.layers.get(index + 1).map_or(&self.output_norm, |l| &l.attn_norm);
            h = ops.add_norm(&mut x, &m, residual, next);
        }
        ops.observe(self.layers.len(), &h);
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
