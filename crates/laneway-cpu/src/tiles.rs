//! Rectangles of a matrix that several threads fill at once.

use crate::pool::Pool;
use std::{marker::PhantomData, ops::Range};

/// A row-major matrix cut into rectangles, each of which one task owns.
pub(crate) struct Tiles<'a, T> {
    data: *mut T,
    cols: usize,
    row_cuts: Vec<usize>,
    tile_cols: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

/// One rectangle.
pub(crate) struct Tile<'a, T> {
    data: *mut T,
    stride: usize,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Tiles` only hands out disjoint rectangles, see `share`.
unsafe impl<T: Send> Sync for Tiles<'_, T> {}

impl<'a, T: Send> Tiles<'a, T> {
    /// Tiles of `tile_rows` by `tile_cols`; those at the edges may be smaller.
    pub fn new(data: &'a mut [T], cols: usize, tile_rows: usize, tile_cols: usize) -> Self {
        let rows = data.len().checked_div(cols).unwrap_or(0);
        let cuts = (0..rows).step_by(tile_rows.max(1)).chain([rows]).collect();
        Self::with_row_cuts(data, cols, cuts, tile_cols)
    }

    /// Tiles between consecutive `row_cuts`, which ascend from 0 to the number of rows.
    pub fn with_row_cuts(data: &'a mut [T], cols: usize, row_cuts: Vec<usize>, tile_cols: usize) -> Self {
        assert!(row_cuts.is_sorted() && row_cuts.last().is_some_and(|last| last * cols <= data.len()));
        Self { data: data.as_mut_ptr(), cols, row_cuts, tile_cols: tile_cols.max(1), lifetime: PhantomData }
    }

    /// Calls `f` once for every tile, on all threads of `pool`.
    pub fn share(self, pool: &Pool, f: impl Fn(Tile<'_, T>) + Sync) {
        let across = self.cols.div_ceil(self.tile_cols);
        let tiles = &self;
        pool.share((self.row_cuts.len() - 1) * across, |i| f(tiles.tile(i / across, i % across)));
    }

    fn tile(&self, down: usize, across: usize) -> Tile<'_, T> {
        let start = across * self.tile_cols;
        Tile {
            data: self.data,
            stride: self.cols,
            rows: self.row_cuts[down]..self.row_cuts[down + 1],
            cols: start..(start + self.tile_cols).min(self.cols),
            lifetime: PhantomData,
        }
    }
}

impl<T> Tile<'_, T> {
    /// The tile's part of the matrix's row `row`, which must be one of `rows`.
    #[inline]
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row));
        // SAFETY: `Pool::share` passes each tile number once, tiles are disjoint rectangles inside the borrowed
        // slice (checked in `with_row_cuts` and above), and `&mut self` keeps two rows of a tile from being held.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.stride + self.cols.start), self.cols.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_element_once() {
        for (rows, cols, tile_rows, tile_cols) in [(1, 1, 1, 1), (7, 33, 2, 16), (5, 3, 9, 9), (3, 48, 1, 16)] {
            let mut data = vec![0; rows * cols];
            Tiles::new(&mut data, cols, tile_rows, tile_cols).share(&Pool::new(3), |mut tile| {
                for row in tile.rows.clone() {
                    tile.row_mut(row).iter_mut().for_each(|x| *x += 1);
                }
            });
            assert!(data.iter().all(|&x| x == 1));
        }
    }
}
