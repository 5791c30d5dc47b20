//! How each file format becomes unsigned codes with scales, without loss.

use half::f16;
use laneway_files::{Format, blocks};

/// How codes lie in cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// Four bits.
    Nibble,
    /// Four bits that index a table of bytes.
    Table,
    /// Four bits and a fifth in a plane.
    Five,
    /// Four bits and two planes.
    Six,
    /// Whole bytes.
    Byte,
}

/// How the scale of a unit is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleKind {
    /// An f16.
    Half,
    /// An f32.
    Float,
    /// A small integer times the f16 of a block of 256.
    Steps,
}

/// One format's way into packed form: a weight is `scale · (code − bias) + minimum`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub codes: Codes,
    /// Columns that share a scale: 16 or 32.
    pub unit: usize,
    pub bias: u8,
    pub scale: ScaleKind,
    pub has_min: bool,
    pub table: [u8; 16],
}

/// One block of a file taken apart; only as much of it is filled as the format has.
pub(crate) struct Parts {
    pub codes: [u8; 256],
    pub halves: [u16; 4],
    pub min: u16,
    pub float: f32,
    pub steps: [i8; 16],
    /// For [`ScaleKind::Steps`], a unit's minimum is this times `min`.
    pub min_steps: [i8; 16],
}

impl Parts {
    pub const EMPTY: Self =
        Self { codes: [0; 256], halves: [0; 4], min: 0, float: 0.0, steps: [0; 16], min_steps: [0; 16] };
}

/// The recipe of a quantised format; none for plain floats.
pub(crate) fn recipe(format: Format) -> Option<Recipe> {
    let make = |codes, unit, bias, scale, has_min| Some(Recipe { codes, unit, bias, scale, has_min, table: [0; 16] });
    let table = |values: [i8; 16], unit, bias: u8, scale| {
        let table = values.map(|v| (i16::from(v) + i16::from(bias)) as u8);
        Some(Recipe { codes: Codes::Table, unit, bias, scale, has_min: false, table })
    };
    match format {
        Format::F32 | Format::F16 | Format::BF16 => None,
        Format::Q4_0 => make(Codes::Nibble, 32, 8, ScaleKind::Half, false),
        Format::Q4_1 => make(Codes::Nibble, 32, 0, ScaleKind::Half, true),
        Format::Q5_0 => make(Codes::Five, 32, 16, ScaleKind::Half, false),
        Format::Q5_1 => make(Codes::Five, 32, 0, ScaleKind::Half, true),
        Format::Q8_0 => make(Codes::Byte, 32, 128, ScaleKind::Half, false),
        Format::Q2K => make(Codes::Nibble, 16, 0, ScaleKind::Steps, true),
        Format::Q3K => make(Codes::Nibble, 16, 4, ScaleKind::Steps, false),
        Format::Q4K => make(Codes::Nibble, 32, 0, ScaleKind::Steps, true),
        Format::Q5K => make(Codes::Five, 32, 0, ScaleKind::Steps, true),
        Format::Q6K => make(Codes::Six, 16, 32, ScaleKind::Steps, false),
        Format::Iq4Nl => table(blocks::IQ4_VALUES, 32, 127, ScaleKind::Half),
        Format::Iq4Xs => table(blocks::IQ4_VALUES, 32, 127, ScaleKind::Steps),
        Format::Mxfp4 => table(blocks::E2M1_DOUBLED, 32, 12, ScaleKind::Float),
        Format::Nvfp4 => table(blocks::E2M1_DOUBLED, 16, 12, ScaleKind::Half),
    }
}

/// Takes one whole block of `format` apart.
pub(crate) fn take_apart(format: Format, b: &[u8], out: &mut Parts) {
    let word = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
    let codes = &mut out.codes;
    match format {
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("plain floats have no recipe"),
        Format::Q4_0 | Format::Iq4Nl => {
            out.halves[0] = word(0);
            split(&b[2..18], codes);
        }
        Format::Q4_1 => {
            (out.halves[0], out.min) = (word(0), word(2));
            split(&b[4..20], codes);
        }
        Format::Q5_0 => {
            out.halves[0] = word(0);
            split(&b[6..22], codes);
            fifth(&b[2..6], codes);
        }
        Format::Q5_1 => {
            (out.halves[0], out.min) = (word(0), word(2));
            split(&b[8..24], codes);
            fifth(&b[4..8], codes);
        }
        Format::Q8_0 => {
            out.halves[0] = word(0);
            for (code, &q) in codes.iter_mut().zip(&b[2..34]) {
                *code = q ^ 128;
            }
        }
        Format::Mxfp4 => {
            out.float = blocks::e8m0_half(b[0]);
            split(&b[1..17], codes);
        }
        Format::Nvfp4 => {
            for g in 0..4 {
                out.halves[g] = f16::from_f32(blocks::ue4m3_half(b[g])).to_bits();
                split(&b[4 + 8 * g..12 + 8 * g], &mut codes[16 * g..16 * g + 16]);
            }
        }
        Format::Q2K => {
            (out.halves[0], out.min) = (word(80), word(82));
            out.steps = std::array::from_fn(|j| (b[j] & 15) as i8);
            out.min_steps = std::array::from_fn(|j| -((b[j] >> 4) as i8));
            crumbs(&b[16..80], codes);
        }
        Format::Q3K => {
            out.halves[0] = word(108);
            out.steps = blocks::q3_k_scales(b[96..108].try_into().expect("twelve bytes"));
            crumbs(&b[32..96], codes);
            for (i, code) in codes.iter_mut().enumerate() {
                *code |= (b[i % 32] >> (i / 32) & 1) << 2;
            }
        }
        Format::Q4K | Format::Q5K => {
            (out.halves[0], out.min) = (word(0), word(2));
            let (scales, mins) = blocks::k4_scales(b[4..16].try_into().expect("twelve bytes"));
            for j in 0..8 {
                (out.steps[j], out.min_steps[j]) = (scales[j] as i8, -(mins[j] as i8));
            }
            let qs = if format == Format::Q4K { &b[16..144] } else { &b[48..176] };
            for (codes, qs) in codes.chunks_exact_mut(64).zip(qs.chunks_exact(32)) {
                split(qs, codes);
            }
            if format == Format::Q5K {
                for (i, code) in codes.iter_mut().enumerate() {
                    *code |= (b[16 + i % 32] >> (i / 32) & 1) << 4;
                }
            }
        }
        Format::Q6K => {
            out.halves[0] = word(208);
            out.steps = std::array::from_fn(|j| b[192 + j] as i8);
            for (h, codes) in codes.chunks_exact_mut(128).enumerate() {
                let (low, high) = (&b[64 * h..64 * h + 64], &b[128 + 32 * h..160 + 32 * h]);
                for (i, code) in codes.iter_mut().enumerate() {
                    let nibble = low[i % 64] >> (4 * (i / 64)) & 15;
                    *code = nibble | (high[i % 32] >> (2 * (i / 32)) & 3) << 4;
                }
            }
        }
        Format::Iq4Xs => {
            out.halves[0] = word(0);
            let scales = blocks::iq4_xs_scales(word(2), [b[4], b[5], b[6], b[7]]);
            out.steps[..8].copy_from_slice(&scales);
            for (codes, qs) in codes.chunks_exact_mut(32).zip(b[8..136].chunks_exact(16)) {
                split(qs, codes);
            }
        }
    }
}

/// Low nibbles are the first half of the codes, high nibbles the second.
fn split(qs: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(qs.len());
    for ((low, high), &q) in low.iter_mut().zip(high).zip(qs) {
        (*low, *high) = (q & 15, q >> 4);
    }
}

fn fifth(bits: &[u8], codes: &mut [u8]) {
    for (i, code) in codes[..32].iter_mut().enumerate() {
        *code |= (bits[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// Two bits each: 32 bytes hold four runs of 32 codes.
fn crumbs(qs: &[u8], codes: &mut [u8; 256]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
    }
}
