//! Block layouts of the quantised formats: one decoder per format, and the scale unpackers and tables that kernels share.
//!
//! All numbers are little endian. "Split nibbles": byte `j` holds element `j` (low nibble) and `j + n/2` (high nibble).

/// Values of the 16 codes of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the 16 E2M1 codes of MXFP4 and NVFP4; the missing half is in [`e8m0_half`] and [`ue4m3_half`].
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// An f16 of two bytes as f32.
pub fn f16(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

/// A bf16 of two bytes as f32.
pub fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Half of an MXFP4 block scale: `2^(e - 128)`, subnormal for `e < 2`.
pub fn e8m0_half(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(1 << 21),
        1 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// Half of an NVFP4 group scale: unsigned E4M3 (the top bit is ignored), 0 for the codes 0 and 127.
pub fn ue4m3_half(s: u8) -> f32 {
    if s == 0 || s == 127 {
        return 0.0;
    }
    let (exponent, mantissa) = (u32::from(s >> 3 & 15), f32::from(s & 7));
    match exponent {
        0 => mantissa / 1024.0,
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 119) << 23),
    }
}

/// The eight 6-bit `(scales, minimums)` of a Q4_K or Q5_K block from its 12 packed bytes.
pub fn k4_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minimums) = ([0; 8], [0; 8]);
    for j in 0..4 {
        let (a, c, e) = (packed[j], packed[j + 4], packed[j + 8]);
        (scales[j], minimums[j]) = (a & 63, c & 63);
        (scales[j + 4], minimums[j + 4]) = (e & 15 | a >> 6 << 4, e >> 4 | c >> 6 << 4);
    }
    (scales, minimums)
}

/// The sixteen 6-bit scales of a Q3_K block from its 12 packed bytes, less 32: −32 to 31.
pub fn q3_k_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
        let high = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// The eight 6-bit scales of an IQ4_XS block from its high bits and low nibbles, less 32: −32 to 31.
pub fn iq4_xs_scales(high: u16, low: [u8; 4]) -> [i8; 8] {
    std::array::from_fn(|b| {
        let low = low[b / 2] >> (4 * (b % 2)) & 15;
        let high = (high >> (2 * b) & 3) as u8;
        (low | high << 4) as i8 - 32
    })
}

/// Q4_0: `d·(q − 8)`.
pub fn q4_0(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16([b[0], b[1]]);
    split_nibbles(&b[2..], out, |_, q| d * (f32::from(q) - 8.0));
}

/// Q4_1: `d·q + m`.
pub fn q4_1(b: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16([b[0], b[1]]), f16([b[2], b[3]]));
    split_nibbles(&b[4..], out, |_, q| d * f32::from(q) + m);
}

/// Q5_0: `d·(q − 16)`, the fifth bits in a u32.
pub fn q5_0(b: &[u8; 22], out: &mut [f32; 32]) {
    let (d, high) = (f16([b[0], b[1]]), u32::from_le_bytes([b[2], b[3], b[4], b[5]]));
    split_nibbles(&b[6..], out, |j, q| d * (f32::from(q | fifth_bit(high, j)) - 16.0));
}

/// Q5_1: `d·q + m`, the fifth bits in a u32.
pub fn q5_1(b: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16([b[0], b[1]]), f16([b[2], b[3]]));
    let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    split_nibbles(&b[8..], out, |j, q| d * f32::from(q | fifth_bit(high, j)) + m);
}

/// Q8_0: `d·q`.
pub fn q8_0(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16([b[0], b[1]]);
    for (out, &q) in out.iter_mut().zip(&b[2..]) {
        *out = d * f32::from(q as i8);
    }
}

/// Q2_K: sixteen groups of 16 with a 4-bit scale and minimum each.
pub fn q2_k(b: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (f16([b[80], b[81]]), f16([b[82], b[83]]));
    for (i, out) in out.iter_mut().enumerate() {
        let scale = b[i / 16];
        let q = b[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
        *out = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
    }
}

/// Q3_K: sixteen groups of 16 with a 6-bit scale each; the third bit, inverted, in a mask.
pub fn q3_k(b: &[u8; 110], out: &mut [f32; 256]) {
    let (d, scales) = (f16([b[108], b[109]]), q3_k_scales(&part(b, 96)));
    for (i, out) in out.iter_mut().enumerate() {
        let low = b[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
        let below = if b[i % 32] >> (i / 32) & 1 == 1 { 0.0 } else { 4.0 };
        *out = d * f32::from(scales[i / 16]) * (f32::from(low) - below);
    }
}

/// Q4_K: eight groups of 32, `d·sc·q − dmin·mn`.
pub fn q4_k(b: &[u8; 144], out: &mut [f32; 256]) {
    k4(b, &b[16..], |_, _| 0, out);
}

/// Q5_K: as Q4_K with a fifth bit per element.
pub fn q5_k(b: &[u8; 176], out: &mut [f32; 256]) {
    k4(b, &b[48..], |group, lane| (b[16 + lane] >> group & 1) << 4, out);
}

/// Q6_K: sixteen groups of 16 with an i8 scale each.
pub fn q6_k(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16([b[208], b[209]]);
    for (i, out) in out.iter_mut().enumerate() {
        let (h, k, lane) = (i / 128, i / 32 % 4, i % 32);
        let nibble = b[64 * h + 32 * (k & 1) + lane] >> (4 * (k / 2)) & 15;
        let high = b[128 + 32 * h + lane] >> (2 * k) & 3;
        *out = d * f32::from(b[192 + i / 16] as i8) * (f32::from(nibble | high << 4) - 32.0);
    }
}

/// IQ4_NL: `d·IQ4_VALUES[q]`.
pub fn iq4_nl(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16([b[0], b[1]]);
    split_nibbles(&b[2..], out, |_, q| d * f32::from(IQ4_VALUES[usize::from(q)]));
}

/// IQ4_XS: eight groups of 32 with a 6-bit scale each, `d·scale·IQ4_VALUES[q]`.
pub fn iq4_xs(b: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16([b[0], b[1]]);
    let scales = iq4_xs_scales(u16::from_le_bytes([b[2], b[3]]), part(b, 4));
    for ((out, qs), scale) in out.as_chunks_mut::<32>().0.iter_mut().zip(b[8..].chunks(16)).zip(scales) {
        split_nibbles(qs, out, |_, q| d * f32::from(scale) * f32::from(IQ4_VALUES[usize::from(q)]));
    }
}

/// MXFP4: one E8M0 scale for 32 E2M1 values.
pub fn mxfp4(b: &[u8; 17], out: &mut [f32; 32]) {
    let d = e8m0_half(b[0]);
    split_nibbles(&b[1..], out, |_, q| d * f32::from(E2M1_DOUBLED[usize::from(q)]));
}

/// NVFP4: four groups of 16 E2M1 values with an unsigned E4M3 scale each; the per-tensor scale is not applied.
pub fn nvfp4(b: &[u8; 36], out: &mut [f32; 64]) {
    for ((out, qs), &scale) in out.as_chunks_mut::<16>().0.iter_mut().zip(b[4..].chunks(8)).zip(&b[..4]) {
        let d = ue4m3_half(scale);
        split_nibbles(qs, out, |_, q| d * f32::from(E2M1_DOUBLED[usize::from(q)]));
    }
}

fn k4(b: &[u8], qs: &[u8], high: impl Fn(usize, usize) -> u8, out: &mut [f32; 256]) {
    let (d, dmin) = (f16([b[0], b[1]]), f16([b[2], b[3]]));
    let (scales, minimums) = k4_scales(&part(b, 4));
    for (i, out) in out.iter_mut().enumerate() {
        let (group, lane) = (i / 32, i % 32);
        let q = qs[32 * (group / 2) + lane] >> (4 * (group % 2)) & 15 | high(group, lane);
        *out = d * f32::from(scales[group]) * f32::from(q) - dmin * f32::from(minimums[group]);
    }
}

fn split_nibbles<const N: usize>(qs: &[u8], out: &mut [f32; N], value: impl Fn(usize, u8) -> f32) {
    for (j, &byte) in qs.iter().enumerate() {
        out[j] = value(j, byte & 15);
        out[j + N / 2] = value(j + N / 2, byte >> 4);
    }
}

fn fifth_bit(high: u32, j: usize) -> u8 {
    (high >> j & 1) as u8 * 16
}

fn part<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| block[at + i])
}
