//! How pages that an engine moves become pages of checkpoints.

use std::ops::Range;

use laneway_checkpoint::cachegen::{self, Bins, Element, Region};
use laneway_checkpoint::{Codec, Descriptor, ElementType, FormatError, PageRecord};

/// Tokens of a stored page: a few engine pages, so that there are not too many objects.
const STORED_TOKENS: usize = 256;
/// Values of a head that the lossy codec scales together.
const SCALED: u32 = 32;

/// Which layers have K/V, and of which type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Type of every value.
    pub element: ElementType,
    /// Layers of the network.
    pub layers: u32,
    /// Values of K, and of V, that a position has in each layer that has K/V of its own.
    pub widths: Vec<u32>,
    /// Values of a head in each of them: the lossy codec scales every head apart.
    pub head_dims: Vec<u32>,
    /// Positions of an engine's page.
    pub page_positions: usize,
}

impl KvLayout {
    /// Bytes of K, and of V, of one position over all layers.
    fn half_row_bytes(&self) -> usize {
        self.widths.iter().map(|width| self.bytes(*width)).sum()
    }

    /// Consecutive values of a row that are stored together, position after position: heads, or layers where blocks may
    /// cross heads.
    fn parts(&self) -> Vec<u32> {
        let is_blocks = matches!(self.element, ElementType::Q8_0 | ElementType::Q4_0);
        let layers = self.widths.iter().zip(&self.head_dims);
        layers
            .flat_map(|(&width, &dim)| {
                let part = match dim {
                    _ if is_blocks => width,
                    dim if dim % SCALED == 0 && width % SCALED == 0 => SCALED,
                    dim if dim > 0 && width % dim == 0 => dim,
                    _ => width,
                };
                std::iter::repeat_n(part, (width / part.max(1)) as usize)
            })
            .collect()
    }

    /// Bytes of so many values of a row.
    fn bytes(&self, width: u32) -> usize {
        let width = width as usize;
        match self.element {
            ElementType::F32 => 4 * width,
            ElementType::F16 | ElementType::Bf16 => 2 * width,
            ElementType::Q8_0 => width.div_ceil(32) * 34,
            ElementType::Q4_0 => width.div_ceil(32) * 18,
        }
    }

    /// Tokens of a stored page: whole engine pages.
    pub fn stored_tokens(&self) -> usize {
        STORED_TOKENS.next_multiple_of(self.page_positions.max(1))
    }

    /// The stored pages that cover `tokens` tokens.
    pub fn ranges(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = self.stored_tokens();
        (0..tokens).step_by(step).map(move |start| start..tokens.min(start + step))
    }

    /// What a stored page is, without its content.
    pub fn descriptor(&self, tokens: Range<usize>) -> Descriptor {
        let half = self.half_row_bytes() as u32;
        let bytes = 2 * tokens.len() as u64 * u64::from(half);
        Descriptor {
            layers: 0..self.layers,
            layer_count: self.widths.len() as u32,
            tokens: tokens.start as u32..tokens.end as u32,
            k_type: self.element,
            v_type: self.element,
            k_row_bytes: half,
            v_row_bytes: half,
            indexer_row_bytes: 0,
            v_element_bytes: match self.element {
                ElementType::F16 | ElementType::Bf16 => 2,
                ElementType::F32 => 4,
                ElementType::Q8_0 | ElementType::Q4_0 => 0,
            },
            v_transposed: false,
            payload_bytes: bytes,
            stored_bytes: bytes,
            codec: Codec::Raw,
            components: None,
        }
    }

    /// The engine's pages of `tokens`, which begin at a stored page, as one: K head after head of every layer, then V.
    ///
    /// # Errors
    /// Pages that are not what the layout says.
    pub fn store(&self, tokens: Range<usize>, pages: &[Vec<u8>]) -> Result<PageRecord, FormatError> {
        let descriptor = self.descriptor(tokens.clone());
        let mut payload = Vec::with_capacity(descriptor.payload_bytes as usize);
        let expected = |page: usize| {
            let start = tokens.start + page * self.page_positions;
            2 * tokens.end.saturating_sub(start).min(self.page_positions) * self.half_row_bytes()
        };
        let count = tokens.len().div_ceil(self.page_positions);
        if pages.len() != count || pages.iter().enumerate().any(|(page, content)| content.len() != expected(page)) {
            return Err(FormatError::Invalid { what: "page", reason: "has another size than the model's" });
        }
        for half in 0..2 {
            let mut column = 0;
            for width in self.parts() {
                let bytes = self.bytes(width);
                for page in pages {
                    let rows = &page[half * page.len() / 2..][..page.len() / 2];
                    for row in rows.chunks_exact(self.half_row_bytes().max(1)) {
                        payload.extend_from_slice(&row[column..column + bytes]);
                    }
                }
                column += bytes;
            }
        }
        Ok(PageRecord { descriptor, payload })
    }

    /// The inverse of [`KvLayout::store`], whatever the page's codec.
    ///
    /// # Errors
    /// A page of another model, or one that is not what its descriptor says.
    pub fn load(&self, page: PageRecord) -> Result<Vec<Vec<u8>>, FormatError> {
        let PageRecord { descriptor, payload } = cachegen::restore(page)?;
        let tokens = descriptor.tokens.start as usize..descriptor.tokens.end as usize;
        if descriptor != self.descriptor(tokens.clone()) {
            return Err(FormatError::Invalid { what: "page", reason: "belongs to another model" });
        }
        let (half, parts) = (self.half_row_bytes(), self.parts());
        let mut pages = Vec::new();
        let mut start = 0;
        while start < tokens.len() {
            let positions = (tokens.len() - start).min(self.page_positions);
            let mut content = vec![0; 2 * positions * half];
            for part in 0..2 {
                let mut column = 0;
                for &width in &parts {
                    let bytes = self.bytes(width);
                    let layer = part * tokens.len() * half + column * tokens.len();
                    for position in 0..positions {
                        let from = &payload[layer + (start + position) * bytes..][..bytes];
                        content[(part * positions + position) * half + column..][..bytes].copy_from_slice(from);
                    }
                    column += bytes;
                }
            }
            pages.push(content);
            start += positions;
        }
        Ok(pages)
    }

    /// The page in the smaller, lossy form, or as it was where that is not smaller.
    pub fn compress(&self, page: PageRecord) -> PageRecord {
        let element = match self.element {
            ElementType::F16 => Element::F16,
            ElementType::F32 => Element::F32,
            // Their values are quantised already.
            ElementType::Bf16 | ElementType::Q8_0 | ElementType::Q4_0 => return page,
        };
        let tokens = page.descriptor.token_count() as usize;
        let mut regions = Vec::with_capacity(2 * self.widths.len());
        let mut offset = 0;
        let bins = Bins::ThirtyTwo;
        for _ in 0..2 {
            for width in self.parts() {
                let channels = width as usize;
                regions.push(Region { offset, tokens, channels, element, transposed: false, bins });
                offset += tokens * self.bytes(width);
            }
        }
        cachegen::compress(page, &regions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(element: ElementType) -> KvLayout {
        KvLayout { element, layers: 3, widths: vec![32, 64], head_dims: vec![16, 64], page_positions: 32 }
    }

    /// Bytes that tell where they are: half, position, layer and value.
    fn pages(layout: &KvLayout, tokens: Range<usize>) -> Vec<Vec<u8>> {
        let half = layout.half_row_bytes();
        let page = |start: usize| {
            let positions = (tokens.end - start).min(32);
            let rows = (0..2 * positions).flat_map(|row| {
                let (part, position) = (row / positions, start + row % positions);
                (0..half).map(move |at| (part * 131 + position * 17 + at * 7) as u8)
            });
            rows.collect()
        };
        tokens.clone().step_by(32).map(page).collect()
    }

    #[test]
    fn stored_pages_hold_layer_after_layer_and_come_back() {
        for element in [ElementType::F32, ElementType::F16, ElementType::Q8_0] {
            let layout = layout(element);
            for tokens in [0..256, 256..300, 0..32, 0..1] {
                let pages = pages(&layout, tokens.clone());
                let stored = layout.store(tokens.clone(), &pages).unwrap();
                stored.descriptor.validate().unwrap();
                assert_eq!(stored.payload.len() as u64, stored.descriptor.payload_bytes);
                // V of the second layer at the last position ends the payload.
                let last = pages.last().unwrap();
                assert_eq!(stored.payload.last(), last.last());
                assert_eq!(layout.load(stored).unwrap(), pages);
            }
        }
    }

    #[test]
    fn pages_of_another_size_are_refused() {
        let layout = layout(ElementType::F32);
        let whole = pages(&layout, 0..64);
        assert!(layout.store(0..64, &whole[..1]).is_err());
        assert!(layout.store(0..63, &whole).is_err());
        let mut stored = layout.store(0..64, &whole).unwrap();
        let other = KvLayout { widths: vec![64, 32], head_dims: vec![64, 32], ..layout.clone() };
        // The same size, and so told apart by the identity of the model alone.
        assert!(other.load(stored.clone()).is_ok());
        assert!(KvLayout { layers: 2, ..layout.clone() }.load(stored.clone()).is_err());
        stored.payload.pop();
        assert!(layout.load(stored).is_err());
    }

    #[test]
    fn ranges_are_whole_stored_pages_and_a_rest() {
        let ranges: Vec<_> = layout(ElementType::F32).ranges(600).collect();
        assert_eq!(ranges, [0..256, 256..512, 512..600]);
    }
}
