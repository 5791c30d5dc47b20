//! A weight matrix on the cpu.

use crate::memory::Arena;
use crate::pack::{Body, Packed, Source};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd, Tier};
use std::ops::Range;

/// A matrix `[rows, cols]`: parts of possibly different formats, stacked.
pub struct CpuMatrix {
    rows: usize,
    cols: usize,
    parts: Vec<Part>,
}

struct Part {
    first: usize,
    packed: Packed,
}

/// Some of the 16 rows of one group of one part.
pub(crate) struct Span<'a> {
    pub packed: &'a Packed,
    pub group: usize,
    /// Lanes that belong to the asked range.
    pub lanes: Range<usize>,
    /// Matrix row of the first of these lanes.
    pub row: usize,
}

impl CpuMatrix {
    pub(crate) fn new(sources: &[Source<'_>], arena: &Arena, pool: &Pool) -> Option<Self> {
        let cols = sources.first()?.cols;
        let mut matrix = Self { rows: 0, cols, parts: Vec::with_capacity(sources.len()) };
        for source in sources {
            if source.cols != cols {
                return None;
            }
            let first = matrix.rows;
            matrix.rows = first.checked_add(source.rows)?;
            matrix.parts.push(Part { first, packed: Packed::new(source, arena, pool) });
        }
        Some(matrix)
    }

    /// Number of rows: the outputs of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the inputs of a product.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes that the packed weights take.
    pub fn byte_len(&self) -> usize {
        self.parts.iter().map(|part| part.packed.byte_len()).sum()
    }

    /// Writes row `row` as f32 into `out [cols]`; zeros for a row that the matrix does not have.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let part = &self.parts[self.parts.partition_point(|part| part.first <= row).saturating_sub(1)];
        if row < self.rows {
            Tier::best().run(ReadRow { packed: &part.packed, row: row - part.first, out });
        } else {
            out.fill(0.0);
        }
    }

    pub(crate) fn is_quantised(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.packed.body, Body::Blocks(_)))
    }

    /// The groups that hold `rows`, in order.
    pub(crate) fn spans(&self, rows: Range<usize>) -> impl Iterator<Item = Span<'_>> {
        let start = self.parts.partition_point(|part| part.first <= rows.start).saturating_sub(1);
        self.parts[start..]
            .iter()
            .take_while({
                let end = rows.end;
                move |part| part.first < end
            })
            .flat_map(move |part| {
                let low = rows.start.saturating_sub(part.first);
                let high = (rows.end - part.first).min(part.packed.rows);
                (low / LANES..high.div_ceil(LANES)).map(move |group| {
                    let base = group * LANES;
                    let lanes = low.saturating_sub(base)..(high - base).min(LANES);
                    Span { packed: &part.packed, group, row: part.first + base + lanes.start, lanes }
                })
            })
    }
}

struct ReadRow<'a> {
    packed: &'a Packed,
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for ReadRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.packed.read_row(s, self.row, self.out);
    }
}
