#![allow(dead_code)]

use std::path::PathBuf;

use laneway_files::{Bytes, Weights};

/// The fixture models of whose safetensors folder `NAME` and GGUF folder `NAME_gguf` hold the same weights.
pub const MODELS: [&str; 7] = [
    "llama_tiny",
    "qwen3_tiny",
    "gemma3_tiny",
    "gemma4_dense_tiny",
    "gemma4_ple_shared_tiny",
    "gemma4_moe_tiny",
    "diffusion_gemma_tiny",
];

pub fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/fixtures")
}

pub fn hostile() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/hostile")
}

pub fn safetensors(name: &str) -> Weights {
    Weights::open(fixtures().join(name)).unwrap()
}

pub fn gguf(name: &str) -> Weights {
    Weights::open(fixtures().join(format!("{name}_gguf/model.gguf"))).unwrap()
}

/// SplitMix64: the same mutations in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A metadata value to write.
#[derive(Clone)]
pub enum Kv {
    U32(u32),
    F32(f32),
    Str(&'static str),
    Raw(u32, Vec<u8>),
}

/// A GGUF file to write, every part of which can be made wrong.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub counts: Option<(u64, u64)>,
    pub kv: Vec<(&'static str, Kv)>,
    /// Name, dimensions (fastest first), type, offset.
    pub tensors: Vec<(&'static str, Vec<u64>, u32, u64)>,
    pub alignment: usize,
    pub data: usize,
}

impl Gguf {
    /// A small file that opens: one Llama layer, a few tensors.
    pub fn valid() -> Self {
        let kv = vec![
            ("general.architecture", Kv::Str("llama")),
            ("general.name", Kv::Str("tiny")),
            ("llama.block_count", Kv::U32(1)),
            ("llama.context_length", Kv::U32(64)),
            ("llama.embedding_length", Kv::U32(8)),
            ("llama.feed_forward_length", Kv::U32(16)),
            ("llama.attention.head_count", Kv::U32(2)),
            ("llama.attention.head_count_kv", Kv::U32(1)),
            ("llama.attention.layer_norm_rms_epsilon", Kv::F32(1e-5)),
            ("tokenizer.ggml.tokens", Kv::Raw(9, strings(&["a", "b", "c", "d"]))),
        ];
        let tensors = vec![
            ("token_embd.weight", vec![8, 4], 0, 0),
            ("output_norm.weight", vec![8], 0, 128),
            ("blk.0.attn_q.weight", vec![32, 1], 2, 160),
        ];
        Self { version: 3, counts: None, kv, tensors, alignment: 32, data: 178 }
    }

    pub fn with(mut self, key: &'static str, value: Kv) -> Self {
        match self.kv.iter_mut().find(|(name, _)| *name == key) {
            Some((_, old)) => *old = value,
            None => self.kv.push((key, value)),
        }
        self
    }

    pub fn without(mut self, key: &str) -> Self {
        self.kv.retain(|(name, _)| *name != key);
        self
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        let (tensors, kv) = self.counts.unwrap_or((self.tensors.len() as u64, self.kv.len() as u64));
        out.extend(tensors.to_le_bytes());
        out.extend(kv.to_le_bytes());
        for (key, value) in &self.kv {
            out.extend(string(key));
            let (kind, bytes) = match value {
                Kv::U32(value) => (4, value.to_le_bytes().to_vec()),
                Kv::F32(value) => (6, value.to_le_bytes().to_vec()),
                Kv::Str(value) => (8, string(value)),
                Kv::Raw(kind, bytes) => (*kind, bytes.clone()),
            };
            out.extend(u32::to_le_bytes(kind));
            out.extend(bytes);
        }
        for (name, dims, kind, offset) in &self.tensors {
            out.extend(string(name));
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment) + self.data, 0);
        out
    }
}

pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The bytes of an array of strings.
pub fn strings(items: &[&str]) -> Vec<u8> {
    let mut out = array(8, items.len() as u64);
    items.iter().for_each(|item| out.extend(string(item)));
    out
}

/// The head of an array.
pub fn array(kind: u32, count: u64) -> Vec<u8> {
    [kind.to_le_bytes().as_slice(), &count.to_le_bytes()].concat()
}

/// A safetensors file of a header and a number of data bytes.
pub fn shard(header: &str, data: usize) -> Vec<u8> {
    let mut out = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    out.resize(out.len() + data, 0);
    out
}

pub const LLAMA_CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 4, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#;

pub const SHARD_HEADER: &str = r#"{"__metadata__": {"format": "pt"}, "model.embed_tokens.weight": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]},
    "model.norm.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [128, 144]}}"#;

/// Opens either kind and touches everything that was accepted.
pub fn exercise(bytes: Vec<u8>) -> laneway_files::Result<()> {
    let bytes = Bytes::from(bytes);
    let weights = match bytes.starts_with(b"GGUF") {
        true => Weights::from_gguf(bytes)?,
        false => Weights::from_safetensors(LLAMA_CONFIG, None, vec![bytes])?,
    };
    for tensor in weights.tensors() {
        assert_eq!(tensor.to_f32().len(), tensor.len());
        assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.byte_len());
        assert_eq!(weights.tensor(&tensor.name).unwrap().bytes().len(), tensor.byte_len());
    }
    assert!(!weights.config().layers.is_empty());
    Ok(())
}
