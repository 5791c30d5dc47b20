//! The operations that networks are written in, and the places their weights live.
//!
//! A network never touches memory: it calls [`Ops`], which a device implements either by computing at once
//! (the cpu device, burn's plain tensors) or by recording a plan of kernels (the wgpu device).

use crate::ModelError;
use laneway_files::{Activation, RopePairs, Tensor};

/// Where the weights of one network live.
pub trait WeightSpace {
    /// A matrix `[rows, cols]`, kept in its file's format (or a lossless superset of it).
    type Matrix;
    /// A short vector of f32.
    type Vector;

    /// Stores the rows of `parts`, stacked in order; all parts have the same number of columns.
    ///
    /// # Errors
    /// When the device has no room or cannot hold a format.
    fn matrix(&mut self, parts: &[&Tensor]) -> Result<Self::Matrix, ModelError>;

    /// Stores a vector.
    ///
    /// # Errors
    /// When the device has no room.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, ModelError>;
}

/// Keeps nothing: loading a network into it checks a file's tensors and their shapes.
pub struct NoSpace;

impl WeightSpace for NoSpace {
    type Matrix = ();
    type Vector = ();

    fn matrix(&mut self, _parts: &[&Tensor]) -> Result<(), ModelError> {
        Ok(())
    }

    fn vector(&mut self, _values: &[f32]) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Matrix type of the weight space that `O` computes with.
pub type MatrixOf<O> = <<O as Ops>::Space as WeightSpace>::Matrix;
/// Vector type of the weight space that `O` computes with.
pub type VectorOf<O> = <<O as Ops>::Space as WeightSpace>::Vector;

/// One step's computation over `T` rows; each row is one token of one lane at one position.
///
/// Which tokens, lanes, positions and pages the rows have, and which `R` of them want logits, is the
/// implementor's state: a network is the same function of its weights whatever the step.
pub trait Ops {
    /// The weights this step computes with.
    type Space: WeightSpace;
    /// Activations `[T, n]` in f32.
    type Act;

    /// Rows of `table [V, n]` picked by each row's token, times `scale`: `[T, n]`.
    fn embed(&mut self, table: &MatrixOf<Self>, scale: f32) -> Self::Act;

    /// What the stage before this one left of the step's rows: `[T, cols]`. Only asked for by networks that do not begin
    /// with the first layer, which not every implementation runs.
    ///
    /// # Panics
    /// Where such networks are not run.
    fn boundary(&mut self, cols: usize) -> Self::Act {
        unreachable!("rows of {cols} from another stage: these operations run whole networks")
    }

    /// RMS norm over each run of `group` columns: `x / sqrt(mean(x²) + eps) · weight`.
    ///
    /// `weight [group]` is repeated for every run; without one the result has unit scale.
    fn norm(&mut self, x: &Self::Act, group: usize, eps: f32, weight: Option<&VectorOf<Self>>) -> Self::Act;

    /// Residual step in place: `x = (x + a) · scale`, where `a` is RMS-normed by `post` first if given.
    fn add(&mut self, x: &mut Self::Act, a: &Self::Act, residual: Residual<'_, VectorOf<Self>>);

    /// [`Ops::add`], then the RMS norm of the new `x` by `next`: one kernel on a GPU.
    fn add_norm(
        &mut self,
        x: &mut Self::Act,
        a: &Self::Act,
        residual: Residual<'_, VectorOf<Self>>,
        next: &VectorOf<Self>,
    ) -> Self::Act;

    /// `x [T, cols] · weightᵀ [cols, rows]`: `[T, rows]`.
    fn linear(&mut self, x: &Self::Act, weight: &MatrixOf<Self>) -> Self::Act;

    /// `act(x · gateᵀ) ⊙ (x · upᵀ)` with `gate_up [2f, cols]`, gate rows first: `[T, f]`.
    fn gated_linear(&mut self, x: &Self::Act, gate_up: &MatrixOf<Self>, activation: Activation) -> Self::Act;

    /// `act(gate) ⊙ g[:, offset .. offset + n]` for `gate [T, n]`: `[T, n]`.
    fn gate(&mut self, gate: &Self::Act, g: &Self::Act, offset: usize, activation: Activation) -> Self::Act;

    /// Norms, rotates and stores the new keys and values, then attends to the positions each row sees of its lane's
    /// pages ([`Row::visible`](crate::Row::visible)).
    ///
    /// `qkv [T, (H + K + K)·d]` in the order q, k, v; without v when [`Attention::value_from_key`], only q when
    /// another layer owns the keys and values. Result `[T, H·d]`.
    fn attention(&mut self, qkv: &Self::Act, attention: &Attention<'_, VectorOf<Self>>) -> Self::Act;

    /// Chooses experts: softmax over `logits [T, E]`, the `used` largest, renormalised to sum 1 and multiplied by
    /// `expert_scale [E]` if given. The result holds (expert, weight) pairs in a form only this device reads.
    fn route(&mut self, logits: &Self::Act, used: usize, expert_scale: Option<&VectorOf<Self>>) -> Self::Act;

    /// [`Ops::gated_linear`] of each row with each of its routed experts; `gate_up [E·2f, cols]`: `[T·used, f]`.
    fn expert_gated_linear(
        &mut self,
        x: &Self::Act,
        gate_up: &MatrixOf<Self>,
        routes: &Self::Act,
        experts: ExpertShape,
        activation: Activation,
    ) -> Self::Act;

    /// Weighted sum over a row's experts of `h · downᵀ`; `h [T·used, f]`, `down [E·n, f]`: `[T, n]`.
    fn expert_linear_sum(
        &mut self,
        h: &Self::Act,
        down: &MatrixOf<Self>,
        routes: &Self::Act,
        experts: ExpertShape,
    ) -> Self::Act;

    /// Logits of the `R` rows that want them: `cap · tanh(x · tableᵀ / cap)`, or plain without `softcap`: `[R, V]`.
    fn head(&mut self, x: &Self::Act, table: &MatrixOf<Self>, softcap: Option<f32>) -> Self::Act;

    /// Soft-capped logits of the step's labels: `[N, 1]`. Its work is proportional to `N`, not to `V`.
    fn label_logits(&mut self, x: &Self::Act, table: &MatrixOf<Self>, softcap: Option<f32>) -> Self::Act;

    /// Each row's self-conditioning signal: the soft embedding that [`Ops::draft`] left for its place in its lane's
    /// block, or zeros where the block is not conditioned: `[T, cols]`.
    fn condition(&mut self, cols: usize) -> Self::Act;

    /// The step's drafts in short, of `z = logits / temperature`: `[C, 6]` as in
    /// [`Drafted::from_columns`](crate::Drafted::from_columns). The logits of all rows need never exist at once.
    ///
    /// Token `draft.forbidden` counts as impossible. With `draft.soften`, `softmax(z) · table · scale` is kept for
    /// [`Ops::condition`], by lane and place in the block.
    fn draft(&mut self, x: &Self::Act, draft: &DraftHead<'_, MatrixOf<Self>>) -> Self::Act;

    /// Sees the residual stream `x [T, D]` as it enters layer `index` (or, for `index == layers`, the final normed
    /// state): for tests and tools; does nothing by default.
    fn observe(&mut self, _index: usize, _x: &Self::Act) {}
}

/// What turns the final state of a canvas into distributions.
pub struct DraftHead<'a, M> {
    /// The head, `[V, D]`.
    pub table: &'a M,
    /// As in [`Ops::head`].
    pub softcap: Option<f32>,
    /// A token that is never predicted: a masked model's mask.
    pub forbidden: Option<u32>,
    /// The embedding `[V, D]` and its factor, for a model that conditions on its last prediction.
    pub soften: Option<(&'a M, f32)>,
}

/// How a block's output joins the residual stream.
pub struct Residual<'a, V> {
    /// Norm applied to the block's output before it is added.
    pub post: Option<&'a V>,
    /// Factor on the whole residual stream after the addition (Gemma 4's layer scalar; else 1).
    pub scale: f32,
    /// Epsilon of every norm in the step.
    pub eps: f32,
}

impl<V> Clone for Residual<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Residual<'_, V> {}

/// Number of experts and how many each row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Experts in the layer.
    pub count: usize,
    /// Experts per row.
    pub used: usize,
}

/// One layer's attention.
pub struct Attention<'a, V> {
    /// Which layer's keys and values are read (and written, if `writes_kv`).
    pub kv_layer: usize,
    /// False where an earlier layer owns the keys and values.
    pub writes_kv: bool,
    /// Query heads `H`.
    pub heads: usize,
    /// Key/value heads `K`, a divisor of `H`.
    pub kv_heads: usize,
    /// Width `d` of one head.
    pub head_dim: usize,
    /// Positions a query sees, itself included; all earlier ones without it.
    pub window: Option<usize>,
    /// Factor on `q·k`.
    pub scale: f32,
    /// Epsilon of the head norms.
    pub eps: f32,
    /// RMS norm per query head, `[d]`.
    pub q_norm: Option<&'a V>,
    /// RMS norm per key head, `[d]`.
    pub k_norm: Option<&'a V>,
    /// Values are RMS-normed without weight.
    pub unit_value_norm: bool,
    /// Values are the raw keys (before their norm and rotation).
    pub value_from_key: bool,
    /// Angle per position of each rotated pair, `[d/2]`; 0 leaves a pair as it is.
    pub inv_freq: &'a V,
    /// Which dimensions form a pair.
    pub pairs: RopePairs,
}
