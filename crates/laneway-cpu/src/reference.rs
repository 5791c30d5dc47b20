//! Plain loops that say what the fast kernels compute; tests compare with them.

use laneway_files::Activation;

/// `x [T, cols] · wᵀ`, `w [rows, cols]`: `[T, rows]`.
pub fn linear(x: &[f32], w: &[f32], cols: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
    x.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| dot(x, w))).collect()
}

/// RMS norm of every `weight.len()` values.
pub fn norm(x: &[f32], eps: f32, weight: &[f32]) -> Vec<f32> {
    x.chunks(weight.len())
        .flat_map(|x| {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
            let scale = 1.0 / (mean + eps).sqrt();
            x.iter().zip(weight).map(move |(x, w)| x * scale * w)
        })
        .collect()
}

/// The activation of one value.
pub fn activate(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
    }
}

/// Attention of one query head `q [d]`, already scaled, over `keys` and `values`, `[n, d]` each.
pub fn attend(q: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
    let scores = linear(q, keys, q.len());
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
    let total: f32 = weights.iter().sum();
    let value = |d: usize| weights.iter().zip(values.chunks(q.len())).map(|(w, v)| w * v[d]).sum::<f32>() / total;
    (0..q.len()).map(value).collect()
}
