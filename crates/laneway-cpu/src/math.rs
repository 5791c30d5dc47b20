//! Elementwise functions of 16 lanes.

use crate::simd::{Kernel, LANES, Simd};
use laneway_files::Activation;

/// `e^x`, relative error about 1e-7, for `-87 <= x <= 88`; clamped outside.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let x = s.min(s.max(x, s.splat(-87.0)), s.splat(88.0));
    let shift = s.splat(12_582_912.0);
    let n = s.sub(s.add(s.mul(x, s.splat(std::f32::consts::LOG2_E)), shift), shift);
    // ln 2 in two parts, the first exact in few bits.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_2e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 0.041_665_796, 0.166_666_65, 0.500_000_1] {
        p = s.fma(p, r, s.splat(c));
    }
    let p = s.fma(s.mul(r, r), p, s.add(r, s.splat(1.0)));
    s.mul(p, s.pow2(n))
}

/// `x / (1 + e^-y)`.
#[inline(always)]
fn sigmoid_times<S: Simd>(s: S, x: S::F, y: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), y))))
}

#[inline(always)]
fn activate<S: Simd>(s: S, x: S::F, activation: Activation) -> S::F {
    match activation {
        Activation::Silu => sigmoid_times(s, x, x),
        // ½(1 + tanh u) is the logistic function of 2u.
        Activation::GeluTanh => {
            let cubic = s.fma(s.mul(x, x), s.splat(2.0 * 0.797_884_6 * 0.044_715), s.splat(2.0 * 0.797_884_6));
            sigmoid_times(s, x, s.mul(x, cubic))
        }
    }
}

/// `out = act(gate) ⊙ up`, all of one length.
pub(crate) struct Gate<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub out: &'a mut [f32],
    pub activation: Activation,
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for ((out, gate), up) in self.out.chunks_mut(LANES).zip(self.gate.chunks(LANES)).zip(self.up.chunks(LANES)) {
            let gate = activate(s, s.load_part(gate), self.activation);
            s.store_part(s.mul(gate, s.load_part(up)), out);
        }
    }
}

/// `x = cap · tanh(x / cap)`; NaN for what is not finite, which would otherwise pass for a logit.
pub(crate) struct Softcap<'a> {
    pub x: &'a mut [f32],
    pub cap: f32,
}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cap, double) = (s.splat(self.cap), s.splat(2.0 / self.cap));
        for x in self.x.chunks_mut(LANES) {
            // tanh u = 1 − 2 / (e^2u + 1)
            let lanes = s.load_part(x);
            let e = exp(s, s.mul(lanes, double));
            let tail = s.div(s.splat(2.0), s.add(e, s.splat(1.0)));
            s.store_part(s.fma(lanes, s.splat(0.0), s.mul(cap, s.sub(s.splat(1.0), tail))), x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use crate::simd::Tier;

    struct Exp<'a>(&'a mut [f32]);

    impl Kernel for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            self.0.chunks_mut(LANES).for_each(|x| s.store_part(exp(s, s.load_part(x)), x));
        }
    }

    #[test]
    fn the_exponential_is_within_a_millionth() {
        let x: Vec<f32> = (0..4001).map(|i| -86.0 + i as f32 * 0.0432).collect();
        for tier in Tier::available() {
            let mut y = x.clone();
            tier.run(Exp(&mut y));
            for (&x, &y) in x.iter().zip(&y) {
                let exact = f64::from(x).exp();
                assert!((f64::from(y) / exact - 1.0).abs() < 1e-6, "{}: exp({x}) = {y}", tier.name());
            }
        }
    }

    #[test]
    fn gates_and_caps_match_their_formulas() {
        let x: Vec<f32> = (0..999).map(|i| (i as f32 - 499.0) * 0.037).collect();
        let up: Vec<f32> = x.iter().map(|x| 1.5 - x).collect();
        for tier in Tier::available() {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let mut out = vec![0.0; x.len()];
                tier.run(Gate { gate: &x, up: &up, out: &mut out, activation });
                for i in 0..x.len() {
                    let expected = reference::activate(x[i], activation) * up[i];
                    assert!((out[i] - expected).abs() <= 2e-6 * (1.0 + expected.abs()), "{} {expected}", out[i]);
                }
            }
            let mut capped = x.clone();
            tier.run(Softcap { x: &mut capped, cap: 3.0 });
            for (x, y) in x.iter().zip(&capped) {
                assert!(((x / 3.0).tanh() * 3.0 - y).abs() < 2e-6);
            }
            let mut broken = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX];
            tier.run(Softcap { x: &mut broken, cap: 3.0 });
            assert!(broken[..3].iter().all(|x| x.is_nan()) && broken[3] == 3.0);
        }
    }
}
