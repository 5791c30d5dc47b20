//! `laneway bench`: one lane on a bare engine, without service and text; a canvas model makes passes, others tokens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::executor::block_on;
use laneway_engine::{ModelEngine, Totals};
use laneway_session::canvas::CanvasLimits;
use laneway_session::{Block, Draft, Engine, EngineLimits, Pass, Row, Sampling, SamplingOptions, StepPlan, Token};
use serde_json::json;

use crate::args::BenchArgs;
use crate::host::engine_settings;
use crate::load::{self, describe};
use crate::output::{bytes, print, table};
use crate::settings::{ModelSettings, Usage};
use crate::{pull, usage};

struct Run {
    first_token: Duration,
    decode: Duration,
    prefill_cpu: Option<Duration>,
    decode_cpu: Option<Duration>,
    decode_work: Option<Totals>,
}

/// Loads the model, generates a few times and prints medians.
pub fn run(settings: &ModelSettings, args: &BenchArgs) -> Result<()> {
    let path = pull::resolve(&settings.model)?;
    let start = Instant::now();
    let weights = load::open(&path)?;
    let (prompt, generate) = (args.prompt as usize, args.generate as usize);
    let (vocab, trained) = (weights.config().vocab_size, weights.config().context_length);
    let canvas = laneway_engine::canvas_limits(&weights);
    // A canvas is revised in place, however often.
    let needed = prompt + canvas.as_ref().map_or(generate, |canvas| canvas.length);
    if needed > trained {
        let message =
            format!("{prompt} prompt tokens and {generate} generated ones exceed the model's context of {trained}");
        return Err(Usage(message).into());
    }
    let model = describe(weights.config());
    let file_bytes = weights.total_bytes();
    let alone = ModelSettings { lanes: Some(1), ..settings.clone() };
    let mut engine = block_on(ModelEngine::open(&weights, &engine_settings(&alone, needed)))?;
    drop(weights);
    let load = start.elapsed();
    let ids: Vec<u32> = (0..prompt).map(|at| prompt_id(at, vocab)).collect();
    let mut once = || match &canvas {
        Some(canvas) => block_on(denoise_once(&mut engine, &ids, canvas, generate - 1)),
        None => block_on(generate_once(&mut engine, &ids, generate)),
    };
    let runs: Vec<Run> = (0..args.runs).map(|_| once()).collect::<Result<_>>()?;
    let cold = runs[0].first_token;
    let cost = if canvas.is_none() { engine.decode_cost() } else { None };
    let copied = block_on(copy_speed(&engine))?;

    let steps = (generate - 1) as f64;
    let seconds = |pick: fn(&Run) -> Duration| median(runs.iter().map(|run| pick(run).as_secs_f64()).collect());
    let cpu = |pick: fn(&Run) -> Option<Duration>| {
        let all: Option<Vec<_>> = runs.iter().map(|run| pick(run).map(|time| time.as_secs_f64())).collect();
        all.map(median)
    };
    let work = runs.last().and_then(|run| run.decode_work);
    let per_step = |pick: fn(&Totals) -> u64| work.as_ref().map(|work| pick(work) as f64 / steps);
    let (first_token, decode) = (seconds(|run| run.first_token), seconds(|run| run.decode) / steps);
    let report = json!({
        "model": path.display().to_string(),
        "network": model,
        "device": engine.device().name,
        "api": engine.device().api,
        "prompt_tokens": prompt,
        "generated_tokens": canvas.is_none().then_some(generate),
        "passes": canvas.map(|_| generate - 1),
        "canvas_positions": canvas.map(|canvas| canvas.length),
        "pass_ms": canvas.map(|_| decode * 1000.0),
        "runs": args.runs,
        "load_s": load.as_secs_f64(),
        "first_token_from_start_s": (load + cold).as_secs_f64(),
        "first_token_s": first_token,
        "prefill_tokens_per_s": prompt as f64 / first_token,
        "decode_tokens_per_s": canvas.is_none().then_some(1.0 / decode),
        "prefill_cpu_s_per_token": cpu(|run| run.prefill_cpu).map(|time| time / prompt as f64),
        "decode_cpu_s_per_token": cpu(|run| run.decode_cpu).map(|time| time / steps),
        "decode_weight_bytes_per_s": engine.weight_bytes() as f64 / decode,
        "copy_bytes_per_s": copied,
        "peak_memory_bytes": usage::peak_memory_bytes(),
        "file_tensor_bytes": file_bytes,
        "device_weight_bytes": engine.weight_bytes(),
        "decode_dispatches": per_step(|work| work.dispatches),
        "decode_submissions": per_step(|work| work.submissions),
        "decode_readback_bytes": per_step(|work| work.readback_bytes),
        "decode_weight_bytes": cost.map(|cost| cost.weight_bytes),
        "decode_weight_ratio": cost.map(|cost| cost.weight_bytes as f64 / file_bytes as f64),
    });
    if args.json { print(&format!("{report}\n")) } else { print(&text(&report)) }
}

/// Bytes per second that a copy within the device's memory reads and writes, the best of three; nothing on the cpu.
async fn copy_speed(engine: &ModelEngine) -> Result<Option<f64>> {
    const BYTES: u64 = 64 << 20;
    const TIMES: usize = 8;
    let mut best: Option<f64> = None;
    for _ in 0..3 {
        let start = Instant::now();
        if !engine.copy_on_device(BYTES, TIMES).await? {
            return Ok(None);
        }
        let moved = (2 * BYTES * TIMES as u64) as f64 / start.elapsed().as_secs_f64();
        best = Some(best.map_or(moved, |best| best.max(moved)));
    }
    Ok(best)
}

/// Ids that differ from their neighbours and look like no language.
pub(crate) fn prompt_id(at: usize, vocab: usize) -> u32 {
    (at.wrapping_mul(7919).wrapping_add(11) % vocab) as u32
}

async fn generate_once(engine: &mut ModelEngine, prompt: &[u32], generate: usize) -> Result<Run> {
    let limits = engine.limits();
    let greedy = Sampling::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() })?;
    engine.begin(0, &greedy, prompt)?;
    let (start, start_cpu) = (Instant::now(), usage::cpu_time());
    let mut submitted = 0;
    let mut at = 0;
    for chunk in prompt.chunks(limits.max_rows) {
        if submitted == limits.depth {
            engine.collect().await?;
            submitted -= 1;
        }
        let known = chunk.iter().map(|&id| Token::Known(id)).collect::<Vec<_>>();
        engine.submit(&plan(&limits, &known, at, at + chunk.len() == prompt.len()))?;
        submitted += 1;
        at += chunk.len();
    }
    for _ in 1..submitted {
        engine.collect().await?;
    }
    if engine.collect().await?.sampled.len() != 1 {
        bail!("the engine sampled nothing after the prompt");
    }
    let (first, first_cpu, before) = (start.elapsed(), usage::cpu_time(), engine.totals());

    let (begun, steps) = (Instant::now(), generate - 1);
    let mut waiting = 0;
    for step in 0..steps {
        engine.submit(&plan(&limits, &[Token::Sampled], prompt.len() + step, true))?;
        waiting += 1;
        if waiting == limits.depth {
            collect_token(engine).await?;
            waiting -= 1;
        }
    }
    for _ in 0..waiting {
        collect_token(engine).await?;
    }
    let decode = begun.elapsed();
    let since = |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
    Ok(Run {
        first_token: first,
        decode,
        prefill_cpu: since(start_cpu, first_cpu),
        decode_cpu: since(first_cpu, usage::cpu_time()),
        decode_work: engine.totals().zip(before).map(|(after, before)| difference(after, before)),
    })
}

fn difference(after: Totals, before: Totals) -> Totals {
    Totals {
        steps: after.steps - before.steps,
        submissions: after.submissions - before.submissions,
        dispatches: after.dispatches - before.dispatches,
        readback_bytes: after.readback_bytes - before.readback_bytes,
        head_multiply_adds: after.head_multiply_adds - before.head_multiply_adds,
    }
}

/// Prefills, then makes passes over one canvas, each conditioned on the one before where the model is.
async fn denoise_once(engine: &mut ModelEngine, prompt: &[u32], canvas: &CanvasLimits, passes: usize) -> Result<Run> {
    let limits = engine.limits();
    let (start, start_cpu) = (Instant::now(), usage::cpu_time());
    let mut at = 0;
    for chunk in prompt.chunks(limits.max_rows) {
        let known = chunk.iter().map(|&id| Token::Known(id)).collect::<Vec<_>>();
        engine.submit(&plan(&limits, &known, at, false))?;
        engine.collect().await?;
        at += chunk.len();
    }
    let (first, first_cpu, before) = (start.elapsed(), usage::cpu_time(), engine.totals());
    let begun = Instant::now();
    for pass in 0..passes {
        engine.submit(&canvas_plan(&limits, canvas, prompt.len(), pass > 0 && canvas.is_conditioned))?;
        if engine.collect().await?.drafts.len() != canvas.length {
            bail!("the engine drafted nothing of the canvas");
        }
    }
    let decode = begun.elapsed();
    let since = |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
    Ok(Run {
        first_token: first,
        decode,
        prefill_cpu: since(start_cpu, first_cpu),
        decode_cpu: since(first_cpu, usage::cpu_time()),
        decode_work: engine.totals().zip(before).map(|(after, before)| difference(after, before)),
    })
}

fn canvas_plan(limits: &EngineLimits, canvas: &CanvasLimits, start: usize, is_conditioned: bool) -> StepPlan {
    let block = Some(Block { start: start as u32, len: canvas.length as u32, is_conditioned });
    let row = |at: usize| Row {
        token: Token::Known(prompt_id(at, canvas.vocabulary as usize)),
        position: (start + at) as u32,
        lane: 0,
        block,
    };
    let pages = (start + canvas.length).div_ceil(limits.page_positions) as u32;
    let mut tables = vec![Vec::new(); limits.lanes + limits.branches];
    tables[0] = (0..pages).collect();
    let draft = |row: usize| Draft { row: row as u32, temperature: 0.8, draw: 0.5 };
    StepPlan {
        pass: Pass::Denoise,
        rows: (0..canvas.length).map(row).collect(),
        tables,
        drafts: (0..canvas.length).map(draft).collect(),
        ..StepPlan::default()
    }
}

async fn collect_token(engine: &mut ModelEngine) -> Result<()> {
    engine.collect().await?.sampled.pop().map(drop).context("the engine sampled nothing")
}

/// Consecutive tokens of lane 0 from position `at`, over pages 0, 1, 2 …
fn plan(limits: &EngineLimits, tokens: &[Token], at: usize, samples: bool) -> StepPlan {
    let row = |(index, &token): (usize, &Token)| Row { token, position: (at + index) as u32, lane: 0, block: None };
    let pages = (at + tokens.len()).div_ceil(limits.page_positions) as u32;
    let mut tables = vec![Vec::new(); limits.lanes];
    tables[0] = (0..pages).collect();
    let samples = if samples { vec![tokens.len() as u32 - 1] } else { Vec::new() };
    StepPlan { rows: tokens.iter().enumerate().map(row).collect(), tables, samples, ..StepPlan::default() }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

fn text(report: &serde_json::Value) -> String {
    let number = |key: &str, digits: usize, unit: &str| match report[key].as_f64() {
        Some(value) => format!("{value:.digits$}{unit}"),
        None => "-".to_owned(),
    };
    let size = |key: &str| report[key].as_u64().map_or_else(|| "-".to_owned(), bytes);
    let gigabytes = |key: &str| report[key].as_f64().map_or_else(|| "-".to_owned(), |v| format!("{:.1} GB/s", v / 1e9));
    let word = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    let rows = [
        ("model", format!("{}, {}", word("model"), word("network"))),
        ("device", format!("{} ({})", word("device"), word("api"))),
        (
            "tokens",
            match report["passes"].as_u64() {
                Some(passes) => format!(
                    "{} prompt, {passes} passes over {} canvas positions, median of {}",
                    report["prompt_tokens"], report["canvas_positions"], report["runs"]
                ),
                None => format!(
                    "{} prompt, {} generated, median of {}",
                    report["prompt_tokens"], report["generated_tokens"], report["runs"]
                ),
            },
        ),
        ("load", number("load_s", 2, " s")),
        ("first token, with load", number("first_token_from_start_s", 2, " s")),
        ("first token", number("first_token_s", 3, " s")),
        ("prefill", number("prefill_tokens_per_s", 2, " tokens/s")),
        ("decode", number("decode_tokens_per_s", 2, " tokens/s")),
        ("pass over a canvas", number("pass_ms", 2, " ms")),
        ("prefill CPU", number("prefill_cpu_s_per_token", 5, " s/token")),
        ("decode CPU", number("decode_cpu_s_per_token", 5, " s/token")),
        ("weights read", gigabytes("decode_weight_bytes_per_s")),
        ("copy, read and written", gigabytes("copy_bytes_per_s")),
        ("peak memory", size("peak_memory_bytes")),
        ("weights in the file", size("file_tensor_bytes")),
        ("weights on the device", size("device_weight_bytes")),
        ("per decoded token or pass", String::new()),
        ("  dispatches", number("decode_dispatches", 1, "")),
        ("  submissions", number("decode_submissions", 2, "")),
        ("  bytes read back", number("decode_readback_bytes", 0, "")),
        ("  weight bytes bound", size("decode_weight_bytes")),
        ("  of the file's tensors", number("decode_weight_ratio", 3, "")),
    ];
    table(&rows.map(|(name, value)| vec![name.to_owned(), value]), &[])
}
