//! Mixtures of experts: each expert multiplies the rows that chose it.

use crate::input::Input;
use crate::math::Gate;
use crate::matmul::linear;
use crate::matrix::CpuMatrix;
use crate::ops::Act;
use crate::pool::Pool;
use crate::simd::Tier;
use laneway_files::Activation;
use laneway_model::ExpertShape;

/// Chosen experts of all rows: `[T, 2 · used]`, the experts' numbers, then their weights.
pub(crate) fn route(logits: &Act, used: usize, expert_scale: Option<&[f32]>) -> Act {
    let mut routes = Act::zeros(logits.rows(), 2 * used);
    for (logits, out) in logits.data().chunks_exact(logits.cols()).zip(routes.data_mut().chunks_exact_mut(2 * used)) {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let (experts, weights) = out.split_at_mut(used);
        let top = logits[order[0]];
        // The softmax's denominator cancels when the chosen weights are made to sum to one.
        let total: f32 = order.iter().take(used).map(|&e| (logits[e] - top).exp()).sum();
        for ((expert, weight), e) in experts.iter_mut().zip(weights).zip(order) {
            *expert = e as f32;
            *weight = (logits[e] - top).exp() / total * expert_scale.map_or(1.0, |scale| scale[e]);
        }
    }
    routes
}

/// What the expert products share.
pub(crate) struct Experts<'a> {
    pub routes: &'a Act,
    pub shape: ExpertShape,
    pub pool: &'a Pool,
    pub tier: Tier,
}

impl Experts<'_> {
    /// `[T · used, f]` from `x [T, cols]` and `gate_up [E · 2f, cols]`.
    pub fn gated_linear(&self, x: &Act, gate_up: &CpuMatrix, activation: Activation) -> Act {
        let (used, width) = (self.shape.used, gate_up.rows() / self.shape.count);
        let f = width / 2;
        let mut out = Act::zeros(x.rows() * used, f);
        let input = Input::new(x.data(), x.cols(), gate_up.is_quantised(), self.pool, self.tier);
        for (expert, slots) in self.slots().into_iter().enumerate().filter(|(_, slots)| !slots.is_empty()) {
            let rows: Vec<usize> = slots.iter().map(|slot| slot / used).collect();
            let products = self.product(&input.gather(&rows), gate_up, expert, width);
            for (slot, product) in slots.into_iter().zip(products.chunks_exact(width)) {
                let (gate, up) = product.split_at(f);
                self.tier.run(Gate { gate, up, out: &mut out.data_mut()[slot * f..][..f], activation });
            }
        }
        out
    }

    /// `[T, n]` from `h [T · used, f]` and `down [E · n, f]`.
    pub fn linear_sum(&self, h: &Act, down: &CpuMatrix) -> Act {
        let (used, width) = (self.shape.used, down.rows() / self.shape.count);
        let mut out = Act::zeros(self.routes.rows(), width);
        let input = Input::new(h.data(), h.cols(), down.is_quantised(), self.pool, self.tier);
        for (expert, slots) in self.slots().into_iter().enumerate().filter(|(_, slots)| !slots.is_empty()) {
            let products = self.product(&input.gather(&slots), down, expert, width);
            for (slot, product) in slots.into_iter().zip(products.chunks_exact(width)) {
                let weight = self.routes.row(slot / used)[used + slot % used];
                let out = &mut out.data_mut()[slot / used * width..][..width];
                out.iter_mut().zip(product).for_each(|(out, product)| *out += weight * product);
            }
        }
        out
    }

    /// For each expert, the `row · used + choice` numbers that chose it.
    fn slots(&self) -> Vec<Vec<usize>> {
        let mut slots = vec![Vec::new(); self.shape.count];
        for row in 0..self.routes.rows() {
            for (choice, expert) in self.routes.row(row)[..self.shape.used].iter().enumerate() {
                slots[*expert as usize].push(row * self.shape.used + choice);
            }
        }
        slots
    }

    fn product(&self, x: &Input<'_>, w: &CpuMatrix, expert: usize, width: usize) -> Vec<f32> {
        let mut out = vec![0.0; x.rows * width];
        linear(x, w, expert * width..(expert + 1) * width, &mut out, self.pool, self.tier, |_| {});
        out
    }
}
