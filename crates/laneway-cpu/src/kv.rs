//! Keys and values in pages that take memory when first written.

use crate::simd::LANES;
use laneway_model::{KvShape, PAGE_POSITIONS};

/// The keys and values of all layers, in numbered pages of [`PAGE_POSITIONS`] positions.
pub struct KvCache {
    layers: Vec<Option<LayerKv>>,
    pages: usize,
}

pub(crate) struct LayerKv {
    head_dim: usize,
    kv_heads: usize,
    /// `[page]`, each `[kv head]` of keys `[d][position]`, then values `[position][padded d]`.
    pages: Vec<Option<Box<[f32]>>>,
}

impl KvCache {
    /// A cache of `pages` empty pages; layers without a shape read another layer's.
    pub fn new(shapes: &[Option<KvShape>], pages: usize) -> Self {
        let layer =
            |shape: &KvShape| LayerKv { head_dim: shape.head_dim, kv_heads: shape.kv_heads, pages: vec![None; pages] };
        Self { layers: shapes.iter().map(|shape| shape.as_ref().map(layer)).collect(), pages }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes that a written page takes over all layers.
    pub fn page_bytes(&self) -> usize {
        self.layers.iter().flatten().map(|layer| layer.page_len() * size_of::<f32>()).sum()
    }

    /// Frees the page's memory; its content is lost.
    pub fn release(&mut self, page: u32) {
        for layer in self.layers.iter_mut().flatten() {
            if let Some(page) = layer.pages.get_mut(page as usize) {
                *page = None;
            }
        }
    }

    /// Makes page `to` equal to page `from`, for a timeline that goes on from a shared, partly filled page.
    pub fn copy(&mut self, from: u32, to: u32) {
        for layer in self.layers.iter_mut().flatten() {
            let source = layer.pages.get(from as usize).cloned().flatten();
            if let Some(page) = layer.pages.get_mut(to as usize) {
                *page = source;
            }
        }
    }

    /// Bytes of one position's keys and values over all layers, as [`KvCache::read`] gives them.
    pub fn row_bytes(&self) -> usize {
        self.layers.iter().flatten().map(|layer| 2 * layer.width() * size_of::<f32>()).sum()
    }

    /// Keys `[position][layer][kv head][value]` of the first positions of a page, then values in the same order,
    /// little-endian; zeros where nothing was written. None when there is no such page or position.
    pub fn read(&self, page: u32, positions: usize) -> Option<Vec<u8>> {
        if page as usize >= self.pages || positions > PAGE_POSITIONS {
            return None;
        }
        let mut content = Vec::with_capacity(positions * self.row_bytes());
        for part in [Part::Keys, Part::Values] {
            for position in 0..positions {
                for layer in self.layers.iter().flatten() {
                    layer.read(part, page, position, |value| content.extend_from_slice(&value.to_le_bytes()));
                }
            }
        }
        Some(content)
    }

    /// Overwrites the first positions of a page with what [`KvCache::read`] gave; false, and nothing changed, when there
    /// is no such page or position or the length is another model's.
    pub fn restore(&mut self, page: u32, positions: usize, content: &[u8]) -> bool {
        let is_page = (page as usize) < self.pages && positions <= PAGE_POSITIONS;
        if !is_page || content.len() != positions * self.row_bytes() {
            return false;
        }
        let (words, _) = content.as_chunks::<4>();
        let mut values = words.iter().map(|word| f32::from_le_bytes(*word));
        for part in [Part::Keys, Part::Values] {
            for position in 0..positions {
                for layer in self.layers.iter_mut().flatten() {
                    layer.restore(part, page, position, &mut values);
                }
            }
        }
        true
    }

    pub(crate) fn layer(&self, layer: usize) -> Option<&LayerKv> {
        self.layers.get(layer)?.as_ref()
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> Option<&mut LayerKv> {
        self.layers.get_mut(layer)?.as_mut()
    }
}

#[derive(Clone, Copy)]
enum Part {
    Keys,
    Values,
}

impl LayerKv {
    fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Where a value of a position lies within its page.
    fn place(&self, part: Part, position: usize, head: usize, dim: usize) -> usize {
        let start = head * self.head_len();
        match part {
            Part::Keys => start + dim * PAGE_POSITIONS + position,
            Part::Values => start + self.head_dim * PAGE_POSITIONS + position * self.padded() + dim,
        }
    }

    fn read(&self, part: Part, page: u32, position: usize, mut take: impl FnMut(f32)) {
        let page = self.pages[page as usize].as_ref();
        for head in 0..self.kv_heads {
            for dim in 0..self.head_dim {
                take(page.map_or(0.0, |page| page[self.place(part, position, head, dim)]));
            }
        }
    }

    fn restore(&mut self, part: Part, page: u32, position: usize, values: &mut impl Iterator<Item = f32>) {
        let len = self.page_len();
        self.pages[page as usize].get_or_insert_with(|| vec![0.0; len].into());
        for head in 0..self.kv_heads {
            for dim in 0..self.head_dim {
                let place = self.place(part, position, head, dim);
                if let (Some(page), Some(value)) = (&mut self.pages[page as usize], values.next()) {
                    page[place] = value;
                }
            }
        }
    }

    /// Stores one position's keys and values, `[kv_heads · d]` each.
    pub fn write(&mut self, page: u32, slot: usize, keys: &[f32], values: &[f32]) {
        let (d, padded, len, half) = (self.head_dim, self.padded(), self.page_len(), self.head_len());
        let page = self.pages[page as usize].get_or_insert_with(|| vec![0.0; len].into());
        let heads = page.chunks_exact_mut(half).zip(keys.chunks_exact(d)).zip(values.chunks_exact(d));
        for ((head, key), value) in heads {
            let (keys, values) = head.split_at_mut(d * PAGE_POSITIONS);
            for (column, key) in keys.chunks_exact_mut(PAGE_POSITIONS).zip(key) {
                column[slot] = *key;
            }
            values[slot * padded..][..d].copy_from_slice(value);
        }
    }

    /// Keys `[d][position]` and values `[position][padded d]` of one head; none for a page never written.
    #[inline(always)]
    pub fn head(&self, page: u32, head: usize) -> Option<(&[f32], &[f32])> {
        let page = self.pages.get(page as usize)?.as_ref()?;
        let len = self.head_len();
        Some(page[head * len..][..len].split_at(self.head_dim * PAGE_POSITIONS))
    }

    /// Head width rounded up to whole vectors.
    pub fn padded(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn head_len(&self) -> usize {
        (self.head_dim + self.padded()) * PAGE_POSITIONS
    }

    fn page_len(&self) -> usize {
        self.kv_heads * self.head_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_take_memory_when_written_and_travel_whole() {
        let shape = Some(KvShape { kv_heads: 2, head_dim: 8 });
        let mut cache = KvCache::new(&[shape, None, shape], 1_000_000);
        let (k, v): (Vec<f32>, Vec<f32>) = ((0..16).map(|i| i as f32).collect(), vec![2.0; 16]);
        for layer in [0, 2] {
            cache.layer_mut(layer).unwrap().write(7, 3, &k, &v);
        }
        cache.copy(7, 8);
        assert_eq!(cache.row_bytes(), 2 * 2 * 16 * 4);
        let content = cache.read(8, 5).unwrap();
        assert_eq!(content.len(), 5 * cache.row_bytes());
        // K of all positions comes before V; the row that was written is the fourth.
        assert_eq!(content[(3 * 32 + 13) * 4..][..4], 13.0_f32.to_le_bytes());
        assert_eq!(content[(5 * 32 + 3 * 32) * 4..][..4], 2.0_f32.to_le_bytes());
        cache.release(7);
        assert_eq!(cache.read(7, 1).unwrap(), vec![0; cache.row_bytes()]);
        assert!(cache.restore(9, 5, &content));
        let wrong =
            [(9, 5, &content[1..]), (u32::MAX, 5, &content), (9, 4, &content), (9, PAGE_POSITIONS + 1, &content)];
        assert!(wrong.iter().all(|(page, positions, content)| !cache.restore(*page, *positions, content)));
        assert_eq!((cache.read(u32::MAX, 1), cache.read(9, PAGE_POSITIONS + 1)), (None, None));
        assert_eq!(cache.read(9, 5).unwrap(), content);
        let (keys, values) = cache.layer(2).unwrap().head(9, 1).unwrap();
        assert_eq!((keys[5 * PAGE_POSITIONS + 3], values[3 * 16 + 7], values[3 * 16 + 8]), (13.0, 2.0, 0.0));
    }
}
