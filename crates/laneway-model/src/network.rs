use crate::gemma3::Gemma3;
use crate::gemma4::Gemma4;
use crate::llama::Llama;
use crate::loader::Loader;
use crate::{DraftHead, ModelError, Ops, Pass, WeightSpace};
use laneway_files::{Family, ModelConfig, Weights};

/// A loaded network of any family.
pub struct Network<S: WeightSpace> {
    config: ModelConfig,
    body: Body<S>,
    embed: S::Matrix,
    untied_head: Option<S::Matrix>,
}

enum Body<S: WeightSpace> {
    Llama(Llama<S>),
    Gemma3(Gemma3<S>),
    Gemma4(Gemma4<S>),
}

/// Keys and values one layer stores per position: `kv_heads · head_dim` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
}

impl<S: WeightSpace> Network<S> {
    /// Reads every tensor the network needs into `space`.
    ///
    /// # Errors
    /// When a tensor is missing or misshapen, the family cannot run here, or the device has no room.
    pub fn load(weights: &Weights, space: &mut S) -> Result<Self, ModelError> {
        let config = weights.config().clone();
        let shape = [config.vocab_size, config.hidden_size];
        let mut loader = Loader::new(weights, space);
        let embed = loader.matrix("token_embd.weight", shape)?;
        let untied_head = if loader.has("output.weight") { Some(loader.matrix("output.weight", shape)?) } else { None };
        let body = match config.family {
            Family::Llama | Family::Qwen3 => Body::Llama(Llama::load(&mut loader)?),
            Family::Gemma3 => Body::Gemma3(Gemma3::load(&mut loader)?),
            Family::Gemma4 | Family::DiffusionGemma => Body::Gemma4(Gemma4::load(&mut loader)?),
        };
        Ok(Self { config, body, embed, untied_head })
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What each layer stores per position; `None` where a layer reads another's.
    pub fn kv_shapes(&self) -> Vec<Option<KvShape>> {
        let layers = self.config.layers.iter().enumerate();
        layers
            .map(|(i, l)| (l.kv_layer == i).then_some(KvShape { kv_heads: l.kv_heads, head_dim: l.head_dim }))
            .collect()
    }

    /// Final normed hidden states of all rows: `[T, D]`.
    pub fn forward<O: Ops<Space = S>>(&self, pass: Pass, ops: &mut O) -> O::Act {
        match &self.body {
            Body::Llama(body) => body.forward(&self.config, &self.embed, ops),
            Body::Gemma3(body) => body.forward(&self.config, &self.embed, ops),
            Body::Gemma4(body) => body.forward(&self.config, &self.embed, pass, ops),
        }
    }

    /// Logits of the rows that want them: `[R, V]`.
    pub fn logits<O: Ops<Space = S>>(&self, hidden: &O::Act, ops: &mut O) -> O::Act {
        ops.head(hidden, self.untied_head.as_ref().unwrap_or(&self.embed), self.config.final_softcap)
    }

    /// Logits of the step's labels: `[N, 1]`.
    pub fn label_logits<O: Ops<Space = S>>(&self, hidden: &O::Act, ops: &mut O) -> O::Act {
        ops.label_logits(hidden, self.untied_head.as_ref().unwrap_or(&self.embed), self.config.final_softcap)
    }

    /// The step's drafts: `[C, 6]`, as [`Ops::draft`] says.
    pub fn draft<O: Ops<Space = S>>(&self, hidden: &O::Act, ops: &mut O) -> O::Act {
        let is_conditioned = self.config.diffusion.is_some_and(|diffusion| diffusion.self_conditioning);
        let head = DraftHead {
            table: self.untied_head.as_ref().unwrap_or(&self.embed),
            softcap: self.config.final_softcap,
            forbidden: self.config.diffusion.and_then(|diffusion| diffusion.noise.mask()),
            soften: is_conditioned.then_some((&self.embed, self.config.embedding_scale)),
        };
        ops.draft(hidden, &head)
    }
}
