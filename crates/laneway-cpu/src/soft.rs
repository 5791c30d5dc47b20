//! What canvases predicted last, which models with self-conditioning read in their next pass.

use laneway_model::{Block, Row};

/// The soft embeddings that [`Ops::draft`](laneway_model::Ops::draft) left, by lane and place in the block.
///
/// A lane takes memory when it is first written: `[block len, D]` of f32.
#[derive(Default)]
pub struct SoftStore {
    lanes: Vec<Option<Soft>>,
}

struct Soft {
    start: u32,
    rows: Vec<Option<Box<[f32]>>>,
}

impl SoftStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frees what the lane's last canvas left.
    pub fn release(&mut self, lane: usize) {
        if let Some(soft) = self.lanes.get_mut(lane) {
            *soft = None;
        }
    }

    /// Bytes that all lanes take.
    pub fn byte_len(&self) -> usize {
        self.lanes
            .iter()
            .flatten()
            .flat_map(|soft| soft.rows.iter().flatten())
            .map(|row| size_of_val::<[f32]>(row))
            .sum()
    }

    /// What was left for the row's place; none if its block was never drafted, or without this row.
    pub(crate) fn get(&self, row: &Row) -> Option<&[f32]> {
        let block = row.block?;
        let soft = self.lanes.get(row.lane as usize)?.as_ref()?;
        let place = row.position.checked_sub(block.start)? as usize;
        if soft.is_of(&block) { soft.rows.get(place)?.as_deref() } else { None }
    }

    /// Keeps `signal` for the row's place; of a row without a block nothing is kept.
    pub fn put(&mut self, row: &Row, signal: &[f32]) {
        let Some(block) = row.block else { return };
        let lane = row.lane as usize;
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, || None);
        }
        let soft = match &mut self.lanes[lane] {
            Some(soft) if soft.is_of(&block) => soft,
            other => other.insert(Soft { start: block.start, rows: vec![None; block.len as usize] }),
        };
        soft.rows[(row.position - block.start) as usize] = Some(signal.into());
    }
}

impl Soft {
    fn is_of(&self, block: &Block) -> bool {
        self.start == block.start && self.rows.len() == block.len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_found_by_its_lane_block_and_place_alone() {
        let row = |lane, position, start, len| {
            let block = Some(Block { start, len, is_conditioned: true });
            Row { token: 0, position, lane, block }
        };
        let mut store = SoftStore::new();
        assert_eq!(store.get(&row(3, 5, 4, 8)), None);
        store.put(&row(3, 5, 4, 8), &[1.0, 2.0]);
        store.put(&row(0, 5, 4, 8), &[3.0, 4.0]);
        assert_eq!(store.get(&row(3, 5, 4, 8)), Some(&[1.0, 2.0][..]));
        assert_eq!(store.get(&row(3, 6, 4, 8)), None);
        assert_eq!(store.get(&row(3, 5, 4, 9)), None);
        assert_eq!(store.get(&row(3, 5, 5, 8)), None);
        assert_eq!(store.get(&row(2, 5, 4, 8)), None);
        assert_eq!(store.get(&Row { block: None, ..row(3, 5, 4, 8) }), None);
        assert_eq!(store.byte_len(), 16);
        store.put(&row(3, 20, 20, 8), &[5.0, 6.0]);
        assert_eq!((store.get(&row(3, 5, 4, 8)), store.get(&row(3, 20, 20, 8))), (None, Some(&[5.0, 6.0][..])));
        store.release(3);
        store.release(9);
        assert_eq!((store.get(&row(3, 20, 20, 8)), store.byte_len()), (None, 8));
    }
}
