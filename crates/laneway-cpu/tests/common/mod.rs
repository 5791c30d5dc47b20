//! A small runner over the public API, and readers of the reference data.
#![allow(dead_code)]

use laneway_cpu::{CpuSpace, CpuStep, KvCache, SoftStore};
use laneway_files::Weights;
use laneway_model::{Block, Draft, Drafted, Label, Network, Ops, PAGE_POSITIONS, Pass, Row, Step};
use std::collections::HashMap;
use std::path::Path;

pub struct Runner {
    pub space: CpuSpace,
    pub network: Network<CpuSpace>,
    pub kv: KvCache,
    pub soft: SoftStore,
    pub tables: Vec<Vec<u32>>,
}

/// What is wanted of a step.
#[derive(Clone, Copy, Default)]
pub struct Wishes<'a> {
    pub logits: &'a [u32],
    pub labels: &'a [Label],
    pub drafts: &'a [Draft],
    pub sampled: &'a [u32],
}

/// What a step gave.
#[derive(Default)]
pub struct Answer {
    pub logits: Vec<f32>,
    pub labels: Vec<f32>,
    pub drafts: Vec<Drafted>,
    pub seen: Vec<Vec<f32>>,
    pub multiply_adds: u64,
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
        Self { space, network, kv, soft: SoftStore::new(), tables }
    }

    /// Logits `[logits.len()][V]`, and every observed state.
    pub fn step(&mut self, rows: &[Row], logits: &[u32], sampled: &[u32]) -> (Vec<f32>, Vec<Vec<f32>>) {
        let answer = self.run(Pass::Encode, rows, &Wishes { logits, sampled, ..Wishes::default() });
        (answer.logits, answer.seen)
    }

    /// One pass over `rows`.
    pub fn run(&mut self, pass: Pass, rows: &[Row], wishes: &Wishes<'_>) -> Answer {
        let Wishes { logits, labels, drafts, sampled } = *wishes;
        let step = Step { rows, tables: &self.tables, logits, labels, drafts };
        let mut answer = Answer::default();
        let ops = CpuStep::new(&self.space, &step, &mut self.kv, &mut self.soft, sampled).unwrap();
        let mut ops = ops.observed(|index, x| {
            assert_eq!(index, answer.seen.len());
            answer.seen.push(x.data().to_vec());
        });
        let network = &self.network;
        let (logits, labels, drafts) = self.space.run(|| {
            let hidden = network.forward(pass, &mut ops);
            let logits = network.logits(&hidden, &mut ops);
            let labels = network.label_logits(&hidden, &mut ops);
            assert_eq!(labels.cols(), 1);
            (logits.into_data(), labels.into_data(), network.draft(&hidden, &mut ops).into_data())
        });
        let multiply_adds = ops.head_multiply_adds();
        drop(ops);
        let drafts = drafts.as_chunks().0.iter().map(Drafted::from_columns).collect();
        Answer { logits, labels, drafts, multiply_adds, ..answer }
    }

    /// What the rows are conditioned on.
    pub fn condition(&mut self, rows: &[Row]) -> Vec<f32> {
        let step = Step { rows, tables: &self.tables, logits: &[], labels: &[], drafts: &[] };
        let mut ops = CpuStep::new(&self.space, &step, &mut self.kv, &mut self.soft, &[]).unwrap();
        ops.condition(self.network.config().hidden_size).into_data()
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
            let rows = [Row { token: Row::SAMPLED, position: at as u32, lane: 0, block: None }];
            logits = self.step(&rows, &[0], &[last]).0;
            out.push(argmax(&logits));
        }
        out
    }
}

pub fn rows(lane: u32, ids: &[u32], from: usize) -> Vec<Row> {
    ids.iter().enumerate().map(|(i, &token)| Row { token, position: (from + i) as u32, lane, block: None }).collect()
}

/// Rows of one block.
pub fn canvas(lane: u32, ids: &[u32], from: usize, is_conditioned: bool) -> Vec<Row> {
    let block = Some(Block { start: from as u32, len: ids.len() as u32, is_conditioned });
    rows(lane, ids, from).into_iter().map(|row| Row { block, ..row }).collect()
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
