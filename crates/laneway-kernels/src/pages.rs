//! Content of single pages, to and from the host.

use crate::GpuError;
use crate::readback::{map, read, wait};
use crate::runner::Runner;
use crate::state::LayerPages;
use laneway_model::PAGE_POSITIONS;

impl Runner {
    /// Bytes of one position's keys and values over all layers.
    pub fn row_bytes(&self) -> usize {
        self.layers().map(|layer| 8 * layer.width).sum()
    }

    /// Keys `[position][layer][kv head][value]` of the first positions of a page after all submitted steps, then values
    /// in the same order, little-endian; none when there is no such page or position.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn read_page(&mut self, page: u32, positions: usize) -> Result<Option<Vec<u8>>, GpuError> {
        if !self.has_page(page, positions) {
            return Ok(None);
        }
        self.gpu.check()?;
        let words = positions * self.row_bytes() / 4;
        let target = self.readbacks.take(&self.gpu, words);
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for (buffer, width) in self.parts() {
            let part = (page as usize * PAGE_POSITIONS * width, positions * width);
            buffer.copy_part(&mut encoder, part, &target, at);
            at += part.1;
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.totals.submissions += 1;
        self.totals.readback_bytes += 4 * words as u64;
        wait(&self.gpu, map(&target, words)).await?;
        let by_layer = read(&target, words)?;
        self.readbacks.give_back(target);
        // The device has layers of positions, a page that travels has positions of layers.
        let mut content = Vec::with_capacity(4 * words);
        let (keys, values) = by_layer.split_at(words / 2);
        for half in [keys, values] {
            for position in 0..positions {
                let mut start = 0;
                for layer in self.layers() {
                    let row = &half[start + position * layer.width..][..layer.width];
                    content.extend(row.iter().flat_map(|word| word.to_le_bytes()));
                    start += positions * layer.width;
                }
            }
        }
        Ok(Some(content))
    }

    /// Overwrites the first positions of a page, which no submitted step touches, with what [`Runner::read_page`] gave;
    /// false, and nothing changed, when there is no such page or position or the length is another model's.
    ///
    /// # Errors
    /// When the device was lost.
    pub fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<bool, GpuError> {
        if !self.has_page(page, positions) || content.len() != positions * self.row_bytes() {
            return Ok(false);
        }
        self.gpu.check()?;
        let (all, _) = content.as_chunks::<4>();
        let (keys, values) = all.split_at(all.len() / 2);
        let stride = keys.len() / positions.max(1);
        for (half, is_key) in [(keys, true), (values, false)] {
            let mut start = 0;
            for layer in self.layers() {
                let rows = (0..positions).flat_map(|position| &half[position * stride + start..][..layer.width]);
                let words: Vec<u32> = rows.map(|word| u32::from_le_bytes(*word)).collect();
                let buffer = if is_key { &layer.keys } else { &layer.values };
                buffer.write(&self.gpu, page as usize * PAGE_POSITIONS * layer.width, &words);
                start += layer.width;
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

    /// Keys of all layers, then their values, with the width of a row.
    fn parts(&self) -> impl Iterator<Item = (&crate::buffer::Buffer, usize)> {
        let keys = self.layers().map(|layer| (&layer.keys, layer.width));
        keys.chain(self.layers().map(|layer| (&layer.values, layer.width)))
    }
}
