use crate::GpuError;
use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::draft::DRAFT_BYTES;
use crate::plan::{Plan, PlanBuilder, PlanCost};
use crate::readback::{Mapped, Readbacks, buffer_words, map, read, read_back, wait};
use crate::recorder::{GpuAct, Recorder, StepShape};
use crate::sampling::{PICKED_WORDS, decode, lane_words, record_sampling};
use crate::scratch::Scratch;
use crate::shader::{Shader, Variant};
use crate::state::{COPIES, DeviceState, LANE_WORDS, StateShape};
use crate::weights::GpuSpace;
use laneway_model::sample::{Picked, SamplerParams};
use laneway_model::{DRAFT_COLUMNS, Drafted, Network, Pass, Row, Step};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Runs one network's steps on one device, with plans kept for the shapes of step that recur.
pub struct Runner {
    pub(crate) gpu: Gpu,
    network: Arc<Network<GpuSpace>>,
    scratch: Scratch,
    pub(crate) state: DeviceState,
    pub(crate) shape: StateShape,
    plans: Vec<(PlanKey, Prepared)>,
    /// By the number of pages they copy.
    copy_plans: HashMap<usize, Plan>,
    in_flight: VecDeque<InFlight>,
    pub(crate) readbacks: Readbacks,
    lane_params: Vec<SamplerParams>,
    pub(crate) totals: Totals,
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
    /// Multiplications with the head: rows · V · D for logits and for each pass of drafts, N · D for labels.
    pub head_multiply_adds: u64,
}

/// What a step yielded, in the order in which the step asked for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collected {
    /// Lane and sampled token of each row that wanted logits.
    pub sampled: Vec<(u32, Picked)>,
    /// The labels' logits.
    pub labels: Vec<f32>,
    /// The drafts.
    pub drafts: Vec<Drafted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanKey {
    pass: Pass,
    shape: StepShape,
    samples: bool,
}

struct Prepared {
    plan: Plan,
    /// Sampled tokens, logits, labels or drafts: what the step wants.
    result: Option<GpuAct>,
    /// Keeps the buffers of observed activations from being lent out again.
    observed: Vec<GpuAct>,
}

struct InFlight {
    readback: wgpu::Buffer,
    awaited: Awaited,
    mapped: Mapped,
}

enum Awaited {
    /// One for each of these lanes.
    Sampled(Vec<u32>),
    /// So many.
    Labels(usize),
    /// So many.
    Drafts(usize),
}

impl Awaited {
    fn of(step: &Step<'_>) -> Option<Self> {
        if !step.logits.is_empty() {
            Some(Self::Sampled(step.logits.iter().map(|&row| step.rows[row as usize].lane).collect()))
        } else if !step.labels.is_empty() {
            Some(Self::Labels(step.labels.len()))
        } else if !step.drafts.is_empty() {
            Some(Self::Drafts(step.drafts.len()))
        } else {
            None
        }
    }

    fn words(&self) -> usize {
        match self {
            Self::Sampled(lanes) => PICKED_WORDS * lanes.len(),
            Self::Labels(count) => *count,
            Self::Drafts(count) => DRAFT_COLUMNS * count,
        }
    }

    fn decode(&self, words: &[u32]) -> Collected {
        let mut collected = Collected::default();
        match self {
            Self::Sampled(lanes) => {
                let rows = words.chunks_exact(PICKED_WORDS).zip(lanes);
                collected.sampled = rows.map(|(words, &lane)| (lane, decode(words))).collect();
            }
            Self::Labels(_) => collected.labels = words.iter().copied().map(f32::from_bits).collect(),
            Self::Drafts(_) => {
                let (rows, _) = words.as_chunks::<DRAFT_COLUMNS>();
                collected.drafts = rows.iter().map(|row| Drafted::from_columns(&row.map(f32::from_bits))).collect();
            }
        }
        collected
    }
}

impl StepShape {
    fn of(step: &Step<'_>) -> Self {
        let labels = if step.labels.is_empty() { 0 } else { step.labels.len().next_power_of_two() };
        Self { tokens: step.rows.len(), wanted: step.logits.len(), labels, drafts: step.drafts.len() }
    }
}

/// Plans kept; prompts leave a tail of any length, and a plan is cheap to record again.
const KEPT_PLANS: usize = 12;
/// A smaller temperature would make the quotient infinite; the distribution is a point long before.
const LEAST_TEMPERATURE: f32 = 1e-20;

impl Runner {
    /// A runner with empty pages.
    pub fn new(gpu: &Gpu, network: Arc<Network<GpuSpace>>, shape: StateShape) -> Result<Self, GpuError> {
        let mut state = DeviceState::new(gpu, &network.kv_shapes(), shape);
        let scratch = Scratch::new(gpu);
        if !network.is_first() {
            state.boundary = Some(scratch.take(shape.max_rows * shape.hidden));
        }
        gpu.tensors.flush().map_err(|e| GpuError::Lost(e.to_string()))?;
        gpu.check()?;
        Ok(Self {
            gpu: gpu.clone(),
            network,
            scratch,
            state,
            shape,
            plans: Vec::new(),
            copy_plans: HashMap::new(),
            in_flight: VecDeque::new(),
            readbacks: Readbacks::new(PICKED_WORDS * shape.lanes),
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

    /// Enqueues copies of pages (from, to), all layers' keys and values, before any later step; a page that one of them
    /// writes is not read by another.
    ///
    /// # Errors
    /// When the device was lost.
    pub fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<(), GpuError> {
        self.gpu.check()?;
        for some in pairs.chunks(COPIES) {
            let count = some.len().next_power_of_two();
            let mut words: Vec<u32> = some.iter().flat_map(|&(from, to)| [from, to]).collect();
            words.resize(2 * count, u32::MAX);
            self.state.copies.write(&self.gpu, 0, &words);
            let record = || record_copies(&self.gpu, &self.state, count);
            let plan = self.copy_plans.entry(count).or_insert_with(record);
            let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
            plan.encode(&mut encoder);
            self.gpu.queue.submit([encoder.finish()]);
            self.totals.submissions += 1;
            self.totals.dispatches += plan.cost.dispatches as u64;
        }
        Ok(())
    }

    /// Enqueues a step that wants logits, labels, drafts, or nothing: every row that wants logits has a token sampled.
    /// What it wants, [`Runner::collect`] returns.
    ///
    /// # Errors
    /// When the device was lost.
    pub fn submit(&mut self, step: &Step<'_>, pass: Pass) -> Result<(), GpuError> {
        self.gpu.check()?;
        self.write_inputs(step)?;
        let index = self.prepare(PlanKey { pass, shape: StepShape::of(step), samples: true });
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let prepared = &self.plans[index].1;
        prepared.plan.encode(&mut encoder);
        let cost = prepared.plan.cost;
        let awaited = Awaited::of(step).zip(prepared.result.as_ref()).map(|(awaited, result)| {
            let readback = self.readbacks.take(&self.gpu, awaited.words());
            result.loan.buffer.copy_to(&mut encoder, &readback, awaited.words());
            (awaited, readback)
        });
        self.gpu.queue.submit([encoder.finish()]);
        self.totals.head_multiply_adds += (step.labels.len() * self.network.config().hidden_size) as u64;
        self.count(cost, awaited.as_ref().map_or(0, |(awaited, _)| 4 * awaited.words() as u64));
        if let Some((awaited, readback)) = awaited {
            let mapped = map(&readback, awaited.words());
            self.in_flight.push_back(InFlight { readback, awaited, mapped });
        }
        Ok(())
    }

    /// Waits for the oldest submitted step that wanted something.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn collect(&mut self) -> Result<Collected, GpuError> {
        let Some(oldest) = self.in_flight.pop_front() else { return Ok(Collected::default()) };
        wait(&self.gpu, oldest.mapped).await?;
        let words = read(&oldest.readback, oldest.awaited.words())?;
        self.readbacks.give_back(oldest.readback);
        Ok(oldest.awaited.decode(&words))
    }

    /// Gives a later stage the activations `[T, D]` of the rows of the step to come; false if that is not their number.
    pub fn set_boundary(&mut self, rows: usize, activations: &[f32]) -> bool {
        let Some(boundary) = &self.state.boundary else { return false };
        let fits = rows <= self.shape.max_rows && activations.len() == rows * self.shape.hidden;
        if fits {
            let words: Vec<u32> = activations.iter().map(|value| value.to_bits()).collect();
            boundary.buffer.write(&self.gpu, 0, &words);
        }
        fits
    }

    /// Runs a step of a stage that another goes on with, and returns what it leaves: `[T, D]`.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn boundary(&mut self, step: &Step<'_>, pass: Pass) -> Result<Vec<f32>, GpuError> {
        self.gpu.check()?;
        self.write_inputs(step)?;
        let shape = StepShape { tokens: step.rows.len(), ..StepShape::default() };
        let index = self.prepare(PlanKey { pass, shape, samples: false });
        self.run_alone(index);
        let Some(left) = self.plans[index].1.result.clone() else { return Ok(Vec::new()) };
        self.read_act(&left).await
    }

    /// Runs a step without sampling and returns the soft-capped logits `[R, V]` of the rows that want them.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn logits(&mut self, step: &Step<'_>, pass: Pass) -> Result<Vec<f32>, GpuError> {
        self.gpu.check()?;
        self.write_inputs(step)?;
        let shape = StepShape { labels: 0, drafts: 0, ..StepShape::of(step) };
        let index = self.prepare(PlanKey { pass, shape, samples: false });
        self.run_alone(index);
        let Some(logits) = self.plans[index].1.result.clone() else { return Ok(Vec::new()) };
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
    pub async fn observe(&mut self, step: &Step<'_>, pass: Pass) -> Result<Vec<Vec<f32>>, GpuError> {
        self.write_inputs(step)?;
        let shape = StepShape { tokens: step.rows.len(), ..StepShape::default() };
        let key = PlanKey { pass, shape, samples: false };
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

    /// Puts soft embeddings `[canvas_length, D]` in place of those that drafts leave for a slot: for tools.
    pub fn set_soft(&mut self, slot: usize, values: &[f32]) {
        let each = self.shape.canvas_length * self.shape.hidden;
        let words: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        self.state.soft.write(&self.gpu, slot * each, &words[..words.len().min(each)]);
    }

    /// The soft embeddings `[canvas_length, D]` that the last drafts left for a slot: for tests and tools.
    ///
    /// # Errors
    /// When the device was lost.
    pub async fn soft(&mut self, slot: usize) -> Result<Vec<f32>, GpuError> {
        let each = self.shape.canvas_length * self.shape.hidden;
        if each == 0 {
            return Ok(Vec::new());
        }
        let all = buffer_words(&self.gpu, &self.state.soft, (slot + 1) * each).await?;
        Ok(all[slot * each..].iter().copied().map(f32::from_bits).collect())
    }

    /// Cost of a plan for steps of `tokens` rows with `wanted` logits.
    pub fn cost(&mut self, tokens: usize, wanted: usize) -> PlanCost {
        let shape = StepShape { tokens, wanted, ..StepShape::default() };
        let index = self.prepare(PlanKey { pass: Pass::Encode, shape, samples: true });
        self.plans[index].1.plan.cost
    }

    fn write_inputs(&mut self, step: &Step<'_>) -> Result<(), GpuError> {
        let row_words = |r: &Row| [r.token, r.position, r.lane, r.block_word()];
        let rows: Vec<u32> = step.rows.iter().flat_map(row_words).collect();
        self.state.rows.write(&self.gpu, 0, &rows);
        if !step.logits.is_empty() {
            self.state.wanted.write(&self.gpu, 0, step.logits);
        } else if !step.drafts.is_empty() {
            let wanted: Vec<u32> = step.drafts.iter().map(|draft| draft.row).collect();
            self.state.wanted.write(&self.gpu, 0, &wanted);
            let words = step.drafts.iter().flat_map(|d| [d.temperature.max(LEAST_TEMPERATURE), d.draw]);
            self.state.drafts.write(&self.gpu, 0, &words.map(f32::to_bits).collect::<Vec<_>>());
        }
        self.write_labels(step)?;
        let mut last = None;
        for row in step.rows {
            if last.replace(row.lane) != Some(row.lane) {
                let table = &step.tables[row.lane as usize];
                self.state.tables.write(&self.gpu, row.lane as usize * self.shape.max_pages, table);
            }
        }
        Ok(())
    }

    fn write_labels(&mut self, step: &Step<'_>) -> Result<(), GpuError> {
        let padded = StepShape::of(step).labels;
        if padded == 0 {
            return Ok(());
        }
        if 2 * padded > self.state.labels.words() {
            self.state.labels = Buffer::zeros(&self.gpu, 2 * padded);
            self.gpu.tensors.flush().map_err(|e| GpuError::Lost(e.to_string()))?;
            // Their plans name the buffer that was too small.
            self.plans.retain(|(key, _)| key.shape.labels == 0);
        }
        let mut words: Vec<u32> = step.labels.iter().flat_map(|label| [label.row, label.token]).collect();
        words.resize(2 * padded, u32::MAX);
        self.state.labels.write(&self.gpu, 0, &words);
        Ok(())
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
            shape: key.shape,
            draft_bytes: DRAFT_BYTES,
            observed: observes.then(Vec::new),
        };
        let hidden = network.forward(key.pass, &mut recorder);
        let result = if !network.is_last() {
            Some(hidden)
        } else if key.shape.wanted > 0 {
            let logits = network.logits(&hidden, &mut recorder);
            let softcap = network.config().final_softcap;
            Some(if key.samples { record_sampling(&mut recorder, &logits, softcap) } else { logits })
        } else if key.shape.labels > 0 {
            Some(network.label_logits(&hidden, &mut recorder))
        } else if key.shape.drafts > 0 {
            Some(network.draft(&hidden, &mut recorder))
        } else {
            None
        };
        let observed = recorder.observed.take().unwrap_or_default();
        Prepared { plan: recorder.plan.finish(), result, observed }
    }

    async fn read_act(&mut self, act: &GpuAct) -> Result<Vec<f32>, GpuError> {
        self.totals.submissions += 1;
        self.totals.readback_bytes += 4 * (act.rows * act.cols) as u64;
        read_back(&self.gpu, act).await
    }
}

/// A plan that copies `count` pages of every layer that has some.
fn record_copies(gpu: &Gpu, state: &DeviceState, count: usize) -> Plan {
    let mut plan = PlanBuilder::new(gpu);
    for pages in state.kv.iter().flatten() {
        let quads = pages.page_words / 4;
        let buffers = [&state.copies, &pages.keys, &pages.values];
        let variant = Variant::new(Shader::CopyPages, &[("WORKGROUP", 64)]);
        plan.dispatch(variant, &[quads.into()], &buffers, [quads.div_ceil(64), count, 1]);
    }
    plan.finish()
}
