//! One loaded model on one device, behind the step contract of `laneway-session`.

#![forbid(unsafe_code)]

mod cpu;
mod device;
mod error;
mod frame;
mod gpu;
mod inputs;
mod memory;
mod staged;
mod warm_up;

use laneway_files::Weights;
use laneway_session::{EngineError, EngineLimits, Sampling, StepOutcome, StepPlan};

pub use device::{DeviceChoice, DeviceSummary, devices};
pub use error::OpenError;
pub use frame::{Frame, FrameError};
pub use inputs::{canvas_limits, soft_embedding};
pub use laneway_kernels::{AdapterClass, PlanCost, Totals};
pub use laneway_model::{KvType, cuts};
pub use staged::StageSettings;
pub use warm_up::WarmUp;

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// Where it computes.
    pub device: DeviceChoice,
    /// Turns that can run at the same time.
    pub lanes: usize,
    /// Positions of one sequence; the model's own limit if that is lower, and 4096 if not given.
    pub context_length: Option<usize>,
    /// Positions that all lanes share, at least those of one sequence; a whole sequence for each lane if not given.
    pub pool_positions: Option<usize>,
    /// Threads of the cpu device; all cores if not given.
    pub threads: Option<usize>,
    /// Type of the values in the K/V cache.
    pub kv_type: KvType,
    /// Stages that the layers are split into, in order; none for the whole model on `device`.
    pub stages: Vec<StageSettings>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Auto,
            lanes: 4,
            context_length: None,
            pool_positions: None,
            threads: None,
            kv_type: KvType::F32,
            stages: Vec::new(),
        }
    }
}

/// Context used when none is asked for: room for a conversation without surprising anyone's memory.
const DEFAULT_CONTEXT: usize = 4096;

/// A loaded model.
pub struct ModelEngine {
    body: Body,
    limits: EngineLimits,
    summary: DeviceSummary,
    weight_bytes: u64,
    vocab: usize,
}

/// How much an engine holds.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub lanes: usize,
    pub context_length: usize,
    pub pages: usize,
    pub kv_type: KvType,
}

enum Body {
    Cpu(Box<cpu::CpuEngine>),
    Gpu(Box<gpu::GpuEngine>),
    Staged(Box<staged::StagedEngine>),
}

impl ModelEngine {
    /// Puts the weights on the device.
    ///
    /// # Errors
    /// When no such device is there, the file lacks a tensor, or memory would not suffice (with both numbers, before
    /// anything large is allocated).
    pub async fn open(weights: &Weights, settings: &EngineSettings) -> Result<Self, OpenError> {
        let config = weights.config();
        let context_length = settings.context_length.unwrap_or(DEFAULT_CONTEXT).min(config.context_length).max(1);
        let context_length = inputs::context_for(canvas_limits(weights).as_ref(), context_length);
        let vocab = config.vocab_size;
        let lanes = settings.lanes.max(1);
        let pool = settings.pool_positions.unwrap_or(lanes.saturating_mul(context_length)).max(context_length);
        let sizes = Sizes {
            lanes,
            context_length,
            pages: pool.div_ceil(laneway_model::PAGE_POSITIONS),
            kv_type: settings.kv_type,
        };
        let threads = settings.threads.unwrap_or_else(device::cores);
        if !settings.stages.is_empty() {
            let opened = staged::StagedEngine::open(weights, &settings.stages, threads, sizes).await?;
            let (engine, limits, summary) = opened;
            let weight_bytes = engine.weight_bytes();
            return Ok(Self { body: Body::Staged(Box::new(engine)), limits, summary, weight_bytes, vocab });
        }
        let layers = 0..config.layers.len();
        match device::resolve(&settings.device).await? {
            device::Resolved::Cpu => {
                let (engine, limits) = cpu::CpuEngine::open(weights, threads, sizes, layers)?;
                let weight_bytes = engine.weight_bytes();
                let summary = DeviceSummary::cpu(threads);
                Ok(Self { body: Body::Cpu(Box::new(engine)), limits, summary, weight_bytes, vocab })
            }
            device::Resolved::Gpu(gpu) => {
                let summary = DeviceSummary::gpu(gpu.summary());
                let (engine, limits) = gpu::GpuEngine::open(weights, gpu, sizes, layers)?;
                let weight_bytes = engine.weight_bytes();
                Ok(Self { body: Body::Gpu(Box::new(engine)), limits, summary, weight_bytes, vocab })
            }
        }
    }

    /// The device it runs on.
    pub fn device(&self) -> &DeviceSummary {
        &self.summary
    }

    /// Bytes the weights take on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Logits of every position of `ids` from an empty context: `[T, V]`; overwrites whatever the lanes held.
    ///
    /// # Errors
    /// When the device fails, or `ids` is longer than the context or names a token outside the vocabulary.
    pub async fn prefill_logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, EngineError> {
        match &mut self.body {
            Body::Cpu(engine) => engine.prefill_logits(ids),
            Body::Gpu(engine) => engine.prefill_logits(ids).await,
            Body::Staged(engine) => {
                check_ids(ids, self.vocab, self.limits.context_length)?;
                let mut all = Vec::new();
                for plan in fresh_plans(ids, self.limits.max_rows.min(16), self.limits.lanes) {
                    all.extend(engine.logits(&plan).await?);
                }
                Ok(all)
            }
        }
    }

    /// Logits `[C, V]` of one denoising pass over `canvas` after `prompt`, conditioned on `soft` `[C, D]` if given;
    /// overwrites whatever the lanes held.
    ///
    /// # Errors
    /// As [`ModelEngine::prefill_logits`].
    pub async fn canvas_logits(
        &mut self,
        prompt: &[u32],
        canvas: &[u32],
        soft: Option<&[f32]>,
    ) -> Result<Vec<f32>, EngineError> {
        match &mut self.body {
            Body::Cpu(engine) => engine.canvas_logits(prompt, canvas, soft),
            Body::Gpu(engine) => engine.canvas_logits(prompt, canvas, soft).await,
            Body::Staged(_) => Err(EngineError::Step("models in stages have no canvas".to_owned())),
        }
    }

    /// Launches, submissions and bytes read back so far; none on the cpu.
    pub fn totals(&self) -> Option<Totals> {
        match &self.body {
            Body::Cpu(_) | Body::Staged(_) => None,
            Body::Gpu(engine) => Some(engine.totals()),
        }
    }

    /// Multiplications with the head so far: rows · V · D for logits, single logits · D for reads.
    pub fn head_multiply_adds(&self) -> u64 {
        match &self.body {
            Body::Cpu(engine) => engine.head_multiply_adds(),
            Body::Gpu(engine) => engine.totals().head_multiply_adds,
            Body::Staged(engine) => engine.head_multiply_adds(),
        }
    }

    /// What one decode step of one lane costs on the device; nothing on the cpu.
    pub fn decode_cost(&mut self) -> Option<PlanCost> {
        match &mut self.body {
            Body::Cpu(_) | Body::Staged(_) => None,
            Body::Gpu(engine) => Some(engine.cost(1, 1)),
        }
    }

    /// Copies `bytes` within the device's memory `times` times; false on the cpu, where nothing is done.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn copy_on_device(&self, bytes: u64, times: usize) -> Result<bool, EngineError> {
        match &self.body {
            Body::Cpu(_) | Body::Staged(_) => Ok(false),
            Body::Gpu(engine) => engine.copy(bytes, times).await.map(|()| true),
        }
    }

    /// Loses the device on purpose: for tests of recovery.
    pub fn lose_device(&self) {
        match &self.body {
            Body::Cpu(_) => {}
            Body::Gpu(engine) => engine.lose_device(),
            Body::Staged(engine) => engine.lose_device(),
        }
    }
}

impl laneway_session::Engine for ModelEngine {
    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn begin(&mut self, lane: usize, sampling: &Sampling, prompt: &[u32]) -> Result<(), EngineError> {
        match &mut self.body {
            Body::Cpu(engine) => engine.begin(lane, sampling, prompt),
            Body::Gpu(engine) => engine.begin(lane, sampling, prompt),
            Body::Staged(engine) => engine.begin(lane, sampling, prompt),
        }
        Ok(())
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        match &mut self.body {
            Body::Cpu(engine) => engine.submit(plan),
            Body::Gpu(engine) => engine.submit(plan),
            Body::Staged(engine) => {
                engine.submit(plan);
                Ok(())
            }
        }
    }

    async fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        match &mut self.body {
            Body::Cpu(engine) => engine.collect(),
            Body::Gpu(engine) => engine.collect().await,
            Body::Staged(engine) => engine.collect().await,
        }
    }

    async fn read_page(&mut self, page: u32, positions: usize) -> Result<Vec<u8>, EngineError> {
        match &mut self.body {
            Body::Cpu(engine) => engine.read_page(page, positions),
            Body::Gpu(engine) => engine.read_page(page, positions).await,
            Body::Staged(engine) => engine.read_page(page, positions).await,
        }
    }

    fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<(), EngineError> {
        match &mut self.body {
            Body::Cpu(engine) => engine.write_page(page, positions, content),
            Body::Gpu(engine) => engine.write_page(page, positions, content),
            Body::Staged(engine) => engine.write_page(page, positions, content),
        }
    }
}

/// Whether a file holds every tensor of its network in the right shape; nothing is copied.
///
/// # Errors
/// What opening it would say of the file.
pub fn check(weights: &Weights) -> Result<(), laneway_model::ModelError> {
    laneway_model::Network::load(weights, &mut laneway_model::NoSpace).map(drop)
}

/// Below it the likeliest token wins anyway, and logits divided by it would leave f32.
const COLDEST: f32 = 1e-4;

fn sampler_params(sampling: &Sampling) -> laneway_model::sample::SamplerParams {
    laneway_model::sample::SamplerParams {
        temperature: if sampling.temperature < COLDEST { 0.0 } else { sampling.temperature },
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition: sampling.repetition_penalty,
        presence: sampling.presence_penalty,
        frequency: sampling.frequency_penalty,
        top_k: sampling.top_k,
        top_logprobs: sampling.top_logprobs.into(),
        seed: sampling.seed,
    }
}

/// Rows, page tables and chunks for running `ids` from position 0 on lane 0 over pages 0, 1, 2 …
fn fresh_chunks(ids: &[u32], chunk: usize) -> (Vec<Vec<laneway_model::Row>>, Vec<Vec<u32>>) {
    let row = |(position, &token): (usize, &u32)| laneway_model::Row {
        token,
        position: position as u32,
        lane: 0,
        block: None,
    };
    let all: Vec<_> = ids.iter().enumerate().map(row).collect();
    let pages = ids.len().div_ceil(laneway_model::PAGE_POSITIONS) as u32;
    (all.chunks(chunk).map(<[_]>::to_vec).collect(), vec![(0..pages).collect()])
}

/// The same as plans of the scheduler, with the logits of every row wanted.
fn fresh_plans(ids: &[u32], chunk: usize, lanes: usize) -> Vec<StepPlan> {
    let pages = ids.len().div_ceil(laneway_model::PAGE_POSITIONS) as u32;
    let mut tables = vec![Vec::new(); lanes];
    tables[0] = (0..pages).collect();
    let row = |(position, &token): (usize, &u32)| laneway_session::Row {
        token: laneway_session::Token::Known(token),
        position: position as u32,
        lane: 0,
        block: None,
    };
    let all: Vec<_> = ids.iter().enumerate().map(row).collect();
    let plan = |rows: &[laneway_session::Row]| StepPlan {
        rows: rows.to_vec(),
        tables: tables.clone(),
        samples: (0..rows.len() as u32).collect(),
        ..StepPlan::default()
    };
    all.chunks(chunk.max(1)).map(plan).collect()
}

fn check_ids(ids: &[u32], vocab: usize, context_length: usize) -> Result<(), EngineError> {
    if ids.is_empty() || ids.len() > context_length {
        return Err(EngineError::Step(format!("{} tokens do not fit a context of {context_length}", ids.len())));
    }
    match ids.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => Err(EngineError::Step(format!("token {id} is outside the vocabulary of {vocab}"))),
        None => Ok(()),
    }
}
