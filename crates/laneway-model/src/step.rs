/// Positions that one KV page holds.
pub const PAGE_POSITIONS: usize = 32;

/// One row of a step: a token of a lane at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token, or [`Row::SAMPLED`].
    pub token: u32,
    /// Position in the lane's timeline; its key and value go to page `position / PAGE_POSITIONS` of the lane's table.
    pub position: u32,
    /// Lane whose pages the row reads and writes.
    pub lane: u32,
}

impl Row {
    /// Stands for the token the device sampled last for the row's lane, which the host may not have read yet.
    pub const SAMPLED: u32 = u32::MAX;
}

/// What one step computes: rows in order of lane and position, the pages of their lanes, and who wants logits.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// `T` rows.
    pub rows: &'a [Row],
    /// For each lane, the pages that hold its positions in order; shared pages may appear in several tables.
    pub tables: &'a [Vec<u32>],
    /// Indices into `rows` whose logits are wanted: `R` of them, ascending.
    pub logits: &'a [u32],
}
