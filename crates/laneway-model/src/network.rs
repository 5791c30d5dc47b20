use crate::gemma3::Gemma3;
use crate::gemma4::Gemma4;
use crate::llama::Llama;
use crate::loader::Loader;
use crate::{DraftHead, ModelError, Ops, Pass, WeightSpace};
use laneway_files::{Family, ModelConfig, Weights};
use std::ops::Range;

/// A loaded network of any family.
pub struct Network<S: WeightSpace> {
    config: ModelConfig,
    layers: Range<usize>,
    body: Body<S>,
    /// Absent in a stage that neither begins nor ends with it.
    embed: Option<S::Matrix>,
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
        Self::load_stage(weights, space, 0..weights.config().layers.len())
    }

    /// The same for some consecutive layers: the first stage embeds tokens, the last one has the head, and between them
    /// activations `[T, D]` are handed on.
    ///
    /// # Errors
    /// Also when these layers need more than the rows' activations of those before them; see [`cuts`].
    pub fn load_stage(weights: &Weights, space: &mut S, layers: Range<usize>) -> Result<Self, ModelError> {
        let config = weights.config().clone();
        check_stage(&config, &layers)?;
        let (is_first, is_last) = (layers.start == 0, layers.end == config.layers.len());
        let shape = [config.vocab_size, config.hidden_size];
        let mut loader = Loader::new(weights, space);
        let has_head = loader.has("output.weight");
        let embed =
            if is_first || (is_last && !has_head) { Some(loader.matrix("token_embd.weight", shape)?) } else { None };
        let untied_head = if has_head && is_last { Some(loader.matrix("output.weight", shape)?) } else { None };
        let body = match config.family {
            Family::Llama | Family::Qwen3 => Body::Llama(Llama::load(&mut loader, layers.clone())?),
            Family::Gemma3 => Body::Gemma3(Gemma3::load(&mut loader, layers.clone())?),
            Family::Gemma4 | Family::DiffusionGemma => Body::Gemma4(Gemma4::load(&mut loader, layers.clone())?),
        };
        Ok(Self { config, layers, body, embed, untied_head })
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Whether it begins with tokens; else with what another stage left.
    pub fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    /// Whether it ends with the final state; else another stage goes on with what it leaves.
    pub fn is_last(&self) -> bool {
        self.layers.end == self.config.layers.len()
    }

    /// What each layer stores per position; `None` where a layer reads another's or is in another stage.
    pub fn kv_shapes(&self) -> Vec<Option<KvShape>> {
        let layers = self.config.layers.iter().enumerate();
        layers
            .map(|(i, l)| {
                (l.kv_layer == i && self.layers.contains(&i))
                    .then_some(KvShape { kv_heads: l.kv_heads, head_dim: l.head_dim })
            })
            .collect()
    }

    /// Final normed hidden states of all rows, or what the next stage goes on with: `[T, D]`.
    pub fn forward<O: Ops<Space = S>>(&self, pass: Pass, ops: &mut O) -> O::Act {
        let embed = self.embed.as_ref().filter(|_| self.is_first());
        match &self.body {
            Body::Llama(body) => body.forward(&self.config, embed, ops),
            Body::Gemma3(body) => body.forward(&self.config, embed, ops),
            Body::Gemma4(body) => body.forward(&self.config, embed, pass, ops),
        }
    }

    /// Logits of the rows that want them: `[R, V]`.
    pub fn logits<O: Ops<Space = S>>(&self, hidden: &O::Act, ops: &mut O) -> O::Act {
        ops.head(hidden, self.table(), self.config.final_softcap)
    }

    /// Logits of the step's labels: `[N, 1]`.
    pub fn label_logits<O: Ops<Space = S>>(&self, hidden: &O::Act, ops: &mut O) -> O::Act {
        ops.label_logits(hidden, self.table(), self.config.final_softcap)
    }

    /// The head's weights, of a network that has the last layer.
    fn table(&self) -> &S::Matrix {
        self.untied_head.as_ref().or(self.embed.as_ref()).expect("the last stage has a head")
    }

    /// The step's drafts: `[C, 6]`, as [`Ops::draft`] says.
    pub fn draft<O: Ops<Space = S>>(&self, hidden: &O::Act, ops: &mut O) -> O::Act {
        let is_conditioned = self.config.diffusion.is_some_and(|diffusion| diffusion.self_conditioning);
        let head = DraftHead {
            table: self.table(),
            softcap: self.config.final_softcap,
            forbidden: self.config.diffusion.and_then(|diffusion| diffusion.noise.mask()),
            soften: self.embed.as_ref().filter(|_| is_conditioned).map(|embed| (embed, self.config.embedding_scale)),
        };
        ops.draft(hidden, &head)
    }
}

/// Layers before which a model can be cut into stages: those after which nothing but the rows' activations is needed.
pub fn cuts(config: &ModelConfig) -> Vec<usize> {
    if config.per_layer_input > 0 || config.diffusion.is_some() {
        return Vec::new();
    }
    let reads_back = |cut: usize| config.layers[cut..].iter().any(|layer| layer.kv_layer < cut);
    (1..config.layers.len()).filter(|cut| !reads_back(*cut)).collect()
}

fn check_stage(config: &ModelConfig, layers: &Range<usize>) -> Result<(), ModelError> {
    let count = config.layers.len();
    let refuse = |reason: String| Err(ModelError::Stage { layers: layers.clone(), reason });
    if layers.is_empty() || layers.end > count {
        return refuse(format!("the model has {count} layers"));
    }
    let cuts = cuts(config);
    if let Some(cut) = [layers.start, layers.end].into_iter().find(|cut| *cut % count > 0 && !cuts.contains(cut)) {
        return match cuts.is_empty() {
            true => refuse("this model can only be run as a whole".to_owned()),
            false => refuse(format!("nothing may be cut before layer {cut}, but before {cuts:?}")),
        };
    }
    Ok(())
}
