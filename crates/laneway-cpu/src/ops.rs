use crate::attention::{Attend, PrepareRow};
use crate::check;
use crate::draft::{Drafting, tile_for};
use crate::experts::{self, Experts};
use crate::input::Input;
use crate::kv::KvCache;
use crate::math::{Gate, Softcap};
use crate::matmul::linear;
use crate::matrix::CpuMatrix;
use crate::norm::{Add, Norm};
use crate::pool::Pool;
use crate::rope::RopeTable;
use crate::soft::SoftStore;
use crate::space::CpuSpace;
use crate::tiles::Tiles;
use laneway_files::Activation;
use laneway_model::{
    Attention, DRAFT_COLUMNS, DraftHead, ExpertShape, ModelError, Ops, PAGE_POSITIONS, Residual, Step,
};
use std::sync::Arc;

/// Activations: a row-major matrix of f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Act {
    pub(crate) fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All values, row by row.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    pub(crate) fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    /// The rows with these numbers, in this order.
    fn pick(&self, rows: impl ExactSizeIterator<Item = u32>) -> Self {
        let count = rows.len();
        Self { rows: count, cols: self.cols, data: rows.flat_map(|row| self.row(row as usize)).copied().collect() }
    }

    /// The values alone.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }
}

type Observer<'a> = Box<dyn FnMut(usize, &Act) + Send + 'a>;

/// Values from which elementwise work is shared among threads.
const SHARED_FROM: usize = 32 * 1024;

/// One step's computation on the cpu.
pub struct CpuStep<'a> {
    space: &'a CpuSpace,
    step: Step<'a>,
    tokens: Vec<u32>,
    kv: &'a mut KvCache,
    soft: &'a mut SoftStore,
    ropes: Vec<Arc<RopeTable>>,
    observer: Option<Observer<'a>>,
    boundary: &'a [f32],
    head_multiply_adds: u64,
}

impl<'a> CpuStep<'a> {
    /// Prepares `step`; `sampled` holds each lane's last sampled token, for rows of
    /// [`Row::SAMPLED`](laneway_model::Row::SAMPLED).
    ///
    /// # Errors
    /// When a row names a lane, page or sampled token that does not exist, a block is not whole, a conditioned row has
    /// no draft before it, or something is wanted of a row that is not there or at an impossible temperature.
    pub fn new(
        space: &'a CpuSpace,
        step: &Step<'a>,
        kv: &'a mut KvCache,
        soft: &'a mut SoftStore,
        sampled: &[u32],
    ) -> Result<Self, ModelError> {
        check::step(step, kv, soft)?;
        let tokens = check::tokens(step, sampled)?;
        Ok(Self {
            space,
            step: *step,
            tokens,
            kv,
            soft,
            ropes: Vec::new(),
            observer: None,
            boundary: &[],
            head_multiply_adds: 0,
        })
    }

    /// Goes on with activations `[T, D]` that another stage left.
    ///
    /// # Errors
    /// When they are not those of as many rows.
    pub fn after(mut self, activations: &'a [f32]) -> Result<Self, ModelError> {
        if activations.is_empty() || !activations.len().is_multiple_of(self.tokens.len().max(1)) {
            let rows = self.tokens.len();
            return Err(ModelError::Device(format!("{} activations are not those of {rows} rows", activations.len())));
        }
        self.boundary = activations;
        Ok(self)
    }

    /// Multiply-adds that [`Ops::head`], [`Ops::label_logits`] and [`Ops::draft`] have done, padding not counted.
    pub fn head_multiply_adds(&self) -> u64 {
        self.head_multiply_adds
    }

    /// Calls `observer` with every layer's input and the final state, as [`Ops::observe`] sees them.
    pub fn observed(mut self, observer: impl FnMut(usize, &Act) + Send + 'a) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Calls `f` with every row of `x` and its number, on all threads if that pays.
    fn each_row(&self, x: &mut Act, f: impl Fn(usize, &mut [f32]) + Sync) {
        let (rows, cols) = (x.rows, x.cols);
        Tiles::new(&mut x.data, cols, row_tile(rows, cols), cols).share(&self.space.pool, |mut tile| {
            for row in tile.rows.clone() {
                f(row, tile.row_mut(row));
            }
        });
    }

    fn table(&mut self, inv_freq: &[f32]) -> Arc<RopeTable> {
        if let Some(table) = self.ropes.iter().find(|table| table.is_for(inv_freq)) {
            return table.clone();
        }
        let table = Arc::new(RopeTable::new(inv_freq, self.step.rows.iter().map(|row| row.position)));
        self.ropes.push(table.clone());
        table
    }

    fn product(&self, x: &Act, w: &CpuMatrix, finish: impl Fn(&mut [f32]) + Sync) -> Act {
        let mut out = Act::zeros(x.rows, w.rows());
        let input = Input::new(&x.data, x.cols, w.is_quantised(), &self.space.pool, self.space.tier);
        linear(&input, w, 0..w.rows(), &mut out.data, &self.space.pool, self.space.tier, finish);
        out
    }
}

/// Rows per task of an elementwise pass over `[rows, cols]`.
fn row_tile(rows: usize, cols: usize) -> usize {
    if rows * cols < SHARED_FROM { rows } else { (SHARED_FROM / 8).div_ceil(cols.max(1)) }
}

impl Ops for CpuStep<'_> {
    type Space = CpuSpace;
    type Act = Act;

    fn embed(&mut self, table: &Arc<CpuMatrix>, scale: f32) -> Act {
        let mut out = Act::zeros(self.tokens.len(), table.cols());
        self.each_row(&mut out, |row, out| {
            table.read_row(self.tokens[row] as usize, out);
            if scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= scale);
            }
        });
        out
    }

    fn boundary(&mut self, cols: usize) -> Act {
        let mut out = Act::zeros(self.tokens.len(), cols);
        let given = self.boundary.len().min(out.data.len());
        out.data[..given].copy_from_slice(&self.boundary[..given]);
        out
    }

    fn norm(&mut self, x: &Act, group: usize, eps: f32, weight: Option<&Vec<f32>>) -> Act {
        let mut out = x.clone();
        let weight = weight.map(Vec::as_slice);
        self.each_row(&mut out, |_, x| self.space.tier.run(Norm { x, group, eps, weight }));
        out
    }

    fn add(&mut self, x: &mut Act, a: &Act, residual: Residual<'_, Vec<f32>>) {
        let Residual { post, scale, eps } = residual;
        let post = post.map(Vec::as_slice);
        self.each_row(x, |row, x| self.space.tier.run(Add { x, a: a.row(row), post, scale, eps }));
    }

    fn add_norm(&mut self, x: &mut Act, a: &Act, residual: Residual<'_, Vec<f32>>, next: &Vec<f32>) -> Act {
        self.add(x, a, residual);
        self.norm(x, x.cols, residual.eps, Some(next))
    }

    fn linear(&mut self, x: &Act, weight: &Arc<CpuMatrix>) -> Act {
        self.product(x, weight, |_| {})
    }

    fn gated_linear(&mut self, x: &Act, gate_up: &Arc<CpuMatrix>, activation: Activation) -> Act {
        let both = self.product(x, gate_up, |_| {});
        let mut out = Act::zeros(x.rows, both.cols / 2);
        self.each_row(&mut out, |row, out| {
            let (gate, up) = both.row(row).split_at(out.len());
            self.space.tier.run(Gate { gate, up, out, activation });
        });
        out
    }

    fn gate(&mut self, gate: &Act, g: &Act, offset: usize, activation: Activation) -> Act {
        let mut out = Act::zeros(gate.rows, gate.cols);
        self.each_row(&mut out, |row, out| {
            let up = &g.row(row)[offset..][..out.len()];
            self.space.tier.run(Gate { gate: gate.row(row), up, out, activation });
        });
        out
    }

    fn attention(&mut self, qkv: &Act, attention: &Attention<'_, Vec<f32>>) -> Act {
        let Attention { kv_layer, heads, kv_heads, head_dim, window, .. } = *attention;
        let rope = self.table(attention.inv_freq);
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let mut work = Act::zeros(qkv.rows, if attention.writes_kv { q + 2 * kv } else { q });
        self.each_row(&mut work, |row, x| {
            let source = qkv.row(row);
            if attention.value_from_key && attention.writes_kv {
                x[..q + kv].copy_from_slice(&source[..q + kv]);
                x[q + kv..].copy_from_slice(&source[q..q + kv]);
            } else {
                x.copy_from_slice(&source[..x.len()]);
            }
            self.space.tier.run(PrepareRow { x, row, rope: &rope, attention });
        });
        if attention.writes_kv {
            let layer = self.kv.layer_mut(kv_layer).expect("a cache has the shapes of its network");
            for (row, x) in self.step.rows.iter().zip(work.data.chunks_exact(work.cols)) {
                let page = self.step.tables[row.lane as usize][row.position as usize / PAGE_POSITIONS];
                layer.write(page, row.position as usize % PAGE_POSITIONS, &x[q..q + kv], &x[q + kv..]);
            }
        }
        let mut out = Act::zeros(qkv.rows, q);
        let attend = Attend {
            step: &self.step,
            kv: self.kv.layer(kv_layer).expect("a cache has the shapes of its network"),
            queries: &work.data,
            stride: work.cols,
            heads,
            kv_heads,
            head_dim,
            window,
        };
        attend.run(&mut out.data, &self.space.pool, self.space.tier);
        out
    }

    fn route(&mut self, logits: &Act, used: usize, expert_scale: Option<&Vec<f32>>) -> Act {
        experts::route(logits, used, expert_scale.map(Vec::as_slice))
    }

    fn expert_gated_linear(
        &mut self,
        x: &Act,
        gate_up: &Arc<CpuMatrix>,
        routes: &Act,
        shape: ExpertShape,
        activation: Activation,
    ) -> Act {
        let experts = Experts { routes, shape, pool: &self.space.pool, tier: self.space.tier };
        experts.gated_linear(x, gate_up, activation)
    }

    fn expert_linear_sum(&mut self, h: &Act, down: &Arc<CpuMatrix>, routes: &Act, shape: ExpertShape) -> Act {
        Experts { routes, shape, pool: &self.space.pool, tier: self.space.tier }.linear_sum(h, down)
    }

    fn head(&mut self, x: &Act, table: &Arc<CpuMatrix>, softcap: Option<f32>) -> Act {
        let wanted = x.pick(self.step.logits.iter().copied());
        self.head_multiply_adds += (wanted.rows * wanted.cols * table.rows()) as u64;
        let tier = self.space.tier;
        self.product(&wanted, table, |x| {
            if let Some(cap) = softcap {
                tier.run(Softcap { x, cap });
            }
        })
    }

    fn label_logits(&mut self, x: &Act, table: &Arc<CpuMatrix>, softcap: Option<f32>) -> Act {
        let labels = self.step.labels;
        let CpuSpace { pool, tier, .. } = self.space;
        let wanted = x.pick(labels.iter().map(|label| label.row));
        let input = Input::new(&wanted.data, x.cols, table.is_quantised(), pool, *tier);
        let mut order: Vec<usize> = (0..labels.len()).collect();
        order.sort_by_key(|&label| labels[label].token);
        let tokens: Vec<&[usize]> = order.chunk_by(|&a, &b| labels[a].token == labels[b].token).collect();
        let alone = Pool::new(1);
        let shared = if labels.len() * x.cols < SHARED_FROM / 8 { &alone } else { pool };
        let products = shared.map(tokens.len(), |index| {
            let token = labels[tokens[index][0]].token as usize;
            // A token that the vocabulary does not have has no logit.
            let mut logits = vec![f32::NAN; tokens[index].len()];
            if token < table.rows() {
                let rows = input.gather(tokens[index]);
                linear(&rows, table, token..token + 1, &mut logits, &alone, *tier, |_| {});
            }
            logits
        });
        let mut out = Act::zeros(labels.len(), 1);
        for (labels, logits) in tokens.into_iter().zip(products) {
            labels.iter().zip(logits).for_each(|(&label, logit)| out.data[label] = logit);
        }
        if let Some(cap) = softcap {
            tier.run(Softcap { x: &mut out.data, cap });
        }
        self.head_multiply_adds += (labels.len() * x.cols) as u64;
        out
    }

    fn condition(&mut self, cols: usize) -> Act {
        let mut out = Act::zeros(self.step.rows.len(), cols);
        for (row, out) in self.step.rows.iter().zip(out.data.chunks_exact_mut(cols)) {
            if check::is_conditioned(row) {
                out.copy_from_slice(self.soft.get(row).expect("a step's conditioned rows were checked"));
            }
        }
        out
    }

    fn draft(&mut self, x: &Act, draft: &DraftHead<'_, Arc<CpuMatrix>>) -> Act {
        let CpuSpace { pool, tier, .. } = self.space;
        let drafts = self.step.drafts;
        if drafts.is_empty() {
            return Act::zeros(0, DRAFT_COLUMNS);
        }
        let wanted = x.pick(drafts.iter().map(|draft| draft.row));
        let input = Input::new(&wanted.data, x.cols, draft.table.is_quantised(), pool, *tier);
        let tile = tile_for(drafts.len(), draft.table.rows());
        let outcome = Drafting { x: &input, drafts, head: draft, tile, pool, tier: *tier }.run();
        self.head_multiply_adds += outcome.multiply_adds;
        if let Some(soft) = &outcome.soft {
            for (draft, soft) in drafts.iter().zip(soft.chunks_exact(soft.len() / drafts.len())) {
                self.soft.put(&self.step.rows[draft.row as usize], soft);
            }
        }
        Act { rows: drafts.len(), cols: DRAFT_COLUMNS, data: outcome.columns }
    }

    fn observe(&mut self, index: usize, x: &Act) {
        if let Some(observer) = &mut self.observer {
            observer(index, x);
        }
    }
}
