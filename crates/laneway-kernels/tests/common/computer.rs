//! Steps of one lane on our kernels or in burn's plain operations.

use burn::tensor::{Device, Tensor};
use laneway_files::Weights;
use laneway_kernels::plain::{PlainCache, PlainSpace, PlainStep};
use laneway_kernels::{Gpu, GpuSpace, Runner, StateShape};
use laneway_model::{Block, DRAFT_COLUMNS, Draft, Drafted, Network, Pass, Row, Step};
use std::sync::Arc;

/// Positions of the longest canvas of the fixtures.
pub const CANVAS: usize = 16;

/// A way to compute steps of one lane.
pub trait Computer {
    fn logits(&mut self, step: &Step<'_>, pass: Pass) -> Vec<f32>;
    fn observe(&mut self, step: &Step<'_>, pass: Pass) -> Vec<Vec<f32>>;
    fn drafts(&mut self, step: &Step<'_>) -> Vec<Drafted>;
    /// What the last drafts left: `[C, D]`.
    fn soft(&mut self) -> Vec<f32>;
}

pub struct Kernels {
    runner: Runner,
    lane: u32,
}

/// The same rows in another slot, with pages out of order.
fn in_lane<T>(step: &Step<'_>, lane: u32, run: impl FnOnce(&Step<'_>) -> T) -> T {
    let rows: Vec<Row> = step.rows.iter().map(|&row| Row { lane, ..row }).collect();
    let tables = [vec![5, 2, 7, 0], vec![6, 3, 4, 1]];
    run(&Step { rows: &rows, tables: &tables, ..*step })
}

impl Computer for Kernels {
    fn logits(&mut self, step: &Step<'_>, pass: Pass) -> Vec<f32> {
        in_lane(step, self.lane, |step| pollster::block_on(self.runner.logits(step, pass)).unwrap())
    }

    fn observe(&mut self, step: &Step<'_>, pass: Pass) -> Vec<Vec<f32>> {
        in_lane(step, self.lane, |step| pollster::block_on(self.runner.observe(step, pass)).unwrap())
    }

    fn drafts(&mut self, step: &Step<'_>) -> Vec<Drafted> {
        in_lane(step, self.lane, |step| self.runner.submit(step, Pass::Denoise).unwrap());
        pollster::block_on(self.runner.collect()).unwrap().drafts
    }

    fn soft(&mut self) -> Vec<f32> {
        pollster::block_on(self.runner.soft(self.lane as usize)).unwrap()
    }
}

pub struct Plain {
    device: Device,
    network: Network<PlainSpace>,
    cache: PlainCache,
}

fn host(x: Tensor<2>) -> Vec<f32> {
    x.into_data().try_to_vec().unwrap()
}

impl Computer for Plain {
    fn logits(&mut self, step: &Step<'_>, pass: Pass) -> Vec<f32> {
        let mut ops = PlainStep::new(&self.device, step, &mut self.cache);
        let hidden = self.network.forward(pass, &mut ops);
        host(self.network.logits(&hidden, &mut ops))
    }

    fn observe(&mut self, step: &Step<'_>, pass: Pass) -> Vec<Vec<f32>> {
        let mut ops = PlainStep::new(&self.device, step, &mut self.cache);
        self.network.forward(pass, &mut ops);
        ops.observed.into_iter().map(host).collect()
    }

    fn drafts(&mut self, step: &Step<'_>) -> Vec<Drafted> {
        let mut ops = PlainStep::new(&self.device, step, &mut self.cache);
        let hidden = self.network.forward(Pass::Denoise, &mut ops);
        let columns = host(self.network.draft(&hidden, &mut ops));
        let (columns, rest) = columns.as_chunks::<DRAFT_COLUMNS>();
        assert!(rest.is_empty());
        columns.iter().map(Drafted::from_columns).collect()
    }

    fn soft(&mut self) -> Vec<f32> {
        self.cache.soft().concat()
    }
}

pub fn kernels(gpu: &Gpu, weights: &Weights, lane: u32) -> Kernels {
    let network = Arc::new(Network::load(weights, &mut GpuSpace::new(gpu)).unwrap());
    let shape = StateShape {
        lanes: 1,
        slots: 2,
        pages: 8,
        max_pages: 4,
        max_rows: 64,
        vocab: network.config().vocab_size,
        canvas_length: CANVAS,
        hidden: network.config().hidden_size,
        kv_type: laneway_model::KvType::F32,
    };
    Kernels { runner: Runner::new(gpu, network, shape).unwrap(), lane }
}

pub fn plain(weights: &Weights) -> Plain {
    let device = Device::flex();
    let network = Network::load(weights, &mut PlainSpace::new(&device)).unwrap();
    Plain { device, network, cache: PlainCache::default() }
}

pub fn clean_rows(ids: &[u32], start: usize) -> Vec<Row> {
    let row = |(i, &token): (usize, &u32)| Row { token, position: (start + i) as u32, lane: 0, block: None };
    ids.iter().enumerate().map(row).collect()
}

pub fn canvas_rows(ids: &[u32], start: usize, is_conditioned: bool) -> Vec<Row> {
    let block = Some(Block { start: start as u32, len: ids.len() as u32, is_conditioned });
    clean_rows(ids, start).into_iter().map(|row| Row { block, ..row }).collect()
}

pub fn step<'a>(rows: &'a [Row], logits: &'a [u32], drafts: &'a [Draft]) -> Step<'a> {
    Step { rows, tables: &[], logits, labels: &[], drafts }
}

pub fn numbers(value: &serde_json::Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap() as f32).collect()
}

pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}
