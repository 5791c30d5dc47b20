use crate::buffer::Buffer;
use crate::device::{AdapterClass, Gpu};
use crate::labels::SingleLogits;
use crate::plan::{Param, PlanBuilder};
use crate::scratch::{Loan, Scratch};
use crate::shader::{Shader, Variant};
use crate::state::DeviceState;
use crate::weights::{GpuMatrix, GpuSpace, GpuVector, MatrixPart};
use laneway_files::{Activation, RopePairs};
use laneway_model::{Attention, DraftHead, ExpertShape, KvType, Ops, Residual};
use std::sync::Arc;

/// Records a network's operations as kernel launches instead of computing them.
pub(crate) struct Recorder<'a> {
    pub gpu: &'a Gpu,
    pub plan: PlanBuilder,
    pub scratch: &'a Scratch,
    pub state: &'a mut DeviceState,
    pub shape: StepShape,
    /// Bytes of logits that a draft holds at once.
    pub draft_bytes: usize,
    /// Copies of what the network showed to `observe`, if that was asked for.
    pub observed: Option<Vec<GpuAct>>,
}

/// Sizes of a step: all that a plan depends on besides the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Rows.
    pub tokens: usize,
    /// Rows that want logits.
    pub wanted: usize,
    /// Labels, rounded up to a power of two so that plans recur.
    pub labels: usize,
    /// Drafts.
    pub drafts: usize,
}

/// Activations `[rows, cols]` on the device.
#[derive(Clone)]
pub(crate) struct GpuAct {
    pub loan: Arc<Loan>,
    pub rows: usize,
    pub cols: usize,
}

/// What a matrix product adds to the plain `x · weightᵀ`.
#[derive(Clone, Copy, Default)]
struct Product<'a> {
    gate: Option<Activation>,
    experts: Option<Routed<'a>>,
}

/// Consecutive rows of a part and where their products go.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// First row within the part.
    pub start_row: usize,
    pub rows: usize,
    /// Column of y that the first row's products go to.
    pub column: usize,
}

#[derive(Clone, Copy)]
struct Routed<'a> {
    routes: &'a GpuAct,
    shape: ExpertShape,
    /// How many consecutive results read one row of x.
    per_x: usize,
}

impl Recorder<'_> {
    pub fn act(&self, rows: usize, cols: usize) -> GpuAct {
        GpuAct { loan: self.scratch.take(rows * cols), rows, cols }
    }

    pub fn software(&self) -> bool {
        self.gpu.summary().class == AdapterClass::Software
    }

    fn wide(&self) -> u32 {
        if self.software() { 32 } else { 256 }
    }

    fn product(&mut self, x: &GpuAct, weight: &GpuMatrix, product: Product<'_>) -> GpuAct {
        let halves = if product.gate.is_some() { 2 } else { 1 };
        let experts = product.experts.map_or(1, |e| e.shape.count);
        let out_rows = weight.rows / halves / experts;
        let tokens = product.experts.map_or(x.rows, |e| e.routes.rows * e.shape.used);
        let y = self.act(tokens, out_rows);
        for part in &weight.parts {
            // A gated or expert matrix is one part: its rows are looked up all over it.
            let span = if halves * experts > 1 {
                Span { start_row: 0, rows: out_rows, column: 0 }
            } else {
                Span { start_row: 0, rows: part.rows, column: part.first_row }
            };
            self.launch_product(x, weight, part, span, product, &y);
        }
        y
    }

    /// Products of `x` with some rows of a part, into columns of `y`.
    pub fn span_product(&mut self, x: &GpuAct, weight: &GpuMatrix, part: &MatrixPart, span: Span, y: &GpuAct) {
        self.launch_product(x, weight, part, span, Product::default(), y);
    }

    fn launch_product(
        &mut self,
        x: &GpuAct,
        weight: &GpuMatrix,
        part: &MatrixPart,
        span: Span,
        product: Product<'_>,
        y: &GpuAct,
    ) {
        let halves = if product.gate.is_some() { 2 } else { 1 };
        let experts = product.experts.map_or(1, |e| e.shape.count);
        self.plan.count_weights(&part.words);
        let (shader, mut constants, grid) = self.shape_of_work(span.rows, y.rows, halves, product.experts.is_some());
        constants.push(("HALVES", halves as u32));
        constants.push(("GATED", u32::from(product.gate.is_some())));
        constants.push(("EXPERTS", u32::from(product.experts.is_some())));
        if let Some(activation) = product.gate {
            constants.push(("ACTIVATION", activation_code(activation)));
        }
        let [plane1, plane2, plane3] = part.starts;
        let params: [Param; 12] = [
            span.rows.into(),
            weight.cols.into(),
            y.rows.into(),
            y.cols.into(),
            span.column.into(),
            span.rows.into(),
            plane1.into(),
            plane2.into(),
            plane3.into(),
            (weight.rows / experts).into(),
            product.experts.map_or(1, |e| e.per_x).into(),
            span.start_row.into(),
        ];
        let mut buffers = vec![&part.words, &x.loan.buffer, &y.loan.buffer];
        if let Some(routed) = product.experts {
            buffers.push(&routed.routes.loan.buffer);
        }
        self.plan.dispatch(Variant::of_format(shader, part.format, &constants), &params, &buffers, grid);
    }

    /// Which kernel computes `[tokens, rows]`, with its constants and grid.
    fn shape_of_work(
        &self,
        rows: usize,
        tokens: usize,
        halves: usize,
        experts: bool,
    ) -> (Shader, Vec<(&'static str, u32)>, [usize; 3]) {
        let together = if experts { 1 } else { tokens.next_power_of_two().min(8) };
        if self.software() {
            // Invocations load activations one by one, so with several tokens what counts is how many weight rows
            // share them.
            let (own_rows, workgroup) = if together == 1 { (8 / halves, 8) } else { (24 / halves, 8) };
            let constants =
                vec![("WORKGROUP", workgroup as u32), ("ROWS", own_rows as u32), ("TOKENS", together as u32)];
            let grid = [rows.div_ceil(own_rows * workgroup), tokens.div_ceil(together), 1];
            return (Shader::LinearRows, constants, grid);
        }
        if tokens > 8 && !experts {
            return (Shader::LinearTiles, vec![], [rows.div_ceil(64 / halves), tokens.div_ceil(64), 1]);
        }
        let (workgroup, lanes) = (128, 32);
        let partial_rows = halves * together;
        let constants = vec![
            ("WORKGROUP", workgroup as u32),
            ("LANES", lanes as u32),
            ("TOKENS", together as u32),
            ("PARTIAL_ROWS", partial_rows as u32),
            ("PARTIALS", (partial_rows * workgroup) as u32),
        ];
        let groups = rows.div_ceil(workgroup / lanes);
        let across = groups.min(32_768);
        (Shader::LinearLanes, constants, [across, tokens.div_ceil(together), groups.div_ceil(across)])
    }

    fn residual(
        &mut self,
        x: &mut GpuAct,
        a: &GpuAct,
        residual: Residual<'_, GpuVector>,
        next: Option<&GpuVector>,
    ) -> Option<GpuAct> {
        let y = next.map(|_| self.act(x.rows, x.cols));
        let constants = [
            ("WORKGROUP", self.wide()),
            ("POST", u32::from(residual.post.is_some())),
            ("NEXT", u32::from(next.is_some())),
        ];
        let mut buffers = vec![&x.loan.buffer, &a.loan.buffer];
        buffers.extend(residual.post.map(|v| &v.values));
        buffers.extend(next.map(|v| &v.values));
        buffers.extend(y.as_ref().map(|y| &y.loan.buffer));
        let params = [x.cols.into(), residual.eps.into(), residual.scale.into()];
        self.plan.dispatch(Variant::new(Shader::AddNorm, &constants), &params, &buffers, [x.rows, 1, 1]);
        y
    }
}

/// Query heads of one key/value head that an invocation of a software adapter carries: their sums must not outgrow the
/// first-level cache.
fn heads_together(group: usize, head_dim: usize) -> usize {
    (1..=group).rev().find(|n| group.is_multiple_of(*n) && n * head_dim <= 256).unwrap_or(1)
}

/// Constants of `attention_rows.wgsl`, which merges at most 64 quads a round for the sake of workgroup memory.
fn attention_constants(heads: usize, head_dim: usize) -> [(&'static str, u32); 5] {
    let quads = head_dim / 4;
    let round = quads.min(64 / heads).max(1);
    [
        ("WORKGROUP", 8),
        ("HEADS", heads as u32),
        ("QUADS", quads as u32),
        ("ROUND", round as u32),
        ("ROUNDS", quads.div_ceil(round) as u32),
    ]
}

fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
    }
}

impl Ops for Recorder<'_> {
    type Space = GpuSpace;
    type Act = GpuAct;

    fn embed(&mut self, table: &GpuMatrix, scale: f32) -> GpuAct {
        let y = self.act(self.shape.tokens, table.cols);
        for part in &table.parts {
            self.plan.count_weights(&part.words);
            let [plane1, plane2, plane3] = part.starts;
            let params: [Param; 7] = [
                part.rows.into(),
                table.cols.into(),
                part.first_row.into(),
                plane1.into(),
                plane2.into(),
                plane3.into(),
                scale.into(),
            ];
            let variant = Variant::of_format(Shader::Embed, part.format, &[("WORKGROUP", 32)]);
            let buffers = [&part.words, &self.state.rows, &self.state.sampled, &y.loan.buffer];
            self.plan.dispatch(variant, &params, &buffers, [(table.cols / 8).div_ceil(32), self.shape.tokens, 1]);
        }
        y
    }

    fn boundary(&mut self, cols: usize) -> GpuAct {
        let loan = self.state.boundary.clone().expect("the runner of a later stage has one");
        GpuAct { loan, rows: self.shape.tokens, cols }
    }

    fn norm(&mut self, x: &GpuAct, group: usize, eps: f32, weight: Option<&GpuVector>) -> GpuAct {
        let y = self.act(x.rows, x.cols);
        let mut buffers = vec![&x.loan.buffer];
        buffers.extend(weight.map(|v| &v.values));
        buffers.push(&y.loan.buffer);
        let constants = [("WORKGROUP", self.wide()), ("WEIGHT", u32::from(weight.is_some()))];
        let params = [group.into(), x.cols.into(), eps.into()];
        self.plan.dispatch(Variant::new(Shader::Norm, &constants), &params, &buffers, [x.cols / group, x.rows, 1]);
        y
    }

    fn add(&mut self, x: &mut GpuAct, a: &GpuAct, residual: Residual<'_, GpuVector>) {
        self.residual(x, a, residual, None);
    }

    fn add_norm(&mut self, x: &mut GpuAct, a: &GpuAct, residual: Residual<'_, GpuVector>, next: &GpuVector) -> GpuAct {
        self.residual(x, a, residual, Some(next)).expect("asked for the next norm")
    }

    fn linear(&mut self, x: &GpuAct, weight: &GpuMatrix) -> GpuAct {
        self.product(x, weight, Product::default())
    }

    fn gated_linear(&mut self, x: &GpuAct, gate_up: &GpuMatrix, activation: Activation) -> GpuAct {
        self.product(x, gate_up, Product { gate: Some(activation), experts: None })
    }

    fn gate(&mut self, gate: &GpuAct, g: &GpuAct, offset: usize, activation: Activation) -> GpuAct {
        let y = self.act(gate.rows, gate.cols);
        let constants = [("WORKGROUP", 64), ("ACTIVATION", activation_code(activation))];
        let params = [gate.cols.into(), g.cols.into(), offset.into()];
        let buffers = [&gate.loan.buffer, &g.loan.buffer, &y.loan.buffer];
        let grid = [gate.cols.div_ceil(64), gate.rows, 1];
        self.plan.dispatch(Variant::new(Shader::Gate, &constants), &params, &buffers, grid);
        y
    }

    fn attention(&mut self, qkv: &GpuAct, attention: &Attention<'_, GpuVector>) -> GpuAct {
        let Attention { heads, kv_heads, head_dim, .. } = *attention;
        let q = self.act(qkv.rows, heads * head_dim);
        let norms = match (attention.q_norm, attention.k_norm) {
            (Some(q), k) => self.state.joined(self.gpu, q, k.unwrap_or(q)),
            _ => attention.inv_freq.values.clone(),
        };
        let is_packed = self.state.kv_type != KvType::F32;
        // What is to be packed; nothing else reads it.
        let rows = if is_packed && attention.writes_kv { qkv.rows } else { 0 };
        let fresh = [(); 2].map(|()| self.act(rows.max(1), kv_heads * head_dim));
        let pages = self.state.kv[attention.kv_layer].as_ref().expect("the owning layer has pages");
        let all_heads = heads + if attention.writes_kv { 2 * kv_heads } else { 0 };
        let is_normed = u32::from(attention.q_norm.is_some());
        let constants = [("WORKGROUP", 64), ("HEAD_NORM", is_normed), ("PACKED", 1)];
        let constants = if is_packed { &constants[..] } else { &constants[..2] };
        let params: [Param; 10] = [
            heads.into(),
            kv_heads.into(),
            head_dim.into(),
            qkv.cols.into(),
            attention.writes_kv.into(),
            attention.value_from_key.into(),
            attention.unit_value_norm.into(),
            (attention.pairs == RopePairs::Interleaved).into(),
            self.state.max_pages.into(),
            attention.eps.into(),
        ];
        let buffers = [
            &qkv.loan.buffer,
            &norms,
            &attention.inv_freq.values,
            &self.state.rows,
            &self.state.tables,
            &q.loan.buffer,
            if is_packed { &fresh[0].loan.buffer } else { &pages.keys },
            if is_packed { &fresh[1].loan.buffer } else { &pages.values },
        ];
        let grid = [(all_heads * head_dim / 2).div_ceil(64), qkv.rows, 1];
        self.plan.dispatch(Variant::new(Shader::Rope, constants), &params, &buffers, grid);
        let kinds = [
            ("KV_F16", u32::from(self.state.kv_type == KvType::F16)),
            ("KV_Q8", u32::from(self.state.kv_type == KvType::Q8)),
        ];
        if is_packed && attention.writes_kv {
            let params: [Param; 2] = [pages.width.into(), self.state.max_pages.into()];
            let [keys, values] = &fresh;
            let buffers = [
                &keys.loan.buffer,
                &values.loan.buffer,
                &self.state.rows,
                &self.state.tables,
                &pages.keys,
                &pages.values,
            ];
            let constants = [&[("WORKGROUP", 8)][..], &kinds].concat();
            let grid = [(pages.width / KvType::BLOCK).div_ceil(8), qkv.rows, 1];
            self.plan.dispatch(Variant::new(Shader::StoreKv, &constants), &params, &buffers, grid);
        }

        let kinds = if is_packed { &kinds[..] } else { &[] };
        let y = self.act(qkv.rows, heads * head_dim);
        let params: [Param; 5] = [
            heads.into(),
            kv_heads.into(),
            attention.window.unwrap_or(0).into(),
            self.state.max_pages.into(),
            attention.scale.into(),
        ];
        let buffers =
            [&q.loan.buffer, &pages.keys, &pages.values, &self.state.rows, &self.state.tables, &y.loan.buffer];
        if self.software() {
            let together = heads_together(heads / kv_heads, head_dim);
            let variant =
                Variant::new(Shader::AttentionRows, &[&attention_constants(together, head_dim)[..], kinds].concat());
            self.plan.dispatch(variant, &params, &buffers, [heads / together, qkv.rows, 1]);
        } else {
            let variant = Variant::new(Shader::Attention, &[&[("HEAD_DIM", head_dim as u32)][..], kinds].concat());
            self.plan.dispatch(variant, &params, &buffers, [heads, qkv.rows, 1]);
        }
        y
    }

    fn route(&mut self, logits: &GpuAct, used: usize, expert_scale: Option<&GpuVector>) -> GpuAct {
        let routes = GpuAct { loan: self.scratch.take(logits.rows * used * 2), rows: logits.rows, cols: used };
        let constants = [("WORKGROUP", 8), ("SCALE", u32::from(expert_scale.is_some()))];
        let mut buffers = vec![&logits.loan.buffer];
        buffers.extend(expert_scale.map(|v| &v.values));
        buffers.push(&routes.loan.buffer);
        let params = [logits.rows.into(), logits.cols.into(), used.into()];
        self.plan.dispatch(Variant::new(Shader::Route, &constants), &params, &buffers, [logits.rows.div_ceil(8), 1, 1]);
        routes
    }

    fn expert_gated_linear(
        &mut self,
        x: &GpuAct,
        gate_up: &GpuMatrix,
        routes: &GpuAct,
        experts: ExpertShape,
        activation: Activation,
    ) -> GpuAct {
        let routed = Routed { routes, shape: experts, per_x: experts.used };
        self.product(x, gate_up, Product { gate: Some(activation), experts: Some(routed) })
    }

    fn expert_linear_sum(&mut self, h: &GpuAct, down: &GpuMatrix, routes: &GpuAct, experts: ExpertShape) -> GpuAct {
        let routed = Routed { routes, shape: experts, per_x: 1 };
        let each = self.product(h, down, Product { gate: None, experts: Some(routed) });
        let y = self.act(routes.rows, each.cols);
        let params = [each.cols.into(), experts.used.into()];
        let buffers = [&each.loan.buffer, &routes.loan.buffer, &y.loan.buffer];
        let grid = [each.cols.div_ceil(64), routes.rows, 1];
        self.plan.dispatch(Variant::new(Shader::Mix, &[("WORKGROUP", 64)]), &params, &buffers, grid);
        y
    }

    fn head(&mut self, x: &GpuAct, table: &GpuMatrix, _softcap: Option<f32>) -> GpuAct {
        self.plan.count_head(self.shape.wanted, table.rows, table.cols);
        let rows = self.gather(x, self.shape.wanted);
        self.product(&rows, table, Product::default())
    }

    fn label_logits(&mut self, x: &GpuAct, table: &GpuMatrix, softcap: Option<f32>) -> GpuAct {
        let labels = self.state.labels.clone();
        self.single_logits(x, table, &labels, SingleLogits { count: self.shape.labels, chunk: None, softcap })
    }

    fn condition(&mut self, cols: usize) -> GpuAct {
        let y = self.act(self.shape.tokens, cols);
        let buffers = [&self.state.soft, &self.state.rows, &y.loan.buffer];
        let grid = [cols.div_ceil(64), self.shape.tokens, 1];
        let variant = Variant::new(Shader::Condition, &[("WORKGROUP", 64)]);
        self.plan.dispatch(variant, &[cols.into(), self.state.canvas.into()], &buffers, grid);
        y
    }

    fn draft(&mut self, x: &GpuAct, draft: &DraftHead<'_, GpuMatrix>) -> GpuAct {
        self.record_draft(x, draft)
    }

    fn observe(&mut self, _index: usize, x: &GpuAct) {
        // The stream is changed in place later, so what is kept is a copy.
        let Some(mut kept) = self.observed.take() else { return };
        let mut copy = self.act(x.rows, x.cols);
        self.copy(x, &mut copy);
        kept.push(copy);
        self.observed = Some(kept);
    }
}

impl Recorder<'_> {
    /// The first `count` rows that the step wants something of; those are all rows where there are as many.
    pub fn gather(&mut self, x: &GpuAct, count: usize) -> GpuAct {
        if count == x.rows {
            return x.clone();
        }
        let rows = self.act(count, x.cols);
        let buffers = [&x.loan.buffer, &self.state.wanted, &rows.loan.buffer];
        let grid = [x.cols.div_ceil(64), count, 1];
        let variant = Variant::new(Shader::Gather, &[("WORKGROUP", 64)]);
        self.plan.dispatch(variant, &[x.cols.into()], &buffers, grid);
        rows
    }

    fn copy(&mut self, from: &GpuAct, to: &mut GpuAct) {
        let all: Vec<u32> = (0..from.rows as u32).collect();
        let order = Buffer::upload(self.gpu, all);
        let buffers = [&from.loan.buffer, &order, &to.loan.buffer];
        let grid = [from.cols.div_ceil(64), from.rows, 1];
        let variant = Variant::new(Shader::Gather, &[("WORKGROUP", 64)]);
        self.plan.dispatch(variant, &[from.cols.into()], &buffers, grid);
    }
}
