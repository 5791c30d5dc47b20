//! Attention over pages, with a running softmax per query.

use crate::kv::{Decoded, LayerKv};
use crate::math::exp;
use crate::norm::norm;
use crate::pool::Pool;
use crate::rope::RopeTable;
use crate::simd::{Kernel, LANES, Simd, Tier};
use crate::tiles::{Tile, Tiles};
use laneway_model::{Attention, PAGE_POSITIONS, Row, Step};
use std::ops::Range;

/// Queries that one task carries through the pages.
const TASK_QUERIES: usize = 24;
/// Key reads below which one thread does everything.
const SHARED_FROM: usize = 64 * 1024;

/// One layer's attention over normed and rotated queries.
pub(crate) struct Attend<'a> {
    pub step: &'a Step<'a>,
    pub kv: &'a LayerKv,
    /// `[T, stride]`, each row starting with its queries `[H · d]`, scaled.
    pub queries: &'a [f32],
    pub stride: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub window: Option<usize>,
}

/// Prepares one row's heads in place: q, then k and v where the layer owns them.
pub(crate) struct PrepareRow<'a> {
    pub x: &'a mut [f32],
    pub row: usize,
    pub rope: &'a RopeTable,
    pub attention: &'a Attention<'a, Vec<f32>>,
}

impl Kernel for PrepareRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let a = self.attention;
        let (q, kv) = self.x.split_at_mut(a.heads * a.head_dim);
        let (k, v) = kv.split_at_mut(kv.len() / 2);
        for q in q.chunks_exact_mut(a.head_dim) {
            if let Some(weight) = a.q_norm {
                norm(s, q, a.eps, Some(weight));
            }
            self.rope.rotate(s, self.row, q, a.pairs);
            q.iter_mut().for_each(|q| *q *= a.scale);
        }
        for k in k.chunks_exact_mut(a.head_dim) {
            if let Some(weight) = a.k_norm {
                norm(s, k, a.eps, Some(weight));
            }
            self.rope.rotate(s, self.row, k, a.pairs);
        }
        if a.unit_value_norm {
            for v in v.chunks_exact_mut(a.head_dim) {
                norm(s, v, a.eps, None);
            }
        }
    }
}

impl Attend<'_> {
    /// Writes `[T, H · d]`.
    pub fn run(&self, out: &mut [f32], pool: &Pool, tier: Tier) {
        let group = self.heads / self.kv_heads;
        let reads: usize = self.step.rows.iter().map(|row| self.visible(row).len()).sum();
        let shared = reads * self.heads * self.head_dim >= SHARED_FROM && pool.threads() > 1;
        let cuts = self.row_cuts((TASK_QUERIES / group).max(1));
        // One query head a task where key/value heads alone would leave threads idle.
        let few = shared && self.kv_heads * (cuts.len() - 1) < 2 * pool.threads();
        let heads = if few { 1 } else { group };
        let tiles = Tiles::with_row_cuts(out, self.heads * self.head_dim, cuts, heads * self.head_dim);
        let alone = Pool::new(1);
        tiles.share(if shared { pool } else { &alone }, |mut tile| tier.run(Task { attend: self, tile: &mut tile }));
    }

    /// Runs of at most `most` rows of one lane.
    fn row_cuts(&self, most: usize) -> Vec<usize> {
        let rows = self.step.rows;
        let mut cuts = vec![0];
        for i in 1..rows.len() {
            if rows[i].lane != rows[i - 1].lane || i - cuts[cuts.len() - 1] == most {
                cuts.push(i);
            }
        }
        cuts.push(rows.len());
        cuts
    }

    /// Positions that a row sees.
    fn visible(&self, row: &Row) -> Range<usize> {
        row.visible(self.window)
    }
}

struct Task<'a, 'b> {
    attend: &'a Attend<'a>,
    tile: &'a mut Tile<'b, f32>,
}

struct Query<'a> {
    q: &'a [f32],
    visible: Range<usize>,
    top: f32,
    total: f32,
}

impl Kernel for Task<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attend { step, kv, queries, stride, head_dim, .. } = *self.attend;
        let rows = self.tile.rows.clone();
        let heads = self.tile.cols.start / head_dim..self.tile.cols.end / head_dim;
        let kv_head = heads.start / (self.attend.heads / self.attend.kv_heads);
        let mut all: Vec<Query<'_>> = rows
            .clone()
            .flat_map(|row| {
                let visible = self.attend.visible(&step.rows[row]);
                heads.clone().map(move |head| Query {
                    q: &queries[row * stride + head * head_dim..][..head_dim],
                    visible: visible.clone(),
                    top: f32::NEG_INFINITY,
                    total: 0.0,
                })
            })
            .collect();
        let padded = kv.padded();
        let mut sums = vec![0.0; all.len() * padded];
        let first = all.iter().map(|query| query.visible.start).min().unwrap_or(0) / PAGE_POSITIONS;
        let last = all.iter().map(|query| query.visible.end).max().unwrap_or(0).div_ceil(PAGE_POSITIONS);
        let table = &step.tables[step.rows[rows.start].lane as usize];
        let mut decoded = Decoded::default();
        for index in first..last {
            let Some((keys, values)) = table.get(index).and_then(|page| kv.head(*page, kv_head, &mut decoded)) else {
                continue;
            };
            let base = index * PAGE_POSITIONS;
            for (queries, sums) in all.chunks_mut(4).zip(sums.chunks_mut(4 * padded)) {
                let page = Page { keys, values, base, padded };
                match queries.len() {
                    4 => page.visit::<S, 4>(s, queries, sums),
                    3 => page.visit::<S, 3>(s, queries, sums),
                    2 => page.visit::<S, 2>(s, queries, sums),
                    _ => page.visit::<S, 1>(s, queries, sums),
                }
            }
        }
        for (i, (query, sum)) in all.iter().zip(sums.chunks_exact(padded)).enumerate() {
            let out = &mut self.tile.row_mut(rows.start + i / heads.len())[i % heads.len() * head_dim..][..head_dim];
            let scale = if query.total > 0.0 { 1.0 / query.total } else { 0.0 };
            out.iter_mut().zip(sum).for_each(|(out, sum)| *out = sum * scale);
        }
    }
}

/// One head's page.
struct Page<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    base: usize,
    padded: usize,
}

impl Page<'_> {
    /// Adds the page to `N` queries' running sums `[N][padded]`.
    #[inline(always)]
    fn visit<S: Simd, const N: usize>(&self, s: S, queries: &mut [Query<'_>], sums: &mut [f32]) {
        let inside = |at: usize| at.saturating_sub(self.base).min(PAGE_POSITIONS);
        let low = queries.iter().map(|query| inside(query.visible.start)).min().unwrap_or(0);
        let high = queries.iter().map(|query| inside(query.visible.end)).max().unwrap_or(0);
        if low >= high {
            return;
        }
        let scores = self.scores::<S, N>(s, queries);
        let mut weights = [[0.0; PAGE_POSITIONS]; N];
        for (i, query) in queries.iter_mut().enumerate() {
            let mine = inside(query.visible.start)..inside(query.visible.end);
            if mine.is_empty() {
                continue;
            }
            let [mut a, mut b] = scores[i];
            if mine.len() < PAGE_POSITIONS {
                [a, b] = hide(s, [a, b], mine);
            }
            let top = query.top.max(s.largest(s.max(a, b)));
            let fade = (query.top - top).exp();
            let top_lanes = s.splat(top);
            let (a, b) = (exp(s, s.sub(a, top_lanes)), exp(s, s.sub(b, top_lanes)));
            query.total = query.total * fade + s.sum(s.add(a, b));
            query.top = top;
            let (first, second) = weights[i].split_at_mut(LANES);
            s.store_part(a, first);
            s.store_part(b, second);
            if fade != 1.0 {
                sums[i * self.padded..][..self.padded].iter_mut().for_each(|sum| *sum *= fade);
            }
        }
        self.add_values::<S, N>(s, &weights, low..high, sums);
    }

    #[inline(always)]
    fn scores<S: Simd, const N: usize>(&self, s: S, queries: &[Query<'_>]) -> [[S::F; 2]; N] {
        let q: [&[f32]; N] = std::array::from_fn(|i| queries[i].q);
        let mut scores = [[s.splat(0.0); 2]; N];
        for (dim, keys) in self.keys.as_chunks::<LANES>().0.as_chunks::<2>().0.iter().enumerate() {
            let (a, b) = (s.load(&keys[0]), s.load(&keys[1]));
            for (score, q) in scores.iter_mut().zip(q) {
                let q = s.splat(q[dim]);
                *score = [s.fma(q, a, score[0]), s.fma(q, b, score[1])];
            }
        }
        scores
    }

    #[inline(always)]
    fn add_values<S: Simd, const N: usize>(
        &self,
        s: S,
        weights: &[[f32; PAGE_POSITIONS]; N],
        positions: Range<usize>,
        sums: &mut [f32],
    ) {
        let (values, _) = self.values.as_chunks::<LANES>();
        let across = self.padded / LANES;
        for chunk in 0..across {
            let mut lanes = [s.splat(0.0); N];
            for (i, lanes) in lanes.iter_mut().enumerate() {
                *lanes = s.load_part(&sums[i * self.padded + chunk * LANES..]);
            }
            for position in positions.clone() {
                let value = s.load(&values[position * across + chunk]);
                for (lanes, weights) in lanes.iter_mut().zip(weights) {
                    *lanes = s.fma(s.splat(weights[position]), value, *lanes);
                }
            }
            for (i, lanes) in lanes.into_iter().enumerate() {
                s.store_part(lanes, &mut sums[i * self.padded + chunk * LANES..][..LANES]);
            }
        }
    }
}

/// Scores outside `visible` become so small that their weight vanishes.
#[inline(always)]
fn hide<S: Simd>(s: S, scores: [S::F; 2], visible: Range<usize>) -> [S::F; 2] {
    let mut lanes = [[0.0; LANES]; 2];
    s.store(scores[0], &mut lanes[0]);
    s.store(scores[1], &mut lanes[1]);
    for (position, score) in lanes.as_flattened_mut().iter_mut().enumerate() {
        if !visible.contains(&position) {
            *score = f32::NEG_INFINITY;
        }
    }
    [s.load(&lanes[0]), s.load(&lanes[1])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvCache;
    use crate::{reference, test_data};
    use laneway_model::KvShape;

    struct Case {
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        window: Option<usize>,
        /// Of each lane: first position of the step's rows and their number.
        lanes: &'static [(usize, usize)],
    }

    /// Keys and values of a position are functions of the position, so lanes may share their pages.
    fn stored(case: &Case, position: usize, seed: u64) -> Vec<f32> {
        test_data::values(case.kv_heads * case.head_dim, seed + position as u64 * 2)
    }

    fn check(case: &Case) {
        let Case { heads, kv_heads, head_dim, window, lanes } = *case;
        let longest = lanes.iter().map(|(first, count)| first + count).max().unwrap();
        let count = longest.div_ceil(PAGE_POSITIONS);
        let mut cache = KvCache::new(&[Some(KvShape { kv_heads, head_dim })], count);
        let table: Vec<u32> = (0..count as u32).rev().collect();
        let layer = cache.layer_mut(0).unwrap();
        for position in 0..longest {
            let page = table[position / PAGE_POSITIONS];
            let (k, v) = (stored(case, position, 1), stored(case, position, 2));
            layer.write(page, position % PAGE_POSITIONS, &k, &v);
        }
        let rows: Vec<Row> = (0..lanes.len())
            .flat_map(|lane| {
                let (first, count) = lanes[lane];
                (first..first + count).map(move |p| Row {
                    token: 0,
                    position: p as u32,
                    lane: lane as u32,
                    block: None,
                })
            })
            .collect();
        let tables = vec![table; lanes.len()];
        let stride = heads * head_dim + 5;
        let queries = test_data::values(rows.len() * stride, 7);
        let step = Step { rows: &rows, tables: &tables, logits: &[], labels: &[], drafts: &[] };
        let kv = cache.layer(0).unwrap();
        let attend = Attend { step: &step, kv, queries: &queries, stride, heads, kv_heads, head_dim, window };
        for (tier, threads) in Tier::available().into_iter().flat_map(|tier| [(tier, 1), (tier, 3)]) {
            let mut out = vec![f32::NAN; rows.len() * heads * head_dim];
            attend.run(&mut out, &Pool::new(threads), tier);
            for (i, out) in out.chunks(head_dim).enumerate() {
                let (row, head) = (i / heads, i % heads);
                let part = |seed| -> Vec<f32> {
                    let kv_head = head / (heads / kv_heads);
                    let of = |p| stored(case, p, seed)[kv_head * head_dim..][..head_dim].to_vec();
                    attend.visible(&rows[row]).flat_map(of).collect()
                };
                let q = &queries[row * stride + head * head_dim..][..head_dim];
                let expected = reference::attend(q, &part(1), &part(2));
                let worst = out.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-4, "row {row} head {head}, {}, {threads} threads: {worst}", tier.name());
            }
        }
    }

    #[test]
    fn windows_page_borders_groups_and_lanes_match_the_reference() {
        check(&Case { heads: 1, kv_heads: 1, head_dim: 16, window: None, lanes: &[(0, 1)] });
        check(&Case { heads: 9, kv_heads: 3, head_dim: 64, window: None, lanes: &[(0, 40)] });
        check(&Case { heads: 4, kv_heads: 1, head_dim: 32, window: Some(8), lanes: &[(0, 70)] });
        check(&Case { heads: 4, kv_heads: 2, head_dim: 24, window: Some(32), lanes: &[(31, 2), (63, 1), (64, 3)] });
        check(&Case { heads: 6, kv_heads: 2, head_dim: 10, window: Some(1), lanes: &[(95, 3), (0, 1)] });
        check(&Case { heads: 8, kv_heads: 1, head_dim: 256, window: Some(50), lanes: &[(120, 1), (119, 1), (33, 30)] });
    }

    #[test]
    fn scores_of_any_size_stay_finite() {
        let mut cache = KvCache::new(&[Some(KvShape { kv_heads: 1, head_dim: 16 })], 2);
        for position in 0..40 {
            let size = if position == 35 { 1e4 } else { -1e4 };
            let page = position as u32 / 32;
            cache.layer_mut(0).unwrap().write(page, position % 32, &[size; 16], &[position as f32; 16]);
        }
        let (rows, tables) = ([Row { token: 0, position: 39, lane: 0, block: None }], [vec![0, 1]]);
        let step = Step { rows: &rows, tables: &tables, logits: &[], labels: &[], drafts: &[] };
        let (kv, queries) = (cache.layer(0).unwrap(), [1e3; 16]);
        let (stride, heads, kv_heads, head_dim, window) = (16, 1, 1, 16, None);
        let one = Attend { step: &step, kv, queries: &queries, stride, heads, kv_heads, head_dim, window };
        for tier in Tier::available() {
            let mut out = [0.0; 16];
            one.run(&mut out, &Pool::new(1), tier);
            assert_eq!(out, [35.0; 16]);
        }
    }
}
