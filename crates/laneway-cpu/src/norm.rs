//! RMS norms and residual additions of single rows.

use crate::simd::{Kernel, LANES, Simd};

/// Norms every run of `group` values in place.
pub(crate) struct Norm<'a> {
    pub x: &'a mut [f32],
    pub group: usize,
    pub eps: f32,
    pub weight: Option<&'a [f32]>,
}

/// `x = (x + a) · scale`, `a` normed first if `post` is given.
pub(crate) struct Add<'a> {
    pub x: &'a mut [f32],
    pub a: &'a [f32],
    pub post: Option<&'a [f32]>,
    pub scale: f32,
    pub eps: f32,
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(self.group) {
            norm(s, x, self.eps, self.weight);
        }
    }
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        match self.post {
            None => {
                for (x, a) in self.x.chunks_mut(LANES).zip(self.a.chunks(LANES)) {
                    s.store_part(s.mul(s.add(s.load_part(x), s.load_part(a)), scale), x);
                }
            }
            Some(weight) => {
                let rms = s.splat(inverse_rms(s, self.a, self.eps));
                let rows = self.x.chunks_mut(LANES).zip(self.a.chunks(LANES)).zip(weight.chunks(LANES));
                for ((x, a), w) in rows {
                    let a = s.mul(s.mul(s.load_part(a), rms), s.load_part(w));
                    s.store_part(s.mul(s.add(s.load_part(x), a), scale), x);
                }
            }
        }
    }
}

/// Norms one run of values in place.
#[inline(always)]
pub(crate) fn norm<S: Simd>(s: S, x: &mut [f32], eps: f32, weight: Option<&[f32]>) {
    let rms = s.splat(inverse_rms(s, x, eps));
    match weight {
        Some(weight) => {
            for (x, w) in x.chunks_mut(LANES).zip(weight.chunks(LANES)) {
                s.store_part(s.mul(s.mul(s.load_part(x), rms), s.load_part(w)), x);
            }
        }
        None => {
            for x in x.chunks_mut(LANES) {
                s.store_part(s.mul(s.load_part(x), rms), x);
            }
        }
    }
}

#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mut squares = s.splat(0.0);
    for x in x.chunks(LANES) {
        let x = s.load_part(x);
        squares = s.fma(x, x, squares);
    }
    1.0 / (s.sum(squares) / x.len() as f32 + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use crate::simd::Tier;

    #[test]
    fn norms_of_odd_widths_match_the_reference() {
        for tier in Tier::available() {
            for group in [1, 15, 16, 40, 64] {
                let x: Vec<f32> = (0..3 * group).map(|i| (i as f32 * 0.7).sin() * 4.0).collect();
                let w: Vec<f32> = (0..group).map(|i| 1.0 + i as f32 * 0.1).collect();
                let expected = reference::norm(&x, 1e-5, &w);
                let mut y = x.clone();
                tier.run(Norm { x: &mut y, group, eps: 1e-5, weight: Some(&w) });
                assert!(y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4));
                let mut sum = vec![0.5; group];
                tier.run(Add { x: &mut sum, a: &x[..group], post: Some(&w), scale: 2.0, eps: 1e-5 });
                assert!(sum.iter().zip(&expected).all(|(a, b)| (a - 2.0 * (b + 0.5)).abs() < 1e-4));
            }
        }
    }
}
