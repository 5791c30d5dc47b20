//! A model's files as the rest of the program needs them: opened once for its text side, and again for its engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use laneway_api::{ElementType, KvLayout};
use laneway_decisions::{Reader, ReaderOptions};
use laneway_engine::KvType;
use laneway_files::{Family, ModelConfig, Weights};
use laneway_session::canvas::CanvasLimits;
use laneway_text::{ChatTemplate, Tokenizer};
use sha2::{Digest, Sha256};

use crate::catalogue::{ENTRIES, Entry, Model};
use crate::download::hexadecimal;
use crate::settings::ModelSettings;
use crate::tokenizer::{self, Origin};
use crate::usual::{UsualSampling, usual_sampling};
use crate::{decisions, pull};

/// Positions of a page of the engines.
pub const PAGE_POSITIONS: usize = 32;
/// Lanes of a model that predicts the next token.
const DEFAULT_LANES: usize = 4;

/// Everything about a model but its weights.
pub struct TextSide {
    /// What requests call it.
    pub name: String,
    pub aliases: Vec<String>,
    pub description: String,
    pub path: PathBuf,
    /// Unix time in seconds.
    pub created: u64,
    /// Positions that a turn can have, as asked for and as the model allows.
    pub context_length: usize,
    pub tokenizer: Arc<Tokenizer>,
    pub origin: Origin,
    pub template: Option<ChatTemplate>,
    /// Answers at the same time.
    pub lanes: usize,
    /// How canvases are revised, by a model that has one.
    pub canvas: Option<CanvasLimits>,
    /// Plans the reads of decisions, or why there are none.
    pub reader: Result<Arc<Reader>, String>,
    /// What is sampled with where a request does not say.
    pub usual: UsualSampling,
    /// Changes with the file's content, as far as its size and date tell.
    pub fingerprint: String,
    /// How the engine's pages are stored.
    pub kv: KvLayout,
}

/// Opens weight files, naming them in errors.
pub fn open(path: &Path) -> Result<Weights> {
    let opened = Weights::open(path);
    opened.map_err(|error| {
        // The system's errors name the path already.
        let named = matches!(&error, laneway_files::FileError::Io { .. });
        let error = anyhow::Error::from(error);
        if named { error } else { error.context(path.display().to_string()) }
    })
}

/// Fetches the model if need be and reads all but its weights.
pub fn text_side(settings: &ModelSettings) -> Result<TextSide> {
    let path = pull::resolve(&settings.model)?;
    let entry = entry(&settings.model);
    let weights = open(&path)?;
    let named = || path.display().to_string();
    let (tokenizer, origin) = tokenizer::of(&weights).with_context(named)?;
    let template =
        tokenizer::template(&weights, &tokenizer, entry.is_some_and(|entry| entry.is_base)).with_context(named)?;
    let tokenizer = Arc::new(tokenizer);
    let canvas = laneway_engine::canvas_limits(&weights);
    let lanes = settings.lanes.unwrap_or(if canvas.is_some() { 1 } else { DEFAULT_LANES });
    let parsed = || tokenizer::template(&weights, &tokenizer, entry.is_some_and(|entry| entry.is_base));
    let parameters = weights.tensors().iter().map(|tensor| tensor.len() as u64).sum();
    let metadata = weights.metadata();
    let architecture = metadata.str("general.architecture").ok().flatten().unwrap_or_default();
    let options = ReaderOptions {
        isolated: settings.isolated_reads,
        temperatures: decisions::temperatures(architecture, |key| metadata.f64(key).ok().flatten()),
        ..ReaderOptions::for_parameters(parameters)
    };
    let reader = decisions::reader(&tokenizer, parsed().with_context(named)?, origin, (canvas, lanes), options);
    let (size, created) = size_and_date(&path);
    let facts = format!("{} {} {size} {created} {}", env!("CARGO_PKG_VERSION"), path.display(), settings.device);
    let description = match (entry, weights.config().name.as_str()) {
        (Some(entry), _) => entry.description.to_owned(),
        (None, "") => family_name(weights.config().family).to_owned(),
        (None, name) => name.to_owned(),
    };
    Ok(TextSide {
        name: served_name(&settings.model, &path),
        aliases: vec![settings.model.clone()],
        description,
        created,
        context_length: settings.context_for(weights.config().context_length),
        tokenizer,
        origin,
        template,
        lanes,
        canvas,
        reader,
        usual: usual_sampling(weights.config()),
        fingerprint: format!("fp_{}", &hexadecimal(&Sha256::digest(facts))[..12]),
        kv: kv_layout(weights.config(), settings.kv_type),
        path,
    })
}

/// The engine's pages: K and V of every layer that has its own.
fn kv_layout(config: &ModelConfig, kv_type: KvType) -> KvLayout {
    let owners = config.layers.iter().enumerate().filter(|(index, layer)| layer.kv_layer == *index);
    let head_dims = owners.clone().map(|(_, layer)| layer.head_dim as u32).collect();
    KvLayout {
        head_dims,
        element: match kv_type {
            KvType::F32 => ElementType::F32,
            KvType::F16 => ElementType::F16,
            KvType::Q8 => ElementType::Q8_0,
        },
        layers: config.layers.len() as u32,
        widths: owners.map(|(_, layer)| (layer.kv_heads * layer.head_dim) as u32).collect(),
        page_positions: PAGE_POSITIONS,
    }
}

/// The files whose content tells a model apart: the one file, or what a folder holds of weights and configuration.
pub fn content_files(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_content = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "safetensors" || ending == "json" || ending == "gguf")
    };
    let mut files: Vec<PathBuf> = entries.filter(is_content).collect();
    files.sort();
    files
}

/// Width, depth and size of a network in a few words.
pub fn describe(config: &ModelConfig) -> String {
    let experts = config.experts.map(|e| format!(", {} experts of which {} are used", e.count, e.used));
    format!(
        "{} with {} layers of width {}, vocabulary of {}, trained for {} positions{}",
        family_name(config.family),
        config.layers.len(),
        config.hidden_size,
        config.vocab_size,
        config.context_length,
        experts.unwrap_or_default()
    )
}

/// A family as people write it.
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::Llama => "Llama",
        Family::Qwen3 => "Qwen3",
        Family::Gemma3 => "Gemma 3",
        Family::Gemma4 => "Gemma 4",
        Family::DiffusionGemma => "DiffusionGemma",
    }
}

fn entry(model: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| matches!(Model::parse(model), Ok(Model::Named(named)) if named == *entry))
}

fn served_name(model: &str, path: &Path) -> String {
    if entry(model).is_some() {
        return model.to_owned();
    }
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    // A checkpoint's file is called `model` in every folder.
    if name.is_some_and(|name| name == "model") {
        name = whole.parent().and_then(Path::file_name).or(name);
    }
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn size_and_date(path: &Path) -> (u64, u64) {
    let Ok(metadata) = std::fs::metadata(path) else { return (0, 0) };
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    (metadata.len(), modified.map_or(0, |since| since.as_secs()))
}
