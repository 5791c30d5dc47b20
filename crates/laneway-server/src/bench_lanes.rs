//! `laneway bench --lanes`: what decoding several sequences in one step gains, on a bare engine.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::executor::block_on;
use laneway_engine::{EngineSettings, ModelEngine};
use laneway_session::{Engine, EngineLimits, Row, Sampling, SamplingOptions, StepPlan, Token};
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::bench::{median, prompt_id};
use crate::host::engine_settings;
use crate::load::{self, describe};
use crate::output::{print, table};
use crate::settings::{ModelSettings, Usage};
use crate::{pull, usage};

/// Room that each lane has beyond its positions, so that its pages may start anew.
const PAGE_SLACK: usize = 256;

struct Bench {
    engine: ModelEngine,
    limits: EngineLimits,
    prompt: usize,
    generate: usize,
    vocab: usize,
}

#[derive(Clone, Copy)]
struct Decode {
    elapsed: Duration,
    cpu: Option<Duration>,
}

/// Loads the model, fills every lane with its prompt, then decodes on 1, 2, … lanes by turns and prints medians.
pub fn run(settings: &ModelSettings, args: &BenchArgs) -> Result<()> {
    let counts: Vec<usize> = args.lanes.iter().flatten().map(|&lanes| lanes.into()).collect();
    let most = counts.iter().copied().max().unwrap_or(1);
    let path = pull::resolve(&settings.model)?;
    let weights = load::open(&path)?;
    let (prompt, generate) = (args.prompt as usize, args.generate as usize);
    let (vocab, trained) = (weights.config().vocab_size, weights.config().context_length);
    let needed = prompt + generate;
    if needed > trained {
        let message =
            format!("{prompt} prompt tokens and {generate} generated ones exceed the model's context of {trained}");
        return Err(Usage(message).into());
    }
    let model = describe(weights.config());
    let settings = ModelSettings { lanes: Some(most), ..settings.clone() };
    let pool_positions = Some(most.saturating_mul(needed + PAGE_SLACK));
    let settings = EngineSettings { pool_positions, ..engine_settings(&settings, needed) };
    let engine = block_on(ModelEngine::open(&weights, &settings))?;
    drop(weights);
    let mut bench = Bench { limits: engine.limits(), engine, prompt, generate, vocab };
    if bench.limits.canvas.is_some() {
        return Err(Usage("a model that revises a canvas decodes on one lane".to_owned()).into());
    }
    if bench.lane_pages() * most > bench.limits.pages {
        bail!("{} pages do not hold {most} lanes", bench.limits.pages);
    }
    let start = Instant::now();
    for lane in 0..most {
        block_on(bench.prefill(lane))?;
    }
    let prefill = start.elapsed();
    // The first pass over each count pays for its kernels.
    for &lanes in &counts {
        block_on(bench.decode(lanes, 2))?;
    }
    let mut runs: Vec<Vec<Decode>> = vec![Vec::new(); counts.len()];
    for _ in 0..args.runs {
        // By turns, so that a busy moment of the machine meets all of them.
        for (runs, &lanes) in runs.iter_mut().zip(&counts) {
            runs.push(block_on(bench.decode(lanes, generate))?);
        }
    }
    let steps = (generate - 1) as f64;
    let rows: Vec<Value> = counts.iter().zip(&runs).map(|(&lanes, runs)| row(lanes, runs, steps)).collect();
    let one = rows.first().and_then(|row| row["tokens_per_s"].as_f64());
    let with_ratio = |mut row: Value| {
        row["ratio"] = json!(row["tokens_per_s"].as_f64().zip(one).map(|(mine, one)| mine / one));
        row
    };
    let report = json!({
        "model": path.display().to_string(),
        "network": model,
        "device": bench.engine.device().name,
        "prompt_tokens": prompt,
        "generated_tokens": generate,
        "runs": args.runs,
        "prefill_tokens_per_s": (prompt * most) as f64 / prefill.as_secs_f64(),
        "lanes": rows.into_iter().map(with_ratio).collect::<Vec<_>>(),
    });
    if args.json { print(&format!("{report}\n")) } else { print(&text(&report)) }
}

impl Bench {
    fn lane_pages(&self) -> usize {
        (self.prompt + self.generate).div_ceil(self.limits.page_positions)
    }

    /// Encodes the lane's prompt but its last token, which every run of decoding starts with.
    async fn prefill(&mut self, lane: usize) -> Result<()> {
        let ids: Vec<u32> = (0..self.prompt).map(|at| prompt_id(at + lane * 1009, self.vocab)).collect();
        let mut at = 0;
        for chunk in ids[..self.prompt - 1].chunks(self.limits.max_rows) {
            let row = |(index, &id): (usize, &u32)| row_of(Token::Known(id), at + index, lane);
            let rows = chunk.iter().enumerate().map(row).collect();
            self.engine.submit(&self.plan(rows, false))?;
            self.engine.collect().await?;
            at += chunk.len();
        }
        Ok(())
    }

    /// Decodes `generate` tokens on the first `lanes` lanes; the first of each is not timed.
    async fn decode(&mut self, lanes: usize, generate: usize) -> Result<Decode> {
        let greedy = Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() })?;
        let last = self.prompt - 1;
        for lane in 0..lanes {
            self.engine.begin(lane, &greedy, &[])?;
        }
        let first = (0..lanes).map(|lane| row_of(Token::Known(prompt_id(last + lane * 1009, self.vocab)), last, lane));
        self.engine.submit(&self.plan(first.collect(), true))?;
        self.collect(lanes).await?;
        let (start, start_cpu) = (Instant::now(), usage::cpu_time());
        let mut waiting = 0;
        for step in 1..generate {
            let rows = (0..lanes).map(|lane| row_of(Token::Sampled, last + step, lane)).collect();
            self.engine.submit(&self.plan(rows, true))?;
            waiting += 1;
            if waiting == self.limits.depth {
                self.collect(lanes).await?;
                waiting -= 1;
            }
        }
        for _ in 0..waiting {
            self.collect(lanes).await?;
        }
        let cpu = usage::cpu_time().zip(start_cpu).map(|(end, start)| end.saturating_sub(start));
        Ok(Decode { elapsed: start.elapsed(), cpu })
    }

    async fn collect(&mut self, lanes: usize) -> Result<()> {
        let sampled = self.engine.collect().await?.sampled.len();
        if sampled != lanes {
            bail!("the engine sampled {sampled} tokens on {lanes} lanes");
        }
        Ok(())
    }

    /// The rows over each lane's own pages; all of them are sampled, or none.
    fn plan(&self, rows: Vec<Row>, samples: bool) -> StepPlan {
        let each = self.lane_pages();
        let mut tables = vec![Vec::new(); self.limits.lanes];
        for row in &rows {
            let pages = row.position as usize / self.limits.page_positions + 1;
            tables[row.lane] = (0..pages).map(|page| (row.lane * each + page) as u32).collect();
        }
        let samples = if samples { (0..rows.len() as u32).collect() } else { Vec::new() };
        StepPlan { rows, tables, samples, ..StepPlan::default() }
    }
}

fn row_of(token: Token, position: usize, lane: usize) -> Row {
    Row { token, position: position as u32, lane, block: None }
}

fn row(lanes: usize, runs: &[Decode], steps: f64) -> Value {
    let seconds = median(runs.iter().map(|run| run.elapsed.as_secs_f64()).collect()) / steps;
    let cpu: Option<Vec<f64>> = runs.iter().map(|run| run.cpu.map(|cpu| cpu.as_secs_f64() / steps)).collect();
    json!({
        "lanes": lanes,
        "step_ms": seconds * 1000.0,
        "tokens_per_s": lanes as f64 / seconds,
        "tokens_per_s_per_lane": 1.0 / seconds,
        "step_cpu_ms": cpu.map(|cpu| median(cpu) * 1000.0),
    })
}

fn text(report: &Value) -> String {
    let cell = |row: &Value, key: &str, digits: usize| match row[key].as_f64() {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    };
    let line = |row: &Value| {
        vec![
            row["lanes"].to_string(),
            cell(row, "tokens_per_s", 2),
            cell(row, "tokens_per_s_per_lane", 2),
            cell(row, "ratio", 2),
            cell(row, "step_ms", 2),
            cell(row, "step_cpu_ms", 2),
        ]
    };
    let head = ["lanes", "tokens/s", "each", "ratio", "ms a step", "CPU ms a step"].map(str::to_owned).to_vec();
    let rows: Vec<_> =
        std::iter::once(head).chain(report["lanes"].as_array().into_iter().flatten().map(line)).collect();
    let word = |key: &str| report[key].as_str().unwrap_or_default();
    let (prompt, generated, runs) = (&report["prompt_tokens"], &report["generated_tokens"], &report["runs"]);
    format!(
        "{}, {}\n{}\n{prompt} prompt tokens and {generated} generated ones a lane, medians of {runs}\n\n{}",
        word("model"),
        word("network"),
        word("device"),
        table(&rows, &[0, 1, 2, 3, 4, 5])
    )
}
