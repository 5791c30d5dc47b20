//! Content of single pages, to and from the host.

use crate::GpuError;
use crate::readback::{map, read, wait};
use crate::runner::Runner;
use crate::state::LayerPages;
use laneway_model::{KvType, PAGE_POSITIONS};

impl Runner {
    /// Bytes of one position's keys and values over all layers.
    pub fn row_bytes(&self) -> usize {
        self.layers().map(|layer| 2 * self.shape.kv_type.row_bytes(layer.width)).sum()
    }

    /// Keys `[position][layer][kv head][value]` of the first positions of a page after all submitted steps, then values
    /// in the same order, little-endian, blocks of q8 with their scale first; none when there is no such page or position.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn read_page(&mut self, page: u32, positions: usize) -> Result<Option<Vec<u8>>, GpuError> {
        if !self.has_page(page, positions) {
            return Ok(None);
        }
        self.gpu.check()?;
        let words: usize = self.parts().map(|(_, layer)| layer.page_words).sum();
        let target = self.readbacks.take(&self.gpu, words);
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for (buffer, layer) in self.parts() {
            buffer.copy_part(&mut encoder, (page as usize * layer.page_words, layer.page_words), &target, at);
            at += layer.page_words;
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.totals.submissions += 1;
        self.totals.readback_bytes += 4 * words as u64;
        wait(&self.gpu, map(&target, words)).await?;
        let all = read(&target, words)?;
        self.readbacks.give_back(target);
        // The device has layers of positions, a page that travels has positions of layers.
        let mut content = Vec::with_capacity(positions * self.row_bytes());
        let (keys, values) = all.split_at(words / 2);
        for half in [keys, values] {
            for position in 0..positions {
                let mut rest = half;
                for layer in self.layers() {
                    let (own, others) = rest.split_at(layer.page_words);
                    row_out(self.shape.kv_type, layer.width, own, position, &mut content);
                    rest = others;
                }
            }
        }
        Ok(Some(content))
    }

    /// Overwrites the first positions of a page, which no submitted step touches, with what [`Runner::read_page`] gave,
    /// and the others with zeros; false, and nothing changed, when there is no such page or position or the length is
    /// another model's.
    ///
    /// # Errors
    /// When the device was lost.
    pub fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<bool, GpuError> {
        if !self.has_page(page, positions) || content.len() != positions * self.row_bytes() {
            return Ok(false);
        }
        self.gpu.check()?;
        let kind = self.shape.kv_type;
        let half_row = self.row_bytes() / 2;
        for (half, is_key) in content.chunks_exact(positions * half_row).zip([true, false]) {
            let mut column = 0;
            for layer in self.layers() {
                let mut words = vec![0; layer.page_words];
                let bytes = kind.row_bytes(layer.width);
                for (position, row) in half.chunks_exact(half_row).enumerate() {
                    row_in(kind, layer.width, &row[column..column + bytes], position, &mut words);
                }
                let buffer = if is_key { &layer.keys } else { &layer.values };
                buffer.write(&self.gpu, page as usize * layer.page_words, &words);
                column += bytes;
            }
        }
        Ok(true)
    }

    fn has_page(&self, page: u32, positions: usize) -> bool {
        (page as usize) < self.shape.pages && (1..=PAGE_POSITIONS).contains(&positions)
    }

    fn layers(&self) -> impl Iterator<Item = &LayerPages> + Clone {
        self.state.kv.iter().flatten()
    }

    /// Keys of all layers, then their values.
    fn parts(&self) -> impl Iterator<Item = (&crate::buffer::Buffer, &LayerPages)> {
        let keys = self.layers().map(|layer| (&layer.keys, layer));
        keys.chain(self.layers().map(|layer| (&layer.values, layer)))
    }
}

/// Appends one position's row of a layer's page.
fn row_out(kind: KvType, width: usize, page: &[u32], position: usize, out: &mut Vec<u8>) {
    match kind {
        KvType::F32 => out.extend(page[position * width..][..width].iter().flat_map(|word| word.to_le_bytes())),
        KvType::F16 => out.extend(page[position * width / 2..][..width / 2].iter().flat_map(|word| word.to_le_bytes())),
        KvType::Q8 => {
            let (blocks, words) = (width / KvType::BLOCK, KvType::BLOCK / 4);
            for block in 0..blocks {
                let scale = page[PAGE_POSITIONS * width / 4 + position * blocks + block];
                out.extend(half::f16::from_f32(f32::from_bits(scale)).to_le_bytes());
                let bytes = &page[position * width / 4 + block * words..][..words];
                out.extend(bytes.iter().flat_map(|word| word.to_le_bytes()));
            }
        }
    }
}

/// The inverse of [`row_out`].
fn row_in(kind: KvType, width: usize, row: &[u8], position: usize, page: &mut [u32]) {
    let words = row.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    match kind {
        KvType::F32 => page[position * width..][..width].iter_mut().zip(words).for_each(|(to, word)| *to = word),
        KvType::F16 => {
            page[position * width / 2..][..width / 2].iter_mut().zip(words).for_each(|(to, word)| *to = word)
        }
        KvType::Q8 => {
            let (blocks, each) = (width / KvType::BLOCK, KvType::BLOCK / 4);
            for (block, bytes) in row.chunks_exact(KvType::BLOCK + 2).enumerate() {
                let scale = half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                page[PAGE_POSITIONS * width / 4 + position * blocks + block] = scale.to_bits();
                let words = bytes[2..].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
                let own = &mut page[position * width / 4 + block * each..][..each];
                own.iter_mut().zip(words).for_each(|(to, word)| *to = word);
            }
        }
    }
}
