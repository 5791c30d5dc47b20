use crate::{ModelError, WeightSpace};
use laneway_files::{FileError, LayerConfig, ModelConfig, Tensor, Weights};

/// Reads a layer's or a model's tensors by their GGUF names and puts them into a weight space.
pub(crate) struct Loader<'a, S> {
    pub weights: &'a Weights,
    pub space: &'a mut S,
    prefix: String,
}

impl<'a, S: WeightSpace> Loader<'a, S> {
    pub fn new(weights: &'a Weights, space: &'a mut S) -> Self {
        Self { weights, space, prefix: String::new() }
    }

    pub fn config(&self) -> &'a ModelConfig {
        self.weights.config()
    }

    /// Names from here on are those of layer `index`.
    pub fn layer(&mut self, index: usize) -> &'a LayerConfig {
        self.prefix = format!("blk.{index}.");
        &self.config().layers[index]
    }

    /// Names from here on are the model's own.
    pub fn model(&mut self) {
        self.prefix.clear();
    }

    pub fn has(&self, name: &str) -> bool {
        self.weights.tensor(&self.full(name)).is_some()
    }

    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<&'a Tensor, ModelError> {
        Ok(self.weights.require(&self.full(name), shape)?)
    }

    /// Rows of a tensor whose number only the file knows.
    pub fn rows(&self, name: &str) -> Result<usize, ModelError> {
        let name = self.full(name);
        let tensor = self.weights.tensor(&name).ok_or(FileError::MissingTensor(name))?;
        Ok(tensor.rows())
    }

    pub fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<S::Matrix, ModelError> {
        let tensor = self.tensor(name, &shape)?;
        self.space.matrix(&[tensor])
    }

    /// A norm weight, with the file's convention (`w` or `1 + w`) settled.
    pub fn norm(&mut self, name: &str, len: usize) -> Result<S::Vector, ModelError> {
        let offset = self.config().norm_offset;
        self.scaled(name, len, |w| w + offset)
    }

    pub fn scaled(&mut self, name: &str, len: usize, map: impl Fn(f32) -> f32) -> Result<S::Vector, ModelError> {
        let values: Vec<f32> = self.tensor(name, &[len])?.to_f32().into_iter().map(map).collect();
        self.space.vector(&values)
    }

    pub fn scalar(&mut self, name: &str) -> Result<f32, ModelError> {
        Ok(if self.has(name) { self.tensor(name, &[1])?.to_f32()[0] } else { 1.0 })
    }

    pub fn inv_freq(&mut self, layer: &LayerConfig) -> Result<S::Vector, ModelError> {
        self.space.vector(&layer.rope.inv_freq)
    }

    /// The rows of q, k and v in one matrix; only those that the layer has.
    pub fn qkv(&mut self, layer: &LayerConfig, owns_kv: bool) -> Result<S::Matrix, ModelError> {
        let hidden = self.config().hidden_size;
        let (q, kv) = (layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim);
        if self.has("attn_qkv.weight") {
            let v = if layer.value_from_key { 0 } else { kv };
            return self.matrix("attn_qkv.weight", [q + kv + v, hidden]);
        }
        let mut parts = vec![self.tensor("attn_q.weight", &[q, hidden])?];
        if owns_kv {
            parts.push(self.tensor("attn_k.weight", &[kv, hidden])?);
            if !layer.value_from_key {
                parts.push(self.tensor("attn_v.weight", &[kv, hidden])?);
            }
        }
        self.space.matrix(&parts)
    }

    /// Gate rows, then up rows.
    pub fn gate_up(&mut self, ff: usize) -> Result<S::Matrix, ModelError> {
        let hidden = self.config().hidden_size;
        let gate = self.tensor("ffn_gate.weight", &[ff, hidden])?;
        let up = self.tensor("ffn_up.weight", &[ff, hidden])?;
        self.space.matrix(&[gate, up])
    }

    /// Each expert's gate rows, then its up rows, whether the file fuses or splits them.
    pub fn expert_gate_up(&mut self, count: usize, ff: usize) -> Result<S::Matrix, ModelError> {
        let hidden = self.config().hidden_size;
        if self.has("ffn_gate_up_exps.weight") {
            let fused = self.tensor("ffn_gate_up_exps.weight", &[count, 2 * ff, hidden])?;
            return self.space.matrix(&[fused]);
        }
        let gate = self.tensor("ffn_gate_exps.weight", &[count, ff, hidden])?;
        let up = self.tensor("ffn_up_exps.weight", &[count, ff, hidden])?;
        let parts = (0..count)
            .flat_map(|e| [gate, up].map(|t| t.row_range(e * ff, (e + 1) * ff)))
            .collect::<Result<Vec<Tensor>, _>>()?;
        self.space.matrix(&parts.iter().collect::<Vec<_>>())
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}
