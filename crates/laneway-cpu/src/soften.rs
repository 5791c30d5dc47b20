//! Expected embeddings: weighted sums of the rows of a table.

use crate::matrix::CpuMatrix;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd, Tier};
use crate::tiles::Tiles;

/// Table rows that are read as f32 at once.
const BATCH: usize = 256;
/// Columns whose sums one pass over a batch carries in registers.
const CARRIED: usize = 4 * LANES;

/// Adds `weights [C, width] · table[first .. first + width]` to `sums [C, D]`; what was multiplied: the number of
/// weights other than 0, times `D`.
pub(crate) fn add_weighted_rows(
    sums: &mut [f32],
    weights: &[f32],
    width: usize,
    (table, first): (&CpuMatrix, usize),
    pool: &Pool,
    tier: Tier,
) -> u64 {
    let cols = table.cols();
    let (mut is_wanted, mut count) = (vec![false; width], 0u64);
    for weights in weights.chunks_exact(width) {
        for (is_wanted, &weight) in is_wanted.iter_mut().zip(weights) {
            *is_wanted |= weight != 0.0;
            count += u64::from(weight != 0.0);
        }
    }
    let wanted: Vec<usize> = (0..width).filter(|&token| is_wanted[token]).collect();
    let rows = weights.len() / width;
    let tile_cols =
        if rows >= 2 * pool.threads() { cols } else { cols.div_ceil(pool.threads()).next_multiple_of(CARRIED) };
    let mut embeddings = vec![0.0; wanted.len().min(BATCH) * cols];
    for batch in wanted.chunks(BATCH) {
        let embeddings = &mut embeddings[..batch.len() * cols];
        Tiles::new(embeddings, cols, 4, cols).share(pool, |mut tile| {
            for row in tile.rows.clone() {
                table.read_row(first + batch[row], tile.row_mut(row));
            }
        });
        let embeddings = &*embeddings;
        Tiles::new(sums, cols, 1, tile_cols).share(pool, |mut tile| {
            let (row, col) = (tile.rows.start, tile.cols.start);
            let weights = &weights[row * width..][..width];
            let weights: Vec<(usize, f32)> =
                batch.iter().map(|&token| weights[token]).enumerate().filter(|(_, weight)| *weight != 0.0).collect();
            tier.run(AddRows { sums: tile.row_mut(row), rows: &embeddings[col..], stride: cols, weights: &weights });
        });
    }
    count * cols as u64
}

/// Adds each (row, weight) to `sums`.
struct AddRows<'a> {
    sums: &'a mut [f32],
    rows: &'a [f32],
    stride: usize,
    weights: &'a [(usize, f32)],
}

impl Kernel for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (index, sums) in self.sums.chunks_mut(CARRIED).enumerate() {
            let rows = &self.rows[index * CARRIED..];
            if let Some(sums) = sums.as_chunks_mut::<LANES>().0.first_chunk_mut::<4>() {
                let mut carried = [s.splat(0.0); 4];
                for (carried, sums) in carried.iter_mut().zip(&*sums) {
                    *carried = s.load(sums);
                }
                for &(row, weight) in self.weights {
                    let weight = s.splat(weight);
                    let row = rows[row * self.stride..][..CARRIED].as_chunks::<LANES>().0;
                    for (carried, x) in carried.iter_mut().zip(row) {
                        *carried = s.fma(weight, s.load(x), *carried);
                    }
                }
                for (carried, sums) in carried.into_iter().zip(sums) {
                    s.store(carried, sums);
                }
            } else {
                for &(row, weight) in self.weights {
                    let row = &rows[row * self.stride..][..sums.len()];
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
                }
            }
        }
    }
}
