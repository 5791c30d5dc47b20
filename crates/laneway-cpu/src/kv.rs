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

    /// The page's content as stored, all layers in order: what [`KvCache::restore`] takes; none if never written.
    pub fn read(&self, page: u32) -> Option<Vec<f32>> {
        let mut content = Vec::with_capacity(self.page_bytes() / size_of::<f32>());
        for layer in self.layers.iter().flatten() {
            content.extend_from_slice(layer.pages.get(page as usize)?.as_ref()?);
        }
        Some(content)
    }

    /// Writes a page's content; false when there is no such page or the length is another model's.
    pub fn restore(&mut self, page: u32, content: &[f32]) -> bool {
        if page as usize >= self.pages || size_of_val(content) != self.page_bytes() {
            return false;
        }
        let mut rest = content;
        for layer in self.layers.iter_mut().flatten() {
            let (mine, others) = rest.split_at(layer.page_len());
            layer.pages[page as usize] = Some(mine.into());
            rest = others;
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

impl LayerKv {
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
        assert_eq!(cache.read(7), None);
        let (k, v): (Vec<f32>, Vec<f32>) = ((0..16).map(|i| i as f32).collect(), vec![2.0; 16]);
        for layer in [0, 2] {
            cache.layer_mut(layer).unwrap().write(7, 3, &k, &v);
        }
        cache.copy(7, 8);
        let content = cache.read(8).unwrap();
        assert_eq!(content.len() * 4, cache.page_bytes());
        cache.release(7);
        assert_eq!(cache.read(7), None);
        assert!(cache.restore(9, &content) && !cache.restore(9, &content[1..]) && !cache.restore(u32::MAX, &content));
        let (keys, values) = cache.layer(2).unwrap().head(9, 1).unwrap();
        assert_eq!((keys[5 * PAGE_POSITIONS + 3], values[3 * 16 + 7], values[3 * 16 + 8]), (13.0, 2.0, 0.0));
    }
}
