use std::collections::HashMap;

use crate::{
    Bytes, FileError, Format, GenerationConfig, Metadata, ModelConfig, Result, Tensor, config_gguf, config_hf,
    diffusion::Beside, generation, gguf, json::Fields, names::canonical, safetensors::Shard, tensor::refuse_overlap,
};

/// Tensors by name, in file order.
#[derive(Debug)]
pub(crate) struct Tensors {
    list: Vec<Tensor>,
    index: HashMap<String, usize>,
}

impl Tensors {
    fn new(list: Vec<Tensor>) -> Result<Self> {
        let mut index = HashMap::new();
        for (at, tensor) in list.iter().enumerate() {
            if index.insert(tensor.name.clone(), at).is_some() {
                return Err(FileError::Duplicate { what: "tensor", name: tensor.name.clone() });
            }
        }
        Ok(Self { list, index })
    }

    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|&at| &self.list[at])
    }

    /// NVFP4 tensors may have a factor beside them; a factor per expert stays a tensor of its own.
    fn apply_scales(&mut self) -> Result<()> {
        for at in 0..self.list.len() {
            let tensor = &self.list[at];
            let Some(stem) = tensor.name.strip_suffix(".weight").filter(|_| tensor.format == Format::Nvfp4) else {
                continue;
            };
            let Some(scale) = self.get(&format!("{stem}.scale")).filter(|scale| scale.len() == 1) else {
                continue;
            };
            let value = scale.to_f32()[0];
            if !value.is_finite() {
                return Err(FileError::invalid(&scale.name, format!("is {value}, expected a finite factor")));
            }
            self.list[at].scale = value;
        }
        Ok(())
    }
}

/// Text files that accompany a checkpoint; GGUF keeps their content in its metadata.
#[derive(Clone, Debug, Default)]
pub struct Sidecars {
    /// `tokenizer.json`.
    pub tokenizer: Option<String>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<String>,
    /// `chat_template.jinja`.
    pub chat_template: Option<String>,
}

/// A model's files: tensors under GGUF names, the configuration, and the metadata.
#[derive(Debug)]
pub struct Weights {
    tensors: Tensors,
    config: ModelConfig,
    generation: GenerationConfig,
    metadata: Metadata,
    /// Text files beside the weights, for safetensors.
    pub sidecars: Sidecars,
}

impl Weights {
    /// Reads a GGUF file of version 2 or 3.
    pub fn from_gguf(bytes: Bytes) -> Result<Self> {
        let (metadata, tensors) = gguf::read(&bytes)?;
        let mut tensors = Tensors::new(tensors)?;
        tensors.apply_scales()?;
        let config = config_gguf::read(&metadata, &tensors)?;
        let generation = generation::from_metadata(&config, &metadata)?;
        Ok(Self { tensors, config, generation, metadata, sidecars: Sidecars::default() })
    }

    /// Reads a checkpoint's safetensors shards; tensors that are not part of the text model are left out.
    pub fn from_safetensors(
        config_json: &str,
        generation_config_json: Option<&str>,
        shards: Vec<Bytes>,
    ) -> Result<Self> {
        Self::from_checkpoint(config_json, generation_config_json, shards, "", Sidecars::default())
    }

    /// [`Weights::from_safetensors`] with what lies around the shards, which tells more about a masked model.
    pub(crate) fn from_checkpoint(
        config_json: &str,
        generation_config_json: Option<&str>,
        shards: Vec<Bytes>,
        folder: &str,
        sidecars: Sidecars,
    ) -> Result<Self> {
        let root = parse("config.json", config_json)?;
        let root = Fields::of("config.json", &root)?;
        let family = config_hf::family(root)?;
        let mut tensors = Vec::new();
        for bytes in shards {
            let shard = Shard::read(bytes)?;
            let first = tensors.len();
            for (name, entry) in &shard.entries {
                let Some(name) = canonical(family, name) else {
                    continue;
                };
                tensors.push(shard.tensor(&name, entry)?);
            }
            refuse_overlap(tensors[first..].iter())?;
        }
        let tensors = Tensors::new(tensors)?;
        let config = config_hf::read(root, Beside { folder, sidecars: &sidecars }, &tensors)?;
        let generation = generation_config_json.map(|json| parse("generation_config.json", json)).transpose()?;
        let generation = generation.as_ref().map(|value| Fields::of("generation_config.json", value)).transpose()?;
        let generation = generation::from_json(&config, root, generation)?;
        Ok(Self { tensors, config, generation, metadata: Metadata::default(), sidecars })
    }

    /// A tensor by its GGUF name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// A tensor that must be there with this row-major shape.
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let tensor = self.tensor(name).ok_or_else(|| FileError::MissingTensor(name.to_owned()))?;
        if tensor.shape != shape {
            let (expected, found) = (shape.to_vec(), tensor.shape.clone());
            return Err(FileError::WrongShape { name: name.to_owned(), expected, found });
        }
        Ok(tensor)
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors.list
    }

    /// The network's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What the files say about generating.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// GGUF metadata; empty for safetensors.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The chat template in the metadata or beside the weights.
    pub fn chat_template(&self) -> Option<&str> {
        let stored = self.metadata.str("tokenizer.chat_template").ok().flatten();
        stored.or(self.sidecars.chat_template.as_deref())
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.list.iter().map(|tensor| tensor.byte_len() as u64).sum()
    }
}

fn parse(what: &'static str, json: &str) -> Result<serde_json::Value> {
    serde_json::from_str(json).map_err(|source| FileError::Json { what, source })
}
