use crate::error::FormatError;
use crate::wire::{Fields, invalid};
use std::ops::Range;

/// Bytes of an encoded descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = 128;

const VERSION_SINGLE: u32 = 1;
const VERSION_COMPOSITE: u32 = 2;
const HAS_INDEXER: u32 = 1;
const V_TRANSPOSED: u32 = 2;

/// Type of the values in K or V rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ElementType {
    /// IEEE half precision.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// IEEE single precision.
    F32 = 3,
    /// Blocks of 32 signed bytes with an f16 scale.
    Q8_0 = 4,
    /// Blocks of 32 four-bit values with an f16 scale.
    Q4_0 = 5,
}

impl ElementType {
    fn from_wire(value: u8) -> Result<Self, FormatError> {
        Ok(match value {
            1 => Self::F16,
            2 => Self::Bf16,
            3 => Self::F32,
            4 => Self::Q8_0,
            5 => Self::Q4_0,
            _ => return Err(invalid("element type", "is not known")),
        })
    }
}

/// How the payload of a page is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// As the engine exported it.
    Raw = 0,
    /// As a [`cachegen`](crate::cachegen) archive: smaller, not bit for bit the same.
    CacheGen = 1,
}

/// A part of a page that was exported from one of two caches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Component {
    /// First byte within the decoded payload.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Positions it covers.
    pub tokens: Range<u32>,
}

/// What a page holds, little-endian and row-major, without its bytes.
///
/// Row sizes are bytes per token over all layers of the range: their order inside is a matter of the identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// First layer, and one past the last.
    pub layers: Range<u32>,
    /// Layers of the range that have KV of their own.
    pub layer_count: u32,
    /// First position, and one past the last.
    pub tokens: Range<u32>,
    /// Type of K.
    pub k_type: ElementType,
    /// Type of V.
    pub v_type: ElementType,
    /// Bytes of K per token.
    pub k_row_bytes: u32,
    /// Bytes of V per token.
    pub v_row_bytes: u32,
    /// Bytes of indexer state per token, 0 without an indexer.
    pub indexer_row_bytes: u32,
    /// Bytes of one V value, 0 for block types.
    pub v_element_bytes: u32,
    /// Whether V is stored channel by channel.
    pub v_transposed: bool,
    /// Bytes of the decoded payload.
    pub payload_bytes: u64,
    /// Bytes of the payload as stored.
    pub stored_bytes: u64,
    /// How it is stored.
    pub codec: Codec,
    /// The base cache and the sliding-window cache, where a page holds both.
    pub components: Option<[Component; 2]>,
}

impl Descriptor {
    /// Bytes per token of the base cache.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.k_row_bytes) + u64::from(self.v_row_bytes) + u64::from(self.indexer_row_bytes)
    }

    /// Positions covered.
    pub fn token_count(&self) -> u32 {
        self.tokens.end.saturating_sub(self.tokens.start)
    }

    /// Checks that all fields agree with each other.
    ///
    /// # Errors
    /// Names the first field that does not.
    pub fn validate(&self) -> Result<(), FormatError> {
        if self.layers.is_empty() || self.layers.end > i32::MAX as u32 {
            return Err(invalid("layer range", "is empty or past the largest layer"));
        }
        if self.layer_count == 0 || self.layer_count > self.layers.end - self.layers.start {
            return Err(invalid("layer count", "does not fit the layer range"));
        }
        if self.tokens.is_empty() || self.tokens.end > i32::MAX as u32 {
            return Err(invalid("token range", "is empty or past the largest position"));
        }
        let element_bytes = match self.v_type {
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 => 4,
            ElementType::Q8_0 | ElementType::Q4_0 => 0,
        };
        if self.v_element_bytes != element_bytes {
            return Err(invalid("V element size", "does not fit the V type"));
        }
        if element_bytes != 0 && !self.v_row_bytes.is_multiple_of(element_bytes) {
            return Err(invalid("V row size", "is not whole elements"));
        }
        let base_bytes = u64::from(self.token_count()).checked_mul(self.row_bytes());
        let base_bytes = base_bytes.ok_or(invalid("payload size", "overflows"))?;
        match &self.components {
            None if self.payload_bytes != base_bytes => {
                return Err(invalid("payload size", "is not tokens times row sizes"));
            }
            None => {}
            Some([base, window]) => self.validate_composite(base_bytes, base, window)?,
        }
        if self.payload_bytes == 0 {
            return Err(invalid("payload size", "is zero"));
        }
        match self.codec {
            Codec::Raw if self.stored_bytes != self.payload_bytes => {
                Err(invalid("stored size", "is not the payload size of a raw page"))
            }
            Codec::CacheGen if self.stored_bytes >= self.payload_bytes => {
                Err(invalid("stored size", "is not smaller than the raw page"))
            }
            _ => Ok(()),
        }
    }

    fn validate_composite(&self, base_bytes: u64, base: &Component, window: &Component) -> Result<(), FormatError> {
        if base.offset != 0 || base.bytes != base_bytes || base.tokens != self.tokens {
            return Err(invalid("base component", "does not start the page or cover its tokens"));
        }
        if window.tokens.is_empty() || window.tokens.start < self.tokens.start || window.tokens.end != self.tokens.end {
            return Err(invalid("window component", "does not lie in the page and end with it"));
        }
        let end = window.offset.checked_add(window.bytes);
        if window.offset != base.bytes || end != Some(self.payload_bytes) {
            return Err(invalid("window component", "does not fill the rest of the payload"));
        }
        let count = u64::from(window.tokens.end - window.tokens.start);
        if window.bytes == 0 || !window.bytes.is_multiple_of(count) {
            return Err(invalid("window component", "is not whole rows"));
        }
        Ok(())
    }

    /// The fixed-size encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(DESCRIPTOR_BYTES);
        let version = if self.components.is_some() { VERSION_COMPOSITE } else { VERSION_SINGLE };
        let flags =
            if self.indexer_row_bytes > 0 { HAS_INDEXER } else { 0 } | if self.v_transposed { V_TRANSPOSED } else { 0 };
        out.extend(version.to_le_bytes());
        out.extend([self.codec as u8, self.components.as_ref().map_or(0, |_| 2), self.k_type as u8, self.v_type as u8]);
        let words = [
            flags,
            self.layers.start,
            self.layers.end,
            self.layer_count,
            self.tokens.start,
            self.token_count(),
            self.k_row_bytes,
            self.v_row_bytes,
            self.indexer_row_bytes,
            self.v_element_bytes,
        ];
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out.extend(self.payload_bytes.to_le_bytes());
        out.extend(self.stored_bytes.to_le_bytes());
        for component in self.components.iter().flatten() {
            out.extend(component.offset.to_le_bytes());
            out.extend(component.bytes.to_le_bytes());
            out.extend(component.tokens.start.to_le_bytes());
            out.extend((component.tokens.end - component.tokens.start).to_le_bytes());
        }
        out.resize(DESCRIPTOR_BYTES, 0);
        out
    }

    /// Reads and validates an encoded descriptor.
    ///
    /// # Errors
    /// Another length, an unknown version or value, or fields that disagree.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut fields = Fields::new(bytes, "page descriptor");
        let version = fields.u32()?;
        let codec = match fields.u8()? {
            0 => Codec::Raw,
            1 => Codec::CacheGen,
            _ => return Err(invalid("codec", "is not known")),
        };
        match (version, fields.u8()?) {
            (VERSION_SINGLE, 0) | (VERSION_COMPOSITE, 2) => {}
            (VERSION_SINGLE | VERSION_COMPOSITE, _) => {
                return Err(invalid("component count", "does not fit the descriptor version"));
            }
            (found, _) => {
                return Err(FormatError::Version { what: "page descriptor", found, supported: VERSION_COMPOSITE });
            }
        }
        let k_type = ElementType::from_wire(fields.u8()?)?;
        let v_type = ElementType::from_wire(fields.u8()?)?;
        let flags = fields.u32()?;
        if flags & !(HAS_INDEXER | V_TRANSPOSED) != 0 {
            return Err(invalid("descriptor flags", "are not known"));
        }
        let layers = fields.u32()?..fields.u32()?;
        let layer_count = fields.u32()?;
        let tokens = range(&mut fields)?;
        let [k_row_bytes, v_row_bytes, indexer_row_bytes, v_element_bytes] =
            [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        if (flags & HAS_INDEXER != 0) != (indexer_row_bytes > 0) {
            return Err(invalid("indexer flag", "does not agree with the indexer row size"));
        }
        let (payload_bytes, stored_bytes) = (fields.u64()?, fields.u64()?);
        let components = match version {
            VERSION_COMPOSITE => Some([component(&mut fields)?, component(&mut fields)?]),
            _ => None,
        };
        let padding = DESCRIPTOR_BYTES - (bytes.len() - fields.left()).min(DESCRIPTOR_BYTES);
        if fields.take(padding)?.iter().any(|&byte| byte != 0) {
            return Err(invalid("descriptor padding", "is not zero"));
        }
        fields.end()?;
        let descriptor = Self {
            layers,
            layer_count,
            tokens,
            k_type,
            v_type,
            k_row_bytes,
            v_row_bytes,
            indexer_row_bytes,
            v_element_bytes,
            v_transposed: flags & V_TRANSPOSED != 0,
            payload_bytes,
            stored_bytes,
            codec,
            components,
        };
        descriptor.validate()?;
        Ok(descriptor)
    }
}

fn range(fields: &mut Fields<'_>) -> Result<Range<u32>, FormatError> {
    let start = fields.u32()?;
    let end = start.checked_add(fields.u32()?).ok_or(invalid("token range", "overflows"))?;
    Ok(start..end)
}

fn component(fields: &mut Fields<'_>) -> Result<Component, FormatError> {
    Ok(Component { offset: fields.u64()?, bytes: fields.u64()?, tokens: range(fields)? })
}
