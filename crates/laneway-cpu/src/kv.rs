//! Keys and values in pages that take memory when first written.

use crate::simd::LANES;
use half::f16;
use half::slice::HalfFloatSliceExt;
use laneway_model::{KvShape, KvType, PAGE_POSITIONS, quantise};

/// The keys and values of all layers, in numbered pages of [`PAGE_POSITIONS`] positions.
pub struct KvCache {
    layers: Vec<Option<LayerKv>>,
    pages: usize,
    kind: KvType,
}

pub(crate) struct LayerKv {
    head_dim: usize,
    kv_heads: usize,
    kind: KvType,
    /// `[page]`, each `[kv head]` of keys `[d][position]`, then values `[position][padded d]`.
    pages: Vec<Option<Content>>,
}

/// A page's values in the order of [`LayerKv::pages`].
#[derive(Clone)]
enum Content {
    F32(Box<[f32]>),
    F16(Box<[f16]>),
    Q8 {
        values: Box<[i8]>,
        /// Keys' `[block][position]`, then values' `[position][block]`; every one of them is exact in f16.
        scales: Box<[f32]>,
    },
}

/// One head's decoded page, for as long as a task works on it.
#[derive(Default)]
pub(crate) struct Decoded(Vec<f32>);

impl KvCache {
    /// A cache of `pages` empty pages in f32; layers without a shape read another layer's.
    pub fn new(shapes: &[Option<KvShape>], pages: usize) -> Self {
        Self::of_type(shapes, pages, KvType::F32)
    }

    /// The same in another type, which [`KvType::check`] accepts.
    pub fn of_type(shapes: &[Option<KvShape>], pages: usize, kind: KvType) -> Self {
        let layer = |shape: &KvShape| LayerKv {
            head_dim: shape.head_dim,
            kv_heads: shape.kv_heads,
            kind,
            pages: (0..pages).map(|_| None).collect(),
        };
        Self { layers: shapes.iter().map(|shape| shape.as_ref().map(layer)).collect(), pages, kind }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes that a written page takes over all layers.
    pub fn page_bytes(&self) -> usize {
        self.layers.iter().flatten().map(LayerKv::page_bytes).sum()
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
        self.layers.iter().flatten().map(|layer| 2 * self.kind.row_bytes(layer.width())).sum()
    }

    /// Keys `[position][layer][kv head][value]` of the first positions of a page, then values in the same order,
    /// little-endian, blocks of q8 with their scale first; zeros where nothing was written. None when there is no such
    /// page or position.
    pub fn read(&self, page: u32, positions: usize) -> Option<Vec<u8>> {
        if page as usize >= self.pages || positions > PAGE_POSITIONS {
            return None;
        }
        let mut content = Vec::with_capacity(positions * self.row_bytes());
        for part in [Part::Keys, Part::Values] {
            for position in 0..positions {
                for layer in self.layers.iter().flatten() {
                    layer.read(part, page, position, &mut content);
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
        let mut rest = content;
        for part in [Part::Keys, Part::Values] {
            for position in 0..positions {
                for layer in self.layers.iter_mut().flatten() {
                    let (row, others) = rest.split_at(layer.kind.row_bytes(layer.width()));
                    layer.restore(part, page, position, row);
                    rest = others;
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Keys,
    Values,
}

impl LayerKv {
    fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Blocks of a row.
    fn blocks(&self) -> usize {
        self.width() / KvType::BLOCK
    }

    /// Where a row's value lies within its page.
    fn place(&self, part: Part, position: usize, at: usize) -> usize {
        let (head, dim) = (at / self.head_dim, at % self.head_dim);
        let start = head * self.head_len();
        match part {
            Part::Keys => start + dim * PAGE_POSITIONS + position,
            Part::Values => start + self.head_dim * PAGE_POSITIONS + position * self.padded() + dim,
        }
    }

    /// Where the scale of a row's block lies.
    fn scale(&self, part: Part, position: usize, block: usize) -> usize {
        match part {
            Part::Keys => block * PAGE_POSITIONS + position,
            Part::Values => (PAGE_POSITIONS + position) * self.blocks() + block,
        }
    }

    fn read(&self, part: Part, page: u32, position: usize, out: &mut Vec<u8>) {
        let width = self.width();
        match self.pages[page as usize].as_ref() {
            None => out.resize(out.len() + self.kind.row_bytes(width), 0),
            Some(Content::F32(page)) => {
                out.extend((0..width).flat_map(|at| page[self.place(part, position, at)].to_le_bytes()));
            }
            Some(Content::F16(page)) => {
                out.extend((0..width).flat_map(|at| page[self.place(part, position, at)].to_le_bytes()));
            }
            Some(Content::Q8 { values, scales }) => {
                for block in 0..self.blocks() {
                    out.extend(f16::from_f32(scales[self.scale(part, position, block)]).to_le_bytes());
                    let each = block * KvType::BLOCK..(block + 1) * KvType::BLOCK;
                    out.extend(each.map(|at| values[self.place(part, position, at)] as u8));
                }
            }
        }
    }

    fn restore(&mut self, part: Part, page: u32, position: usize, row: &[u8]) {
        let mut content = self.pages[page as usize].take().unwrap_or_else(|| self.empty());
        match &mut content {
            Content::F32(page) => {
                for (at, value) in row.as_chunks::<4>().0.iter().enumerate() {
                    page[self.place(part, position, at)] = f32::from_le_bytes(*value);
                }
            }
            Content::F16(page) => {
                for (at, value) in row.as_chunks::<2>().0.iter().enumerate() {
                    page[self.place(part, position, at)] = f16::from_le_bytes(*value);
                }
            }
            Content::Q8 { values, scales } => {
                for (block, bytes) in row.chunks_exact(KvType::BLOCK + 2).enumerate() {
                    scales[self.scale(part, position, block)] = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                    for (at, value) in bytes[2..].iter().enumerate() {
                        values[self.place(part, position, block * KvType::BLOCK + at)] = *value as i8;
                    }
                }
            }
        }
        self.pages[page as usize] = Some(content);
    }

    /// Stores one position's keys and values, `[kv_heads · d]` each.
    pub fn write(&mut self, page: u32, slot: usize, keys: &[f32], values: &[f32]) {
        if self.kind == KvType::F32 {
            return self.write_f32(page, slot, keys, values);
        }
        let mut content = self.pages[page as usize].take().unwrap_or_else(|| self.empty());
        for (part, row) in [(Part::Keys, keys), (Part::Values, values)] {
            match &mut content {
                Content::F32(_) => {}
                Content::F16(page) => {
                    for (at, value) in row.iter().enumerate() {
                        page[self.place(part, slot, at)] = f16::from_f32(*value);
                    }
                }
                Content::Q8 { values, scales } => {
                    for (block, row) in row.chunks_exact(KvType::BLOCK).enumerate() {
                        let (scale, quantised) = quantise(row);
                        scales[self.scale(part, slot, block)] = scale;
                        for (at, value) in quantised.enumerate() {
                            values[self.place(part, slot, block * KvType::BLOCK + at)] = value;
                        }
                    }
                }
            }
        }
        self.pages[page as usize] = Some(content);
    }

    fn write_f32(&mut self, page: u32, slot: usize, keys: &[f32], values: &[f32]) {
        let (d, padded, half) = (self.head_dim, self.padded(), self.head_len());
        if self.pages[page as usize].is_none() {
            self.pages[page as usize] = Some(self.empty());
        }
        let Some(Content::F32(page)) = &mut self.pages[page as usize] else { return };
        let heads = page.chunks_exact_mut(half).zip(keys.chunks_exact(d)).zip(values.chunks_exact(d));
        for ((head, key), value) in heads {
            let (keys, values) = head.split_at_mut(d * PAGE_POSITIONS);
            for (column, key) in keys.chunks_exact_mut(PAGE_POSITIONS).zip(key) {
                column[slot] = *key;
            }
            values[slot * padded..][..d].copy_from_slice(value);
        }
    }

    /// Keys `[d][position]` and values `[position][padded d]` of one head, decoded if they must be; none for a page
    /// never written.
    #[inline(always)]
    pub fn head<'a>(&'a self, page: u32, head: usize, decoded: &'a mut Decoded) -> Option<(&'a [f32], &'a [f32])> {
        let len = self.head_len();
        let content = self.pages.get(page as usize)?.as_ref()?;
        let all = match content {
            Content::F32(page) => &page[head * len..][..len],
            other => {
                self.decode(other, head, &mut decoded.0);
                &decoded.0[..]
            }
        };
        Some(all.split_at(self.head_dim * PAGE_POSITIONS))
    }

    #[inline(never)]
    fn decode(&self, content: &Content, head: usize, out: &mut Vec<f32>) {
        let (len, d) = (self.head_len(), self.head_dim);
        out.resize(len, 0.0);
        match content {
            Content::F32(page) => out.copy_from_slice(&page[head * len..][..len]),
            Content::F16(page) => page[head * len..][..len].convert_to_f32_slice(out),
            Content::Q8 { values, scales } => {
                let bytes = &values[head * len..][..len];
                let (keys, rows) = out.split_at_mut(d * PAGE_POSITIONS);
                let (key_bytes, row_bytes) = bytes.split_at(d * PAGE_POSITIONS);
                let columns = keys.chunks_exact_mut(PAGE_POSITIONS).zip(key_bytes.chunks_exact(PAGE_POSITIONS));
                for (dim, (column, bytes)) in columns.enumerate() {
                    let block = (head * d + dim) / KvType::BLOCK;
                    let scales = &scales[self.scale(Part::Keys, 0, block)..][..PAGE_POSITIONS];
                    for ((value, byte), scale) in column.iter_mut().zip(bytes).zip(scales) {
                        *value = f32::from(*byte) * scale;
                    }
                }
                let padded = self.padded();
                let rows = rows.chunks_exact_mut(padded).zip(row_bytes.chunks_exact(padded));
                for (position, (row, bytes)) in rows.enumerate() {
                    let mut dim = 0;
                    while dim < d {
                        let block = (head * d + dim) / KvType::BLOCK;
                        let end = d.min((block + 1) * KvType::BLOCK - head * d);
                        let scale = scales[self.scale(Part::Values, position, block)];
                        for (value, byte) in row[dim..end].iter_mut().zip(&bytes[dim..end]) {
                            *value = f32::from(*byte) * scale;
                        }
                        dim = end;
                    }
                }
            }
        }
    }

    fn empty(&self) -> Content {
        let len = self.page_len();
        match self.kind {
            KvType::F32 => Content::F32(vec![0.0; len].into()),
            KvType::F16 => Content::F16(vec![f16::ZERO; len].into()),
            KvType::Q8 => Content::Q8 {
                values: vec![0; len].into(),
                scales: vec![0.0; 2 * PAGE_POSITIONS * self.blocks()].into(),
            },
        }
    }

    fn page_bytes(&self) -> usize {
        match self.kind {
            KvType::F32 => 4 * self.page_len(),
            KvType::F16 => 2 * self.page_len(),
            KvType::Q8 => self.page_len() + 8 * PAGE_POSITIONS * self.blocks(),
        }
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
        let mut decoded = Decoded::default();
        let (keys, values) = cache.layer(2).unwrap().head(9, 1, &mut decoded).unwrap();
        assert_eq!((keys[5 * PAGE_POSITIONS + 3], values[3 * 16 + 7], values[3 * 16 + 8]), (13.0, 2.0, 0.0));
    }

    #[test]
    fn smaller_types_hold_what_was_written_as_far_as_they_can() {
        let shape = Some(KvShape { kv_heads: 2, head_dim: 16 });
        let (k, v): (Vec<f32>, Vec<f32>) = (0..32).map(|i| (0.1 * i as f32 - 1.3, 2.0 - 0.07 * i as f32)).unzip();
        let bytes: Vec<usize> = [KvType::F32, KvType::F16, KvType::Q8]
            .map(|kind| {
                let mut cache = KvCache::of_type(&[shape], 4, kind);
                cache.layer_mut(0).unwrap().write(2, 7, &k, &v);
                cache.copy(2, 3);
                let content = cache.read(3, 9).unwrap();
                assert_eq!(content.len(), 9 * cache.row_bytes());
                let mut other = KvCache::of_type(&[shape], 4, kind);
                assert!(other.restore(0, 9, &content) && other.read(0, 9).unwrap() == content);
                let layer = other.layer(0).unwrap();
                for head in 0..2 {
                    let mut decoded = Decoded::default();
                    let (keys, values) = layer.head(0, head, &mut decoded).unwrap();
                    for dim in 0..16 {
                        let (key, value) = (keys[dim * PAGE_POSITIONS + 7], values[7 * layer.padded() + dim]);
                        let worst = (key - k[head * 16 + dim]).abs().max((value - v[head * 16 + dim]).abs());
                        let bound = [(KvType::F32, 0.0), (KvType::F16, 1e-3), (KvType::Q8, 0.01)];
                        assert!(worst <= bound.iter().find(|(other, _)| *other == kind).unwrap().1, "{kind}: {worst}");
                        assert_eq!((keys[dim * PAGE_POSITIONS + 8], values[8 * layer.padded() + dim]), (0.0, 0.0));
                    }
                }
                other.page_bytes()
            })
            .to_vec();
        assert!(bytes[1] * 2 == bytes[0] && bytes[2] < bytes[1], "{bytes:?}");
    }
}
