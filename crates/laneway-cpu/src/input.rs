//! Activations as matrix products read them.

use crate::pool::Pool;
use crate::simd::{BLOCK, Kernel, LANES, Simd, Tier, XBlock};
use crate::tiles::Tiles;
use std::borrow::Cow;

/// Rows `[T, cols]` of activations: f32, and 16-bit integers per block of 32 where weights are quantised.
pub(crate) struct Input<'a> {
    pub floats: Cow<'a, [f32]>,
    pub blocks: Vec<XBlock>,
    pub rows: usize,
    pub cols: usize,
}

/// Values from which threads share the work.
const SHARED_FROM: usize = 16 * 1024;

impl<'a> Input<'a> {
    /// Takes `floats` as rows of `cols`, and quantises them if `quantised`.
    pub fn new(floats: &'a [f32], cols: usize, quantised: bool, pool: &Pool, tier: Tier) -> Self {
        let rows = floats.len() / cols;
        let per_row = if quantised { cols / BLOCK } else { 0 };
        let mut blocks = vec![XBlock::ZERO; rows * per_row];
        if quantised {
            let tile_rows = if floats.len() < SHARED_FROM { rows } else { 8 };
            Tiles::new(&mut blocks, per_row, tile_rows, per_row).share(pool, |mut tile| {
                for row in tile.rows.clone() {
                    tier.run(Quantise { x: &floats[row * cols..][..cols], out: tile.row_mut(row) });
                }
            });
        }
        Self { floats: floats.into(), blocks, rows, cols }
    }

    /// The rows with these numbers, in this order.
    pub fn gather(&self, rows: &[usize]) -> Input<'static> {
        let floats: Vec<f32> = rows.iter().flat_map(|&row| self.row(row)).copied().collect();
        let blocks = if self.blocks.is_empty() {
            Vec::new()
        } else {
            rows.iter().flat_map(|&row| self.row_blocks(row)).copied().collect()
        };
        Input { floats: floats.into(), blocks, rows: rows.len(), cols: self.cols }
    }

    pub fn row(&self, row: usize) -> &[f32] {
        &self.floats[row * self.cols..][..self.cols]
    }

    pub fn row_blocks(&self, row: usize) -> &[XBlock] {
        let per_row = self.cols / BLOCK;
        &self.blocks[row * per_row..][..per_row]
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    out: &'a mut [XBlock],
}

/// Largest integer of a block: its high byte stays below 128 after the low byte's borrow.
const LIMIT: f32 = 32512.0;
/// Adding it rounds an f32 below 2^22 to an integer in the low bits.
const ROUND: f32 = 12_582_912.0;

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.as_chunks::<BLOCK>().0.iter().zip(self.out) {
            let (a, b) = (s.load_part(x), s.load_part(&x[LANES..]));
            let (high, low) = (s.max(a, b), s.min(a, b));
            let peak = s.largest(s.max(high, s.sub(s.splat(0.0), low)));
            let (inverse, scale) = if peak > 0.0 { (LIMIT / peak, peak / LIMIT) } else { (0.0, 0.0) };
            // A peak below 2^-112 has no finite inverse; such a block counts as zero.
            let (inverse, scale) = if inverse.is_finite() { (inverse, scale) } else { (0.0, 0.0) };
            let q: [i32; BLOCK] = std::array::from_fn(|i| {
                ((x[i] * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32)
            });
            let (high, low) = out.planes.split_at_mut(BLOCK);
            low.iter_mut().zip(q).for_each(|(low, q)| *low = q as i8);
            high.iter_mut().zip(q).for_each(|(high, q)| *high = (q.wrapping_add(128) >> 8) as i8);
            out.wide = q.map(|q| q as i16);
            let sum = |q: &[i32]| q.iter().fold(0i32, |sum, q| sum.wrapping_add(*q));
            let sums = [sum(&q[..LANES]), sum(&q[LANES..])];
            out.scale = scale;
            out.halves = sums.map(|sum| sum as f32 * scale);
            out.total = sums[0].wrapping_add(sums[1]) as f32 * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_their_planes_restore_the_input() {
        let x: Vec<f32> = (0..96).map(|i| if i < 64 { ((i * 37 % 101) as f32 - 50.0) * 0.3 } else { 0.0 }).collect();
        for tier in Tier::available() {
            let input = Input::new(&x, 96, true, &Pool::new(1), tier);
            for (block, x) in input.row_blocks(0).iter().zip(x.chunks(BLOCK)) {
                for (i, x) in x.iter().enumerate() {
                    let q = i32::from(block.planes[i]) * 256 + i32::from(block.planes[BLOCK + i]);
                    assert_eq!(q, i32::from(block.wide[i]));
                    assert!((q as f32 * block.scale - x).abs() <= block.scale * 0.51);
                }
                assert!((block.total - x.iter().sum::<f32>()).abs() < 1e-2);
                assert!((block.halves[0] + block.halves[1] - block.total).abs() < 1e-3);
            }
        }
    }

    #[test]
    fn extreme_inputs_do_not_panic() {
        let mut x = vec![f32::MAX; 32];
        x.extend([f32::MIN_POSITIVE / 4.0; 32]);
        x.extend([f32::NAN; 32]);
        x.extend([f32::INFINITY; 32]);
        for tier in Tier::available() {
            let input = Input::new(&x, 128, true, &Pool::new(1), tier);
            assert_eq!(input.row_blocks(0)[1].total, 0.0);
        }
    }
}
