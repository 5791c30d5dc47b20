use super::{Kernel, LANES, Line, Simd, XBlock, word};
use std::arch::x86_64::*;

/// AVX2 with FMA and F16C. Exists only where [`Avx2::detect`] found the instructions.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    #[inline]
    pub fn detect() -> Option<Self> {
        let found =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }

    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the processor has these features.
        unsafe { compiled(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn compiled<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
    kernel.run(s)
}

/// Both halves of a vector. Not a closure: one that the compiler leaves out of line would lack the instructions.
macro_rules! both {
    ($i:ident => $value:expr) => {
        unsafe {
            [
                {
                    let $i = 0;
                    $value
                },
                {
                    let $i = 1;
                    $value
                },
            ]
        }
    };
}

// SAFETY of every block below: `Avx2` proves the instructions; loads and stores stay inside the array references.
impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    /// Rows 0–7 of quad `q` at `2q`, rows 8–15 after them.
    type Quads = [__m256i; 16];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
        }
    }
    #[inline(always)]
    fn half(self, x: &[u16; LANES]) -> Self::F {
        both!(i => _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(8 * i).cast())))
    }
    #[inline(always)]
    fn bfloat(self, x: &[u16; LANES]) -> Self::F {
        both!(i => {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().add(8 * i).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        })
    }
    #[inline(always)]
    fn small(self, x: &[i8; LANES]) -> Self::F {
        both!(i => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x.as_ptr().add(8 * i).cast()))))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(i => _mm256_add_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(i => _mm256_sub_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(i => _mm256_mul_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(i => _mm256_div_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(i => _mm256_max_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(i => _mm256_min_ps(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        both!(i => {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n[i]), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; 8];
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_add_ps(x[0], x[1])) };
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + b) + (c + d)) + ((e + f) + (g + h))
    }
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; 8];
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_max_ps(x[0], x[1])) };
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn float(self, x: Self::I) -> Self::F {
        both!(i => _mm256_cvtepi32_ps(x[i]))
    }

    #[inline(always)]
    fn nibbles(self, lines: &[Line; 4]) -> Self::Quads {
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let mut quads = [mask; 16];
            for (q, line) in lines.iter().enumerate() {
                let both = halves(line);
                for rows in 0..2 {
                    quads[2 * q + rows] = _mm256_and_si256(both[rows], mask);
                    quads[2 * q + 8 + rows] = _mm256_and_si256(_mm256_srli_epi16::<4>(both[rows]), mask);
                }
            }
            quads
        }
    }
    #[inline(always)]
    fn bytes(self, lines: &[Line; 8]) -> Self::Quads {
        let mut quads = unsafe { [_mm256_setzero_si256(); 16] };
        for (quad, line) in quads.as_chunks_mut::<2>().0.iter_mut().zip(lines) {
            *quad = halves(line);
        }
        quads
    }
    #[inline(always)]
    fn plane(self, mut quads: Self::Quads, bits: &Line, value: u8) -> Self::Quads {
        unsafe {
            let spread = _mm256_setr_epi8(
                0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
            );
            let single = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let value = _mm256_set1_epi8(value as i8);
            for (quad, bits) in quads.iter_mut().zip(bits.0.as_chunks::<4>().0) {
                let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(*bits)), spread);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, single), single);
                *quad = _mm256_add_epi8(*quad, _mm256_and_si256(set, value));
            }
            quads
        }
    }
    #[inline(always)]
    fn lookup(self, mut quads: Self::Quads, table: &[u8; 16]) -> Self::Quads {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            for quad in &mut quads {
                *quad = _mm256_shuffle_epi8(table, *quad);
            }
            quads
        }
    }
    #[inline(always)]
    fn half_dots<const SMALL: bool, const N: usize>(
        self,
        quads: &Self::Quads,
        x: [&XBlock; N],
        half: usize,
    ) -> [Self::I; N] {
        let mut sums = [[zero(); 2]; N];
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = half_dot::<SMALL>(quads, x, half);
        }
        sums
    }
    #[inline(always)]
    fn dots<const SMALL: bool, const N: usize>(self, quads: &Self::Quads, x: [&XBlock; N]) -> [Self::I; N] {
        let mut sums = [[zero(); 2]; N];
        for (sum, x) in sums.iter_mut().zip(x) {
            let (a, b) = (half_dot::<SMALL>(quads, x, 0), half_dot::<SMALL>(quads, x, 1));
            *sum = both!(rows => _mm256_add_epi32(a[rows], b[rows]));
        }
        sums
    }
    #[inline(always)]
    fn prefetch(self, lines: &[Line]) {
        for line in lines {
            unsafe { _mm_prefetch::<_MM_HINT_T0>((line as *const Line).wrapping_byte_add(super::AHEAD).cast()) };
        }
    }
}

#[inline(always)]
fn half_dot<const SMALL: bool>(quads: &[__m256i; 16], x: &XBlock, half: usize) -> [__m256i; 2] {
    if SMALL { small_dot(quads, x, half) } else { wide_dot(quads, x, half) }
}

#[inline(always)]
fn zero() -> __m256i {
    // SAFETY: only reached through a method of `Avx2`.
    unsafe { _mm256_setzero_si256() }
}

#[inline(always)]
fn halves(line: &Line) -> [__m256i; 2] {
    // SAFETY: only reached through a method of `Avx2`; both loads lie inside the line.
    both!(i => _mm256_loadu_si256(line.0.as_ptr().add(32 * i).cast()))
}

/// Byte products summed in 16 bits: four quads of codes below 32 reach at most 31·128·2·4 = 31744.
#[inline(always)]
fn small_dot(quads: &[__m256i; 16], x: &XBlock, half: usize) -> [__m256i; 2] {
    let (planes, _) = x.planes.as_chunks::<4>();
    // SAFETY: only reached through a method of `Avx2`.
    unsafe {
        let mut high = [_mm256_setzero_si256(); 2];
        let mut low = high;
        for q in 4 * half..4 * half + 4 {
            let (h, l) = (_mm256_set1_epi32(word(planes[q])), _mm256_set1_epi32(word(planes[8 + q])));
            for rows in 0..2 {
                high[rows] = _mm256_add_epi16(high[rows], _mm256_maddubs_epi16(quads[2 * q + rows], h));
                low[rows] = _mm256_add_epi16(low[rows], _mm256_maddubs_epi16(quads[2 * q + rows], l));
            }
        }
        let ones = _mm256_set1_epi16(1);
        for rows in 0..2 {
            let high = _mm256_slli_epi32::<8>(_mm256_madd_epi16(high[rows], ones));
            low[rows] = _mm256_add_epi32(high, _mm256_madd_epi16(low[rows], ones));
        }
        low
    }
}

/// Products of codes widened to 16 bits with whole activations: any byte is allowed.
#[inline(always)]
fn wide_dot(quads: &[__m256i; 16], x: &XBlock, half: usize) -> [__m256i; 2] {
    let (wide, _) = x.wide.as_chunks::<4>();
    // SAFETY: only reached through a method of `Avx2`; each load reads the four values of one array.
    unsafe {
        let mut pairs = [_mm256_setzero_si256(); 4];
        for q in 4 * half..4 * half + 4 {
            let x = _mm256_broadcastq_epi64(_mm_loadl_epi64(wide[q].as_ptr().cast()));
            for rows in 0..2 {
                let codes = quads[2 * q + rows];
                let first = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(codes));
                let last = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(codes));
                pairs[2 * rows] = _mm256_add_epi32(pairs[2 * rows], _mm256_madd_epi16(first, x));
                pairs[2 * rows + 1] = _mm256_add_epi32(pairs[2 * rows + 1], _mm256_madd_epi16(last, x));
            }
        }
        let (first, last) = (_mm256_hadd_epi32(pairs[0], pairs[1]), _mm256_hadd_epi32(pairs[2], pairs[3]));
        [_mm256_permute4x64_epi64::<0b11_01_10_00>(first), _mm256_permute4x64_epi64::<0b11_01_10_00>(last)]
    }
}
