//! Vectors of 16 lanes, one implementation per instruction set, and the choice among them.
//!
//! Kernels are written once over [`Simd`]; [`Tier::run`] compiles them for each instruction set. A lane is a weight
//! row in matrix products (so nothing is summed across lanes) and a column or a position elsewhere.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::sync::OnceLock;

pub(crate) const LANES: usize = 16;
/// Columns that share one activation scale.
pub(crate) const BLOCK: usize = 32;

/// Bytes between what is computed and what is prefetched.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 2048;

/// One cache line of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; 64]);

/// Four bytes of a plane as one register lane.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn word([a, b, c, d]: [i8; 4]) -> i32 {
    i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
}

/// 32 activations as 16-bit integers `q = 256·high + low` with one scale.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct XBlock {
    /// 32 high bytes, then 32 low bytes.
    pub planes: [i8; 64],
    /// The same integers whole, for instruction sets without a dot product of bytes.
    pub wide: [i16; BLOCK],
    pub scale: f32,
    /// `scale · Σq` over the block.
    pub total: f32,
    /// `scale · Σq` over each half.
    pub halves: [f32; 2],
}

impl XBlock {
    pub const ZERO: Self = Self { planes: [0; 64], wide: [0; BLOCK], scale: 0.0, total: 0.0, halves: [0.0; 2] };
}

/// Sixteen lanes of f32 and the integer dot products of packed weights.
///
/// Closures and `array::map` are kept out of implementations and kernels where they would touch lanes: what the
/// compiler leaves out of line loses the instruction set, and most of the speed.
///
/// A value of an implementing type is the proof that the processor has its instructions.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// Unsigned codes of 16 rows × 32 columns, four columns of every row at a time ("quads").
    type Quads: Copy;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// f16 bits.
    fn half(self, x: &[u16; LANES]) -> Self::F;
    /// bf16 bits.
    fn bfloat(self, x: &[u16; LANES]) -> Self::F;
    fn small(self, x: &[i8; LANES]) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c`.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `2^n` for integral `-126 <= n <= 127`.
    fn pow2(self, n: Self::F) -> Self::F;
    fn sum(self, x: Self::F) -> f32;
    fn largest(self, x: Self::F) -> f32;
    fn float(self, x: Self::I) -> Self::F;

    /// Quad `q < 4` from the low nibbles of line `q`, quad `q + 4` from its high nibbles.
    fn nibbles(self, lines: &[Line; 4]) -> Self::Quads;
    /// Quad `q` is line `q`.
    fn bytes(self, lines: &[Line; 8]) -> Self::Quads;
    /// Adds `value` where the bit is set; bit `i` of the line's u64 number `q` belongs to byte `i` of quad `q`.
    fn plane(self, quads: Self::Quads, bits: &Line, value: u8) -> Self::Quads;
    /// Replaces codes below 16 by their table entries.
    fn lookup(self, quads: Self::Quads, table: &[u8; 16]) -> Self::Quads;
    /// Products of the quads `4·half .. 4·half + 4` with the integers of `N` rows; `SMALL`: codes are below 32.
    fn half_dots<const SMALL: bool, const N: usize>(
        self,
        quads: &Self::Quads,
        x: [&XBlock; N],
        half: usize,
    ) -> [Self::I; N];
    /// The same of all quads.
    fn dots<const SMALL: bool, const N: usize>(self, quads: &Self::Quads, x: [&XBlock; N]) -> [Self::I; N];

    /// Asks for the lines some way after these, across the page border where hardware stops.
    #[inline(always)]
    fn prefetch(self, _lines: &[Line]) {}

    /// Up to 16 values, missing lanes zero.
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Self::F {
        match x.first_chunk::<LANES>() {
            Some(whole) => self.load(whole),
            None => {
                let mut lanes = [0.0; LANES];
                lanes[..x.len()].copy_from_slice(x);
                self.load(&lanes)
            }
        }
    }

    /// As many lanes as `out` has room for.
    #[inline(always)]
    fn store_part(self, x: Self::F, out: &mut [f32]) {
        match out.first_chunk_mut::<LANES>() {
            Some(whole) => self.store(x, whole),
            None => {
                let mut lanes = [0.0; LANES];
                self.store(x, &mut lanes);
                out.copy_from_slice(&lanes[..out.len()]);
            }
        }
    }
}

/// A computation that [`Tier::run`] compiles for every instruction set; `run` must be `#[inline(always)]`.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Tier {
    /// Every tier of this processor, slowest first.
    pub fn available() -> Vec<Self> {
        let tiers = [Self(Level::Portable)].into_iter();
        #[cfg(target_arch = "x86_64")]
        let tiers = tiers
            .chain(avx2::Avx2::detect().map(|_| Self(Level::Avx2)))
            .chain(avx512::Avx512::detect().map(|_| Self(Level::Avx512)));
        tiers.collect()
    }

    /// The fastest tier, found once.
    pub fn best() -> Self {
        static BEST: OnceLock<Tier> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().expect("the portable tier is always there"))
    }

    /// The tier's name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Level::Portable => kernel.run(portable::Portable),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::Avx2::detect().expect("a tier exists only where it was detected").run(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::Avx512::detect().expect("a tier exists only where it was detected").run(kernel),
        }
    }
}
