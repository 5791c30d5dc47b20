//! Weight files from the file system, mapped into memory.

use std::{
    fs::File,
    io::ErrorKind,
    path::{Component, Path},
};

use serde::Deserialize;

use crate::{Bytes, FileError, Result, Sidecars, Tensor, Weights, safetensors::Shard, sniff::not_a_model};

/// Longest configuration, index or tokenizer file that is read; Gemma's `tokenizer.json` has 33 MB.
const MAX_TEXT_BYTES: u64 = 256 << 20;

impl Weights {
    /// Opens a `.gguf` file, a `.safetensors` file with `config.json` beside it, or a folder with `config.json` and
    /// `model.safetensors` or the shards that `model.safetensors.index.json` lists. The files must not change while in use.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if std::fs::metadata(path).map_err(|source| io(path, source))?.is_dir() {
            return from_folder(path);
        }
        let bytes = map(path)?;
        if bytes.starts_with(b"GGUF") {
            return Self::from_gguf(bytes);
        }
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            return from_shards(path.parent().unwrap_or(Path::new(".")), vec![bytes]);
        }
        Err(not_a_model("a GGUF or safetensors file", &bytes))
    }
}

/// The tensors of a safetensors file that is no model, under their own names.
///
/// # Errors
/// When the file cannot be read or is no safetensors file.
pub fn open_tensors(path: impl AsRef<Path>) -> Result<Vec<Tensor>> {
    let shard = Shard::read(map(path.as_ref())?)?;
    shard.entries.iter().map(|(name, entry)| shard.tensor(name, entry)).collect()
}

#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

fn from_folder(folder: &Path) -> Result<Weights> {
    let index = "model.safetensors.index.json";
    let Some(json) = text(folder, index)? else {
        return from_shards(folder, vec![map(&folder.join("model.safetensors"))?]);
    };
    let index: Index = serde_json::from_str(&json).map_err(|source| FileError::Json { what: index, source })?;
    let mut names: Vec<_> = index.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    let shards = names.iter().map(|name| {
        let mut parts = Path::new(name).components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(_)), None) => map(&folder.join(name)),
            _ => Err(FileError::invalid(
                "model.safetensors.index.json",
                format!("names the shard `{name}`, not a file beside it"),
            )),
        }
    });
    let shards = shards.collect::<Result<_>>()?;
    from_shards(folder, shards)
}

fn from_shards(folder: &Path, shards: Vec<Bytes>) -> Result<Weights> {
    let missing = || io(&folder.join("config.json"), ErrorKind::NotFound.into());
    let config = text(folder, "config.json")?.ok_or_else(missing)?;
    let generation = text(folder, "generation_config.json")?;
    let sidecars = Sidecars {
        tokenizer: text(folder, "tokenizer.json")?,
        tokenizer_config: text(folder, "tokenizer_config.json")?,
        chat_template: text(folder, "chat_template.jinja")?,
    };
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    Weights::from_checkpoint(&config, generation.as_deref(), shards, &name, sidecars)
}

/// A small text file's content, `None` when it does not exist.
fn text(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    let length = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io(&path, source)),
    };
    if length > MAX_TEXT_BYTES {
        return Err(FileError::OutOfRange {
            what: format!("length of {name}"),
            value: length,
            min: 0,
            max: MAX_TEXT_BYTES,
        });
    }
    std::fs::read_to_string(&path).map(Some).map_err(|source| io(&path, source))
}

#[allow(unsafe_code)]
fn map(path: &Path) -> Result<Bytes> {
    // A pipe or device has no length to map, and opening one may never return.
    if !std::fs::metadata(path).map_err(|source| io(path, source))?.is_file() {
        return Err(io(path, std::io::Error::other("is not a regular file")));
    }
    let file = File::open(path).map_err(|source| io(path, source))?;
    if file.metadata().map_err(|source| io(path, source))?.len() == 0 {
        return Ok(Vec::new().into());
    }
    // SAFETY: the map is read-only; `Weights::open` asks that nobody changes the file meanwhile.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|source| io(path, source))?;
    Ok(Bytes::new(map))
}

fn io(path: &Path, source: std::io::Error) -> FileError {
    FileError::Io { path: path.to_owned(), source }
}
