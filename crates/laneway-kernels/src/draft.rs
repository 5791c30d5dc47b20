use crate::labels::SingleLogits;
use crate::plan::Param;
use crate::recorder::{GpuAct, Recorder, Span};
use crate::shader::{Shader, Variant};
use crate::weights::{GpuMatrix, MatrixPart};
use laneway_model::{DRAFT_COLUMNS, DraftHead};

/// Tokens whose statistics are kept as one: where a candidate lies is known to this many tokens.
const CHUNK: usize = 1024;
/// Words of `struct Part` and `struct Summary` in `shaders/draft.wgsl`.
const PART_WORDS: usize = 8;
const SUMMARY_WORDS: usize = 5;
/// Bytes of logits that a draft holds at once: 16384 tokens of 256 rows.
pub(crate) const DRAFT_BYTES: usize = 16 << 20;

/// Consecutive rows of the head, all in one part.
struct Tile<'a> {
    part: &'a MatrixPart,
    /// First row within the part.
    start_row: usize,
    rows: usize,
    /// Token of the first row.
    first: usize,
    /// Where its logits start within a row of the logits.
    column: usize,
    /// Chunks of the tiles before it.
    first_chunk: usize,
}

/// A draft's logits, of all tokens if those are few, else of one tile at a time.
struct Canvas<'a> {
    head: &'a DraftHead<'a, GpuMatrix>,
    rows: GpuAct,
    logits: GpuAct,
    is_whole: bool,
}

impl Canvas<'_> {
    fn forbidden(&self) -> Param {
        self.head.forbidden.unwrap_or(u32::MAX).into()
    }

    fn softcap(&self) -> Param {
        self.head.softcap.unwrap_or(0.0).into()
    }
}

/// Cuts a head into tiles of at most `rows`; their logits are kept side by side if `is_whole`.
fn tiles(table: &GpuMatrix, rows: usize, is_whole: bool) -> Vec<Tile<'_>> {
    let mut all: Vec<Tile<'_>> = Vec::new();
    for part in &table.parts {
        for start_row in (0..part.rows).step_by(rows) {
            let first = part.first_row + start_row;
            let first_chunk = all.last().map_or(0, |tile| tile.first_chunk + tile.rows.div_ceil(CHUNK));
            let column = if is_whole { first } else { 0 };
            let rows = rows.min(part.rows - start_row);
            all.push(Tile { part, start_row, rows, first, column, first_chunk });
        }
    }
    all
}

impl Recorder<'_> {
    /// The drafts' columns; two passes over the vocabulary where soft embeddings are wanted and the logits do not fit.
    pub fn record_draft(&mut self, x: &GpuAct, head: &DraftHead<'_, GpuMatrix>) -> GpuAct {
        let (count, vocab) = (self.shape.drafts, head.table.rows);
        let at_once = (self.draft_bytes / (4 * count.max(1))).max(1);
        let is_whole = at_once >= vocab;
        // Whole rows of the kernels' tiles.
        let at_once = if at_once > 64 { at_once / 64 * 64 } else { at_once };
        let tiles = tiles(head.table, if is_whole { vocab } else { at_once }, is_whole);
        let chunks = tiles.last().map_or(0, |tile| tile.first_chunk + tile.rows.div_ceil(CHUNK));
        let rows = self.gather(x, count);
        let logits = self.act(count, if is_whole { vocab } else { at_once });
        let canvas = Canvas { head, rows, logits, is_whole };

        let parts = self.act(count, PART_WORDS * chunks);
        self.plan.count_head(count, vocab, head.table.cols);
        for tile in &tiles {
            self.tile_logits(&canvas, tile);
            self.scan(&canvas, tile, &parts, chunks);
        }
        let (summary, columns) = (self.act(count, SUMMARY_WORDS), self.act(count, DRAFT_COLUMNS));
        let buffers = [&parts.loan.buffer, &self.state.drafts, &summary.loan.buffer, &columns.loan.buffer];
        let merge = Variant::new(Shader::DraftMerge, &[("WORKGROUP", 8)]);
        self.plan.dispatch(merge, &[count.into(), chunks.into()], &buffers, [count.div_ceil(8), 1, 1]);

        self.pick(&canvas, &summary, &columns);
        if let Some((table, scale)) = head.soften {
            if !canvas.is_whole {
                self.plan.count_head(count, vocab, head.table.cols);
            }
            for tile in &tiles {
                if !canvas.is_whole {
                    self.tile_logits(&canvas, tile);
                }
                self.weigh(&canvas, tile, &summary, scale);
                self.soften(&canvas, tile, table);
            }
        }
        columns
    }

    fn tile_logits(&mut self, canvas: &Canvas<'_>, tile: &Tile<'_>) {
        let span = Span { start_row: tile.start_row, rows: tile.rows, column: tile.column };
        self.span_product(&canvas.rows, canvas.head.table, tile.part, span, &canvas.logits);
    }

    fn scan(&mut self, canvas: &Canvas<'_>, tile: &Tile<'_>, parts: &GpuAct, chunks: usize) {
        let params: [Param; 8] = [
            canvas.logits.cols.into(),
            tile.column.into(),
            tile.first.into(),
            tile.rows.into(),
            chunks.into(),
            tile.first_chunk.into(),
            canvas.forbidden(),
            canvas.softcap(),
        ];
        let workgroup = if self.software() { 8 } else { 64 };
        let variant = Variant::new(Shader::DraftScan, &[("WORKGROUP", workgroup), ("CHUNK", CHUNK as u32)]);
        let buffers = [&canvas.logits.loan.buffer, &self.state.drafts, &parts.loan.buffer];
        let grid = [tile.rows.div_ceil(CHUNK), canvas.logits.rows, 1];
        self.plan.dispatch(variant, &params, &buffers, grid);
    }

    /// Finds the candidates, among the logits at hand or in the one chunk of each row that is computed again.
    fn pick(&mut self, canvas: &Canvas<'_>, summary: &GpuAct, columns: &GpuAct) {
        let count = canvas.rows.rows;
        let (logits, stride) = if canvas.is_whole {
            (canvas.logits.clone(), canvas.logits.cols)
        } else {
            let search = SingleLogits { count: count * CHUNK, chunk: Some(CHUNK), softcap: None };
            (self.single_logits(&canvas.rows, canvas.head.table, &summary.loan.buffer, search), CHUNK)
        };
        let params: [Param; 5] =
            [count.into(), stride.into(), canvas.is_whole.into(), canvas.forbidden(), canvas.softcap()];
        let buffers = [&logits.loan.buffer, &self.state.drafts, &summary.loan.buffer, &columns.loan.buffer];
        let variant = Variant::new(Shader::DraftPick, &[("WORKGROUP", 8)]);
        self.plan.dispatch(variant, &params, &buffers, [count.div_ceil(8), 1, 1]);
    }

    fn weigh(&mut self, canvas: &Canvas<'_>, tile: &Tile<'_>, summary: &GpuAct, scale: f32) {
        let params: [Param; 7] = [
            canvas.logits.cols.into(),
            tile.column.into(),
            tile.first.into(),
            tile.rows.into(),
            canvas.forbidden(),
            canvas.softcap(),
            scale.into(),
        ];
        let buffers = [&canvas.logits.loan.buffer, &self.state.drafts, &summary.loan.buffer];
        let variant = Variant::new(Shader::DraftWeigh, &[("WORKGROUP", 64)]);
        self.plan.dispatch(variant, &params, &buffers, [tile.rows.div_ceil(64), canvas.logits.rows, 1]);
    }

    /// Adds what a tile's tokens contribute to the soft embeddings; `table` may be split elsewhere than the head.
    fn soften(&mut self, canvas: &Canvas<'_>, tile: &Tile<'_>, table: &GpuMatrix) {
        let count = canvas.rows.rows;
        for part in &table.parts {
            let first = tile.first.max(part.first_row);
            let end = (tile.first + tile.rows).min(part.first_row + part.rows);
            if first >= end {
                continue;
            }
            self.plan.count_weights(&part.words);
            let [plane1, plane2, plane3] = part.starts;
            let params: [Param; 11] = [
                table.cols.into(),
                plane1.into(),
                plane2.into(),
                plane3.into(),
                (first - part.first_row).into(),
                (end - first).into(),
                count.into(),
                canvas.logits.cols.into(),
                (tile.column + first - tile.first).into(),
                (first == 0).into(),
                self.state.canvas.into(),
            ];
            let buffers =
                [&part.words, &canvas.logits.loan.buffer, &self.state.rows, &self.state.wanted, &self.state.soft];
            let (shader, constants, grid) = if self.software() {
                let together = count.next_power_of_two().min(8);
                let grid = [(table.cols / 8).div_ceil(8), count.div_ceil(together), 1];
                (Shader::SoftenRows, vec![("WORKGROUP", 8), ("TOKENS", together as u32)], grid)
            } else {
                (Shader::SoftenTiles, vec![], [table.cols.div_ceil(64), count.div_ceil(64), 1])
            };
            self.plan.dispatch(Variant::of_format(shader, part.format, &constants), &params, &buffers, grid);
        }
    }
}
