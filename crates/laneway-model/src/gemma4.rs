use crate::loader::Loader;
use crate::{Attention, ExpertShape, ModelError, Ops, Pass, Residual, WeightSpace};
use laneway_files::{LayerConfig, ModelConfig};
use std::ops::Range;

/// Gemma 4: Gemma 3's block with unit-normed values, layer scalars, shared keys and values, and, where the file has
/// them, experts beside the dense MLP and per-layer embeddings.
///
/// DiffusionGemma is the same stack with two ways to run it: [`Pass::Encode`] is Gemma 4 itself, [`Pass::Denoise`] adds
/// a self-conditioning block at the entrance and has layer scalars of its own.
pub(crate) struct Gemma4<S: WeightSpace> {
    /// Number of the first layer.
    first: usize,
    layers: Vec<Layer<S>>,
    /// Absent where another stage goes on.
    output_norm: Option<S::Vector>,
    per_layer: Option<PerLayerInputs<S>>,
    self_conditioning: Option<SelfConditioning<S>>,
}

struct SelfConditioning<S: WeightSpace> {
    pre_norm: S::Vector,
    gate_up: S::Matrix,
    down: S::Matrix,
}

struct Layer<S: WeightSpace> {
    attn_norm: S::Vector,
    qkv: S::Matrix,
    q_norm: S::Vector,
    k_norm: Option<S::Vector>,
    inv_freq: S::Vector,
    output: S::Matrix,
    post_attention_norm: S::Vector,
    ffn_norm: S::Vector,
    gate_up: S::Matrix,
    down: S::Matrix,
    experts: Option<Experts<S>>,
    post_ffw_norm: S::Vector,
    per_layer_gate: Option<PerLayerGate<S>>,
    encode_scalar: f32,
    denoise_scalar: f32,
}

struct Experts<S: WeightSpace> {
    shape: ExpertShape,
    router_scale: S::Vector,
    router: S::Matrix,
    expert_scale: Option<S::Vector>,
    pre_norm: S::Vector,
    gate_up: S::Matrix,
    down: S::Matrix,
    post_norm: S::Vector,
    dense_post_norm: S::Vector,
}

struct PerLayerInputs<S: WeightSpace> {
    embed: S::Matrix,
    projection: S::Matrix,
    norm: S::Vector,
}

struct PerLayerGate<S: WeightSpace> {
    gate: S::Matrix,
    projection: S::Matrix,
    post_norm: S::Vector,
}

impl<S: WeightSpace> Gemma4<S> {
    pub fn load(loader: &mut Loader<'_, S>, span: Range<usize>) -> Result<Self, ModelError> {
        let config = loader.config();
        let (hidden, p, count) = (config.hidden_size, config.per_layer_input, config.layers.len());
        let layers = span.clone().map(|index| Layer::load(loader, index)).collect::<Result<Vec<_>, _>>()?;
        loader.model();
        let per_layer = if p > 0 {
            Some(PerLayerInputs {
                embed: loader.matrix("per_layer_token_embd.weight", [config.vocab_size, count * p])?,
                projection: loader.matrix("per_layer_model_proj.weight", [count * p, hidden])?,
                norm: loader.norm("per_layer_proj_norm.weight", p)?,
            })
        } else {
            None
        };
        let is_conditioned = config.diffusion.is_some_and(|diffusion| diffusion.self_conditioning);
        let self_conditioning = if is_conditioned { Some(SelfConditioning::load(loader)?) } else { None };
        let output_norm = if span.end == count { Some(loader.norm("output_norm.weight", hidden)?) } else { None };
        Ok(Self { first: span.start, layers, output_norm, per_layer, self_conditioning })
    }

    pub fn forward<O: Ops<Space = S>>(
        &self,
        config: &ModelConfig,
        embed: Option<&S::Matrix>,
        pass: Pass,
        ops: &mut O,
    ) -> O::Act {
        let (hidden, eps) = (config.hidden_size, config.rms_eps);
        let post = |norm, scale| Residual { post: Some(norm), scale, eps };
        let mut x = match embed {
            Some(embed) => ops.embed(embed, config.embedding_scale),
            None => ops.boundary(hidden),
        };
        if let (Pass::Denoise, Some(conditioning)) = (pass, &self.self_conditioning) {
            x = conditioning.forward(config, x, ops);
        }
        let per_layer = self.per_layer.as_ref().map(|inputs| inputs.forward(config, &x, ops));
        let mut h = ops.norm(&x, hidden, eps, Some(&self.layers[0].attn_norm));
        for (at, layer) in self.layers.iter().enumerate() {
            let index = self.first + at;
            ops.observe(index, &x);
            let qkv = ops.linear(&h, &layer.qkv);
            let a = ops.attention(&qkv, &layer.attention(index, &config.layers[index], config));
            let a = ops.linear(&a, &layer.output);
            h = ops.add_norm(&mut x, &a, post(&layer.post_attention_norm, 1.0), &layer.ffn_norm);
            let m = ops.gated_linear(&h, &layer.gate_up, config.gated_activation);
            let mut f = ops.linear(&m, &layer.down);
            if let Some(experts) = &layer.experts {
                let e = experts.forward(config, &x, ops);
                f = ops.norm(&f, hidden, eps, Some(&experts.dense_post_norm));
                ops.add(&mut f, &e, post(&experts.post_norm, 1.0));
            }
            let scalar = match pass {
                Pass::Encode => layer.encode_scalar,
                Pass::Denoise => layer.denoise_scalar,
            };
            let next = self.layers.get(at + 1).map(|l| &l.attn_norm).or(self.output_norm.as_ref());
            let Some(next) = next else {
                // Models with per-layer inputs are not split.
                ops.add(&mut x, &f, post(&layer.post_ffw_norm, scalar));
                return x;
            };
            h = match (&layer.per_layer_gate, &per_layer) {
                (Some(gate), Some(inputs)) => {
                    ops.add(&mut x, &f, post(&layer.post_ffw_norm, 1.0));
                    let g = ops.linear(&x, &gate.gate);
                    let g = ops.gate(&g, inputs, index * config.per_layer_input, config.gated_activation);
                    let g = ops.linear(&g, &gate.projection);
                    ops.add_norm(&mut x, &g, post(&gate.post_norm, scalar), next)
                }
                _ => ops.add_norm(&mut x, &f, post(&layer.post_ffw_norm, scalar), next),
            };
        }
        ops.observe(self.first + self.layers.len(), &h);
        h
    }
}

impl<S: WeightSpace> SelfConditioning<S> {
    fn load(loader: &mut Loader<'_, S>) -> Result<Self, ModelError> {
        let hidden = loader.config().hidden_size;
        // No configuration gives this block's width.
        let ff = loader.rows("self_cond_gate.weight")?;
        let gate = loader.tensor("self_cond_gate.weight", &[ff, hidden])?;
        let up = loader.tensor("self_cond_up.weight", &[ff, hidden])?;
        Ok(Self {
            pre_norm: loader.norm("self_cond_pre_norm.weight", hidden)?,
            gate_up: loader.space.matrix(&[gate, up])?,
            down: loader.matrix("self_cond_down.weight", [hidden, ff])?,
        })
    }

    /// `unitRMS(x + MLP(norm(soft)))`, where `soft` is what the last pass predicted.
    fn forward<O: Ops<Space = S>>(&self, config: &ModelConfig, mut x: O::Act, ops: &mut O) -> O::Act {
        let (hidden, eps) = (config.hidden_size, config.rms_eps);
        let soft = ops.condition(hidden);
        let n = ops.norm(&soft, hidden, eps, Some(&self.pre_norm));
        let y = ops.gated_linear(&n, &self.gate_up, config.gated_activation);
        let y = ops.linear(&y, &self.down);
        ops.add(&mut x, &y, Residual { post: None, scale: 1.0, eps });
        ops.norm(&x, hidden, eps, None)
    }
}

impl<S: WeightSpace> Layer<S> {
    fn load(loader: &mut Loader<'_, S>, index: usize) -> Result<Self, ModelError> {
        let model = loader.config();
        let (hidden, p) = (model.hidden_size, model.per_layer_input);
        let config = loader.layer(index);
        let owns_kv = config.kv_layer == index;
        let denoise_scalar = loader.scalar("layer_output_scale.weight")?;
        let encoder_scalar = "enc_layer_output_scale.weight";
        let encode_scalar = if loader.has(encoder_scalar) { loader.scalar(encoder_scalar)? } else { denoise_scalar };
        Ok(Self {
            attn_norm: loader.norm("attn_norm.weight", hidden)?,
            qkv: loader.qkv(config, owns_kv)?,
            q_norm: loader.norm("attn_q_norm.weight", config.head_dim)?,
            k_norm: if owns_kv { Some(loader.norm("attn_k_norm.weight", config.head_dim)?) } else { None },
            inv_freq: loader.inv_freq(config)?,
            output: loader.matrix("attn_output.weight", [hidden, config.heads * config.head_dim])?,
            post_attention_norm: loader.norm("post_attention_norm.weight", hidden)?,
            ffn_norm: loader.norm("ffn_norm.weight", hidden)?,
            gate_up: loader.gate_up(config.ff)?,
            down: loader.matrix("ffn_down.weight", [hidden, config.ff])?,
            experts: if config.has_experts { Experts::load(loader)? } else { None },
            post_ffw_norm: loader.norm("post_ffw_norm.weight", hidden)?,
            per_layer_gate: if p > 0 {
                Some(PerLayerGate {
                    gate: loader.matrix("inp_gate.weight", [p, hidden])?,
                    projection: loader.matrix("proj.weight", [hidden, p])?,
                    post_norm: loader.norm("post_norm.weight", hidden)?,
                })
            } else {
                None
            },
            encode_scalar,
            denoise_scalar,
        })
    }

    fn attention(&self, index: usize, layer: &LayerConfig, config: &ModelConfig) -> Attention<'_, S::Vector> {
        Attention {
            kv_layer: layer.kv_layer,
            writes_kv: layer.kv_layer == index,
            heads: layer.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            window: layer.window,
            scale: layer.score_scale,
            eps: config.rms_eps,
            q_norm: Some(&self.q_norm),
            k_norm: self.k_norm.as_ref(),
            unit_value_norm: layer.unit_value_norm,
            value_from_key: layer.value_from_key,
            inv_freq: &self.inv_freq,
            pairs: config.rope_pairs,
        }
    }
}

impl<S: WeightSpace> Experts<S> {
    fn load(loader: &mut Loader<'_, S>) -> Result<Option<Self>, ModelError> {
        let hidden = loader.config().hidden_size;
        let Some(experts) = loader.config().experts else { return Ok(None) };
        let router_gain = (hidden as f32).powf(-0.5);
        let expert_scale = if loader.has("ffn_down_exps.scale") {
            Some(loader.scaled("ffn_down_exps.scale", experts.count, |s| s)?)
        } else {
            None
        };
        let down = loader.tensor("ffn_down_exps.weight", &[experts.count, hidden, experts.ff])?;
        Ok(Some(Self {
            shape: ExpertShape { count: experts.count, used: experts.used },
            router_scale: loader.scaled("ffn_gate_inp.scale", hidden, |s| s * router_gain)?,
            router: loader.matrix("ffn_gate_inp.weight", [experts.count, hidden])?,
            expert_scale,
            pre_norm: loader.norm("pre_ffw_norm_2.weight", hidden)?,
            gate_up: loader.expert_gate_up(experts.count, experts.ff)?,
            down: loader.space.matrix(&[down])?,
            post_norm: loader.norm("post_ffw_norm_2.weight", hidden)?,
            dense_post_norm: loader.norm("post_ffw_norm_1.weight", hidden)?,
        }))
    }

    /// The expert branch, which reads the residual stream itself.
    fn forward<O: Ops<Space = S>>(&self, config: &ModelConfig, x: &O::Act, ops: &mut O) -> O::Act {
        let (hidden, eps) = (config.hidden_size, config.rms_eps);
        let r = ops.norm(x, hidden, eps, Some(&self.router_scale));
        let logits = ops.linear(&r, &self.router);
        let routes = ops.route(&logits, self.shape.used, self.expert_scale.as_ref());
        let z = ops.norm(x, hidden, eps, Some(&self.pre_norm));
        let h = ops.expert_gated_linear(&z, &self.gate_up, &routes, self.shape, config.gated_activation);
        ops.expert_linear_sum(&h, &self.down, &routes, self.shape)
    }
}

impl<S: WeightSpace> PerLayerInputs<S> {
    /// `(norm(x₀·W / √D) + tok·√p) / √2` for all layers at once: `[T, L·p]`.
    fn forward<O: Ops<Space = S>>(&self, config: &ModelConfig, x: &O::Act, ops: &mut O) -> O::Act {
        let p = config.per_layer_input;
        let tokens = ops.embed(&self.embed, (p as f32).sqrt());
        let context = ops.linear(x, &self.projection);
        // Dividing by √D before an RMS norm only scales its epsilon.
        let eps = config.rms_eps * config.hidden_size as f32;
        let mut inputs = ops.norm(&context, p, eps, Some(&self.norm));
        ops.add(&mut inputs, &tokens, Residual { post: None, scale: 0.5f32.sqrt(), eps });
        inputs
    }
}
