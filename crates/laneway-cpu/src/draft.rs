//! Drafts: each row's distribution over a vocabulary in short, without holding all logits at once.
//!
//! One pass over tiles of the vocabulary sums up every chunk of it, which also tells the chunk that a draw falls in; a
//! second one sees that chunk again, or everything where expected embeddings are wanted.

use crate::input::Input;
use crate::math::Softcap;
use crate::matmul::linear;
use crate::matrix::CpuMatrix;
use crate::pool::Pool;
use crate::simd::Tier;
use crate::soften::add_weighted_rows;
use crate::spread::{CHUNK, IMPOSSIBLE, Spread};
use crate::tiles::Tiles;
use laneway_model::{Draft, DraftHead};
use std::ops::Range;
use std::sync::Arc;

/// Logits up to which the second pass reads those of the first.
const KEPT: usize = 16 << 20;
/// Logits of one tile where not all are kept.
const TILE: usize = 1 << 20;
/// Logits from which threads share their sums.
const SHARED_FROM: usize = 16 * 1024;
/// Probabilities that an expected embedding leaves out: even a vocabulary of them is below the rounding of f32.
const NEGLIGIBLE: f64 = 1e-13;

/// The drafts of `C` rows.
pub(crate) struct Drafting<'a> {
    /// `[C, D]`
    pub x: &'a Input<'a>,
    pub drafts: &'a [Draft],
    pub head: &'a DraftHead<'a, Arc<CpuMatrix>>,
    /// Vocabulary rows whose logits exist at once, a multiple of [`CHUNK`] or all.
    pub tile: usize,
    pub pool: &'a Pool,
    pub tier: Tier,
}

/// What they come to.
pub(crate) struct Outcome {
    /// `[C, 6]`
    pub columns: Vec<f32>,
    /// Expected embeddings `[C, D]`, if the head asks for them.
    pub soft: Option<Vec<f32>>,
    pub multiply_adds: u64,
}

/// Logits `[C, range]`.
struct Logits {
    range: Range<usize>,
    data: Vec<f32>,
}

/// The tile for `rows` drafts over `vocab` tokens.
pub(crate) fn tile_for(rows: usize, vocab: usize) -> usize {
    let all = rows.saturating_mul(vocab);
    if all <= KEPT { vocab } else { (TILE / rows / CHUNK).clamp(1, 16) * CHUNK }
}

impl Drafting<'_> {
    pub fn run(&self) -> Outcome {
        let vocab = self.head.table.rows();
        let mut spreads: Vec<Spread> = self.drafts.iter().map(Spread::new).collect();
        let tiles = || (0..vocab).step_by(self.tile.max(1)).map(|start| start..(start + self.tile).min(vocab));
        let (mut multiply_adds, mut last) = (0, None);
        for range in tiles() {
            let logits = self.logits(self.x, range, &mut multiply_adds);
            self.each(&mut spreads, logits.width(), |row, spread| spread.add(logits.row(row), self.tier));
            last = Some(logits);
        }
        self.each(&mut spreads, vocab / CHUNK, |row, spread| spread.settle(self.drafts[row].draw));

        let kept = last.filter(|logits| logits.width() == vocab);
        let soft = match (self.head.soften, kept) {
            (None, Some(kept)) => {
                self.each(&mut spreads, CHUNK, |row, spread| spread.pick(kept.row(row), 0));
                None
            }
            (None, None) => {
                self.pick_again(&mut spreads, &mut multiply_adds);
                None
            }
            (Some((table, scale)), mut kept) => {
                let mut soft = vec![0.0; spreads.len() * table.cols()];
                for range in tiles() {
                    let again = |sum: &mut u64| self.logits(self.x, range, sum);
                    let logits = kept.take().unwrap_or_else(|| again(&mut multiply_adds));
                    multiply_adds += self.soften(&mut soft, &mut spreads, logits, table);
                }
                for (soft, spread) in soft.chunks_exact_mut(table.cols()).zip(&spreads) {
                    let factor = (f64::from(scale) / spread.total) as f32;
                    soft.iter_mut().for_each(|x| *x *= factor);
                }
                Some(soft)
            }
        };
        Outcome {
            columns: spreads.iter().flat_map(|spread| spread.drafted().to_columns()).collect(),
            soft,
            multiply_adds,
        }
    }

    fn logits(&self, x: &Input<'_>, range: Range<usize>, multiply_adds: &mut u64) -> Logits {
        let mut data = vec![0.0; x.rows * range.len()];
        linear(x, self.head.table, range.clone(), &mut data, self.pool, self.tier, |x| {
            if let Some(cap) = self.head.softcap {
                self.tier.run(Softcap { x, cap });
            }
        });
        *multiply_adds += (data.len() * x.cols) as u64;
        if let Some(token) = self.head.forbidden.map(|token| token as usize).filter(|token| range.contains(token)) {
            data.iter_mut().skip(token - range.start).step_by(range.len()).for_each(|logit| *logit = IMPOSSIBLE);
        }
        Logits { range, data }
    }

    /// Finds drawn tokens by computing only the chunks that hold them.
    fn pick_again(&self, spreads: &mut [Spread], multiply_adds: &mut u64) {
        let vocab = self.head.table.rows();
        let mut drawn: Vec<(usize, usize)> =
            (0..spreads.len()).filter_map(|row| spreads[row].drawn_chunk().map(|chunk| (chunk, row))).collect();
        drawn.sort_unstable();
        for drawn in drawn.chunk_by(|a, b| a.0 == b.0) {
            let rows: Vec<usize> = drawn.iter().map(|(_, row)| *row).collect();
            let start = drawn[0].0 * CHUNK;
            let logits = self.logits(&self.x.gather(&rows), start..(start + CHUNK).min(vocab), multiply_adds);
            for (at, row) in rows.into_iter().enumerate() {
                spreads[row].pick(logits.row(at), start);
            }
        }
    }

    /// Picks the drawn tokens that are among `logits`, then adds their share of the expected embeddings.
    fn soften(&self, soft: &mut [f32], spreads: &mut [Spread], mut logits: Logits, table: &CpuMatrix) -> u64 {
        let (width, first) = (logits.width(), logits.range.start);
        self.each(spreads, width, |row, spread| spread.pick(logits.row(row), first));
        let rows = if logits.data.len() < SHARED_FROM { spreads.len() } else { 1 };
        Tiles::new(&mut logits.data, width, rows, width).share(self.pool, |mut tile| {
            for row in tile.rows.clone() {
                spreads[row].weigh(tile.row_mut(row), NEGLIGIBLE, self.tier);
            }
        });
        add_weighted_rows(soft, &logits.data, width, (table, first), self.pool, self.tier)
    }

    /// Calls `f` with every row, on all threads if `width` values of each are worth it.
    fn each(&self, spreads: &mut [Spread], width: usize, f: impl Fn(usize, &mut Spread) + Sync) {
        let rows = if spreads.len() * width < SHARED_FROM { spreads.len() } else { 1 };
        Tiles::new(spreads, 1, rows, 1).share(self.pool, |mut tile| {
            for row in tile.rows.clone() {
                tile.row_mut(row).iter_mut().for_each(|spread| f(row, spread));
            }
        });
    }
}

impl Logits {
    fn width(&self) -> usize {
        self.range.len()
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width()..][..self.width()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Arena;
    use crate::pack::Source;
    use crate::{reference, test_data};
    use laneway_files::Format;
    use laneway_model::Drafted;

    const COLS: usize = 160;

    struct Case {
        format: Format,
        vocab: usize,
        softcap: Option<f32>,
        forbidden: Option<u32>,
        softens: bool,
        x: Vec<f32>,
        bytes: Vec<u8>,
        drafts: Vec<Draft>,
    }

    impl Case {
        fn new(format: Format, vocab: usize) -> Self {
            let size = if matches!(format, Format::F32 | Format::BF16) { 1.0 } else { 0.02 };
            let x = test_data::values(7 * COLS, 5).into_iter().map(|x| size * x).collect();
            let draw = |(row, draw)| Draft { row, temperature: 0.3 + row as f32 * 0.4, draw };
            let drafts = (0..).zip([0.0, 1.0, 0.5, 1e-7, 0.999_999, 0.25, 0.8]).map(draw).collect();
            let bytes = test_data::blocks(format, vocab * COLS, 11);
            Self { format, vocab, softcap: None, forbidden: None, softens: true, x, bytes, drafts }
        }

        fn set_row(&mut self, token: usize, values: &[f32]) {
            assert_eq!(self.format, Format::F32);
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.bytes[token * COLS * 4..][..COLS * 4].copy_from_slice(&bytes);
        }

        fn run(&self, tile: usize, threads: usize, tier: Tier) -> Outcome {
            let pool = Pool::new(threads);
            let Self { format, vocab: rows, softcap, forbidden, .. } = *self;
            let source = Source { format, rows, cols: COLS, scale: 1.0, bytes: &self.bytes };
            let table = Arc::new(CpuMatrix::new(&[source], &Arena::default(), &pool).unwrap());
            let soften = self.softens.then_some((&table, 3.0));
            let head = DraftHead { table: &table, softcap, forbidden, soften };
            let x = &Input::new(&self.x, COLS, table.is_quantised(), &pool, tier);
            Drafting { x, drafts: &self.drafts, head: &head, tile, pool: &pool, tier }.run()
        }

        fn drafted(&self, tile: usize) -> Vec<Drafted> {
            self.run(tile, 2, Tier::best()).columns.as_chunks().0.iter().map(Drafted::from_columns).collect()
        }

        /// Products of quantised weights round their activations.
        fn tolerance(&self) -> f64 {
            if matches!(self.format, Format::F32 | Format::BF16) { 2e-4 } else { 1e-3 }
        }

        fn table(&self) -> Vec<f32> {
            let mut table = vec![0.0; self.vocab * COLS];
            self.format.dequantize(&self.bytes, &mut table).unwrap();
            table
        }

        /// Each row's probabilities.
        fn naive(&self, table: &[f32]) -> Vec<Vec<f64>> {
            let logits = reference::linear(&self.x, table, COLS);
            let row = |(logits, draft): (&[f32], &Draft)| {
                let capped = logits.iter().map(|&x| match self.softcap.map(f64::from) {
                    Some(cap) => (f64::from(x) / cap).tanh() * cap,
                    None => f64::from(x),
                });
                let mut z: Vec<f64> = capped.map(|x| x / f64::from(draft.temperature)).collect();
                if let Some(token) = self.forbidden {
                    z[token as usize] = f64::NEG_INFINITY;
                }
                let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = z.iter().map(|z| (z - top).exp()).sum();
                z.iter().map(|z| (z - top).exp() / total).collect()
            };
            logits.chunks(self.vocab).zip(&self.drafts).map(row).collect()
        }
    }

    fn check(case: &Case) {
        let table = case.table();
        let naive = case.naive(&table);
        let best = [(CHUNK, 5, Tier::best()), (2 * CHUNK, 1, Tier::best())];
        for (tile, threads, tier) in Tier::available().into_iter().map(|tier| (case.vocab, 1, tier)).chain(best) {
            let found = case.run(tile, threads, tier);
            let name = format!("{:?}, tile {tile}, {threads} threads, {}", case.format, tier.name());
            for (i, (columns, p)) in found.columns.as_chunks().0.iter().zip(&naive).enumerate() {
                check_row(&format!("{name}, row {i}"), &Drafted::from_columns(columns), p, case, case.drafts[i].draw);
            }
            assert_eq!(found.soft.is_some(), case.softens);
            for (i, (soft, p)) in found.soft.iter().flat_map(|soft| soft.chunks(COLS)).zip(&naive).enumerate() {
                for (col, &x) in soft.iter().enumerate() {
                    let terms = p.iter().zip(table[col..].iter().step_by(COLS)).map(|(p, &x)| p * f64::from(x));
                    let expected = 3.0 * terms.sum::<f64>();
                    assert!(
                        (f64::from(x) - expected).abs() < case.tolerance() * (1.0 + expected.abs()),
                        "{name}, row {i}: {x}, not {expected}"
                    );
                }
            }
        }
    }

    fn check_row(name: &str, found: &Drafted, p: &[f64], case: &Case, draw: f32) {
        let mut best = (0, 0.0, 0.0);
        for (token, &p) in p.iter().enumerate() {
            best = if p > best.1 { (token, p, best.1) } else { (best.0, best.1, best.2.max(p)) };
        }
        let close = |what: &str, found: f32, expected: f64| {
            assert!((f64::from(found) - expected).abs() < case.tolerance(), "{name}: {what} {found}, not {expected}");
        };
        assert_eq!(found.argmax as usize, best.0, "{name}");
        close("argmax", found.argmax_logprob, best.1.ln());
        close("second", found.second_logprob, best.2.ln());
        close("entropy", found.entropy, -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>());
        let sampled = found.sampled as usize;
        close("sampled", found.sampled_logprob, p[sampled].ln());
        assert_ne!(Some(found.sampled), case.forbidden, "{name}");
        if draw == 0.0 {
            assert_eq!(sampled, usize::from(case.forbidden == Some(0)), "{name}");
        }
        let (before, draw) = (p[..sampled].iter().sum::<f64>(), f64::from(draw));
        assert!(
            before <= draw + 1e-6 && draw <= before + p[sampled] + 1e-6,
            "{name}: {before} + {} for {draw}",
            p[sampled]
        );
    }

    #[test]
    fn tiles_agree_with_a_naive_softmax_in_f64() {
        check(&Case::new(Format::F32, 4 * CHUNK + 905));
        check(&Case { softens: false, softcap: Some(3.0), ..Case::new(Format::F32, 2 * CHUNK) });
        for format in [Format::BF16, Format::Q8_0, Format::Q4_1] {
            check(&Case::new(format, CHUNK + 9));
            check(&Case { softcap: Some(2.0), ..Case::new(format, 17) });
        }
    }

    #[test]
    fn a_forbidden_token_counts_as_impossible_in_every_chunk() {
        for token in [0, 1023, 1024, 2999] {
            let mut case = Case { forbidden: Some(token as u32), ..Case::new(Format::F32, 3000) };
            let likeliest: Vec<f32> = case.x[..COLS].iter().map(|x| 4.0 * x).collect();
            case.set_row(token, &likeliest);
            check(&case);
            check(&Case { softens: false, ..case });
        }
        // One beyond the vocabulary forbids nothing.
        let found = Case { forbidden: Some(50), ..Case::new(Format::F32, 50) }.drafted(50);
        assert!(found.iter().all(|drafted| drafted.entropy.is_finite()));
    }

    #[test]
    fn ties_go_to_the_lowest_token_and_leave_no_margin() {
        let mut case = Case::new(Format::F32, 3000);
        let likeliest: Vec<f32> = case.x[..COLS].iter().map(|x| 4.0 * x).collect();
        for token in [2100, 1500, 1501] {
            case.set_row(token, &likeliest);
        }
        for tile in [CHUNK, 3000] {
            let found = case.drafted(tile)[0];
            assert_eq!((found.argmax, found.argmax_logprob), (1500, found.second_logprob));
            assert!((f64::from(found.argmax_logprob) + 3f64.ln()).abs() < 1e-3, "{found:?}");
        }
    }

    #[test]
    fn a_cold_row_is_its_likeliest_token() {
        let mut case = Case::new(Format::F32, 3000);
        case.drafts.iter_mut().for_each(|draft| draft.temperature = 1e-6);
        case.drafts[6].temperature = f32::MIN_POSITIVE;
        let warm = Case::new(Format::F32, 3000).drafted(3000);
        for tile in [CHUNK, 3000] {
            for ((found, warm), draft) in case.drafted(tile).into_iter().zip(&warm).zip(&case.drafts) {
                assert_eq!((found.argmax, found.argmax_logprob), (warm.argmax, 0.0));
                assert!(found.entropy < 1e-20);
                assert!(found.second_logprob < -100.0 && (draft.draw == 0.0 || found.sampled == found.argmax));
            }
            let soft = case.run(tile, 1, Tier::best()).soft.unwrap();
            let row = &case.table()[warm[2].argmax as usize * COLS..][..COLS];
            assert!(soft[2 * COLS..].iter().zip(row).all(|(x, row)| (x - 3.0 * row).abs() < 1e-5));
        }
    }

    #[test]
    fn broken_logits_show_in_the_entropy_of_their_row_alone() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (softcap, softens, tile) in [(None, true, 3000), (Some(30.0), true, CHUNK), (Some(30.0), false, CHUNK)]
            {
                let mut case = Case { softcap, softens, ..Case::new(Format::F32, 3000) };
                case.x[COLS..2 * COLS].fill(broken);
                let found = case.drafted(tile);
                assert!(found[1].entropy.is_nan() && found[1].argmax < 3000 && found[1].sampled < 3000, "{found:?}");
                assert!(found[0].entropy.is_finite() && found[2].entropy.is_finite());
            }
        }
    }

    #[test]
    fn a_vocabulary_of_one_token_is_certain_even_if_it_is_forbidden() {
        let found = Case::new(Format::F32, 1).drafted(1);
        assert!(found.iter().all(|found| (found.argmax, found.sampled, found.argmax_logprob) == (0, 0, 0.0)));
        assert!(found.iter().all(|found| found.entropy < 1e-20 && found.second_logprob == f32::NEG_INFINITY));
        let found = Case { forbidden: Some(0), ..Case::new(Format::F32, 1) }.drafted(1);
        assert!(found.iter().all(|found| (found.argmax, found.sampled) == (0, 0)));
    }

    #[test]
    fn the_second_pass_computes_no_more_than_it_must() {
        let mut case = Case { softens: false, ..Case::new(Format::F32, 4 * CHUNK) };
        let work = |case: &Case, tile| case.run(tile, 1, Tier::best()).multiply_adds;
        let once = (7 * 4 * CHUNK * COLS) as u64;
        assert_eq!(work(&case, 4 * CHUNK), once);
        assert_eq!(work(&case, CHUNK), once + (7 * CHUNK * COLS) as u64);
        case.softens = true;
        case.drafts.iter_mut().for_each(|draft| draft.temperature = 1e-6);
        assert_eq!(work(&case, 4 * CHUNK), once + (7 * COLS) as u64);
        assert_eq!(work(&case, CHUNK), 2 * once + (7 * COLS) as u64);
        assert_eq!((tile_for(16, 512), tile_for(256, 262_144), tile_for(100_000, 262_144)), (512, 4096, 1024));
    }
}
