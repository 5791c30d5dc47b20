//! `x · wᵀ` for packed weights: every group of 16 rows meets up to eight activation rows at a time.

use crate::input::Input;
use crate::matrix::{CpuMatrix, Span};
use crate::pack::{Blocks, Body, GroupScales, Packed};
use crate::pool::Pool;
use crate::recipe::Codes;
use crate::simd::{BLOCK, Kernel, LANES, Line, Simd, Tier, XBlock};
use crate::tiles::{Tile, Tiles};
use std::ops::Range;

/// Activation rows whose integers stay in the second-level cache while all weights pass by.
const TILE_ROWS: usize = 64;
/// Multiply-adds from which threads share the work.
const SHARED_FROM: usize = 64 * 1024;

/// Writes `x · w[rows]ᵀ` to `out [T, rows.len()]` and calls `finish` on every finished piece of a row.
pub(crate) fn linear(
    x: &Input<'_>,
    w: &CpuMatrix,
    rows: Range<usize>,
    out: &mut [f32],
    pool: &Pool,
    tier: Tier,
    finish: impl Fn(&mut [f32]) + Sync,
) {
    let width = rows.len();
    let shared = x.rows * width * x.cols >= SHARED_FROM && pool.threads() > 1;
    let tasks = if shared { pool.threads() * 8 } else { 1 };
    let groups = width.div_ceil(LANES).div_ceil(tasks).clamp(1, 64);
    Tiles::new(out, width, TILE_ROWS, groups * LANES).share(pool, |mut tile| {
        let cols = rows.start + tile.cols.start..rows.start + tile.cols.end;
        for span in w.spans(cols.clone()) {
            group_product(tier, x, Target { column: span.row - cols.start, span, tile: &mut tile });
        }
        for row in tile.rows.clone() {
            finish(tile.row_mut(row));
        }
    });
}

/// Where a group's products go.
struct Target<'a, 'b> {
    /// Column of the tile that the span's first lane has.
    column: usize,
    span: Span<'a>,
    tile: &'a mut Tile<'b, f32>,
}

fn group_product(tier: Tier, x: &Input<'_>, target: Target<'_, '_>) {
    let Span { packed, group, .. } = target.span;
    match &packed.body {
        Body::Float(slabs) => {
            tier.run(DenseProduct::<Float> { lanes: Packed::dense(slabs, packed.cols, group), x, target });
        }
        Body::Half(slabs) => {
            tier.run(DenseProduct::<Half> { lanes: Packed::dense(slabs, packed.cols, group), x, target });
        }
        Body::Bfloat(slabs) => {
            tier.run(DenseProduct::<Bfloat> { lanes: Packed::dense(slabs, packed.cols, group), x, target });
        }
        Body::Blocks(blocks) => match (blocks.recipe.codes, blocks.recipe.unit == LANES) {
            (Codes::Nibble, false) => tier.run(BlockProduct::<_, false> { unpack: Nibble, blocks, x, target }),
            (Codes::Nibble, true) => tier.run(BlockProduct::<_, true> { unpack: Nibble, blocks, x, target }),
            (Codes::Table, false) => {
                tier.run(BlockProduct::<_, false> { unpack: Table(blocks.recipe.table), blocks, x, target });
            }
            (Codes::Table, true) => {
                tier.run(BlockProduct::<_, true> { unpack: Table(blocks.recipe.table), blocks, x, target });
            }
            (Codes::Five, _) => tier.run(BlockProduct::<_, false> { unpack: Five, blocks, x, target }),
            (Codes::Six, _) => tier.run(BlockProduct::<_, true> { unpack: Six, blocks, x, target }),
            (Codes::Byte, _) => tier.run(BlockProduct::<_, false> { unpack: Byte, blocks, x, target }),
        },
    }
}

/// One group of 16 weight rows that can be multiplied with `N` activation rows.
trait Group<S: Simd> {
    fn products<const N: usize>(&self, s: S, x: &Input<'_>, first: usize) -> [S::F; N];
}

#[inline(always)]
fn all_rows<S: Simd>(s: S, group: &impl Group<S>, x: &Input<'_>, mut target: Target<'_, '_>) {
    let rows = target.tile.rows.clone();
    let mut row = rows.start;
    while row < rows.end {
        row += match rows.end - row {
            8.. => some_rows::<S, 8>(s, group, x, row, &mut target),
            4.. => some_rows::<S, 4>(s, group, x, row, &mut target),
            2.. => some_rows::<S, 2>(s, group, x, row, &mut target),
            _ => some_rows::<S, 1>(s, group, x, row, &mut target),
        };
    }
}

#[inline(always)]
fn some_rows<S: Simd, const N: usize>(
    s: S,
    group: &impl Group<S>,
    x: &Input<'_>,
    row: usize,
    target: &mut Target<'_, '_>,
) -> usize {
    let products = group.products::<N>(s, x, row);
    let lanes = target.span.lanes.clone();
    for (i, product) in products.into_iter().enumerate() {
        let out = &mut target.tile.row_mut(row + i)[target.column..][..lanes.len()];
        if lanes.start == 0 {
            s.store_part(product, out);
        } else {
            let mut all = [0.0; LANES];
            s.store(product, &mut all);
            out.copy_from_slice(&all[lanes.clone()]);
        }
    }
    N
}

/// A plain float type.
trait Element {
    type Raw;
    fn lanes<S: Simd>(s: S, raw: &[Self::Raw; LANES]) -> S::F;
}

struct Float;
struct Half;
struct Bfloat;

impl Element for Float {
    type Raw = f32;
    #[inline(always)]
    fn lanes<S: Simd>(s: S, raw: &[f32; LANES]) -> S::F {
        s.load(raw)
    }
}

impl Element for Half {
    type Raw = u16;
    #[inline(always)]
    fn lanes<S: Simd>(s: S, raw: &[u16; LANES]) -> S::F {
        s.half(raw)
    }
}

impl Element for Bfloat {
    type Raw = u16;
    #[inline(always)]
    fn lanes<S: Simd>(s: S, raw: &[u16; LANES]) -> S::F {
        s.bfloat(raw)
    }
}

struct DenseProduct<'a, 'b, E: Element> {
    lanes: &'a [[E::Raw; LANES]],
    x: &'a Input<'a>,
    target: Target<'a, 'b>,
}

impl<E: Element> Kernel for DenseProduct<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { lanes, x, target } = self;
        all_rows(s, &Dense::<E> { w: lanes }, x, target);
    }
}

struct Dense<'a, E: Element> {
    w: &'a [[E::Raw; LANES]],
}

impl<S: Simd, E: Element> Group<S> for Dense<'_, E> {
    #[inline(always)]
    fn products<const N: usize>(&self, s: S, x: &Input<'_>, first: usize) -> [S::F; N] {
        let x: [&[f32]; N] = std::array::from_fn(|i| x.row(first + i));
        // Two sums per row keep the multiply-add units busy when rows are few.
        let mut sums = [[s.splat(0.0); 2]; N];
        let (pairs, last) = self.w.as_chunks::<2>();
        for (k, pair) in pairs.iter().enumerate() {
            for (odd, w) in pair.iter().enumerate() {
                let w = E::lanes(s, w);
                for (sums, x) in sums.iter_mut().zip(x) {
                    sums[odd] = s.fma(w, s.splat(x[2 * k + odd]), sums[odd]);
                }
            }
        }
        for w in last {
            let w = E::lanes(s, w);
            for (sums, x) in sums.iter_mut().zip(x) {
                sums[0] = s.fma(w, s.splat(x[x.len() - 1]), sums[0]);
            }
        }
        let mut totals = [s.splat(0.0); N];
        for (total, [even, odd]) in totals.iter_mut().zip(sums) {
            *total = s.add(even, odd);
        }
        totals
    }
}

struct Quantised<'a, U, const HALVES: bool> {
    lines: &'a [Line],
    scales: &'a GroupScales,
    unpack: U,
}

/// A code layout.
trait Unpack {
    const LINES: usize;
    /// Codes stay below 32.
    const SMALL: bool;
    fn quads<S: Simd>(&self, s: S, lines: &[Line]) -> S::Quads;
}

struct Nibble;
struct Table([u8; 16]);
struct Five;
struct Six;
struct Byte;

#[inline(always)]
fn first_lines<const N: usize>(lines: &[Line]) -> &[Line; N] {
    lines.first_chunk().expect("a block has the lines of its layout")
}

impl Unpack for Nibble {
    const LINES: usize = 4;
    const SMALL: bool = true;
    #[inline(always)]
    fn quads<S: Simd>(&self, s: S, lines: &[Line]) -> S::Quads {
        s.nibbles(first_lines(lines))
    }
}

impl Unpack for Table {
    const LINES: usize = 4;
    const SMALL: bool = false;
    #[inline(always)]
    fn quads<S: Simd>(&self, s: S, lines: &[Line]) -> S::Quads {
        s.lookup(s.nibbles(first_lines(lines)), &self.0)
    }
}

impl Unpack for Five {
    const LINES: usize = 5;
    const SMALL: bool = true;
    #[inline(always)]
    fn quads<S: Simd>(&self, s: S, lines: &[Line]) -> S::Quads {
        s.plane(s.nibbles(first_lines(lines)), &lines[4], 16)
    }
}

impl Unpack for Six {
    const LINES: usize = 6;
    const SMALL: bool = false;
    #[inline(always)]
    fn quads<S: Simd>(&self, s: S, lines: &[Line]) -> S::Quads {
        s.plane(s.plane(s.nibbles(first_lines(lines)), &lines[4], 16), &lines[5], 32)
    }
}

impl Unpack for Byte {
    const LINES: usize = 8;
    const SMALL: bool = false;
    #[inline(always)]
    fn quads<S: Simd>(&self, s: S, lines: &[Line]) -> S::Quads {
        s.bytes(first_lines(lines))
    }
}

struct BlockProduct<'a, 'b, U, const HALVES: bool> {
    unpack: U,
    blocks: &'a Blocks,
    x: &'a Input<'a>,
    target: Target<'a, 'b>,
}

impl<U: Unpack, const HALVES: bool> Kernel for BlockProduct<'_, '_, U, HALVES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { unpack, blocks, x, target } = self;
        let Span { packed, group, .. } = target.span;
        let mut scales = GroupScales::default();
        blocks.scales(s, packed.cols, group, &mut scales);
        let lines = blocks.lines(packed.cols, group);
        all_rows(s, &Quantised::<U, HALVES> { lines, scales: &scales, unpack }, x, target);
    }
}

impl<S: Simd, U: Unpack, const HALVES: bool> Group<S> for Quantised<'_, U, HALVES> {
    #[inline(always)]
    fn products<const N: usize>(&self, s: S, x: &Input<'_>, first: usize) -> [S::F; N] {
        let x: [&[XBlock]; N] = std::array::from_fn(|i| x.row_blocks(first + i));
        if HALVES { self.by_halves(s, x) } else { self.by_blocks(s, x) }
    }
}

impl<U: Unpack, const HALVES: bool> Quantised<'_, U, HALVES> {
    #[inline(always)]
    fn by_blocks<S: Simd, const N: usize>(&self, s: S, x: [&[XBlock]; N]) -> [S::F; N] {
        let mut sums = [s.splat(0.0); N];
        let count = self.scales.scale.len();
        let x = x.map(|x| &x[..count]);
        let blocks = self.lines.chunks_exact(U::LINES).zip(&self.scales.scale).zip(&self.scales.min);
        for (b, ((lines, scale), min)) in (0..count).zip(blocks) {
            if N == 1 {
                s.prefetch(lines);
            }
            let quads = self.unpack.quads(s, lines);
            let (scale, min) = (s.load(scale), s.load(min));
            let x = x.map(|x| &x[b]);
            let dots = if U::SMALL { s.dots::<true, N>(&quads, x) } else { s.dots::<false, N>(&quads, x) };
            for i in 0..N {
                sums[i] = s.fma(s.float(dots[i]), s.mul(scale, s.splat(x[i].scale)), sums[i]);
                sums[i] = s.fma(min, s.splat(x[i].total), sums[i]);
            }
        }
        sums
    }

    /// For scales that span 16 columns.
    #[inline(always)]
    fn by_halves<S: Simd, const N: usize>(&self, s: S, x: [&[XBlock]; N]) -> [S::F; N] {
        const { assert!(BLOCK == 2 * LANES) };
        let mut sums = [s.splat(0.0); N];
        let (scales, mins) = (self.scales.scale.as_chunks::<2>().0, self.scales.min.as_chunks::<2>().0);
        let x = x.map(|x| &x[..scales.len()]);
        let blocks = self.lines.chunks_exact(U::LINES).zip(scales).zip(mins);
        for (b, ((lines, scale), min)) in (0..scales.len()).zip(blocks) {
            if N == 1 {
                s.prefetch(lines);
            }
            let quads = self.unpack.quads(s, lines);
            let x = x.map(|x| &x[b]);
            for half in 0..2 {
                let (scale, min) = (s.load(&scale[half]), s.load(&min[half]));
                let dots = if U::SMALL {
                    s.half_dots::<true, N>(&quads, x, half)
                } else {
                    s.half_dots::<false, N>(&quads, x, half)
                };
                for i in 0..N {
                    sums[i] = s.fma(s.float(dots[i]), s.mul(scale, s.splat(x[i].scale)), sums[i]);
                    sums[i] = s.fma(min, s.splat(x[i].halves[half]), sums[i]);
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Arena;
    use crate::pack::Source;
    use crate::{reference, test_data};
    use laneway_files::Format;

    /// Largest error of `x · wᵀ`, as a share of the norms of the rows multiplied.
    fn worst(found: &[f32], x: &[f32], w: &[f32], cols: usize) -> f32 {
        let norm = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>().sqrt();
        let expected = reference::linear(x, w, cols);
        let bounds = x.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| norm(x) * norm(w) + 1e-9));
        found.iter().zip(&expected).zip(bounds).map(|((a, b), bound)| (a - b).abs() / bound).fold(0.0, f32::max)
    }

    fn check(format: Format, rows: usize, cols: usize, tokens: &[usize], pool: &Pool) {
        let scale = if format == Format::Nvfp4 { 0.5 } else { 1.0 };
        let bytes = test_data::blocks(format, rows * cols, (rows * 31 + cols) as u64);
        let mut w = vec![0.0; rows * cols];
        format.dequantize(&bytes, &mut w).unwrap();
        w.iter_mut().for_each(|w| *w *= scale);
        let matrix =
            CpuMatrix::new(&[Source { format, rows, cols, scale, bytes: &bytes }], &Arena::default(), pool).unwrap();
        let mut row = vec![0.0; cols];
        for r in [0, rows / 2, rows - 1] {
            matrix.read_row(r, &mut row);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (0.1 + b.abs());
            assert!(row.iter().zip(&w[r * cols..]).all(close), "{format:?} row {r} of {rows} × {cols}");
        }
        for tier in Tier::available() {
            for &t in tokens {
                let x = test_data::values(t * cols, t as u64);
                let input = Input::new(&x, cols, matrix.is_quantised(), pool, tier);
                let mut out = vec![0.0; t * rows];
                linear(&input, &matrix, 0..rows, &mut out, pool, tier, |_| {});
                let error = worst(&out, &x, &w, cols);
                assert!(error < 5e-5, "{format:?} {rows} × {cols}, {t} tokens, {}: {error}", tier.name());
            }
        }
    }

    #[test]
    fn every_format_matches_the_dequantised_reference_on_odd_shapes() {
        let pool = Pool::new(2);
        for format in Format::ALL {
            for rows in [1, 3, 16, 17, 33] {
                for cols in [32, 64, 96, 160, 256, 512] {
                    if cols % format.block_len() == 0 {
                        check(format, rows, cols, &[1, 3, 8], &pool);
                    }
                }
            }
            check(format, 33, 256, &[2, 5, 33], &pool);
        }
    }

    #[test]
    fn plain_floats_may_have_any_number_of_columns() {
        for format in [Format::F32, Format::F16, Format::BF16] {
            for cols in [1, 7, 24, 33] {
                check(format, 19, cols, &[1, 3, 9], &Pool::new(1));
            }
        }
    }

    #[test]
    fn large_products_are_shared_and_tiled() {
        check(Format::Q4_1, 600, 256, &[1, 130], &Pool::new(3));
    }

    #[test]
    fn row_ranges_of_stacked_parts_of_different_formats() {
        let pool = Pool::new(2);
        let (formats, heights, cols) = ([Format::Q5_0, Format::F32, Format::Q8_0], [21, 5, 40], 64);
        let bytes: Vec<_> =
            formats.iter().zip(heights).map(|(f, rows)| test_data::blocks(*f, rows * cols, 9)).collect();
        let mut w = vec![0.0; heights.iter().sum::<usize>() * cols];
        let mut at = 0;
        let mut sources = Vec::new();
        for ((&format, rows), bytes) in formats.iter().zip(heights).zip(&bytes) {
            format.dequantize(bytes, &mut w[at..at + rows * cols]).unwrap();
            at += rows * cols;
            sources.push(Source { format, rows, cols, scale: 1.0, bytes });
        }
        let matrix = CpuMatrix::new(&sources, &Arena::default(), &pool).unwrap();
        let x = test_data::values(3 * cols, 4);
        for range in [0..66, 0..1, 20..22, 21..26, 25..66, 30..31] {
            let input = Input::new(&x, cols, true, &pool, Tier::best());
            let mut out = vec![0.0; 3 * range.len()];
            linear(&input, &matrix, range.clone(), &mut out, &pool, Tier::best(), |_| {});
            let error = worst(&out, &x, &w[range.start * cols..range.end * cols], cols);
            assert!(error < 5e-5, "{range:?}: {error}");
        }
        let mut row = vec![1.0; cols];
        matrix.read_row(66, &mut row);
        assert!(row.iter().all(|&x| x == 0.0));
    }
}
