//! Fixtures and devices for tests of this crate.
#![allow(dead_code, clippy::unwrap_used)]

pub mod computer;

use laneway_files::Weights;
use laneway_kernels::{AdapterChoice, Gpu};
use std::path::PathBuf;

pub fn gpu() -> Gpu {
    pollster::block_on(Gpu::open(&AdapterChoice::for_tests())).expect("tests need lavapipe: `cargo xtask setup`")
}

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/fixtures")).join(name)
}

/// Both files of a family.
pub fn weights(family: &str) -> [(String, Weights); 2] {
    let gguf = fixture(&format!("{family}_gguf/model.gguf"));
    let open = |path: PathBuf| Weights::open(&path).expect("fixtures are valid");
    [(format!("{family} safetensors"), open(fixture(family))), (format!("{family} gguf"), open(gguf))]
}

/// Reference tensors of a family.
pub struct Reference(Vec<u8>);

impl Reference {
    pub fn of(family: &str) -> Self {
        Self(std::fs::read(fixture(family).join("reference.safetensors")).expect("fixtures are valid"))
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        let header = u64::from_le_bytes(self.0[..8].try_into().expect("8 bytes")) as usize;
        let tensors: serde_json::Value = serde_json::from_slice(&self.0[8..8 + header]).expect("fixtures are valid");
        let at = |i: usize| 8 + header + tensors[name]["data_offsets"][i].as_u64().expect("the tensor exists") as usize;
        self.0[at(0)..at(1)].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.floats(name).into_iter().map(f32::to_bits).collect()
    }
}

/// Largest difference, relative to the largest reference value.
pub fn error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "lengths differ");
    let scale = expected.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    worst.fold(0.0, |m, v| if v.is_nan() { f32::INFINITY } else { m.max(v) }) / scale
}
