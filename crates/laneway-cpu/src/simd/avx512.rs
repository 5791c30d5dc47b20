use super::{Kernel, LANES, Line, Simd, XBlock, word};
use std::arch::x86_64::*;

/// AVX-512 with VNNI's byte dot product. Exists only where [`Avx512::detect`] found the instructions.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    #[inline]
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("fma");
        found.then_some(Self(()))
    }

    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the processor has these features.
        unsafe { compiled(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn compiled<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
    kernel.run(s)
}

// SAFETY of every block below: `Avx512` proves the instructions; loads and stores stay inside the array references.
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type Quads = [__m512i; 8];

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn half(self, x: &[u16; LANES]) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn bfloat(self, x: &[u16; LANES]) -> __m512 {
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    fn small(self, x: &[i8; LANES]) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(x) }
    }
    #[inline(always)]
    fn largest(self, x: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(x) }
    }
    #[inline(always)]
    fn float(self, x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn nibbles(self, lines: &[Line; 4]) -> Self::Quads {
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let mut quads = [mask; 8];
            for (q, line) in lines.iter().enumerate() {
                let both = _mm512_load_si512(line.0.as_ptr().cast());
                quads[q] = _mm512_and_si512(both, mask);
                quads[q + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
            }
            quads
        }
    }
    #[inline(always)]
    fn bytes(self, lines: &[Line; 8]) -> Self::Quads {
        let mut quads = [zero(); 8];
        for (quad, line) in quads.iter_mut().zip(lines) {
            *quad = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
        }
        quads
    }
    #[inline(always)]
    fn plane(self, mut quads: Self::Quads, bits: &Line, value: u8) -> Self::Quads {
        let value = unsafe { _mm512_set1_epi8(value as i8) };
        for (quad, bits) in quads.iter_mut().zip(bits.0.as_chunks::<8>().0) {
            *quad = unsafe { _mm512_mask_add_epi8(*quad, u64::from_le_bytes(*bits), *quad, value) };
        }
        quads
    }
    #[inline(always)]
    fn lookup(self, mut quads: Self::Quads, table: &[u8; 16]) -> Self::Quads {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            for quad in &mut quads {
                *quad = _mm512_shuffle_epi8(table, *quad);
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
    ) -> [__m512i; N] {
        let [a, b, c, d] = [quads[4 * half], quads[4 * half + 1], quads[4 * half + 2], quads[4 * half + 3]];
        let high = four([zero(); N], [a, b, c, d], x, 4 * half);
        let low = four([zero(); N], [a, b, c, d], x, 8 + 4 * half);
        joined(high, low)
    }
    #[inline(always)]
    fn dots<const SMALL: bool, const N: usize>(self, quads: &Self::Quads, x: [&XBlock; N]) -> [__m512i; N] {
        let [a, b, c, d, e, f, g, h] = *quads;
        let high = four(four([zero(); N], [a, b, c, d], x, 0), [e, f, g, h], x, 4);
        // Few rows need both sums at once to hide the latency, many rows need the registers.
        if N < 4 {
            return joined(high, four(four([zero(); N], [a, b, c, d], x, 8), [e, f, g, h], x, 12));
        }
        let mut sums = high;
        for sum in &mut sums {
            *sum = unsafe { _mm512_slli_epi32::<8>(*sum) };
        }
        four(four(sums, [a, b, c, d], x, 8), [e, f, g, h], x, 12)
    }
    #[inline(always)]
    fn prefetch(self, lines: &[Line]) {
        for line in lines {
            unsafe { _mm_prefetch::<_MM_HINT_T0>((line as *const Line).wrapping_byte_add(super::AHEAD).cast()) };
        }
    }
}

#[inline(always)]
fn zero() -> __m512i {
    // SAFETY: only reached through a method of `Avx512`, which proves the instructions.
    unsafe { _mm512_setzero_si512() }
}

/// `256 · high + low`; at most 255·(32640 + 128)·32, which fits.
#[inline(always)]
fn joined<const N: usize>(mut high: [__m512i; N], low: [__m512i; N]) -> [__m512i; N] {
    for (high, low) in high.iter_mut().zip(low) {
        // SAFETY: as in `zero`.
        *high = unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(*high), low) };
    }
    high
}

/// Adds the products of four quads with the planes' words from `first` on, row by row so that sums are independent.
#[inline(always)]
fn four<const N: usize>(mut sums: [__m512i; N], quads: [__m512i; 4], x: [&XBlock; N], first: usize) -> [__m512i; N] {
    macro_rules! quad {
        ($q:literal) => {
            for i in 0..N {
                let word = word(x[i].planes.as_chunks::<4>().0[first + $q]);
                // SAFETY: as in `zero`.
                sums[i] = unsafe { _mm512_dpbusd_epi32(sums[i], quads[$q], _mm512_set1_epi32(word)) };
            }
        };
    }
    quad!(0);
    quad!(1);
    quad!(2);
    quad!(3);
    sums
}
