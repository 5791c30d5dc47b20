//! A plan of the scheduler as the devices read it, and a model's canvas as the scheduler reads it.

use laneway_files::{self as files, Weights};
use laneway_model::{self as model, Pass};
use laneway_session::canvas::{CanvasContext, CanvasLimits, Confidence, Denoising, Noise, Selection, Stop};
use laneway_session::{self as session, StepPlan, Token};

/// Branches of a read that a step can have beyond the first.
pub(crate) const BRANCHES: usize = 15;
/// Positions of a model that goes over prompt and answer in every pass.
const WHOLE_ROWS: usize = 2048;

/// What a step computes, owned.
pub(crate) struct Inputs {
    pub pass: Pass,
    pub rows: Vec<model::Row>,
    pub labels: Vec<model::Label>,
    pub drafts: Vec<model::Draft>,
}

impl Inputs {
    pub fn of(plan: &StepPlan) -> Self {
        let label = |row: &session::LabelRow| {
            let at = row.row;
            row.tokens.iter().map(move |&token| model::Label { row: at, token }).collect::<Vec<_>>()
        };
        let draft = |draft: &session::Draft| {
            let session::Draft { row, temperature, draw } = *draft;
            model::Draft { row, temperature, draw }
        };
        Self {
            pass: match plan.pass {
                session::Pass::Encode => Pass::Encode,
                session::Pass::Denoise => Pass::Denoise,
            },
            rows: plan.rows.iter().map(row).collect(),
            labels: plan.labels.iter().flat_map(label).collect(),
            drafts: plan.drafts.iter().map(draft).collect(),
        }
    }

    /// The same, borrowed, over the plan's tables.
    pub fn step<'a>(&'a self, plan: &'a StepPlan) -> model::Step<'a> {
        model::Step {
            rows: &self.rows,
            tables: &plan.tables,
            logits: &plan.samples,
            labels: &self.labels,
            drafts: &self.drafts,
        }
    }
}

fn row(row: &session::Row) -> model::Row {
    model::Row {
        token: match row.token {
            Token::Known(id) => id,
            Token::Sampled => model::Row::SAMPLED,
        },
        position: row.position,
        lane: row.lane as u32,
        block: row.block.map(|session::Block { start, len, is_conditioned }| model::Block {
            start,
            len,
            is_conditioned,
        }),
    }
}

/// Tokens of each label row.
pub(crate) fn label_counts(plan: &StepPlan) -> Vec<usize> {
    plan.labels.iter().map(|row| row.tokens.len()).collect()
}

/// Splits the logits of all labels by rows of so many.
pub(crate) fn by_row(counts: &[usize], logits: &[f32]) -> Vec<Vec<f32>> {
    let mut rest = logits;
    let mut take = |&count: &usize| {
        let (mine, others) = rest.split_at(count.min(rest.len()));
        rest = others;
        mine.to_vec()
    };
    counts.iter().map(&mut take).collect()
}

/// The drafts as the scheduler reads them.
pub(crate) fn drafted(drafted: model::Drafted) -> session::Drafted {
    let model::Drafted { argmax, argmax_logprob, second_logprob, entropy, sampled, sampled_logprob } = drafted;
    session::Drafted { argmax, argmax_logprob, second_logprob, entropy, sampled, sampled_logprob }
}

/// How the model revises canvases, if it does.
pub fn canvas_limits(weights: &Weights) -> Option<CanvasLimits> {
    let (config, generation) = (weights.config(), weights.generation());
    let diffusion = config.diffusion?;
    let defaults = generation.diffusion.unwrap_or_default();
    Some(CanvasLimits {
        length: diffusion.canvas_length,
        vocabulary: config.vocab_size as u32,
        noise: match diffusion.noise {
            files::Noise::Uniform => Noise::Uniform,
            files::Noise::Masked { mask } => Noise::Masked { mask },
        },
        context: match diffusion.context {
            files::CanvasContext::Causal => CanvasContext::Causal,
            files::CanvasContext::Blocks => CanvasContext::Blocks,
            files::CanvasContext::Whole => CanvasContext::Whole,
        },
        shift: diffusion.shift,
        is_conditioned: diffusion.self_conditioning,
        pad: generation.pad_token_id.unwrap_or(0),
        denoising: denoising(&defaults),
    })
}

fn denoising(defaults: &files::DiffusionDefaults) -> Denoising {
    let confidence = |confidence| match confidence {
        files::Confidence::Probability => Confidence::Probability,
        files::Confidence::Margin => Confidence::Margin,
        files::Confidence::Entropy => Confidence::Entropy,
    };
    Denoising {
        max_steps: defaults.max_denoising_steps,
        t_max: defaults.t_max,
        t_min: defaults.t_min,
        selection: match defaults.selection {
            files::Selection::EntropyBound(bound) => Selection::EntropyBound(bound),
            files::Selection::Schedule(by) => Selection::Schedule(confidence(by)),
            files::Selection::Threshold { confidence: by, least, at_least } => {
                Selection::Threshold { confidence: confidence(by), least, at_least }
            }
        },
        stop: match defaults.stop {
            files::Stop::Decided => Stop::Decided,
            files::Stop::Stable { passes, entropy } => Stop::Stable { passes, entropy },
        },
    }
}

/// Rows of a step: at least those of a device's usual chunk, and of what must be run at once.
pub(crate) fn rows_for(canvas: Option<&CanvasLimits>, usual: usize, context_length: usize) -> usize {
    match canvas {
        Some(canvas) if canvas.context == CanvasContext::Whole => context_length,
        Some(canvas) => usual.max(canvas.length),
        None => usual,
    }
}

/// The context a model can have here, where every pass goes over all of it.
pub(crate) fn context_for(canvas: Option<&CanvasLimits>, asked: usize) -> usize {
    match canvas {
        Some(canvas) if canvas.context == CanvasContext::Whole => asked.min(WHOLE_ROWS.max(canvas.length)),
        _ => asked,
    }
}

/// Rows of a prompt from position 0, and of a canvas after it as one block, on lane 0 over pages 0, 1, 2 …
pub(crate) fn canvas_rows(prompt: usize, canvas: &[u32], is_conditioned: bool) -> (Vec<model::Row>, Vec<Vec<u32>>) {
    let block = Some(model::Block { start: prompt as u32, len: canvas.len() as u32, is_conditioned });
    let row = |(at, &token): (usize, &u32)| model::Row { token, position: (prompt + at) as u32, lane: 0, block };
    let pages = (prompt + canvas.len()).div_ceil(model::PAGE_POSITIONS) as u32;
    (canvas.iter().enumerate().map(row).collect(), vec![(0..pages).collect()])
}

/// What a model with self-conditioning would have kept of a pass with these logits `[C, V]`:
/// `softmax(logits / temperature) · E · scale`, `[C, D]`.
///
/// # Errors
/// When the file has no such embedding.
pub fn soft_embedding(weights: &Weights, logits: &[f32], temperature: f32) -> Result<Vec<f32>, files::FileError> {
    /// Rows of the embedding that are expanded at a time.
    const ROWS: usize = 1024;
    let (vocab, hidden) = (weights.config().vocab_size, weights.config().hidden_size);
    let table = weights.require("token_embd.weight", &[vocab, hidden])?;
    let weigh = |row: &[f32]| {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let each: Vec<f64> = row.iter().map(|z| f64::from((z - top) / temperature).exp()).collect();
        let total: f64 = each.iter().sum();
        each.into_iter().map(|e| (e / total) as f32 * weights.config().embedding_scale).collect::<Vec<f32>>()
    };
    let weighed: Vec<Vec<f32>> = logits.chunks_exact(vocab).map(weigh).collect();
    let mut soft = vec![0.0; weighed.len() * hidden];
    for start in (0..vocab).step_by(ROWS) {
        let part = table.row_range(start, (start + ROWS).min(vocab))?.to_f32();
        for (soft, weighed) in soft.chunks_exact_mut(hidden).zip(&weighed) {
            for (embedding, weight) in part.chunks_exact(hidden).zip(&weighed[start..]) {
                soft.iter_mut().zip(embedding).for_each(|(sum, e)| *sum += weight * e);
            }
        }
    }
    Ok(soft)
}
