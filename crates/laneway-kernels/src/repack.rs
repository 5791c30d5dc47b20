//! Weights as the shaders read them: per row the quants, extra bits and scales in separate planes of whole words.
//!
//! The layouts are described at the top of each file in `shaders/formats/`; [`repack`] writes them. Nothing is rounded:
//! every plane holds the file's own integers and scales.

use half::f16;
use laneway_files::{Format, blocks};

/// Planes of one matrix in one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planes {
    /// All planes, one after another.
    pub words: Vec<u32>,
    /// Word offsets of planes 1, 2 and 3 (0 where a format has fewer).
    pub starts: [u32; 3],
}

/// Words that one row of `cols` weights takes in each plane.
pub fn row_words(format: Format, cols: usize) -> [usize; 4] {
    let halves = (cols / 32).div_ceil(2);
    match format {
        Format::F32 => [cols, 0, 0, 0],
        Format::F16 | Format::BF16 => [cols / 2, 0, 0, 0],
        Format::Q4_0 | Format::Iq4Nl => [cols / 8, halves, 0, 0],
        Format::Q4_1 => [cols / 8, cols / 32, 0, 0],
        Format::Q5_0 => [cols / 8, cols / 32, halves, 0],
        Format::Q5_1 => [cols / 8, cols / 32, cols / 32, 0],
        Format::Q8_0 => [cols / 4, halves, 0, 0],
        Format::Q2K => [cols / 16, cols / 64, cols / 256, 0],
        Format::Q3K => [cols / 16, cols / 32, cols / 64, cols / 256],
        Format::Q4K => [cols / 8, cols / 64, cols / 256, 0],
        Format::Q5K => [cols / 8, cols / 32, cols / 64, cols / 256],
        Format::Q6K => [cols / 8, cols / 16, cols / 64, cols / 256],
        Format::Iq4Xs => [cols / 8, cols / 128, cols / 256, 0],
        Format::Mxfp4 => [cols / 8, (cols / 32).div_ceil(4), 0, 0],
        Format::Nvfp4 => [cols / 8, cols / 64, 0, 0],
    }
}

/// Repacks `bytes`, rows of whole blocks of `format`, each `cols` weights long.
///
/// `cols` is a multiple of 8 and of the format's block; `bytes` holds whole rows.
pub fn repack(format: Format, bytes: &[u8], cols: usize) -> Planes {
    let row_bytes = cols / format.block_len() * format.block_bytes();
    let rows = bytes.len() / row_bytes;
    let per_row = row_words(format, cols);
    let mut start = [0; 5];
    for plane in 0..4 {
        start[plane + 1] = start[plane] + rows * per_row[plane];
    }
    let mut words = vec![0u32; start[4]];
    let (p0, rest) = words.split_at_mut(start[1]);
    let (p1, rest) = rest.split_at_mut(start[2] - start[1]);
    let (p2, p3) = rest.split_at_mut(start[3] - start[2]);
    let mut planes = [p0, p1, p2, p3];
    for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
        let mut at = 0;
        let mine = planes.each_mut().map(|plane| {
            let words = per_row[at];
            at += 1;
            &mut plane[row * words..(row + 1) * words]
        });
        repack_row(format, bytes, mine);
    }
    Planes { words, starts: [start[1] as u32, start[2] as u32, start[3] as u32] }
}

/// Q8_0 rows with the same values as Q4_0, Q5_0 or Q8_0 ones, so that mixed tensors can share a kernel.
pub fn widen_to_q8_0(format: Format, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() / format.block_bytes() * 34);
    for block in bytes.chunks_exact(format.block_bytes()) {
        out.extend_from_slice(&block[..2]);
        match format {
            Format::Q4_0 => out.extend(split_nibbles(&block[2..18]).map(|q| (q as i8 - 8) as u8)),
            Format::Q5_0 => {
                let high = word(&block[2..6]);
                let low = split_nibbles(&block[6..22]).enumerate();
                out.extend(low.map(|(j, q)| ((q | ((high >> j & 1) << 4)) as i8 - 16) as u8));
            }
            _ => out.extend_from_slice(&block[2..]),
        }
    }
    out
}

fn repack_row(format: Format, bytes: &[u8], planes: [&mut [u32]; 4]) {
    let [a, b, c, d] = planes;
    match format {
        Format::F32 => fill_words(a, bytes),
        Format::F16 | Format::BF16 => fill_words(a, bytes),
        _ => {}
    }
    for (i, block) in bytes.chunks_exact(format.block_bytes()).enumerate() {
        match format {
            Format::F32 | Format::F16 | Format::BF16 => return,
            Format::Q4_0 | Format::Iq4Nl => {
                nibbles(&mut a[4 * i..], split_nibbles(&block[2..18]));
                put_half(b, i, &block[..2]);
            }
            Format::Q4_1 => {
                nibbles(&mut a[4 * i..], split_nibbles(&block[4..20]));
                b[i] = word(&block[..4]);
            }
            Format::Q5_0 => {
                nibbles(&mut a[4 * i..], split_nibbles(&block[6..22]));
                b[i] = word(&block[2..6]);
                put_half(c, i, &block[..2]);
            }
            Format::Q5_1 => {
                nibbles(&mut a[4 * i..], split_nibbles(&block[8..24]));
                b[i] = word(&block[4..8]);
                c[i] = word(&block[..4]);
            }
            Format::Q8_0 => {
                fill_words(&mut a[8 * i..8 * i + 8], &block[2..]);
                put_half(b, i, &block[..2]);
            }
            Format::Q2K => {
                put_bits(&mut a[16 * i..], 2, two_bit_order(&block[16..80]));
                fill_words(&mut b[4 * i..4 * i + 4], &block[..16]);
                c[i] = word(&block[80..84]);
            }
            Format::Q3K => {
                put_bits(&mut a[16 * i..], 2, two_bit_order(&block[32..96]));
                put_bits(&mut b[8 * i..], 1, (0..256).map(|e| block[e % 32] as u32 >> (e / 32) & 1));
                let scales = blocks::q3_k_scales(block[96..108].try_into().expect("12 bytes"));
                put_bytes(&mut c[4 * i..], scales.map(|s| s as u8));
                d[i] = half_bits(&block[108..110]);
            }
            Format::Q4K => {
                nibbles(&mut a[32 * i..], chunk_nibbles(&block[16..144]));
                k_scales(&mut b[4 * i..], &block[4..16]);
                c[i] = word(&block[..4]);
            }
            Format::Q5K => {
                nibbles(&mut a[32 * i..], chunk_nibbles(&block[48..176]));
                put_bits(&mut b[8 * i..], 1, (0..256).map(|e| block[16 + e % 32] as u32 >> (e / 32) & 1));
                k_scales(&mut c[4 * i..], &block[4..16]);
                d[i] = word(&block[..4]);
            }
            Format::Q6K => {
                let low = |e: usize| {
                    let (h, k, l) = (e / 128, e / 32 % 4, e % 32);
                    block[64 * h + 32 * (k & 1) + l] as u32 >> (4 * (k / 2)) & 15
                };
                let high = |e: usize| block[128 + 32 * (e / 128) + e % 32] as u32 >> (2 * (e / 32 % 4)) & 3;
                nibbles(&mut a[32 * i..], (0..256).map(low));
                put_bits(&mut b[16 * i..], 2, (0..256).map(high));
                fill_words(&mut c[4 * i..4 * i + 4], &block[192..208]);
                d[i] = half_bits(&block[208..210]);
            }
            Format::Iq4Xs => {
                let each = block[8..136].chunks_exact(16).flat_map(split_nibbles);
                nibbles(&mut a[32 * i..], each);
                let high = u16::from_le_bytes([block[2], block[3]]);
                let scales = blocks::iq4_xs_scales(high, block[4..8].try_into().expect("4 bytes"));
                put_bytes(&mut b[2 * i..], scales.map(|s| s as u8));
                c[i] = half_bits(&block[..2]);
            }
            Format::Mxfp4 => {
                nibbles(&mut a[4 * i..], split_nibbles(&block[1..17]));
                b[i / 4] |= (block[0] as u32) << (8 * (i % 4));
            }
            Format::Nvfp4 => {
                let each = block[4..36].chunks_exact(8).flat_map(split_nibbles);
                nibbles(&mut a[8 * i..], each);
                b[i] = word(&block[..4]);
            }
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn fill_words(words: &mut [u32], bytes: &[u8]) {
    for (w, b) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *w = word(b);
    }
}

/// The f32 bits of an f16: exact.
fn half_bits(bytes: &[u8]) -> u32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32().to_bits()
}

fn put_half(words: &mut [u32], index: usize, bytes: &[u8]) {
    words[index / 2] |= u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << (16 * (index % 2));
}

/// Low nibbles of all bytes, then high ones.
fn split_nibbles(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.iter().map(|b| u32::from(b & 15)).chain(bytes.iter().map(|b| u32::from(b >> 4)))
}

/// K-quants' order: of each 32 bytes all low nibbles, then all high ones.
fn chunk_nibbles(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(32).flat_map(split_nibbles)
}

/// Q2_K's and Q3_K's order: element 128h + 32s + l is bits 2s of byte 32h + l.
fn two_bit_order(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    (0..256).map(|e| u32::from(bytes[32 * (e / 128) + e % 32]) >> (2 * (e / 32 % 4)) & 3)
}

fn nibbles(words: &mut [u32], values: impl Iterator<Item = u32>) {
    put_bits(words, 4, values);
}

fn put_bits(words: &mut [u32], width: usize, values: impl Iterator<Item = u32>) {
    for (i, value) in values.enumerate() {
        words[i * width / 32] |= value << (i * width % 32);
    }
}

fn put_bytes<const N: usize>(words: &mut [u32], bytes: [u8; N]) {
    put_bits(words, 8, bytes.into_iter().map(u32::from));
}

fn k_scales(words: &mut [u32], packed: &[u8]) {
    let (scales, mins) = blocks::k4_scales(packed.try_into().expect("12 bytes"));
    put_bits(words, 8, scales.into_iter().zip(mins).flat_map(|(s, m)| [u32::from(s), u32::from(m)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widened_blocks_keep_their_values() {
        for format in [Format::Q4_0, Format::Q5_0, Format::Q8_0] {
            let bytes: Vec<u8> = (0..3 * format.block_bytes() as u32)
                .map(|i| if i as usize % format.block_bytes() == 1 { 0x2c } else { (i * 37 % 251) as u8 })
                .collect();
            let (mut before, mut after) = (vec![0.0; 96], vec![0.0; 96]);
            format.dequantize(&bytes, &mut before).unwrap();
            Format::Q8_0.dequantize(&widen_to_q8_0(format, &bytes), &mut after).unwrap();
            assert_eq!(before, after, "{}", format.name());
        }
    }

    #[test]
    fn repacked_weights_stay_within_six_percent_of_the_file() {
        for format in Format::ALL {
            let cols = 768;
            let words: usize = row_words(format, cols).iter().sum();
            let file = cols / format.block_len() * format.block_bytes();
            assert!(words as f64 * 4.0 <= file as f64 * 1.06, "{}: {} of {file}", format.name(), words * 4);
        }
    }
}
