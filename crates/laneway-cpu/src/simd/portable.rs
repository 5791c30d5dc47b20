use super::{LANES, Line, Simd, XBlock};

/// Plain arrays, for processors without a tier of their own.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn map2(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type Quads = [[u8; 64]; 8];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        *out = x;
    }
    #[inline(always)]
    fn half(self, x: &[u16; LANES]) -> Self::F {
        x.map(|bits| half::f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    fn bfloat(self, x: &[u16; LANES]) -> Self::F {
        x.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    fn small(self, x: &[i8; LANES]) -> Self::F {
        x.map(f32::from)
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, f32::max)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, f32::min)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        x.iter().sum()
    }
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn float(self, x: Self::I) -> Self::F {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    fn nibbles(self, lines: &[Line; 4]) -> Self::Quads {
        std::array::from_fn(|q| lines[q % 4].0.map(|b| if q < 4 { b & 15 } else { b >> 4 }))
    }
    #[inline(always)]
    fn bytes(self, lines: &[Line; 8]) -> Self::Quads {
        lines.map(|line| line.0)
    }
    #[inline(always)]
    fn plane(self, mut quads: Self::Quads, bits: &Line, value: u8) -> Self::Quads {
        for (quad, bits) in quads.iter_mut().zip(bits.0.chunks_exact(8)) {
            for (i, code) in quad.iter_mut().enumerate() {
                *code += value * (bits[i / 8] >> (i % 8) & 1);
            }
        }
        quads
    }
    #[inline(always)]
    fn lookup(self, quads: Self::Quads, table: &[u8; 16]) -> Self::Quads {
        quads.map(|quad| quad.map(|code| table[usize::from(code & 15)]))
    }
    #[inline(always)]
    fn half_dots<const SMALL: bool, const N: usize>(
        self,
        quads: &Self::Quads,
        x: [&XBlock; N],
        half: usize,
    ) -> [Self::I; N] {
        x.map(|x| half_dot(quads, x, half))
    }
    #[inline(always)]
    fn dots<const SMALL: bool, const N: usize>(self, quads: &Self::Quads, x: [&XBlock; N]) -> [Self::I; N] {
        x.map(|x| {
            let (a, b) = (half_dot(quads, x, 0), half_dot(quads, x, 1));
            std::array::from_fn(|i| a[i] + b[i])
        })
    }
}

#[inline(always)]
fn half_dot(quads: &[[u8; 64]; 8], x: &XBlock, half: usize) -> [i32; LANES] {
    let mut sums = [0; LANES];
    for (quad, x) in quads.iter().zip(x.wide.as_chunks::<4>().0).skip(4 * half).take(4) {
        let x = x.map(i32::from);
        for (sum, w) in sums.iter_mut().zip(quad.as_chunks::<4>().0) {
            *sum += (0..4).map(|i| i32::from(w[i]) * x[i]).sum::<i32>();
        }
    }
    sums
}
