//! A model in stages: each has some of the layers on a device of its own, and hands what it computed to the next.

use std::collections::VecDeque;
use std::ops::Range;

use laneway_files::Weights;
use laneway_session::{EngineError, EngineLimits, Sampling, StepOutcome, StepPlan, Token};

use crate::cpu::CpuEngine;
use crate::device::{self, DeviceChoice, DeviceSummary, Resolved};
use crate::frame::{self, Frame};
use crate::gpu::GpuEngine;
use crate::{OpenError, Sizes};

/// Consecutive layers of a model, up to those of the next stage, and where they are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageSettings {
    /// The device.
    pub device: DeviceChoice,
    /// Number of its first layer; 0 of the first stage.
    pub first_layer: usize,
}

/// All stages of a model; a step goes through them one after another.
pub(crate) struct StagedEngine {
    stages: Vec<Stage>,
    /// The token each lane sampled last: only the last stage knows it, and the first one needs it.
    sampled: Vec<u32>,
    waiting: VecDeque<StepPlan>,
    weight_bytes: u64,
}

struct Stage {
    body: Body,
    layers: Range<usize>,
    row_bytes: usize,
}

enum Body {
    Cpu(Box<CpuEngine>),
    Gpu(Box<GpuEngine>),
}

impl StagedEngine {
    pub async fn open(
        weights: &Weights,
        stages: &[StageSettings],
        threads: usize,
        sizes: Sizes,
    ) -> Result<(Self, EngineLimits, DeviceSummary), OpenError> {
        let spans = spans(stages, weights.config().layers.len())?;
        let mut limits: Option<EngineLimits> = None;
        let (mut opened, mut names) = (Vec::new(), Vec::new());
        let mut weight_bytes = 0;
        for (StageSettings { device, .. }, layers) in stages.iter().zip(&spans) {
            let (body, own) = match device::resolve(device).await? {
                Resolved::Cpu => {
                    let (engine, limits) = CpuEngine::open(weights, threads, sizes, layers.clone())?;
                    weight_bytes += engine.weight_bytes();
                    names.push(DeviceSummary::cpu(threads).name);
                    (Body::Cpu(Box::new(engine)), limits)
                }
                Resolved::Gpu(gpu) => {
                    names.push(gpu.summary().name.clone());
                    let (engine, limits) = GpuEngine::open(weights, gpu, sizes, layers.clone())?;
                    weight_bytes += engine.weight_bytes();
                    (Body::Gpu(Box::new(engine)), limits)
                }
            };
            opened.push(Stage { body, layers: layers.clone(), row_bytes: own.row_bytes });
            limits = Some(match limits {
                None => own,
                Some(all) => EngineLimits {
                    max_rows: all.max_rows.min(own.max_rows),
                    row_bytes: all.row_bytes + own.row_bytes,
                    ..all
                },
            });
        }
        // A sampled token comes back before the next step can begin.
        let limits = EngineLimits { depth: 1, ..limits.expect("there is a stage") };
        let summary = DeviceSummary {
            choice: stages[0].device.clone(),
            name: names.join(" + "),
            api: "stages".to_owned(),
            driver: String::new(),
            automatic: false,
        };
        let sampled = vec![0; sizes.lanes];
        Ok((Self { stages: opened, sampled, waiting: VecDeque::new(), weight_bytes }, limits, summary))
    }

    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Multiplications with the head, which only the last stage has.
    pub fn head_multiply_adds(&self) -> u64 {
        match self.stages.last().map(|stage| &stage.body) {
            Some(Body::Cpu(engine)) => engine.head_multiply_adds(),
            Some(Body::Gpu(engine)) => engine.totals().head_multiply_adds,
            None => 0,
        }
    }

    pub fn begin(&mut self, lane: usize, sampling: &Sampling, prompt: &[u32]) {
        // Only the last stage samples.
        if let Some(Stage { body, .. }) = self.stages.last_mut() {
            match body {
                Body::Cpu(engine) => engine.begin(lane, sampling, prompt),
                Body::Gpu(engine) => engine.begin(lane, sampling, prompt),
            }
        }
    }

    pub fn submit(&mut self, plan: &StepPlan) {
        let mut plan = plan.clone();
        for row in &mut plan.rows {
            if row.token == Token::Sampled {
                row.token = Token::Known(self.sampled[row.lane]);
            }
        }
        self.waiting.push_back(plan);
    }

    pub async fn collect(&mut self) -> Result<StepOutcome, EngineError> {
        let Some(plan) = self.waiting.pop_front() else { return Ok(StepOutcome::default()) };
        let frame = self.through(&plan).await?;
        let before = frame.as_ref().map_or(&[][..], |frame| &frame.values);
        let Some(Stage { body, .. }) = self.stages.last_mut() else { return Ok(StepOutcome::default()) };
        let outcome = match body {
            Body::Cpu(engine) => {
                engine.submit_after(&plan, before)?;
                engine.collect()
            }
            Body::Gpu(engine) => {
                engine.submit_after(&plan, before)?;
                engine.collect().await
            }
        }?;
        for sampled in &outcome.sampled {
            self.sampled[sampled.lane] = sampled.token;
        }
        Ok(outcome)
    }

    /// Logits of the rows that want samples, `[R, V]`, instead of sampling.
    pub async fn logits(&mut self, plan: &StepPlan) -> Result<Vec<f32>, EngineError> {
        let frame = self.through(plan).await?;
        let before = frame.as_ref().map_or(&[][..], |frame| &frame.values);
        match self.stages.last_mut().map(|stage| &mut stage.body) {
            Some(Body::Cpu(engine)) => engine.logits_after(plan, before),
            Some(Body::Gpu(engine)) => engine.logits_after(plan, before).await,
            None => Ok(Vec::new()),
        }
    }

    /// Runs all stages but the last; what the last one goes on with.
    async fn through(&mut self, plan: &StepPlan) -> Result<Option<Frame>, EngineError> {
        let mut frame: Option<Frame> = None;
        let count = self.stages.len();
        for (producer, stage) in self.stages.iter_mut().enumerate() {
            if let Some(frame) = &frame {
                frame.fits(plan, stage.layers.start).map_err(|error| EngineError::Step(error.to_string()))?;
            }
            if producer + 1 == count {
                break;
            }
            let before = frame.as_ref().map_or(&[][..], |frame| &frame.values);
            let values = match &mut stage.body {
                Body::Cpu(engine) => engine.advance(plan, before)?,
                Body::Gpu(engine) => engine.advance(plan, before).await?,
            };
            let tokens = plan.rows.len();
            frame = Some(Frame {
                version: frame::VERSION,
                producer: producer as u32,
                layers: 0..stage.layers.end,
                tokens,
                width: values.len() / tokens.max(1),
                frontier: frame::frontier(plan),
                values,
            });
        }
        Ok(frame)
    }

    pub async fn read_page(&mut self, page: u32, positions: usize) -> Result<Vec<u8>, EngineError> {
        let mut parts = Vec::with_capacity(self.stages.len());
        for stage in &mut self.stages {
            parts.push(match &mut stage.body {
                Body::Cpu(engine) => engine.read_page(page, positions)?,
                Body::Gpu(engine) => engine.read_page(page, positions).await?,
            });
        }
        // Every stage has its own layers of K, then of V; a page has all layers of K first.
        let mut content = Vec::with_capacity(parts.iter().map(Vec::len).sum());
        for row in 0..2 * positions {
            for (part, stage) in parts.iter().zip(&self.stages) {
                let half = stage.row_bytes / 2;
                content.extend_from_slice(&part[row * half..][..half]);
            }
        }
        Ok(content)
    }

    pub fn write_page(&mut self, page: u32, positions: usize, content: &[u8]) -> Result<(), EngineError> {
        let all: usize = self.stages.iter().map(|stage| stage.row_bytes).sum();
        if content.len() != positions * all {
            return Err(EngineError::Step(format!("page {page} cannot be written")));
        }
        let mut column = 0;
        for stage in &mut self.stages {
            let half = stage.row_bytes / 2;
            let rows = content.chunks_exact(all / 2);
            let own: Vec<u8> = rows.flat_map(|row| &row[column..column + half]).copied().collect();
            match &mut stage.body {
                Body::Cpu(engine) => engine.write_page(page, positions, &own)?,
                Body::Gpu(engine) => engine.write_page(page, positions, &own)?,
            }
            column += half;
        }
        Ok(())
    }

    /// Loses the devices of all stages on purpose.
    pub fn lose_device(&self) {
        for stage in &self.stages {
            if let Body::Gpu(engine) = &stage.body {
                engine.lose_device();
            }
        }
    }
}

/// The layers of each stage.
fn spans(stages: &[StageSettings], layers: usize) -> Result<Vec<Range<usize>>, OpenError> {
    let firsts: Vec<usize> = stages.iter().map(|stage| stage.first_layer).collect();
    let is_order = firsts.first() == Some(&0) && firsts.is_sorted_by(|a, b| a < b) && firsts.last() < Some(&layers);
    if !is_order {
        return Err(OpenError::Stages { firsts, layers });
    }
    let ends = firsts.iter().skip(1).copied().chain([layers]);
    Ok(firsts.iter().zip(ends).map(|(first, end)| *first..end).collect())
}
