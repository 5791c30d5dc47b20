use crate::GpuError;
use crate::device::Gpu;
use crate::plan::{Plan, PlanBuilder, PlanCost};
use crate::recorder::{GpuAct, Recorder};
use crate::scratch::Scratch;
use crate::shader::{Shader, Variant};
use crate::state::{DeviceState, LANE_WORDS, StateShape};
use crate::weights::GpuSpace;
use laneway_model::sample::{Picked, SamplerParams};
use laneway_model::{Network, Row, Step};
use std::collections::VecDeque;
use std::sync::Arc;

/// Runs one network's steps on one device, with plans kept for the shapes of step that recur.
pub struct Runner {
    gpu: Gpu,
    network: Arc<Network<GpuSpace>>,
    scratch: Scratch,
    state: DeviceState,
    shape: StateShape,
    plans: Vec<(PlanKey, Prepared)>,
    in_flight: VecDeque<InFlight>,
    idle_readbacks: Vec<wgpu::Buffer>,
    lane_params: Vec<SamplerParams>,
    totals: Totals,
}

/// Work done since the runner was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Steps submitted.
    pub steps: u64,
    /// Queue submissions.
    pub submissions: u64,
    /// Kernel launches.
    pub dispatches: u64,
    /// Bytes copied back to the host.
    pub readback_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanKey {
    tokens: usize,
    wanted: usize,
    samples: bool,
}

struct Prepared {
    plan: Plan,
    logits: Option<GpuAct>,
    picked: Option<GpuAct>,
    /// Keeps the buffers of observed activations from being lent out again.
    observed: Vec<GpuAct>,
}

struct InFlight {
    readback: wgpu::Buffer,
    lanes: Vec<u32>,
    mapped: Mapped,
}

/// Words of one row's result: `struct Picked` in `shaders/sample_pick.wgsl`.
const PICKED_WORDS: usize = 44;
const SCAN_CHUNK: usize = 4096;
/// Plans kept; prompts leave a tail of any length, and a plan is cheap to record again.
const KEPT_PLANS: usize = 12;

impl Runner {
    /// A runner with empty pages.
    pub fn new(gpu: &Gpu, network: Arc<Network<GpuSpace>>, shape: StateShape) -> Result<Self, GpuError> {
        let state = DeviceState::new(gpu, &network.kv_shapes(), shape);
        gpu.tensors.flush().map_err(|e| GpuError::Lost(e.to_string()))?;
        gpu.check()?;
        Ok(Self {
            gpu: gpu.clone(),
            network,
            scratch: Scratch::new(gpu),
            state,
            shape,
            plans: Vec::new(),
            in_flight: VecDeque::new(),
            idle_readbacks: Vec::new(),
            lane_params: vec![SamplerParams::GREEDY; shape.lanes],
            totals: Totals::default(),
        })
    }

    /// The network it runs.
    pub fn network(&self) -> &Network<GpuSpace> {
        &self.network
    }

    /// Work done so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Sets how a lane samples, and which tokens its prompt holds (for penalties).
    pub fn begin_lane(&mut self, lane: usize, params: SamplerParams, prompt: &[u32]) {
        self.lane_params[lane] = params;
        self.state.lanes.write(&self.gpu, lane * LANE_WORDS, &lane_words(&params));
        if params.penalises() {
            let mut counts = vec![0u32; self.shape.vocab];
            for &token in prompt {
                if let Some(count) = counts.get_mut(token as usize) {
                    *count |= laneway_model::sample::IN_PROMPT;
                }
            }
            self.state.counts.write(&self.gpu, lane * self.shape.vocab, &counts);
        }
    }

    /// Enqueues a step; every row that wants logits has a token sampled, which [`Runner::collect`] returns.
    ///
    /// # Errors
    /// When the device was lost.
    pub fn submit(&mut self, step: &Step<'_>) -> Result<(), GpuError> {
        self.gpu.check()?;
        self.write_inputs(step);
        let key = PlanKey { tokens: step.rows.len(), wanted: step.logits.len(), samples: true };
        let index = self.prepare(key);
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let prepared = &self.plans[index].1;
        prepared.plan.encode(&mut encoder);
        let cost = prepared.plan.cost;
        let words = PICKED_WORDS * key.wanted;
        let readback = match &prepared.picked {
            Some(picked) => {
                let readback = self.idle_readbacks.pop().unwrap_or_else(|| readback_buffer(&self.gpu, self.shape));
                picked.loan.buffer.copy_to(&mut encoder, &readback, words);
                Some(readback)
            }
            None => None,
        };
        self.gpu.queue.submit([encoder.finish()]);
        self.count(cost, 4 * words as u64);
        if let Some(readback) = readback {
            let mapped = map(&readback, words);
            let lanes = step.logits.iter().map(|&row| step.rows[row as usize].lane).collect();
            self.in_flight.push_back(InFlight { readback, lanes, mapped });
        }
        Ok(())
    }

    /// Waits for the oldest submitted step that sampled; its lanes and tokens in the order of `step.logits`.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn collect(&mut self) -> Result<Vec<(u32, Picked)>, GpuError> {
        let Some(oldest) = self.in_flight.pop_front() else { return Ok(Vec::new()) };
        wait(&self.gpu, oldest.mapped).await?;
        let words = PICKED_WORDS * oldest.lanes.len();
        let picked = read(&oldest.readback, words)?;
        self.idle_readbacks.push(oldest.readback);
        let rows = picked.chunks_exact(PICKED_WORDS).zip(&oldest.lanes);
        Ok(rows.map(|(words, &lane)| (lane, decode(words))).collect())
    }

    /// Runs a step without sampling and returns the soft-capped logits `[R, V]` of the rows that want them.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn logits(&mut self, step: &Step<'_>) -> Result<Vec<f32>, GpuError> {
        self.gpu.check()?;
        self.write_inputs(step);
        let index = self.prepare(PlanKey { tokens: step.rows.len(), wanted: step.logits.len(), samples: false });
        self.run_alone(index);
        let Some(logits) = self.plans[index].1.logits.clone() else { return Ok(Vec::new()) };
        let mut values = self.read_act(&logits).await?;
        if let Some(cap) = self.network.config().final_softcap {
            values.iter_mut().for_each(|v| *v = cap * (*v / cap).tanh());
        }
        Ok(values)
    }

    /// Runs a step and returns what the network shows of itself: the stream into each layer, then the final state.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn observe(&mut self, step: &Step<'_>) -> Result<Vec<Vec<f32>>, GpuError> {
        self.write_inputs(step);
        let key = PlanKey { tokens: step.rows.len(), wanted: 0, samples: false };
        let prepared = self.record(key, true);
        self.plans.insert(0, (key, prepared));
        self.run_alone(0);
        let (_, prepared) = self.plans.remove(0);
        let mut seen = Vec::new();
        for act in &prepared.observed {
            seen.push(self.read_act(act).await?);
        }
        Ok(seen)
    }

    /// Cost of a plan for steps of `tokens` rows with `wanted` logits.
    pub fn cost(&mut self, tokens: usize, wanted: usize) -> PlanCost {
        let index = self.prepare(PlanKey { tokens, wanted, samples: true });
        self.plans[index].1.plan.cost
    }

    fn write_inputs(&mut self, step: &Step<'_>) {
        let rows: Vec<u32> = step.rows.iter().flat_map(|r: &Row| [r.token, r.position, r.lane, 0]).collect();
        self.state.rows.write(&self.gpu, 0, &rows);
        if !step.logits.is_empty() {
            self.state.wanted.write(&self.gpu, 0, step.logits);
        }
        let mut last = None;
        for row in step.rows {
            if last.replace(row.lane) != Some(row.lane) {
                let table = &step.tables[row.lane as usize];
                self.state.tables.write(&self.gpu, row.lane as usize * self.shape.max_pages, table);
            }
        }
    }

    fn run_alone(&mut self, index: usize) {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let plan = &self.plans[index].1.plan;
        plan.encode(&mut encoder);
        let cost = plan.cost;
        self.gpu.queue.submit([encoder.finish()]);
        self.count(cost, 0);
    }

    fn count(&mut self, cost: PlanCost, readback_bytes: u64) {
        self.totals.steps += 1;
        self.totals.submissions += 1;
        self.totals.dispatches += cost.dispatches as u64;
        self.totals.readback_bytes += readback_bytes;
    }

    /// Index of the plan for `key`, moved to the front; recorded now if it is not kept.
    fn prepare(&mut self, key: PlanKey) -> usize {
        let kept = self.plans.iter().position(|(k, _)| *k == key);
        let entry = match kept {
            Some(index) => self.plans.remove(index),
            None => (key, self.record(key, false)),
        };
        self.plans.insert(0, entry);
        self.plans.truncate(KEPT_PLANS);
        0
    }

    fn record(&mut self, key: PlanKey, observes: bool) -> Prepared {
        let network = self.network.clone();
        let mut recorder = Recorder {
            gpu: &self.gpu,
            plan: PlanBuilder::new(&self.gpu),
            scratch: &self.scratch,
            state: &mut self.state,
            tokens: key.tokens,
            wanted: key.wanted,
            observed: observes.then(Vec::new),
        };
        let hidden = network.forward(&mut recorder);
        let logits = (key.wanted > 0).then(|| network.logits(&hidden, &mut recorder));
        let softcap = network.config().final_softcap;
        let sampled = logits.as_ref().filter(|_| key.samples);
        let picked = sampled.map(|logits| record_sampling(&mut recorder, logits, softcap));
        let observed = recorder.observed.take().unwrap_or_default();
        let plan = recorder.plan.finish();
        let logits = logits.filter(|_| !key.samples);
        Prepared { plan, logits, picked, observed }
    }

    async fn read_act(&mut self, act: &GpuAct) -> Result<Vec<f32>, GpuError> {
        self.totals.submissions += 1;
        self.totals.readback_bytes += 4 * (act.rows * act.cols) as u64;
        read_back(&self.gpu, act).await
    }
}

impl Gpu {
    /// Copies `bytes` from one buffer to another `times` times and waits: what the memory can do at best.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn copy(&self, bytes: u64, times: usize) -> Result<(), GpuError> {
        let buffer = |label| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: bytes,
                usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let (from, to) = (buffer("copy source"), buffer("copy target"));
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for _ in 0..times {
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes);
        }
        let fence = readback_buffer_of(self, 4);
        encoder.copy_buffer_to_buffer(&to, 0, &fence, 0, 4);
        self.queue.submit([encoder.finish()]);
        wait(self, map(&fence, 1)).await
    }
}

fn readback_buffer_of(gpu: &Gpu, bytes: u64) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("read-back"),
        size: bytes,
        usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
        mapped_at_creation: false,
    })
}

type Mapped = futures_channel::oneshot::Receiver<Result<(), wgpu::BufferAsyncError>>;

async fn wait(gpu: &Gpu, mapped: Mapped) -> Result<(), GpuError> {
    // In a browser this does nothing: the event loop calls back.
    let polled = gpu.device.poll(wgpu::PollType::wait_indefinitely());
    gpu.check()?;
    polled.map_err(|e| GpuError::Lost(e.to_string()))?;
    let outcome = mapped.await.map_err(|_| GpuError::Lost("the read-back was dropped".into()))?;
    // A browser tells of a failed submission only while the mapping is awaited.
    gpu.check()?;
    outcome.map_err(|e| GpuError::Lost(e.to_string()))
}

/// Copies activations to the host in a submission of its own.
pub(crate) async fn read_back(gpu: &Gpu, act: &GpuAct) -> Result<Vec<f32>, GpuError> {
    let words = act.rows * act.cols;
    let target = readback_buffer_of(gpu, 4 * words as u64);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    act.loan.buffer.copy_to(&mut encoder, &target, words);
    gpu.queue.submit([encoder.finish()]);
    wait(gpu, map(&target, words)).await?;
    Ok(read(&target, words)?.into_iter().map(f32::from_bits).collect())
}

/// A lane's parameters as `struct Lane` in `shaders/score.wgsl`.
fn lane_words(params: &SamplerParams) -> [u32; LANE_WORDS] {
    [
        params.temperature.to_bits(),
        params.top_p.to_bits(),
        params.min_p.to_bits(),
        params.repetition.to_bits(),
        params.presence.to_bits(),
        params.frequency.to_bits(),
        params.top_k,
        params.top_logprobs,
        params.seed as u32,
        (params.seed >> 32) as u32,
        params.penalises().into(),
        0,
    ]
}

fn record_sampling(recorder: &mut Recorder<'_>, logits: &GpuAct, softcap: Option<f32>) -> GpuAct {
    let vocab = logits.cols;
    let chunks = vocab.div_ceil(SCAN_CHUNK);
    let scan = recorder.act(logits.rows, 4 * chunks);
    let picked = recorder.act(logits.rows, PICKED_WORDS);
    let workgroup = if recorder.gpu.summary().class == crate::AdapterClass::Software { 32 } else { 256 };
    let params = [vocab.into(), chunks.into(), softcap.unwrap_or(0.0).into()];
    let scanned = Variant::new(Shader::SampleScan, &[("WORKGROUP", workgroup), ("CHUNK", SCAN_CHUNK as u32)]);
    let state = &recorder.state;
    let shared = [&logits.loan.buffer, &state.rows, &state.wanted, &state.lanes, &state.counts, &scan.loan.buffer];
    let (wanted, sampled) = (logits.rows, state.sampled.clone());
    recorder.plan.dispatch(scanned, &params, &shared, [chunks, wanted, 1]);
    let mut buffers = shared.to_vec();
    buffers.extend([&sampled, &picked.loan.buffer]);
    let pick = Variant::new(Shader::SamplePick, &[("WORKGROUP", workgroup)]);
    recorder.plan.dispatch(pick, &params, &buffers, [wanted, 1, 1]);
    picked
}

#[cfg(test)]
impl Runner {
    /// Samples once from given logits with the device's kernels.
    pub(crate) fn sample_once(
        gpu: &Gpu,
        logits: &[f32],
        counts: &[u32],
        params: SamplerParams,
        position: u32,
    ) -> Result<Picked, GpuError> {
        let shape = StateShape { lanes: 1, pages: 1, max_pages: 1, max_rows: 1, vocab: logits.len() };
        let mut state = DeviceState::new(gpu, &[], shape);
        state.rows.write(gpu, 0, &[0, position, 0, 0]);
        state.lanes.write(gpu, 0, &lane_words(&params));
        state.counts.write(gpu, 0, counts);
        let scratch = Scratch::new(gpu);
        let plan = PlanBuilder::new(gpu);
        let mut recorder =
            Recorder { gpu, plan, scratch: &scratch, state: &mut state, tokens: 1, wanted: 1, observed: None };
        let act = recorder.act(1, logits.len());
        act.loan.buffer.write(gpu, 0, bytemuck::cast_slice(logits));
        let picked = record_sampling(&mut recorder, &act, None);
        let plan = recorder.plan.finish();
        gpu.tensors.flush().map_err(|e| GpuError::Lost(e.to_string()))?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        plan.encode(&mut encoder);
        gpu.queue.submit([encoder.finish()]);
        let words: Vec<u32> = pollster::block_on(read_back(gpu, &picked))?.into_iter().map(f32::to_bits).collect();
        Ok(decode(&words))
    }
}

fn readback_buffer(gpu: &Gpu, shape: StateShape) -> wgpu::Buffer {
    readback_buffer_of(gpu, (4 * PICKED_WORDS * shape.max_rows) as u64)
}

fn map(buffer: &wgpu::Buffer, words: usize) -> Mapped {
    let (sender, receiver) = futures_channel::oneshot::channel();
    buffer.slice(..4 * words as u64).map_async(wgpu::MapMode::Read, move |outcome| {
        // The receiver is gone when its runner was dropped: nobody wants the outcome then.
        let _ = sender.send(outcome);
    });
    receiver
}

fn read(buffer: &wgpu::Buffer, words: usize) -> Result<Vec<u32>, GpuError> {
    let view = buffer.slice(..4 * words as u64).get_mapped_range().map_err(|e| GpuError::Lost(e.to_string()))?;
    let copied = view.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    drop(view);
    buffer.unmap();
    Ok(copied)
}

fn decode(words: &[u32]) -> Picked {
    let tops = (words[2] as usize).min(20);
    let mut top: Vec<(u32, f32)> = (0..tops).map(|i| (words[4 + i], f32::from_bits(words[24 + i]))).collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    Picked { token: words[0], logprob: f32::from_bits(words[1]), top }
}
