use crate::memory::{Need, available_bytes};
use crate::{OpenError, check_ids, fresh_chunks, rows, sampler_params};
use laneway_cpu::{CpuSpace, CpuStep, KvCache};
use laneway_files::Weights;
use laneway_model::sample::{IN_PROMPT, SamplerParams, sample};
use laneway_model::{ModelError, Network, PAGE_POSITIONS, Step};
use laneway_session::{EngineError, EngineLimits, Sampled, Sampling, StepOutcome, StepPlan};
use std::collections::VecDeque;

/// Rows of one prefill chunk: enough to share weight loads, short enough that a cancel is seen soon.
const MAX_ROWS: usize = 64;

/// The model in host memory; a step is computed when it is submitted.
pub(crate) struct CpuEngine {
    space: CpuSpace,
    network: Network<CpuSpace>,
    kv: KvCache,
    lanes: Vec<Lane>,
    outcomes: VecDeque<StepOutcome>,
    context_length: usize,
}

#[derive(Clone)]
struct Lane {
    params: SamplerParams,
    /// How often each token stood before; empty when no penalty asks.
    counts: Vec<u32>,
    sampled: u32,
}

impl CpuEngine {
    pub fn open(
        weights: &Weights,
        threads: usize,
        lanes: usize,
        context_length: usize,
    ) -> Result<(Self, EngineLimits), OpenError> {
        let need = Need::of(weights, lanes, context_length);
        // Pages take memory only once they are written, so one full lane must fit, not all.
        need.check("cpu", need.weight_bytes + need.kv_bytes / lanes as u64, available_bytes())?;
        let mut space = CpuSpace::new(threads);
        let network = Network::load(weights, &mut space)?;
        let pages = lanes * context_length.div_ceil(PAGE_POSITIONS);
        let kv = KvCache::new(&network.kv_shapes(), pages);
        let lane = Lane { params: SamplerParams::GREEDY, counts: Vec::new(), sampled: 0 };
        let limits =
            EngineLimits { lanes, pages, page_positions: PAGE_POSITIONS, context_length, max_rows: MAX_ROWS, depth: 1 };
        let outcomes = VecDeque::new();
        Ok((Self { space, network, kv, lanes: vec![lane; lanes], outcomes, context_length }, limits))
    }

    pub fn weight_bytes(&self) -> u64 {
        self.space.weight_bytes() as u64
    }

    pub fn begin(&mut self, lane: usize, sampling: &Sampling, prompt: &[u32]) {
        let params = sampler_params(sampling);
        let mut counts = Vec::new();
        if params.penalises() {
            counts = vec![0; self.network.config().vocab_size];
            for &token in prompt {
                if let Some(count) = counts.get_mut(token as usize) {
                    *count |= IN_PROMPT;
                }
            }
        }
        self.lanes[lane] = Lane { params, counts, sampled: 0 };
    }

    pub fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        let rows = rows(plan);
        let logits = self.run(&Step { rows: &rows, tables: &plan.tables, logits: &plan.samples })?;
        if plan.samples.is_empty() {
            return Ok(());
        }
        let vocab = self.network.config().vocab_size;
        let mut outcome = StepOutcome::default();
        for (logits, &row) in logits.chunks_exact(vocab).zip(&plan.samples) {
            let row = rows[row as usize];
            let lane = &mut self.lanes[row.lane as usize];
            let picked = sample(logits, &lane.counts, &lane.params, row.position);
            lane.sampled = picked.token;
            if let Some(count) = lane.counts.get_mut(picked.token as usize) {
                *count += 1;
            }
            outcome.sampled.push(Sampled {
                lane: row.lane as usize,
                token: picked.token,
                logprob: picked.logprob,
                top: picked.top,
            });
        }
        self.outcomes.push_back(outcome);
        Ok(())
    }

    pub fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        Ok(self.outcomes.pop_front().unwrap_or_default())
    }

    pub fn prefill_logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
        check_ids(ids, self.network.config().vocab_size, self.context_length)?;
        let (chunks, tables) = fresh_chunks(ids, MAX_ROWS);
        let mut all = Vec::new();
        for chunk in &chunks {
            let wanted: Vec<u32> = (0..chunk.len() as u32).collect();
            all.extend(self.run(&Step { rows: chunk, tables: &tables, logits: &wanted })?);
        }
        Ok(all)
    }

    fn run(&mut self, step: &Step<'_>) -> Result<Vec<f32>, EngineError> {
        let sampled: Vec<u32> = self.lanes.iter().map(|lane| lane.sampled).collect();
        let failed = |e: ModelError| EngineError::Step(e.to_string());
        let (space, network) = (&self.space, &self.network);
        let mut ops = CpuStep::new(space, step, &mut self.kv, &sampled).map_err(failed)?;
        Ok(space.run(|| {
            let hidden = network.forward(&mut ops);
            if step.logits.is_empty() { Vec::new() } else { network.logits(&hidden, &mut ops).into_data() }
        }))
    }
}
