//! Rotary position embedding.

use crate::simd::{LANES, Simd};
use laneway_files::RopePairs;

/// Cosines and sines of one step's rows for one set of frequencies.
pub(crate) struct RopeTable {
    inv_freq: Vec<f32>,
    /// `[T][cos of each pair, then sin of each pair]`
    rows: Vec<f32>,
}

impl RopeTable {
    pub fn new(inv_freq: &[f32], positions: impl Iterator<Item = u32>) -> Self {
        let mut rows = Vec::new();
        for position in positions {
            let angles = inv_freq.iter().map(|f| position as f32 * f);
            rows.extend(angles.clone().map(f32::cos));
            rows.extend(angles.map(f32::sin));
        }
        Self { inv_freq: inv_freq.to_vec(), rows }
    }

    pub fn is_for(&self, inv_freq: &[f32]) -> bool {
        self.inv_freq == inv_freq
    }

    /// Rotates one head of row `row` in place.
    #[inline(always)]
    pub fn rotate<S: Simd>(&self, s: S, row: usize, x: &mut [f32], pairs: RopePairs) {
        let half = self.inv_freq.len();
        let (cos, sin) = self.rows[row * 2 * half..][..2 * half].split_at(half);
        match pairs {
            RopePairs::Half => {
                let (low, high) = x.split_at_mut(half);
                let parts = low.chunks_mut(LANES).zip(high.chunks_mut(LANES));
                for ((low, high), (cos, sin)) in parts.zip(cos.chunks(LANES).zip(sin.chunks(LANES))) {
                    let (a, b) = (s.load_part(low), s.load_part(high));
                    let (c, d) = (s.load_part(cos), s.load_part(sin));
                    s.store_part(s.sub(s.mul(a, c), s.mul(b, d)), low);
                    s.store_part(s.fma(b, c, s.mul(a, d)), high);
                }
            }
            RopePairs::Interleaved => {
                for ((pair, c), d) in x.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    *pair = [pair[0] * c - pair[1] * d, pair[1] * c + pair[0] * d];
                }
            }
        }
    }
}
