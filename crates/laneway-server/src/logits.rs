use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Result, anyhow};
use futures::executor::block_on;
use laneway_engine::ModelEngine;
use laneway_files::Weights;
use laneway_session::canvas::CanvasContext;

use crate::args::LogitsArgs;
use crate::cache::beside;
use crate::host::engine_settings;
use crate::output::print;
use crate::settings::{ModelSettings, Usage};
use crate::{load, pull};

/// `laneway logits`.
pub fn run(settings: &ModelSettings, args: &LogitsArgs) -> Result<()> {
    let weights = load::open(&pull::resolve(&settings.model)?)?;
    let (vocab, trained) = (weights.config().vocab_size, weights.config().context_length);
    let canvas = args.canvas.as_deref().unwrap_or_default();
    let count = args.ids.len() + canvas.len();
    if count > trained {
        return Err(Usage(format!("{count} ids exceed the model's context of {trained}")).into());
    }
    if let Some(id) = args.ids.iter().chain(canvas).find(|&&id| id as usize >= vocab) {
        return Err(Usage(format!("id {id} is outside the vocabulary of {vocab}")).into());
    }
    check_canvas(&weights, args, canvas.len())?;
    let soft = args.previous_logits.as_ref().map(|path| soft(&weights, path, args.temperature, canvas.len()));
    let soft = soft.transpose()?;
    let alone = ModelSettings { lanes: Some(1), ..settings.clone() };
    let mut engine = block_on(ModelEngine::open(&weights, &engine_settings(&alone, count)))?;
    drop(weights);
    let logits = match args.canvas {
        Some(_) => block_on(engine.canvas_logits(&args.ids, canvas, soft.as_deref()))?,
        None => block_on(engine.prefill_logits(&args.ids))?,
    };
    write(&args.out, &logits, vocab)?;
    let (device, rows) = (&engine.device().name, logits.len() / vocab);
    print(&format!("{}: logits [{rows}, {vocab}] f32, computed on {device}\n", args.out.display()))
}

fn check_canvas(weights: &Weights, args: &LogitsArgs, canvas: usize) -> Result<()> {
    if args.canvas.is_none() {
        return Ok(());
    }
    let Some(limits) = laneway_engine::canvas_limits(weights) else {
        return Err(Usage("this model revises no canvas; leave --canvas out".to_owned()).into());
    };
    if canvas == 0 || (limits.context != CanvasContext::Whole && canvas > limits.length) {
        return Err(Usage(format!("the canvas has {canvas} ids, expected 1 to {}", limits.length)).into());
    }
    if args.previous_logits.is_some() && !limits.is_conditioned {
        return Err(
            Usage("this model does not read its last prediction; leave --previous-logits out".to_owned()).into()
        );
    }
    if !(args.temperature.is_finite() && args.temperature > 0.0) {
        return Err(Usage(format!("the temperature is {}, expected more than 0", args.temperature)).into());
    }
    Ok(())
}

/// What the model keeps of a pass with the file's logits.
fn soft(weights: &Weights, path: &Path, temperature: f32, canvas: usize) -> Result<Vec<f32>> {
    let vocab = weights.config().vocab_size;
    let file = laneway_files::native::open_tensors(path)?;
    let wrong = |what: String| Usage(format!("{}: {what}", path.display()));
    let logits =
        file.iter().find(|tensor| tensor.name == "logits").ok_or_else(|| wrong("has no `logits`".to_owned()))?;
    if logits.shape != [canvas, vocab] {
        return Err(wrong(format!("`logits` is {:?}, expected [{canvas}, {vocab}]", logits.shape)).into());
    }
    let values = logits.to_f32();
    if values.iter().any(|value| !value.is_finite()) {
        return Err(wrong("`logits` holds a value that is no finite number".to_owned()).into());
    }
    Ok(laneway_engine::soft_embedding(weights, &values, temperature)?)
}

/// Writes a safetensors file with one tensor `logits` of rows of `cols`, whole or not at all.
fn write(path: &Path, logits: &[f32], cols: usize) -> Result<()> {
    let header = serde_json::json!({
        "logits": { "dtype": "F32", "shape": [logits.len() / cols, cols], "data_offsets": [0, 4 * logits.len()] }
    });
    let mut header = header.to_string();
    // Readers that map the file want the data aligned.
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    // A device, pipe or link is written to, not replaced.
    let special = std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file());
    let partial = if special { path.to_owned() } else { beside(path, ".partial") };
    let write = || {
        let mut file = BufWriter::new(File::create(&partial)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        for value in logits {
            file.write_all(&value.to_le_bytes())?;
        }
        let file = file.into_inner()?;
        if special {
            return Ok(());
        }
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|error: std::io::Error| {
        if !special {
            drop(std::fs::remove_file(&partial));
        }
        anyhow!("{} cannot be written: {error}", path.display())
    })
}
