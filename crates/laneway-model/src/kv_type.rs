use std::fmt;
use std::str::FromStr;

use crate::{KvShape, ModelError};

/// Type of the values in the K/V cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// IEEE single precision.
    #[default]
    F32,
    /// IEEE half precision.
    F16,
    /// Blocks of [`KvType::BLOCK`] signed bytes of a row, with an f16 scale each.
    Q8,
}

impl KvType {
    /// Values of a row that share a scale.
    pub const BLOCK: usize = 32;

    /// Bytes of a row of `width` values as pages travel.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => 4 * width,
            Self::F16 => 2 * width,
            Self::Q8 => width.div_ceil(Self::BLOCK) * (Self::BLOCK + 2),
        }
    }

    /// Bytes that a row of `width` values takes on a device, where the scales of q8 are words.
    pub fn resident_bytes(self, width: usize) -> usize {
        match self {
            Self::Q8 => width + 4 * width.div_ceil(Self::BLOCK),
            other => other.row_bytes(width),
        }
    }

    /// Whether every layer's rows can be stored like that.
    ///
    /// # Errors
    /// When a row is no whole number of blocks.
    pub fn check(self, shapes: &[Option<KvShape>]) -> Result<(), ModelError> {
        let width = |shape: &KvShape| shape.kv_heads * shape.head_dim;
        match shapes.iter().flatten().map(width).find(|width| !width.is_multiple_of(Self::BLOCK)) {
            Some(width) if self != Self::F32 => {
                let block = Self::BLOCK;
                Err(ModelError::Device(format!(
                    "a K/V cache of {self} needs rows of whole blocks of {block}, not {width}"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The text names no [`KvType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no type of the K/V cache (expected f32, f16 or q8)")]
pub struct UnknownKvType(String);

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "q8" => Ok(Self::Q8),
            other => Err(UnknownKvType(other.chars().take(20).collect())),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
        })
    }
}

/// The scale of a block, exact in f16, and its values in units of that scale.
pub fn quantise(block: &[f32]) -> (f32, impl Iterator<Item = i8> + '_) {
    let peak = block.iter().fold(0.0_f32, |peak, value| peak.max(value.abs()));
    let scale = half::f16::from_f32((peak / 127.0).min(half::f16::MAX.to_f32())).to_f32();
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    (scale, block.iter().map(move |value| (value * inverse).round().clamp(-127.0, 127.0) as i8))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L9
    #[test]
    fn types_are_read_and_written_by_name() {
        for kind in [KvType::F32, KvType::F16, KvType::Q8] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "auto".parse::<KvType>().unwrap_err().to_string();
        assert_eq!(error, "\"auto\" is no type of the K/V cache (expected f32, f16 or q8)");
    }

    #[test]
    fn blocks_are_within_half_a_scale() {
        let block: Vec<f32> = (0..32).map(|at| (at as f32 - 11.3) * 0.37).collect();
        let (scale, values) = quantise(&block);
        for (value, found) in block.iter().zip(values) {
            assert!((f32::from(found) * scale - value).abs() <= 0.501 * scale);
        }
        let (scale, mut values) = quantise(&[0.0; 32]);
        assert_eq!(scale, 0.0);
        assert!(values.all(|value| value == 0));
    }
}
