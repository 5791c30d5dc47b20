//! A small runner over the public API, and readers of the reference data.
#![allow(dead_code)]

use laneway_cpu::{CpuSpace, CpuStep, KvCache};
use laneway_files::Weights;
use laneway_model::{Network, PAGE_POSITIONS, Row, Step};
use std::collections::HashMap;
use std::path::Path;

pub struct Runner {
    pub space: CpuSpace,
    pub network: Network<CpuSpace>,
    pub kv: KvCache,
    pub tables: Vec<Vec<u32>>,
}

impl Runner {
    /// Lanes of 128 positions each, with pages in scattered order.
    pub fn new(path: &Path, threads: usize, lanes: usize) -> Self {
        let weights = Weights::open(path).unwrap();
        let mut space = CpuSpace::new(threads);
        let network = Network::load(&weights, &mut space).unwrap();
        let per_lane = 128 / PAGE_POSITIONS;
        let kv = KvCache::new(&network.kv_shapes(), lanes * per_lane);
        let page = |lane: usize, i: usize| ((per_lane - 1 - i) * lanes + lane) as u32;
        let tables = (0..lanes).map(|lane| (0..per_lane).map(|i| page(lane, i)).collect()).collect();
        Self { space, network, kv, tables }
    }

    /// Logits `[logits.len()][V]`, and every observed state.
    pub fn step(&mut self, rows: &[Row], logits: &[u32], sampled: &[u32]) -> (Vec<f32>, Vec<Vec<f32>>) {
        let step = Step { rows, tables: &self.tables, logits };
        let mut seen = Vec::new();
        let logits = {
            let ops = CpuStep::new(&self.space, &step, &mut self.kv, sampled).unwrap();
            let mut ops = ops.observed(|index, x| {
                assert_eq!(index, seen.len());
                seen.push(x.data().to_vec());
            });
            let network = &self.network;
            self.space.run(|| {
                let hidden = network.forward(&mut ops);
                network.logits(&hidden, &mut ops).into_data()
            })
        };
        (logits, seen)
    }

    /// Logits of the last token.
    pub fn feed(&mut self, lane: u32, ids: &[u32], from: usize) -> Vec<f32> {
        self.step(&rows(lane, ids, from), &[ids.len() as u32 - 1], &[]).0
    }

    pub fn greedy(&mut self, ids: &[u32], count: usize) -> Vec<u32> {
        let mut logits = self.feed(0, ids, 0);
        let mut out = vec![argmax(&logits)];
        while out.len() < count {
            let (last, at) = (out[out.len() - 1], ids.len() + out.len() - 1);
            let rows = [Row { token: Row::SAMPLED, position: at as u32, lane: 0 }];
            logits = self.step(&rows, &[0], &[last]).0;
            out.push(argmax(&logits));
        }
        out
    }
}

pub fn rows(lane: u32, ids: &[u32], from: usize) -> Vec<Row> {
    ids.iter().enumerate().map(|(i, &token)| Row { token, position: (from + i) as u32, lane }).collect()
}

pub fn argmax(x: &[f32]) -> u32 {
    let best = x.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

/// Tensors of `reference.safetensors` as f32.
pub fn reference(path: &Path) -> HashMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let entries = json.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    entries
        .map(|(name, entry)| {
            let offset = |i: usize| 8 + header + entry["data_offsets"][i].as_u64().unwrap() as usize;
            let words = bytes[offset(0)..offset(1)].as_chunks::<4>().0.iter();
            let values = match entry["dtype"].as_str().unwrap() {
                "F32" => words.map(|w| f32::from_le_bytes(*w)).collect(),
                "I32" => words.map(|w| i32::from_le_bytes(*w) as f32).collect(),
                other => panic!("{other}"),
            };
            (name.clone(), values)
        })
        .collect()
}

pub fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let peak = expected.iter().fold(1.0f32, |peak, x| peak.max(x.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance * peak, "{what}: off by {worst} of {peak}");
}
