//! Reproducible numbers for tests.

use half::f16;
use laneway_files::Format;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn unit(&mut self) -> f32 {
        (self.next() & 0xffff) as f32 / 32768.0 - 1.0
    }
}

/// Values of mixed size in (−3, 3).
pub(crate) fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.unit() * if random.next().is_multiple_of(8) { 3.0 } else { 0.3 }).collect()
}

/// Random blocks of a format with scales that are finite.
pub(crate) fn blocks(format: Format, elements: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    match format {
        Format::F32 => return (0..elements).flat_map(|_| random.unit().to_le_bytes()).collect(),
        Format::F16 => return (0..elements).flat_map(|_| f16::from_f32(random.unit()).to_le_bytes()).collect(),
        Format::BF16 => return (0..elements).flat_map(|_| half::bf16::from_f32(random.unit()).to_le_bytes()).collect(),
        _ => {}
    }
    let mut bytes: Vec<u8> = (0..format.byte_len(elements).unwrap()).map(|_| random.next() as u8).collect();
    let scales: &[usize] = match format {
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::Mxfp4 | Format::Nvfp4 => &[],
        _ => &[0],
    };
    for block in bytes.chunks_mut(format.block_bytes()) {
        for &at in scales {
            block[at..at + 2].copy_from_slice(&f16::from_f32(random.unit() * 0.05).to_le_bytes());
        }
        match format {
            Format::Mxfp4 => block[0] = 112 + block[0] % 20,
            Format::Nvfp4 => block[..4].iter_mut().for_each(|scale| *scale %= 127),
            _ => {}
        }
    }
    bytes
}
