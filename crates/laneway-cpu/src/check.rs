//! What must hold of a step before it is computed.

use crate::kv::KvCache;
use crate::soft::SoftStore;
use laneway_model::{Block, ModelError, PAGE_POSITIONS, Row, Step};

/// The rows' tokens, with each lane's last sampled one put in.
pub(crate) fn tokens(step: &Step<'_>, sampled: &[u32]) -> Result<Vec<u32>, ModelError> {
    let token = |(index, row): (usize, &Row)| match (row.token, sampled.get(row.lane as usize)) {
        (Row::SAMPLED, None) => wrong(format!("row {index}: lane {} has sampled nothing", row.lane)),
        (Row::SAMPLED, Some(&token)) => Ok(token),
        (token, _) => Ok(token),
    };
    step.rows.iter().enumerate().map(token).collect()
}

/// Whether all rows have their pages, all blocks their rows, and all wishes a row.
pub(crate) fn step(step: &Step<'_>, kv: &KvCache, soft: &SoftStore) -> Result<(), ModelError> {
    for (index, row) in step.rows.iter().enumerate() {
        let table = step.tables.get(row.lane as usize).map_or(&[][..], Vec::as_slice);
        let needed = row.position as usize / PAGE_POSITIONS + 1;
        if table.len() < needed || table[..needed].iter().any(|&page| page as usize >= kv.pages()) {
            return wrong(format!("row {index}: lane {} has no page for position {}", row.lane, row.position));
        }
    }
    blocks(step.rows)?;
    if let Some(row) = step.rows.iter().find(|row| is_conditioned(row) && soft.get(row).is_none()) {
        return wrong(format!("lane {} has no prediction to condition position {} on", row.lane, row.position));
    }
    let is_missing = |row: u32| row as usize >= step.rows.len();
    if step.logits.iter().any(|&row| is_missing(row)) {
        return wrong("logits are wanted of a row that the step does not have".into());
    }
    if step.labels.iter().any(|label| is_missing(label.row)) {
        return wrong("a label is wanted of a row that the step does not have".into());
    }
    for draft in step.drafts {
        if is_missing(draft.row) {
            return wrong("a draft is wanted of a row that the step does not have".into());
        }
        if !draft.temperature.is_normal() || draft.temperature < 0.0 || !(0.0..=1.0).contains(&draft.draw) {
            return wrong(format!("no draft at temperature {} and draw {}", draft.temperature, draft.draw));
        }
    }
    Ok(())
}

pub(crate) fn is_conditioned(row: &Row) -> bool {
    row.block.is_some_and(|block| block.is_conditioned)
}

/// Whether every block's rows are there, side by side.
fn blocks(rows: &[Row]) -> Result<(), ModelError> {
    let mut rest = rows;
    while let [row, after @ ..] = rest {
        rest = match row.block {
            None => after,
            Some(block) => {
                let len = block.len as usize;
                let has_end = block.start.checked_add(block.len).is_some();
                let is_whole = has_end
                    && (1..=Block::MAX_LEN as usize).contains(&len)
                    && rest.len() >= len
                    && (block.start..).zip(&rest[..len]).all(|(position, other)| {
                        other.position == position && other.lane == row.lane && other.block == row.block
                    });
                if !is_whole {
                    return wrong(format!(
                        "lane {}: the block of {len} positions from {} is incomplete or too long",
                        row.lane, block.start
                    ));
                }
                &rest[len..]
            }
        };
    }
    Ok(())
}

fn wrong<T>(what: String) -> Result<T, ModelError> {
    Err(ModelError::Device(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_model::{Draft, KvShape, Label};

    fn block(start: u32, len: u32) -> Vec<Row> {
        let block = Some(Block { start, len, is_conditioned: false });
        (start..start + len).map(|position| Row { token: 0, position, lane: 0, block }).collect()
    }

    fn is_valid(change: impl FnOnce(&mut Vec<Row>, &mut Vec<Label>, &mut Vec<Draft>)) -> bool {
        let kv = KvCache::new(&[Some(KvShape { kv_heads: 1, head_dim: 1 })], 3);
        let mut soft = SoftStore::new();
        let (mut rows, mut labels, mut drafts) = (block(40, 20), Vec::new(), Vec::new());
        rows.iter().take(19).for_each(|row| soft.put(row, &[1.0]));
        change(&mut rows, &mut labels, &mut drafts);
        let tables = [vec![2, 0], vec![1, 3]];
        let asked = Step { rows: &rows, tables: &tables, logits: &[], labels: &labels, drafts: &drafts };
        step(&asked, &kv, &soft).is_ok()
    }

    #[test]
    fn blocks_are_whole_and_in_their_lanes_pages() {
        assert!(is_valid(|_, _, _| {}));
        assert!(is_valid(|rows, _, _| rows.extend(block(60, 4))));
        assert!(is_valid(|rows, _, _| rows.insert(0, Row { token: 0, position: 39, lane: 0, block: None })));
        assert!(is_valid(|rows, _, _| rows.iter_mut().for_each(|row| row.block = None)));
        assert!(!is_valid(|rows, _, _| rows.truncate(19)));
        assert!(!is_valid(|rows, _, _| rows.retain(|row| row.position != 40)));
        assert!(!is_valid(|rows, _, _| rows.retain(|row| row.position != 47)));
        assert!(!is_valid(|rows, _, _| rows.swap(3, 4)));
        assert!(!is_valid(|rows, _, _| rows[3].lane = 1));
        assert!(!is_valid(|rows, _, _| rows[3].block = None));
        assert!(!is_valid(|rows, _, _| *rows = block(40, 25)));
        assert!(!is_valid(|rows, _, _| rows.iter_mut().for_each(|row| row.lane = 1)));
        for (start, len) in [(40, 0), (u32::MAX, 2), (41, 20), (40, u32::MAX)] {
            let block = Some(Block { start, len, is_conditioned: false });
            assert!(!is_valid(|rows, _, _| rows.iter_mut().for_each(|row| row.block = block)), "{start} {len}");
        }
    }

    #[test]
    fn a_block_has_a_longest_length() {
        for (len, is_valid) in [(Block::MAX_LEN, true), (Block::MAX_LEN + 1, false)] {
            let block = Some(Block { start: 0, len, is_conditioned: false });
            let rows: Vec<Row> = (0..len).map(|position| Row { token: 0, position, lane: 0, block }).collect();
            assert_eq!(blocks(&rows).is_ok(), is_valid);
        }
    }

    #[test]
    fn a_conditioned_row_has_something_to_be_conditioned_on() {
        let condition = |rows: &mut Vec<Row>, start, len| {
            *rows = block(start, len);
            rows.iter_mut().for_each(|row| row.block = Some(Block { start, len, is_conditioned: true }));
        };
        // The test's store holds 19 of the 20 rows.
        assert!(!is_valid(|rows, _, _| condition(rows, 40, 20)));
        assert!(!is_valid(|rows, _, _| condition(rows, 40, 19)));
    }

    #[test]
    fn labels_and_drafts_are_of_rows_that_exist() {
        let draft = |row, temperature, draw| Draft { row, temperature, draw };
        assert!(is_valid(|_, labels, _| labels.push(Label { row: 19, token: 0 })));
        assert!(!is_valid(|_, labels, _| labels.push(Label { row: 20, token: 0 })));
        assert!(is_valid(|_, _, drafts| drafts.extend([draft(0, 0.4, 0.0), draft(19, 1e-6, 1.0)])));
        for wrong in [draft(20, 0.4, 0.0), draft(0, 0.0, 0.0), draft(0, -1.0, 0.0), draft(0, f32::NAN, 0.0)] {
            assert!(!is_valid(|_, _, drafts| drafts.push(wrong)), "{wrong:?}");
        }
        for wrong in [draft(0, f32::INFINITY, 0.0), draft(0, 1.0, 1.1), draft(0, 1.0, -0.1), draft(0, 1.0, f32::NAN)] {
            assert!(!is_valid(|_, _, drafts| drafts.push(wrong)), "{wrong:?}");
        }
    }
}
