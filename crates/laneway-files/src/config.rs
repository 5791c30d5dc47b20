/// The network that a file's tensors belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Family {
    Llama,
    Qwen3,
    Gemma3,
    Gemma4,
    DiffusionGemma,
}

impl Family {
    pub(crate) fn is_gemma(self) -> bool {
        !matches!(self, Self::Llama | Self::Qwen3)
    }
}

/// Which dimensions of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// `i` with `i + head_dim/2`.
    Half,
    /// `2i` with `2i + 1`: Llama GGUF files, whose Q and K rows are permuted for it.
    Interleaved,
}

/// The gate's activation in the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Activation {
    Silu,
    GeluTanh,
}

/// The mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that each token uses.
    pub used: usize,
    /// Width of one expert.
    pub ff: usize,
}

/// Everything about a network but its weights; every number is checked to be usable.
///
/// Some GGUF files split `ffn_gate_up_exps` into `ffn_gate_exps` and `ffn_up_exps`, or fuse `attn_q`, `attn_k`, `attn_v` into the
/// rows of `attn_qkv`; the tensors stay as the file has them. [`Tensor::row_range`](crate::Tensor::row_range) takes such parts.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The network.
    pub family: Family,
    /// The model's own name, may be empty.
    pub name: String,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Positions that the model was trained for.
    pub context_length: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_eps: f32,
    /// Factor on embeddings: the root of the hidden size for the Gemma families, else 1.
    pub embedding_scale: f32,
    /// Logits become `cap·tanh(logits / cap)`.
    pub final_softcap: Option<f32>,
    /// Added to every norm weight before use: 1 for Gemma 3 safetensors, else 0.
    pub norm_offset: f32,
    /// Pairing of the rotary embedding.
    pub rope_pairs: RopePairs,
    /// Whether the embedding is the head too; otherwise the head is `output.weight`.
    pub tied_head: bool,
    /// Width of Gemma 4's per-layer inputs, 0 for none.
    pub per_layer_input: usize,
    /// The mixture of experts, if any.
    pub experts: Option<Experts>,
    /// The layers in order.
    pub layers: Vec<LayerConfig>,
    /// How a diffusion model is run; none for one that predicts the next token.
    pub diffusion: Option<DiffusionConfig>,
    /// The gate's activation.
    pub gated_activation: Activation,
}

/// How a diffusion model's canvas is noised, what it sees and how long it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiffusionConfig {
    /// Positions that are revised together, at most 32 767: the canvas, a block, or for [`CanvasContext::Whole`] as much
    /// of the answer as is decided before the next positions are begun.
    pub canvas_length: usize,
    /// What an undecided position holds.
    pub noise: Noise,
    /// What a canvas sees beside itself.
    pub context: CanvasContext,
    /// Whether position `i` is predicted by row `i - 1`.
    pub shift: bool,
    /// Whether a pass reads the prediction of the one before.
    pub self_conditioning: bool,
}

/// What an undecided position of a canvas holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// Any token; every position may change in every pass.
    Uniform,
    /// A mask token; a decided position stays.
    Masked {
        /// The mask.
        mask: u32,
    },
}

impl Noise {
    /// The mask token, if there is one.
    pub fn mask(self) -> Option<u32> {
        match self {
            Self::Uniform => None,
            Self::Masked { mask } => Some(mask),
        }
    }
}

/// What a canvas sees beside itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanvasContext {
    /// A cache that was written causally: finished canvases are encoded again, token after token.
    Causal,
    /// A cache written block by block; blocks start at multiples of their length, and the prompt's last one holds the
    /// first positions of the answer.
    Blocks,
    /// No cache: every pass goes over prompt and answer as one block.
    Whole,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// Keys that a query of a local layer sees, itself included; `None` for a global layer.
    pub window: Option<usize>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head, even.
    pub head_dim: usize,
    /// Width of the dense feed-forward network.
    pub ff: usize,
    /// The rotary embedding.
    pub rope: RopeConfig,
    /// Factor on `q·k`.
    pub score_scale: f32,
    /// Whether queries and keys are RMS-normalised per head.
    pub has_qk_norm: bool,
    /// Whether values are RMS-normalised per head, without weight.
    pub unit_value_norm: bool,
    /// Whether the key projection's raw output is the value too (no `attn_v`).
    pub value_from_key: bool,
    /// The layer whose keys and values this one uses: itself, or an earlier one.
    pub kv_layer: usize,
    /// Whether the layer has experts beside its dense network.
    pub has_experts: bool,
}

/// The rotary embedding of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Angle per position of each of the `head_dim / 2` pairs, all scaling applied; 0 where nothing rotates.
    pub inv_freq: Vec<f32>,
}
