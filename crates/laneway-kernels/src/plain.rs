//! The same operations in burn's own tensors: no kernels of ours, no pages, weights expanded to f32.
//!
//! This is what the kernels are compared with, and it runs on any burn device (`flex` on the cpu, `wgpu`). One lane,
//! whose keys, values and soft embeddings [`PlainCache`] holds in order.

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use laneway_files::{Activation, RopePairs};
use laneway_model::{
    Attention, DRAFT_COLUMNS, Draft, DraftHead, Drafted, ExpertShape, ModelError, Ops, Residual, Row, Step, WeightSpace,
};

/// Weights as f32 tensors.
pub struct PlainSpace {
    device: Device,
}

/// A vector with the host's copy.
pub struct PlainVector {
    values: Tensor<1>,
    host: Vec<f32>,
}

/// What one lane keeps from step to step.
#[derive(Default)]
pub struct PlainCache {
    /// Keys and values `[P, K, d]` of each layer that owns some.
    kv: Vec<Option<(Tensor<3>, Tensor<3>)>>,
    /// Soft embeddings by place in the block.
    soft: Vec<Vec<f32>>,
}

impl PlainCache {
    /// The soft embeddings `[D]` that the last drafts left, by place in their block.
    pub fn soft(&self) -> &[Vec<f32>] {
        &self.soft
    }
}

/// One step of one lane.
pub struct PlainStep<'a> {
    device: Device,
    step: &'a Step<'a>,
    cache: &'a mut PlainCache,
    /// What the network showed to `observe`.
    pub observed: Vec<Tensor<2>>,
}

impl PlainSpace {
    /// Weights on a burn device.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone() }
    }
}

impl WeightSpace for PlainSpace {
    type Matrix = Tensor<2>;
    type Vector = PlainVector;

    fn matrix(&mut self, parts: &[&laneway_files::Tensor]) -> Result<Tensor<2>, ModelError> {
        let cols = parts.first().map_or(0, |t| t.cols());
        let values: Vec<f32> = parts.iter().flat_map(|t| t.to_f32()).collect();
        let rows = values.len() / cols.max(1);
        Ok(Tensor::from_data(TensorData::new(values, [rows, cols]), &self.device))
    }

    fn vector(&mut self, values: &[f32]) -> Result<PlainVector, ModelError> {
        let tensor = Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &self.device);
        Ok(PlainVector { values: tensor, host: values.to_vec() })
    }
}

impl<'a> PlainStep<'a> {
    /// A step whose rows are consecutive positions of one lane; what the cache holds from the first on is overwritten.
    pub fn new(device: &Device, step: &'a Step<'a>, cache: &'a mut PlainCache) -> Self {
        Self { device: device.clone(), step, cache, observed: Vec::new() }
    }

    fn values(&self, values: Vec<f32>, cols: usize) -> Tensor<2> {
        let rows = values.len() / cols;
        Tensor::from_data(TensorData::new(values, [rows, cols]), &self.device)
    }

    fn ids(&self, ids: impl Iterator<Item = u32>) -> Tensor<1, Int> {
        let ids: Vec<i32> = ids.map(|id| id as i32).collect();
        let count = ids.len();
        Tensor::from_data(TensorData::new(ids, [count]), &self.device)
    }

    /// Soft-capped logits of some rows, `[rows, V]`.
    fn logits(
        &self,
        x: &Tensor<2>,
        rows: impl Iterator<Item = u32>,
        table: &Tensor<2>,
        softcap: Option<f32>,
    ) -> Tensor<2> {
        let logits = product(&x.clone().select(0, self.ids(rows)), table.clone());
        match softcap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        }
    }

    fn table(&self, len: usize, value: impl Fn(&Row, usize) -> f32) -> Tensor<2> {
        let rows = self.step.rows.iter();
        self.values(rows.flat_map(|row| (0..len).map(|i| value(row, i)).collect::<Vec<_>>()).collect(), len)
    }

    /// Rotates `x [T, h, d]` by each row's position.
    fn rotate(&self, x: Tensor<3>, inv_freq: &[f32], pairs: RopePairs) -> Tensor<3> {
        let [t, h, d] = x.dims();
        let half = d / 2;
        let angle = |row: &Row, i: usize| row.position as f32 * inv_freq[i];
        let cos = self.table(half, |row, i| angle(row, i).cos()).reshape([t, 1, half]);
        let sin = self.table(half, |row, i| angle(row, i).sin()).reshape([t, 1, half]);
        let (a, b) = match pairs {
            RopePairs::Half => (x.clone().slice([0..t, 0..h, 0..half]), x.slice([0..t, 0..h, half..d])),
            RopePairs::Interleaved => {
                let split = x.reshape([t, h, half, 2]);
                let part = |i: usize| split.clone().slice([0..t, 0..h, 0..half, i..i + 1]).reshape([t, h, half]);
                (part(0), part(1))
            }
        };
        let first = a.clone() * cos.clone() - b.clone() * sin.clone();
        let second = b * cos + a * sin;
        match pairs {
            RopePairs::Half => Tensor::cat(vec![first, second], 2),
            RopePairs::Interleaved => {
                let split = vec![first.reshape([t, h, half, 1]), second.reshape([t, h, half, 1])];
                Tensor::<4>::cat(split, 3).reshape([t, h, d])
            }
        }
    }

    /// 0 where row t sees position s, a large negative number elsewhere: `[T, S]`.
    fn mask(&self, positions: usize, window: Option<usize>) -> Tensor<2> {
        self.table(positions, |row, s| if row.visible(window).contains(&s) { 0.0 } else { -1e30 })
    }
}

fn rms<const D: usize>(x: Tensor<D>, eps: f32) -> Tensor<D> {
    let mean = x.clone().powf_scalar(2.0).mean_dim(D - 1);
    x / (mean + eps).sqrt()
}

fn activate(x: Tensor<2>, activation: Activation) -> Tensor<2> {
    match activation {
        Activation::Silu => x.clone() * sigmoid(x),
        Activation::GeluTanh => {
            let cubed = x.clone().powf_scalar(3.0) * 0.044715;
            let inner = (x.clone() + cubed) * 0.797_884_6;
            x * (inner.tanh() + 1.0) * 0.5
        }
    }
}

fn product(x: &Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    x.clone().matmul(weight.transpose())
}

fn host(x: Tensor<2>) -> Vec<f32> {
    x.into_data().try_to_vec().expect("activations are f32")
}

/// One row's draft and its probabilities `[V]`, from its soft-capped logits.
pub fn drafted(logits: &[f32], draft: &Draft, forbidden: Option<u32>) -> (Drafted, Vec<f32>) {
    let possible = |&token: &usize| forbidden != Some(token as u32);
    let z = |token: usize| f64::from(logits[token]) / f64::from(draft.temperature);
    let highest = (0..logits.len()).filter(possible).map(z).fold(f64::MIN, f64::max);
    let weight = |token: usize| if possible(&token) { (z(token) - highest).exp() } else { 0.0 };
    let mass: f64 = (0..logits.len()).map(weight).sum();
    let logprob = |token: usize| z(token) - highest - mass.ln();
    let mut order: Vec<usize> = (0..logits.len()).filter(possible).collect();
    order.sort_by(|&a, &b| z(b).total_cmp(&z(a)));
    let mut reached = 0.0;
    let candidate = (0..logits.len()).filter(possible).find(|&token| {
        reached += weight(token);
        reached >= f64::from(draft.draw) * mass
    });
    let sampled = candidate.or((0..logits.len()).rfind(possible)).expect("some token is possible");
    let entropy = (0..logits.len()).filter(|&token| weight(token) > 0.0);
    let entropy: f64 = entropy.map(|token| -logprob(token) * weight(token) / mass).sum();
    let short = Drafted {
        argmax: order[0] as u32,
        argmax_logprob: logprob(order[0]) as f32,
        second_logprob: order.get(1).map_or(f32::NEG_INFINITY, |&second| logprob(second) as f32),
        entropy: entropy as f32,
        sampled: sampled as u32,
        sampled_logprob: logprob(sampled) as f32,
    };
    (short, (0..logits.len()).map(|token| (weight(token) / mass) as f32).collect())
}

impl Ops for PlainStep<'_> {
    type Space = PlainSpace;
    type Act = Tensor<2>;

    fn embed(&mut self, table: &Tensor<2>, scale: f32) -> Tensor<2> {
        table.clone().select(0, self.ids(self.step.rows.iter().map(|row| row.token))) * scale
    }

    fn norm(&mut self, x: &Tensor<2>, group: usize, eps: f32, weight: Option<&PlainVector>) -> Tensor<2> {
        let [t, n] = x.dims();
        let unit = rms(x.clone().reshape([t, n / group, group]), eps);
        let scaled = match weight {
            Some(w) => unit * w.values.clone().reshape([1, 1, group]),
            None => unit,
        };
        scaled.reshape([t, n])
    }

    fn add(&mut self, x: &mut Tensor<2>, a: &Tensor<2>, residual: Residual<'_, PlainVector>) {
        let added = match residual.post {
            Some(w) => rms(a.clone(), residual.eps) * w.values.clone().unsqueeze(),
            None => a.clone(),
        };
        *x = (x.clone() + added) * residual.scale;
    }

    fn add_norm(
        &mut self,
        x: &mut Tensor<2>,
        a: &Tensor<2>,
        residual: Residual<'_, PlainVector>,
        next: &PlainVector,
    ) -> Tensor<2> {
        let eps = residual.eps;
        self.add(x, a, residual);
        rms(x.clone(), eps) * next.values.clone().unsqueeze()
    }

    fn linear(&mut self, x: &Tensor<2>, weight: &Tensor<2>) -> Tensor<2> {
        product(x, weight.clone())
    }

    fn gated_linear(&mut self, x: &Tensor<2>, gate_up: &Tensor<2>, activation: Activation) -> Tensor<2> {
        let both = product(x, gate_up.clone());
        let [t, n] = both.dims();
        let gate = both.clone().slice([0..t, 0..n / 2]);
        activate(gate, activation) * both.slice([0..t, n / 2..n])
    }

    fn gate(&mut self, gate: &Tensor<2>, g: &Tensor<2>, offset: usize, activation: Activation) -> Tensor<2> {
        let [t, n] = gate.dims();
        activate(gate.clone(), activation) * g.clone().slice([0..t, offset..offset + n])
    }

    fn attention(&mut self, qkv: &Tensor<2>, attention: &Attention<'_, PlainVector>) -> Tensor<2> {
        let Attention { heads, kv_heads, head_dim: d, eps, .. } = *attention;
        let t = self.step.rows.len();
        let part = |first: usize, count: usize| {
            qkv.clone().slice([0..t, first * d..(first + count) * d]).reshape([t, count, d])
        };
        let normed = |x: Tensor<3>, w: Option<&PlainVector>| match w {
            Some(w) => rms(x, eps) * w.values.clone().reshape([1, 1, d]),
            None => x,
        };
        let q = self.rotate(normed(part(0, heads), attention.q_norm), &attention.inv_freq.host, attention.pairs);
        let owner = attention.kv_layer;
        if attention.writes_kv {
            let raw_k = part(heads, kv_heads);
            let raw_v = if attention.value_from_key { raw_k.clone() } else { part(heads + kv_heads, kv_heads) };
            let v = if attention.unit_value_norm { rms(raw_v, eps) } else { raw_v };
            let k = self.rotate(normed(raw_k, attention.k_norm), &attention.inv_freq.host, attention.pairs);
            if self.cache.kv.len() <= owner {
                self.cache.kv.resize(owner + 1, None);
            }
            let first = self.step.rows.first().map_or(0, |row| row.position as usize);
            let before = |x: Tensor<3>| x.slice([0..first, 0..kv_heads, 0..d]);
            let kept = &mut self.cache.kv[owner];
            *kept = Some(match kept.take() {
                Some((ks, vs)) if first > 0 => {
                    (Tensor::cat(vec![before(ks), k], 0), Tensor::cat(vec![before(vs), v], 0))
                }
                _ => (k, v),
            });
        }
        let (keys, values) = self.cache.kv[owner].clone().expect("an earlier layer wrote them");
        let [s, ..] = keys.dims();
        // Each key/value head serves heads / kv_heads query heads in a row.
        let spread = |x: Tensor<3>| {
            let shared = heads / kv_heads;
            x.swap_dims(0, 1).reshape([kv_heads, 1, s, d]).repeat_dim(1, shared).reshape([heads, s, d])
        };
        let scores = q.swap_dims(0, 1).matmul(spread(keys).swap_dims(1, 2)) * attention.scale; // [H, T, S]
        let scores = scores + self.mask(s, attention.window).reshape([1, t, s]);
        let mixed = softmax(scores, 2).matmul(spread(values)); // [H, T, d]
        mixed.swap_dims(0, 1).reshape([t, heads * d])
    }

    /// Here routes are the weights of all experts, `[T, E]`, zero for those not chosen.
    fn route(&mut self, logits: &Tensor<2>, used: usize, expert_scale: Option<&PlainVector>) -> Tensor<2> {
        let p = softmax(logits.clone(), 1);
        let least = p.clone().topk(used, 1).min_dim(1);
        let kept = p.clone().mask_fill(p.lower(least), 0.0);
        let weights = kept.clone() / kept.sum_dim(1);
        match expert_scale {
            Some(scale) => weights * scale.values.clone().unsqueeze(),
            None => weights,
        }
    }

    /// Here every expert is computed: `[T, E·f]`.
    fn expert_gated_linear(
        &mut self,
        x: &Tensor<2>,
        gate_up: &Tensor<2>,
        _routes: &Tensor<2>,
        experts: ExpertShape,
        activation: Activation,
    ) -> Tensor<2> {
        let [rows, cols] = gate_up.dims();
        let each = rows / experts.count;
        let one = |e: usize| gate_up.clone().slice([e * each..(e + 1) * each, 0..cols]);
        let all = (0..experts.count).map(|e| self.gated_linear(x, &one(e), activation)).collect();
        Tensor::cat(all, 1)
    }

    fn expert_linear_sum(
        &mut self,
        h: &Tensor<2>,
        down: &Tensor<2>,
        routes: &Tensor<2>,
        experts: ExpertShape,
    ) -> Tensor<2> {
        let [rows, f] = down.dims();
        let (each, t) = (rows / experts.count, self.step.rows.len());
        let one = |e: usize| {
            let hidden = h.clone().slice([0..t, e * f..(e + 1) * f]);
            let weight = routes.clone().slice([0..t, e..e + 1]);
            product(&hidden, down.clone().slice([e * each..(e + 1) * each, 0..f])) * weight
        };
        (1..experts.count).fold(one(0), |sum, e| sum + one(e))
    }

    fn head(&mut self, x: &Tensor<2>, table: &Tensor<2>, softcap: Option<f32>) -> Tensor<2> {
        self.logits(x, self.step.logits.iter().copied(), table, softcap)
    }

    /// Here all logits of a label's row are computed.
    fn label_logits(&mut self, x: &Tensor<2>, table: &Tensor<2>, softcap: Option<f32>) -> Tensor<2> {
        let all = self.logits(x, self.step.labels.iter().map(|label| label.row), table, softcap);
        let tokens = self.ids(self.step.labels.iter().map(|label| label.token));
        all.gather(1, tokens.unsqueeze_dim(1))
    }

    fn condition(&mut self, cols: usize) -> Tensor<2> {
        let zeros = vec![0.0; cols];
        let soft = |row: &Row| match row.block {
            Some(block) if block.is_conditioned => &self.cache.soft[(row.position - block.start) as usize],
            _ => &zeros,
        };
        let values = self.step.rows.iter().flat_map(|row| soft(row).clone()).collect();
        self.values(values, cols)
    }

    fn draft(&mut self, x: &Tensor<2>, draft: &DraftHead<'_, Tensor<2>>) -> Tensor<2> {
        let rows = self.step.drafts.iter().map(|draft| draft.row);
        let logits = host(self.logits(x, rows, draft.table, draft.softcap));
        let [vocab, _] = draft.table.dims();
        let mut columns = Vec::new();
        for (one, logits) in self.step.drafts.iter().zip(logits.chunks_exact(vocab)) {
            let (drafted, probabilities) = drafted(logits, one, draft.forbidden);
            columns.extend(drafted.to_columns());
            if let (Some((table, scale)), Some(block)) = (draft.soften, self.step.rows[one.row as usize].block) {
                let place = (self.step.rows[one.row as usize].position - block.start) as usize;
                let soft = self.values(probabilities, vocab).matmul(table.clone()) * scale;
                if self.cache.soft.len() <= place {
                    self.cache.soft.resize(place + 1, Vec::new());
                }
                self.cache.soft[place] = host(soft);
            }
        }
        self.values(columns, DRAFT_COLUMNS)
    }

    fn observe(&mut self, _index: usize, x: &Tensor<2>) {
        self.observed.push(x.clone());
    }
}
