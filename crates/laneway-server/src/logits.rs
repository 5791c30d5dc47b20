use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Result, anyhow};
use futures::executor::block_on;
use laneway_engine::ModelEngine;

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
    if args.ids.len() > trained {
        return Err(Usage(format!("{} ids exceed the model's context of {trained}", args.ids.len())).into());
    }
    if let Some(id) = args.ids.iter().find(|&&id| id as usize >= vocab) {
        return Err(Usage(format!("id {id} is outside the vocabulary of {vocab}")).into());
    }
    let alone = ModelSettings { lanes: Some(1), ..settings.clone() };
    let mut engine = block_on(ModelEngine::open(&weights, &engine_settings(&alone, args.ids.len())))?;
    drop(weights);
    let logits = block_on(engine.prefill_logits(&args.ids))?;
    write(&args.out, &logits, vocab)?;
    let device = &engine.device().name;
    print(&format!("{}: logits [{}, {vocab}] f32, computed on {device}\n", args.out.display(), args.ids.len()))
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
