use crate::memory::{Need, available_bytes, kv_bytes_per_position};
use crate::{OpenError, check_ids, fresh_chunks, rows, sampler_params};
use laneway_files::Weights;
use laneway_kernels::{AdapterClass, Gpu, GpuError, GpuSpace, PlanCost, Runner, StateShape, Totals};
use laneway_model::{ModelError, Network, PAGE_POSITIONS, Step};
use laneway_session::{EngineError, EngineLimits, Sampled, Sampling, StepOutcome, StepPlan};
use std::sync::Arc;

/// The model on a graphics device; the next step may be submitted before the last one's tokens are read.
pub(crate) struct GpuEngine {
    gpu: Gpu,
    runner: Runner,
    weight_bytes: u64,
    context_length: usize,
    max_rows: usize,
    /// Submitted steps that sample nothing need no read-back, but the contract counts them.
    silent: std::collections::VecDeque<bool>,
}

impl GpuEngine {
    pub fn open(
        weights: &Weights,
        gpu: Gpu,
        lanes: usize,
        context_length: usize,
    ) -> Result<(Self, EngineLimits), OpenError> {
        let need = Need::of(weights, lanes, context_length);
        let software = gpu.summary().class == AdapterClass::Software;
        // Drivers do not say how much memory they have, but a software adapter has the system's.
        let available = if software { available_bytes() } else { None };
        need.check(&gpu.summary().name, need.weight_bytes + need.kv_bytes, available)?;
        let pages = lanes * context_length.div_ceil(PAGE_POSITIONS);
        check_bindings(weights, &gpu, pages)?;
        let mut space = GpuSpace::new(&gpu);
        let network = Arc::new(Network::load(weights, &mut space)?);
        // A dispatch must end well before a driver's watchdog; a software adapter needs seconds for what a GPU does in
        // milliseconds.
        let max_rows = if software { 32 } else { 512 };
        let shape = StateShape {
            lanes,
            pages,
            max_pages: context_length.div_ceil(PAGE_POSITIONS),
            max_rows: max_rows.max(lanes),
            vocab: network.config().vocab_size,
        };
        let runner = Runner::new(&gpu, network, shape)?;
        let limits = EngineLimits {
            lanes,
            pages,
            page_positions: PAGE_POSITIONS,
            context_length,
            max_rows: shape.max_rows,
            depth: 2,
        };
        let weight_bytes = space.bytes();
        let silent = Default::default();
        Ok((Self { gpu, runner, weight_bytes, context_length, max_rows: shape.max_rows, silent }, limits))
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

    pub fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        let rows = rows(plan);
        self.runner.submit(&Step { rows: &rows, tables: &plan.tables, logits: &plan.samples }).map_err(lost)?;
        self.silent.push_back(plan.samples.is_empty());
        Ok(())
    }

    pub async fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        if self.silent.pop_front().unwrap_or(true) {
            return Ok(StepOutcome::default());
        }
        let picked = self.runner.collect().await.map_err(lost)?;
        let sampled = picked
            .into_iter()
            .map(|(lane, picked)| Sampled {
                lane: lane as usize,
                token: picked.token,
                logprob: picked.logprob,
                top: picked.top,
            })
            .collect();
        Ok(StepOutcome { sampled })
    }

    pub async fn prefill_logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
        check_ids(ids, self.runner.network().config().vocab_size, self.context_length)?;
        // Logits of many rows at once would not fit a binding: 16 rows of 262144 are 16 MiB.
        let (chunks, tables) = fresh_chunks(ids, self.max_rows.min(16));
        let mut all = Vec::new();
        for chunk in &chunks {
            let wanted: Vec<u32> = (0..chunk.len() as u32).collect();
            let step = Step { rows: chunk, tables: &tables, logits: &wanted };
            all.extend(self.runner.logits(&step).await.map_err(lost)?);
        }
        Ok(all)
    }
}

fn lost(error: GpuError) -> EngineError {
    EngineError::Lost(error.to_string())
}

/// One layer's keys must fit one binding.
fn check_bindings(weights: &Weights, gpu: &Gpu, pages: usize) -> Result<(), OpenError> {
    let limit = gpu.summary().max_binding_bytes;
    let widest = weights.config().layers.iter().map(|l| l.kv_heads * l.head_dim).max().unwrap_or(0);
    let needed = 4 * (pages * PAGE_POSITIONS * widest) as u64;
    if needed <= limit {
        return Ok(());
    }
    let per_position = kv_bytes_per_position(weights.config());
    let what = format!("one layer's keys for {} positions ({per_position} bytes each in all)", pages * PAGE_POSITIONS);
    Err(ModelError::OutOfMemory { what, needed_bytes: needed, available_bytes: limit }.into())
}
