//! A smaller, lossy representation of one page, after CacheGen: an archive of compressed tiles for K and V rows and of
//! byte-exact records for everything between them.
//!
//! Archive: tag `LWCG`, u64 decoded bytes, u32 records. Record: u8 kind, u8 element bytes, two zero bytes, u64 offset of
//! the region in the page, u64 decoded bytes, u64 tokens of the record, u64 first token, u64 tokens of the region, u64
//! payload bytes; payload. Everything is little-endian and everything is checked before any of it is decoded.

mod archive;
mod coder;
mod tile;

pub use archive::{decode, decode_into, encode};

use crate::checkpoint::PageRecord;
use crate::descriptor::Codec;
use crate::error::FormatError;
use crate::wire::invalid;

/// How finely values are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bins {
    /// 15 levels around zero.
    Sixteen = 16,
    /// 31 levels around zero.
    ThirtyTwo = 32,
}

impl Bins {
    /// The bins of a layer's K, as the published schedule has them: early layers and few layers need the finer ones.
    pub fn of_keys(layer: u32, layers: u32) -> Self {
        if layers < 10 || layer < 10 { Self::ThirtyTwo } else { Self::Sixteen }
    }

    /// The bins of a layer's V.
    pub fn of_values(layer: u32, layers: u32) -> Self {
        if layers < 10 || layer < 2 { Self::ThirtyTwo } else { Self::Sixteen }
    }

    /// The largest level.
    pub(crate) fn largest(self) -> u8 {
        self as u8 / 2 - 1
    }
}

/// Type of a region's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Element {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Part of a page that holds a matrix of tokens and channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte within the page.
    pub offset: usize,
    /// Rows.
    pub tokens: usize,
    /// Values of a row.
    pub channels: usize,
    /// Type of the values.
    pub element: Element,
    /// `[channels, tokens]` instead of `[tokens, channels]`.
    pub transposed: bool,
    /// How finely to quantise.
    pub bins: Bins,
}

/// The page as an archive, or as it was where that is not smaller or its regions do not qualify.
pub fn compress(page: PageRecord, regions: &[Region]) -> PageRecord {
    if page.descriptor.codec != Codec::Raw {
        return page;
    }
    match encode(&page.payload, regions) {
        Ok(Some(payload)) => {
            let mut descriptor = page.descriptor;
            descriptor.codec = Codec::CacheGen;
            descriptor.stored_bytes = payload.len() as u64;
            PageRecord { descriptor, payload }
        }
        Ok(None) | Err(_) => page,
    }
}

/// The page as an engine imports it, whatever its codec.
///
/// # Errors
/// A payload that is not an archive of exactly the page that the descriptor describes.
pub fn restore(page: PageRecord) -> Result<PageRecord, FormatError> {
    page.descriptor.validate()?;
    if page.payload.len() as u64 != page.descriptor.stored_bytes {
        return Err(invalid("page payload", "has another length than its descriptor says"));
    }
    match page.descriptor.codec {
        Codec::Raw => Ok(page),
        Codec::CacheGen => {
            let payload = decode(&page.payload, page.descriptor.payload_bytes)?;
            let mut descriptor = page.descriptor;
            descriptor.codec = Codec::Raw;
            descriptor.stored_bytes = descriptor.payload_bytes;
            Ok(PageRecord { descriptor, payload })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L89: the bin schedule.
    #[test]
    fn early_layers_and_small_models_get_the_finer_bins() {
        for layer in 0..9 {
            assert_eq!(Bins::of_keys(layer, 9), Bins::ThirtyTwo);
            assert_eq!(Bins::of_values(layer, 9), Bins::ThirtyTwo);
        }
        let finer = |bins: fn(u32, u32) -> Bins| (0..32).filter(|&layer| bins(layer, 32) == Bins::ThirtyTwo).count();
        assert_eq!(finer(Bins::of_keys), 10);
        assert_eq!(finer(Bins::of_values), 2);
        assert_eq!(Bins::of_keys(9, 10), Bins::ThirtyTwo);
        assert_eq!(Bins::of_values(2, 10), Bins::Sixteen);
    }
}
