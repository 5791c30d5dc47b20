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
    /// The block it belongs to; none for a row that sees itself and what comes before it.
    pub block: Option<Block>,
}

impl Row {
    /// Stands for the token the device sampled last for the row's lane, which the host may not have read yet.
    pub const SAMPLED: u32 = u32::MAX;

    /// Positions the row sees: its own and all earlier ones, or all of its block and what comes before that.
    ///
    /// A window counts from the row itself, and for a block from its first position: every row of a block sees the
    /// same `window - 1` positions before it.
    pub fn visible(&self, window: Option<usize>) -> std::ops::Range<usize> {
        let (first, end) = match self.block {
            Some(block) => (block.start as usize, (block.start + block.len) as usize),
            None => (self.position as usize, self.position as usize + 1),
        };
        window.map_or(0, |window| (first + 1).saturating_sub(window))..end
    }

    /// The block as one word for the device: offset of the row in bits 0 to 14, conditioned in bit 15, length above;
    /// 0 without a block.
    pub fn block_word(&self) -> u32 {
        self.block.map_or(0, |block| {
            (self.position - block.start) | (u32::from(block.is_conditioned) << 15) | (block.len << 16)
        })
    }
}

/// Consecutive positions that see each other in both directions; all its rows are in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First position.
    pub start: u32,
    /// Number of positions, at most [`Block::MAX_LEN`].
    pub len: u32,
    /// Whether the rows are conditioned on what [`Ops::draft`](crate::Ops::draft) left for their lane last.
    pub is_conditioned: bool,
}

impl Block {
    /// Positions of the longest block.
    pub const MAX_LEN: u32 = (1 << 15) - 1;
}

/// How the network's one stack of layers is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Tokens that are final: a prompt, a decoded token, a finished canvas.
    #[default]
    Encode,
    /// A canvas that is being revised.
    Denoise,
}

/// What one step computes: rows in order of lane and position, the pages of their lanes, and what is wanted of them.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// `T` rows.
    pub rows: &'a [Row],
    /// For each lane, the pages that hold its positions in order; shared pages may appear in several tables.
    pub tables: &'a [Vec<u32>],
    /// Indices into `rows` whose logits are wanted: `R` of them, ascending.
    pub logits: &'a [u32],
    /// Single logits that are wanted: `N` of them.
    pub labels: &'a [Label],
    /// Rows whose distributions are wanted in short: `C` of them, ascending.
    pub drafts: &'a [Draft],
}

/// One logit: of a row, for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Index into the step's rows.
    pub row: u32,
    /// The token.
    pub token: u32,
}

/// A row whose distribution over the vocabulary is wanted in short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draft {
    /// Index into the step's rows.
    pub row: u32,
    /// Divides the logits, over 0.
    pub temperature: f32,
    /// Picks the candidate: the first token whose cumulative probability reaches it; 0 to 1.
    pub draw: f32,
}

/// Columns of a row of [`Ops::draft`](crate::Ops::draft)'s result.
pub const DRAFT_COLUMNS: usize = 6;

/// One row's distribution in short; natural logs, after division by the temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafted {
    /// The likeliest token, the lowest on ties.
    pub argmax: u32,
    /// Its log probability.
    pub argmax_logprob: f32,
    /// Log probability of the second likeliest.
    pub second_logprob: f32,
    /// Entropy in nats.
    pub entropy: f32,
    /// The token that the draw picked.
    pub sampled: u32,
    /// Its log probability.
    pub sampled_logprob: f32,
}

impl Drafted {
    /// Reads one row of [`Ops::draft`](crate::Ops::draft)'s result.
    pub fn from_columns(columns: &[f32; DRAFT_COLUMNS]) -> Self {
        let &[argmax, argmax_logprob, second_logprob, entropy, sampled, sampled_logprob] = columns;
        Self {
            argmax: argmax as u32,
            argmax_logprob,
            second_logprob,
            entropy,
            sampled: sampled as u32,
            sampled_logprob,
        }
    }

    /// The inverse of [`Drafted::from_columns`]; token ids below 2^24 are exact.
    pub fn to_columns(self) -> [f32; DRAFT_COLUMNS] {
        let Self { argmax, argmax_logprob, second_logprob, entropy, sampled, sampled_logprob } = self;
        [argmax as f32, argmax_logprob, second_logprob, entropy, sampled as f32, sampled_logprob]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_block_see_all_of_it_and_the_same_positions_before_it() {
        let row = |position, block| Row { token: 0, position, lane: 0, block };
        assert_eq!(row(9, None).visible(None), 0..10);
        assert_eq!(row(9, None).visible(Some(4)), 6..10);
        assert_eq!(row(2, None).visible(Some(4)), 0..3);
        let block = Some(Block { start: 20, len: 16, is_conditioned: true });
        for position in [20, 27, 35] {
            assert_eq!(row(position, block).visible(None), 0..36);
            assert_eq!(row(position, block).visible(Some(8)), 13..36);
        }
        assert_eq!(row(27, block).block_word(), 7 | 1 << 15 | 16 << 16);
        assert_eq!(row(27, None).block_word(), 0);
    }
}
