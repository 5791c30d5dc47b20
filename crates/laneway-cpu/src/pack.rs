//! Weights as the kernels read them: 16 rows side by side, codes in cache lines, scales beside them.
//!
//! Packing reads the file's bytes once, keeps every value exactly, and takes about the file's size.

use crate::memory::{Arena, Block, Plain};
use crate::pool::Pool;
use crate::recipe::{Codes, Parts, Recipe, ScaleKind, recipe, take_apart};
use crate::simd::{BLOCK, LANES, Line, Simd};
use laneway_files::{Format, Tensor};
use std::ops::Range;

/// Rows in one slab, the unit of packing and allocation.
const SLAB_GROUPS: usize = 32;

/// A matrix as a file has it.
pub(crate) struct Source<'a> {
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
    /// Factor on everything.
    pub scale: f32,
    /// Whole rows.
    pub bytes: &'a [u8],
}

impl<'a> From<&'a Tensor> for Source<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        Self { format: tensor.format, rows, cols, scale: tensor.scale, bytes: tensor.bytes() }
    }
}

/// A matrix `[rows, cols]` of one format.
pub(crate) struct Packed {
    pub rows: usize,
    pub cols: usize,
    pub body: Body,
}

/// The storage classes.
pub(crate) enum Body {
    /// `[group][col][16 rows]` of f32.
    Float(Vec<Block<[f32; LANES]>>),
    /// The same of f16 bits.
    Half(Vec<Block<[u16; LANES]>>),
    /// The same of bf16 bits.
    Bfloat(Vec<Block<[u16; LANES]>>),
    /// Quantised.
    Blocks(Blocks),
}

/// Quantised weights.
pub(crate) struct Blocks {
    pub recipe: Recipe,
    /// Factor on everything.
    factor: f32,
    slabs: Vec<Slab>,
}

struct Slab {
    /// `[group][block of 32][lines of the code layout]`
    lines: Block<Line>,
    /// `[group][unit]`, by scale kind.
    halves: Block<[u16; LANES]>,
    floats: Block<[f32; LANES]>,
    steps: Block<[i8; LANES]>,
    mins: Block<[u16; LANES]>,
    min_steps: Block<[i8; LANES]>,
}

impl Codes {
    /// Cache lines for 16 rows × 32 columns.
    pub const fn lines(self) -> usize {
        match self {
            Self::Nibble | Self::Table => 4,
            Self::Five => 5,
            Self::Six => 6,
            Self::Byte => 8,
        }
    }
}

impl Packed {
    pub fn new(source: &Source<'_>, arena: &Arena, pool: &Pool) -> Self {
        let (rows, cols) = (source.rows, source.cols);
        let slabs = rows.div_ceil(LANES * SLAB_GROUPS);
        let rows_of = |slab: usize| slab * LANES * SLAB_GROUPS..rows.min((slab + 1) * LANES * SLAB_GROUPS);
        let body = match recipe(source.format) {
            Some(recipe) => {
                let slabs = pool.map(slabs, |i| pack_slab(source, &recipe, arena, rows_of(i)));
                Body::Blocks(Blocks { recipe, factor: source.scale, slabs })
            }
            None => {
                let bytes = source.bytes;
                let half = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
                let float =
                    |i: usize| f32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * i + byte])) * source.scale;
                match source.format {
                    Format::F16 => Body::Half(pool.map(slabs, |i| interleave(arena, rows_of(i), cols, half))),
                    Format::BF16 => Body::Bfloat(pool.map(slabs, |i| interleave(arena, rows_of(i), cols, half))),
                    _ => Body::Float(pool.map(slabs, |i| interleave(arena, rows_of(i), cols, float))),
                }
            }
        };
        Self { rows, cols, body }
    }

    /// Bytes of the packed weights.
    pub fn byte_len(&self) -> usize {
        match &self.body {
            Body::Float(slabs) => slabs.iter().map(|slab| size_of_val::<[_]>(slab)).sum(),
            Body::Half(slabs) | Body::Bfloat(slabs) => slabs.iter().map(|slab| size_of_val::<[_]>(slab)).sum(),
            Body::Blocks(blocks) => blocks.slabs.iter().map(Slab::byte_len).sum(),
        }
    }

    /// Columns of the group's interleaved rows, for plain floats.
    pub fn dense<T>(slabs: &[Block<[T; LANES]>], cols: usize, group: usize) -> &[[T; LANES]]
    where
        [T; LANES]: Plain,
    {
        &slabs[group / SLAB_GROUPS][group % SLAB_GROUPS * cols..][..cols]
    }

    /// Writes row `row` as f32.
    #[inline(always)]
    pub fn read_row<S: Simd>(&self, s: S, row: usize, out: &mut [f32]) {
        let (group, lane) = (row / LANES, row % LANES);
        match &self.body {
            Body::Float(slabs) => {
                for (out, column) in out.iter_mut().zip(Self::dense(slabs, self.cols, group)) {
                    *out = column[lane];
                }
            }
            Body::Half(slabs) => {
                for (out, column) in out.iter_mut().zip(Self::dense(slabs, self.cols, group)) {
                    *out = half::f16::from_bits(column[lane]).to_f32();
                }
            }
            Body::Bfloat(slabs) => {
                for (out, column) in out.iter_mut().zip(Self::dense(slabs, self.cols, group)) {
                    *out = half::bf16::from_bits(column[lane]).to_f32();
                }
            }
            Body::Blocks(blocks) => {
                let mut scales = GroupScales::default();
                blocks.scales(s, self.cols, group, &mut scales);
                for (b, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                    let lines = &blocks.lines(self.cols, group)[b * blocks.recipe.codes.lines()..];
                    for (k, out) in out.iter_mut().enumerate() {
                        let unit = (b * BLOCK + k) / blocks.recipe.unit;
                        let code = f32::from(blocks.recipe.code(lines, lane, k));
                        *out = scales.scale[unit][lane] * code + scales.min[unit][lane];
                    }
                }
            }
        }
    }
}

/// Scales and minimums of 16 rows as f32, `[unit]` each; the bias is part of the minimum.
#[derive(Default)]
pub(crate) struct GroupScales {
    pub scale: Vec<[f32; LANES]>,
    pub min: Vec<[f32; LANES]>,
}

impl Blocks {
    /// The group's codes: `[block][line]`.
    pub fn lines(&self, cols: usize, group: usize) -> &[Line] {
        let len = cols / BLOCK * self.recipe.codes.lines();
        &self.slabs[group / SLAB_GROUPS].lines[group % SLAB_GROUPS * len..][..len]
    }

    /// Writes the group's scales.
    #[inline(always)]
    pub fn scales<S: Simd>(&self, s: S, cols: usize, group: usize, out: &mut GroupScales) {
        let slab = &self.slabs[group / SLAB_GROUPS];
        let (units, at) = (cols / self.recipe.unit, group % SLAB_GROUPS * (cols / self.recipe.unit));
        let per_super = 256 / self.recipe.unit;
        let supers = at / per_super;
        out.scale.resize(units, [0.0; LANES]);
        out.min.resize(units, [0.0; LANES]);
        let bias = s.splat(-f32::from(self.recipe.bias));
        let factor = s.splat(self.factor);
        for (unit, (scale_out, min_out)) in out.scale.iter_mut().zip(&mut out.min).enumerate() {
            let stepped = unit / per_super + supers;
            let scale = match self.recipe.scale {
                ScaleKind::Half => s.half(&slab.halves[at + unit]),
                ScaleKind::Float => s.load(&slab.floats[at + unit]),
                ScaleKind::Steps => s.mul(s.half(&slab.halves[stepped]), s.small(&slab.steps[at + unit])),
            };
            let scale = s.mul(scale, factor);
            let min = s.mul(scale, bias);
            let min = match (self.recipe.has_min, self.recipe.scale) {
                (false, _) => min,
                (true, ScaleKind::Steps) => {
                    s.fma(s.half(&slab.mins[stepped]), s.mul(s.small(&slab.min_steps[at + unit]), factor), min)
                }
                (true, _) => s.fma(s.half(&slab.mins[at + unit]), factor, min),
            };
            s.store(scale, scale_out);
            s.store(min, min_out);
        }
    }
}

impl Recipe {
    /// The code at (`lane`, `k < 32`) of one block's lines.
    fn code(&self, lines: &[Line], lane: usize, k: usize) -> u8 {
        let (quad, byte) = (k / 4, lane * 4 + k % 4);
        if self.codes == Codes::Byte {
            return lines[quad].0[byte];
        }
        let nibble = lines[quad % 4].0[byte] >> (4 * (quad / 4)) & 15;
        let bit = |line: usize| lines[line].0[8 * quad + byte / 8] >> (byte % 8) & 1;
        match self.codes {
            Codes::Table => self.table[usize::from(nibble)],
            Codes::Five => nibble | bit(4) << 4,
            Codes::Six => nibble | bit(4) << 4 | bit(5) << 5,
            Codes::Nibble | Codes::Byte => nibble,
        }
    }

    /// Puts 32 codes of one row into a block's lines, which start out zero.
    fn place(&self, codes: &[u8; BLOCK], lane: usize, lines: &mut [Line]) {
        let quads = codes.as_chunks::<4>().0;
        if self.codes == Codes::Byte {
            for (line, quad) in lines.iter_mut().zip(quads) {
                line.0[4 * lane..4 * lane + 4].copy_from_slice(quad);
            }
            return;
        }
        for q in 0..4 {
            let both: [u8; 4] = std::array::from_fn(|i| quads[q][i] & 15 | (quads[q + 4][i] & 15) << 4);
            lines[q].0[4 * lane..4 * lane + 4].copy_from_slice(&both);
        }
        for (plane, line) in lines[4..].iter_mut().enumerate() {
            for (q, quad) in quads.iter().enumerate() {
                let bits = (0..4).fold(0, |bits, i| bits | (quad[i] >> (4 + plane) & 1) << i);
                line.0[8 * q + lane / 2] |= bits << (4 * (lane % 2));
            }
        }
    }
}

impl Slab {
    fn byte_len(&self) -> usize {
        size_of_val::<[_]>(&self.lines)
            + size_of_val::<[_]>(&self.halves)
            + size_of_val::<[_]>(&self.floats)
            + size_of_val::<[_]>(&self.steps)
            + size_of_val::<[_]>(&self.mins)
            + size_of_val::<[_]>(&self.min_steps)
    }
}

fn interleave<T>(arena: &Arena, rows: Range<usize>, cols: usize, at: impl Fn(usize) -> T) -> Block<[T; LANES]>
where
    [T; LANES]: Plain,
{
    let mut slab = arena.block(rows.len().div_ceil(LANES) * cols);
    for row in rows.clone() {
        let (group, lane) = ((row - rows.start) / LANES, (row - rows.start) % LANES);
        for (col, column) in <[[T; LANES]]>::iter_mut(&mut slab[group * cols..][..cols]).enumerate() {
            column[lane] = at(row * cols + col);
        }
    }
    slab
}

fn pack_slab(source: &Source<'_>, recipe: &Recipe, arena: &Arena, rows: Range<usize>) -> Slab {
    let (format, cols) = (source.format, source.cols);
    let groups = rows.len().div_ceil(LANES);
    let (units, supers) = (cols / recipe.unit, cols / format.block_len());
    let steps = recipe.scale == ScaleKind::Steps;
    let count = |wanted: bool, each: usize| if wanted { groups * each } else { 0 };
    let mut slab = Slab {
        lines: arena.block(groups * (cols / BLOCK) * recipe.codes.lines()),
        halves: arena.block(if steps { groups * supers } else { count(recipe.scale == ScaleKind::Half, units) }),
        floats: arena.block(count(recipe.scale == ScaleKind::Float, units)),
        steps: arena.block(count(steps, units)),
        mins: arena.block(count(recipe.has_min, if steps { supers } else { units })),
        min_steps: arena.block(count(steps && recipe.has_min, units)),
    };
    let mut parts = Parts::EMPTY;
    let row_bytes = cols / format.block_len() * format.block_bytes();
    for (index, bytes) in source.bytes[rows.start * row_bytes..rows.end * row_bytes].chunks(row_bytes).enumerate() {
        let (group, lane) = (index / LANES, index % LANES);
        for (b, bytes) in bytes.chunks(format.block_bytes()).enumerate() {
            take_apart(format, bytes, &mut parts);
            slab.place(recipe, &parts, format.block_len(), [group, lane, b], cols);
        }
    }
    slab
}

impl Slab {
    fn place(&mut self, recipe: &Recipe, parts: &Parts, len: usize, [group, lane, block]: [usize; 3], cols: usize) {
        let lines = recipe.codes.lines();
        let first = (group * cols + block * len) / BLOCK;
        for (i, codes) in parts.codes[..len].as_chunks::<BLOCK>().0.iter().enumerate() {
            recipe.place(codes, lane, &mut self.lines[(first + i) * lines..][..lines]);
        }
        let unit = (group * cols + block * len) / recipe.unit;
        let units = len / recipe.unit;
        match recipe.scale {
            ScaleKind::Half => (0..units).for_each(|u| self.halves[unit + u][lane] = parts.halves[u]),
            ScaleKind::Float => self.floats[unit][lane] = parts.float,
            ScaleKind::Steps => {
                let stepped = (group * cols) / len + block;
                self.halves[stepped][lane] = parts.halves[0];
                (0..units).for_each(|u| self.steps[unit + u][lane] = parts.steps[u]);
                if recipe.has_min {
                    self.mins[stepped][lane] = parts.min;
                    (0..units).for_each(|u| self.min_steps[unit + u][lane] = parts.min_steps[u]);
                }
                return;
            }
        }
        if recipe.has_min {
            self.mins[unit][lane] = parts.min;
        }
    }
}
