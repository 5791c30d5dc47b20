use crate::inputs::{self, BRANCHES, Inputs};
use crate::memory::{Need, available_bytes};
use crate::{OpenError, Sizes, check_ids, fresh_chunks, sampler_params};
use laneway_cpu::{CpuSpace, CpuStep, KvCache, SoftStore};
use laneway_files::Weights;
use laneway_model::sample::{IN_PROMPT, SamplerParams, sample};
use laneway_model::{DRAFT_COLUMNS, Drafted, ModelError, Network, PAGE_POSITIONS, Pass, Step};
use laneway_session::{EngineError, EngineLimits, Sampled, Sampling, StepOutcome, StepPlan};
use std::collections::VecDeque;
use std::ops::Range;

/// Rows of one prefill chunk: enough to share weight loads, short enough that a cancel is seen soon.
const MAX_ROWS: usize = 64;

/// The model in host memory; a step is computed when it is submitted.
pub(crate) struct CpuEngine {
    space: CpuSpace,
    network: Network<CpuSpace>,
    kv: KvCache,
    soft: SoftStore,
    lanes: Vec<Lane>,
    outcomes: VecDeque<StepOutcome>,
    context_length: usize,
    max_rows: usize,
    head_multiply_adds: u64,
}

/// What a step computed, row after row.
#[derive(Default)]
struct Computed {
    logits: Vec<f32>,
    labels: Vec<f32>,
    drafts: Vec<f32>,
    /// What the next stage goes on with.
    boundary: Vec<f32>,
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
        sizes: Sizes,
        layers: Range<usize>,
    ) -> Result<(Self, EngineLimits), OpenError> {
        let Sizes { lanes, context_length, pages, kv_type } = sizes;
        let need = Need::of(weights, sizes, &layers);
        // Pages take memory only once they are written, so one full sequence must fit, not all.
        let sequence_bytes = need.sequence_bytes(weights.config(), &layers, kv_type);
        need.check("cpu", need.weight_bytes.saturating_add(sequence_bytes), available_bytes())?;
        let mut space = CpuSpace::new(threads);
        let network = Network::load_stage(weights, &mut space, layers)?;
        kv_type.check(&network.kv_shapes())?;
        let kv = KvCache::of_type(&network.kv_shapes(), pages, kv_type);
        let lane = Lane { params: SamplerParams::GREEDY, counts: Vec::new(), sampled: 0 };
        let canvas = inputs::canvas_limits(weights);
        let max_rows = inputs::rows_for(canvas.as_ref(), MAX_ROWS, context_length);
        let limits = EngineLimits {
            lanes,
            pages,
            page_positions: PAGE_POSITIONS,
            context_length,
            max_rows,
            depth: 1,
            branches: BRANCHES,
            row_bytes: kv.row_bytes(),
            canvas,
        };
        let engine = Self {
            space,
            network,
            kv,
            soft: SoftStore::new(),
            lanes: vec![lane; lanes],
            outcomes: VecDeque::new(),
            context_length,
            max_rows,
            head_multiply_adds: 0,
        };
        Ok((engine, limits))
    }

    pub fn weight_bytes(&self) -> u64 {
        self.space.weight_bytes() as u64
    }

    pub fn head_multiply_adds(&self) -> u64 {
        self.head_multiply_adds
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

    /// Runs a step of a stage that another goes on with: what it leaves, `[T, D]`.
    pub fn advance(&mut self, plan: &StepPlan, before: &[f32]) -> Result<Vec<f32>, EngineError> {
        for copy in &plan.copies {
            self.kv.copy(copy.from, copy.to);
        }
        let inputs = Inputs::of(plan);
        let step = Step { logits: &[], labels: &[], drafts: &[], ..inputs.step(plan) };
        Ok(self.run_after(inputs.pass, &step, before)?.boundary)
    }

    /// Logits of the rows that want samples, `[R, V]`, after another stage.
    pub fn logits_after(&mut self, plan: &StepPlan, before: &[f32]) -> Result<Vec<f32>, EngineError> {
        let inputs = Inputs::of(plan);
        Ok(self.run_after(inputs.pass, &inputs.step(plan), before)?.logits)
    }

    pub fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        self.submit_after(plan, &[])
    }

    /// The same after another stage, which left these activations.
    pub fn submit_after(&mut self, plan: &StepPlan, before: &[f32]) -> Result<(), EngineError> {
        for copy in &plan.copies {
            self.kv.copy(copy.from, copy.to);
        }
        let inputs = Inputs::of(plan);
        let computed = self.run_after(inputs.pass, &inputs.step(plan), before)?;
        let mut outcome = StepOutcome {
            labels: inputs::by_row(&inputs::label_counts(plan), &computed.labels),
            ..StepOutcome::default()
        };
        let (drafts, _) = computed.drafts.as_chunks::<DRAFT_COLUMNS>();
        outcome.drafts = drafts.iter().map(|columns| inputs::drafted(Drafted::from_columns(columns))).collect();
        let vocab = self.network.config().vocab_size;
        for (logits, &row) in computed.logits.chunks_exact(vocab).zip(&plan.samples) {
            let row = inputs.rows[row as usize];
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

    pub fn read_page(&self, page: u32, positions: usize) -> Result<Vec<u8>, EngineError> {
        self.kv.read(page, positions).ok_or_else(|| EngineError::Step(format!("page {page} cannot be read")))
    }

    pub fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<(), EngineError> {
        let is_written = self.kv.restore(page, positions, content);
        is_written.then_some(()).ok_or_else(|| EngineError::Step(format!("page {page} cannot be written")))
    }

    pub fn prefill_logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
        check_ids(ids, self.network.config().vocab_size, self.context_length)?;
        let (chunks, tables) = fresh_chunks(ids, self.max_rows.min(MAX_ROWS));
        let mut all = Vec::new();
        for chunk in &chunks {
            let wanted: Vec<u32> = (0..chunk.len() as u32).collect();
            let step = Step { rows: chunk, tables: &tables, logits: &wanted, labels: &[], drafts: &[] };
            all.extend(self.run(Pass::Encode, &step)?.logits);
        }
        Ok(all)
    }

    pub fn canvas_logits(
        &mut self,
        prompt: &[u32],
        canvas: &[u32],
        soft: Option<&[f32]>,
    ) -> Result<Vec<f32>, EngineError> {
        let vocab = self.network.config().vocab_size;
        check_ids(canvas, vocab, self.context_length.saturating_sub(prompt.len()))?;
        if !prompt.is_empty() {
            self.prefill_logits(prompt)?;
        }
        let (rows, tables) = inputs::canvas_rows(prompt.len(), canvas, soft.is_some());
        let signals = soft.into_iter().flat_map(|soft| soft.chunks_exact(self.network.config().hidden_size));
        rows.iter().zip(signals).for_each(|(row, signal)| self.soft.put(row, signal));
        let wanted: Vec<u32> = (0..rows.len() as u32).collect();
        let step = Step { rows: &rows, tables: &tables, logits: &wanted, labels: &[], drafts: &[] };
        Ok(self.run(Pass::Denoise, &step)?.logits)
    }

    fn run(&mut self, pass: Pass, step: &Step<'_>) -> Result<Computed, EngineError> {
        self.run_after(pass, step, &[])
    }

    fn run_after(&mut self, pass: Pass, step: &Step<'_>, before: &[f32]) -> Result<Computed, EngineError> {
        let sampled: Vec<u32> = self.lanes.iter().map(|lane| lane.sampled).collect();
        let failed = |e: ModelError| EngineError::Step(e.to_string());
        let (space, network) = (&self.space, &self.network);
        let mut ops = CpuStep::new(space, step, &mut self.kv, &mut self.soft, &sampled).map_err(failed)?;
        if !network.is_first() {
            ops = ops.after(before).map_err(failed)?;
        }
        let computed = space.run(|| {
            let hidden = network.forward(pass, &mut ops);
            let mut computed = Computed::default();
            if !network.is_last() {
                computed.boundary = hidden.into_data();
                return computed;
            }
            if !step.logits.is_empty() {
                computed.logits = network.logits(&hidden, &mut ops).into_data();
            }
            if !step.labels.is_empty() {
                computed.labels = network.label_logits(&hidden, &mut ops).into_data();
            }
            if !step.drafts.is_empty() {
                computed.drafts = network.draft(&hidden, &mut ops).into_data();
            }
            computed
        });
        self.head_multiply_adds += ops.head_multiply_adds();
        Ok(computed)
    }
}
