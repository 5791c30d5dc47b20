use crate::inputs::{self, BRANCHES, Inputs};
use crate::memory::{Need, available_bytes, kv_bytes_per_position};
use crate::{OpenError, Sizes, check_ids, fresh_chunks, sampler_params};
use laneway_files::Weights;
use laneway_kernels::{AdapterClass, Gpu, GpuError, GpuSpace, PlanCost, Runner, StateShape, Totals};
use laneway_model::{KvType, ModelError, Network, PAGE_POSITIONS, Pass, Step};
use laneway_session::{EngineError, EngineLimits, Sampled, Sampling, StepOutcome, StepPlan};
use std::ops::Range;
use std::sync::Arc;

/// The model on a graphics device; the next step may be submitted before the last one's tokens are read.
pub(crate) struct GpuEngine {
    gpu: Gpu,
    runner: Runner,
    weight_bytes: u64,
    context_length: usize,
    max_rows: usize,
    submitted: std::collections::VecDeque<Submitted>,
}

/// What a submitted step has to be asked for.
struct Submitted {
    /// Submissions to collect: none of a step that wants nothing, which needs no read-back, but the contract counts it.
    results: usize,
    /// Tokens of each label row.
    labels: Vec<usize>,
}

impl GpuEngine {
    pub fn open(
        weights: &Weights,
        gpu: Gpu,
        sizes: Sizes,
        layers: Range<usize>,
    ) -> Result<(Self, EngineLimits), OpenError> {
        let Sizes { lanes, context_length, pages, kv_type } = sizes;
        let need = Need::of(weights, sizes, &layers);
        let software = gpu.summary().class == AdapterClass::Software;
        // Drivers do not say how much memory they have, but a software adapter has the system's.
        let available = if software { available_bytes() } else { None };
        need.check(&gpu.summary().name, need.weight_bytes + need.kv_bytes, available)?;
        check_bindings(weights, &gpu, pages, kv_type, &layers)?;
        let mut space = GpuSpace::new(&gpu);
        let network = Arc::new(Network::load_stage(weights, &mut space, layers.clone())?);
        // A dispatch must end well before a driver's watchdog; a software adapter needs seconds for what a GPU does in
        // milliseconds.
        let usual = if software { 32 } else { 512 }.max(lanes);
        let canvas = inputs::canvas_limits(weights);
        let conditioned = canvas.filter(|canvas| canvas.is_conditioned);
        let shape = StateShape {
            lanes,
            slots: lanes + BRANCHES,
            pages,
            max_pages: context_length.div_ceil(PAGE_POSITIONS),
            max_rows: inputs::rows_for(canvas.as_ref(), usual, context_length),
            vocab: network.config().vocab_size,
            canvas_length: conditioned.map_or(0, |canvas| canvas.length),
            hidden: network.config().hidden_size,
            kv_type,
        };
        kv_type.check(&network.kv_shapes())?;
        let runner = Runner::new(&gpu, network, shape)?;
        let limits = EngineLimits {
            lanes,
            pages,
            page_positions: PAGE_POSITIONS,
            context_length,
            max_rows: shape.max_rows,
            depth: 2,
            branches: BRANCHES,
            row_bytes: runner.row_bytes(),
            canvas,
        };
        let weight_bytes = space.bytes();
        let submitted = Default::default();
        Ok((Self { gpu, runner, weight_bytes, context_length, max_rows: usual, submitted }, limits))
    }

    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    pub fn totals(&self) -> Totals {
        self.runner.totals()
    }

    pub fn cost(&mut self, tokens: usize, wanted: usize) -> PlanCost {
        self.runner.cost(tokens, wanted)
    }

    pub async fn copy(&self, bytes: u64, times: usize) -> Result<(), EngineError> {
        self.gpu.copy(bytes, times).await.map_err(lost)
    }

    pub fn lose_device(&self) {
        self.gpu.lose();
    }

    pub fn begin(&mut self, lane: usize, sampling: &Sampling, prompt: &[u32]) {
        self.runner.begin_lane(lane, sampler_params(sampling), prompt);
    }

    /// Runs a step of a stage that another goes on with: what it leaves, `[T, D]`.
    pub async fn advance(&mut self, plan: &StepPlan, before: &[f32]) -> Result<Vec<f32>, EngineError> {
        let inputs = Inputs::of(plan);
        self.copy_pages(plan)?;
        self.go_on(plan, before)?;
        let step = Step { logits: &[], labels: &[], drafts: &[], ..inputs.step(plan) };
        self.runner.boundary(&step, inputs.pass).await.map_err(lost)
    }

    /// Logits of the rows that want samples, `[R, V]`, after another stage.
    pub async fn logits_after(&mut self, plan: &StepPlan, before: &[f32]) -> Result<Vec<f32>, EngineError> {
        self.go_on(plan, before)?;
        let inputs = Inputs::of(plan);
        self.runner.logits(&inputs.step(plan), inputs.pass).await.map_err(lost)
    }

    /// Enqueues a step after another stage, which left these activations.
    pub fn submit_after(&mut self, plan: &StepPlan, before: &[f32]) -> Result<(), EngineError> {
        self.go_on(plan, before)?;
        self.submit(plan)
    }

    fn go_on(&mut self, plan: &StepPlan, before: &[f32]) -> Result<(), EngineError> {
        let rows = plan.rows.len();
        if self.runner.network().is_first() || self.runner.set_boundary(rows, before) {
            return Ok(());
        }
        Err(EngineError::Step(format!("{} activations are not those of {rows} rows", before.len())))
    }

    fn copy_pages(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        let copies: Vec<(u32, u32)> = plan.copies.iter().map(|copy| (copy.from, copy.to)).collect();
        self.runner.copy_pages(&copies).map_err(lost)
    }

    pub fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        let inputs = Inputs::of(plan);
        self.copy_pages(plan)?;
        let step = inputs.step(plan);
        let mut results = 0;
        if !plan.labels.is_empty() && !plan.drafts.is_empty() {
            // A submission yields one kind of result. The drafts go last: they leave what the next pass is conditioned
            // on, and this one still reads what was left before.
            self.runner.submit(&Step { drafts: &[], ..step }, inputs.pass).map_err(lost)?;
            self.runner.submit(&Step { labels: &[], ..step }, inputs.pass).map_err(lost)?;
            results += 2;
        } else {
            self.runner.submit(&step, inputs.pass).map_err(lost)?;
            let wants_nothing = plan.samples.is_empty() && plan.labels.is_empty() && plan.drafts.is_empty();
            results += usize::from(!wants_nothing);
        }
        self.submitted.push_back(Submitted { results, labels: inputs::label_counts(plan) });
        Ok(())
    }

    pub async fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        let Some(Submitted { results, labels }) = self.submitted.pop_front() else {
            return Ok(StepOutcome::default());
        };
        let mut outcome = StepOutcome::default();
        for _ in 0..results {
            let collected = self.runner.collect().await.map_err(lost)?;
            outcome.sampled.extend(collected.sampled.into_iter().map(|(lane, picked)| Sampled {
                lane: lane as usize,
                token: picked.token,
                logprob: picked.logprob,
                top: picked.top,
            }));
            outcome.drafts.extend(collected.drafts.into_iter().map(inputs::drafted));
            if !collected.labels.is_empty() {
                outcome.labels = inputs::by_row(&labels, &collected.labels);
            }
        }
        Ok(outcome)
    }

    pub async fn read_page(&mut self, page: u32, positions: usize) -> Result<Vec<u8>, EngineError> {
        let content = self.runner.read_page(page, positions).await.map_err(lost)?;
        content.ok_or_else(|| EngineError::Step(format!("page {page} cannot be read")))
    }

    pub fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<(), EngineError> {
        let is_written = self.runner.write_page(page, positions, content).map_err(lost)?;
        is_written.then_some(()).ok_or_else(|| EngineError::Step(format!("page {page} cannot be written")))
    }

    pub async fn prefill_logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
        check_ids(ids, self.runner.network().config().vocab_size, self.context_length)?;
        // Logits of many rows at once would not fit a binding: 16 rows of 262144 are 16 MiB.
        let (chunks, tables) = fresh_chunks(ids, self.max_rows.min(16));
        let mut all = Vec::new();
        for chunk in &chunks {
            let wanted: Vec<u32> = (0..chunk.len() as u32).collect();
            let step = Step { rows: chunk, tables: &tables, logits: &wanted, labels: &[], drafts: &[] };
            all.extend(self.runner.logits(&step, Pass::Encode).await.map_err(lost)?);
        }
        Ok(all)
    }

    pub async fn canvas_logits(
        &mut self,
        prompt: &[u32],
        canvas: &[u32],
        soft: Option<&[f32]>,
    ) -> Result<Vec<f32>, EngineError> {
        let vocab = self.runner.network().config().vocab_size;
        check_ids(canvas, vocab, self.context_length.saturating_sub(prompt.len()))?;
        if !prompt.is_empty() {
            self.prefill_logits(prompt).await?;
        }
        let (rows, tables) = inputs::canvas_rows(prompt.len(), canvas, soft.is_some());
        if let Some(soft) = soft {
            self.runner.set_soft(0, soft);
        }
        let mut all = Vec::new();
        let wanted: Vec<u32> = (0..rows.len() as u32).collect();
        // The pass is made anew for each part: a canvas overwrites only its own keys and values.
        for part in wanted.chunks(16) {
            let step = Step { rows: &rows, tables: &tables, logits: part, labels: &[], drafts: &[] };
            all.extend(self.runner.logits(&step, Pass::Denoise).await.map_err(lost)?);
        }
        Ok(all)
    }
}

fn lost(error: GpuError) -> EngineError {
    EngineError::Lost(error.to_string())
}

/// One layer's keys must fit one binding.
fn check_bindings(
    weights: &Weights,
    gpu: &Gpu,
    pages: usize,
    kv_type: KvType,
    layers: &Range<usize>,
) -> Result<(), OpenError> {
    let limit = gpu.summary().max_binding_bytes;
    let widest = weights.config().layers[layers.clone()].iter().map(|l| l.kv_heads * l.head_dim).max().unwrap_or(0);
    let needed = (pages * PAGE_POSITIONS * kv_type.resident_bytes(widest)) as u64;
    if needed <= limit {
        return Ok(());
    }
    let per_position = kv_bytes_per_position(weights.config(), layers, kv_type);
    let what = format!("one layer's keys for {} positions ({per_position} bytes each in all)", pages * PAGE_POSITIONS);
    Err(ModelError::OutOfMemory { what, needed_bytes: needed, available_bytes: limit }.into())
}
