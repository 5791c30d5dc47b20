use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::weights::GpuVector;
use laneway_model::{KvShape, PAGE_POSITIONS};
use std::collections::HashMap;

/// What lives on the device between steps: pages, page tables, sampling state, and the inputs of the step to come.
pub(crate) struct DeviceState {
    /// `[max_rows]` of (token, position, lane, 0).
    pub rows: Buffer,
    /// `[max_rows]` indices of rows that want logits.
    pub wanted: Buffer,
    /// `[lanes, max_pages]`.
    pub tables: Buffer,
    /// The token each lane sampled last.
    pub sampled: Buffer,
    /// `[lanes]` of 12 words: see `struct Lane` in `shaders/score.wgsl`.
    pub lanes: Buffer,
    /// `[lanes, vocab]`.
    pub counts: Buffer,
    /// Pages by layer; `None` where a layer reads another's.
    pub kv: Vec<Option<LayerPages>>,
    /// Pages a lane's table can name.
    pub max_pages: usize,
    joined: HashMap<(u64, u64), Buffer>,
}

/// Keys and values of one layer: `[pages, 32, K, d]` each.
pub(crate) struct LayerPages {
    pub keys: Buffer,
    pub values: Buffer,
}

/// Sizes of the state.
#[derive(Clone, Copy, Debug)]
pub struct StateShape {
    /// Lanes.
    pub lanes: usize,
    /// KV pages all lanes share.
    pub pages: usize,
    /// Pages one lane can use.
    pub max_pages: usize,
    /// Rows of one step.
    pub max_rows: usize,
    /// Vocabulary size.
    pub vocab: usize,
}

/// Words of one lane's sampling parameters.
pub(crate) const LANE_WORDS: usize = 12;

impl DeviceState {
    pub fn new(gpu: &Gpu, kv: &[Option<KvShape>], shape: StateShape) -> Self {
        let pages = |s: &KvShape| {
            let words = shape.pages * PAGE_POSITIONS * s.kv_heads * s.head_dim;
            LayerPages { keys: Buffer::zeros(gpu, words), values: Buffer::zeros(gpu, words) }
        };
        Self {
            rows: Buffer::zeros(gpu, 4 * shape.max_rows),
            wanted: Buffer::zeros(gpu, shape.max_rows),
            tables: Buffer::zeros(gpu, shape.lanes * shape.max_pages),
            sampled: Buffer::zeros(gpu, shape.lanes),
            lanes: Buffer::zeros(gpu, shape.lanes * LANE_WORDS),
            counts: Buffer::zeros(gpu, shape.lanes * shape.vocab),
            kv: kv.iter().map(|layer| layer.as_ref().map(pages)).collect(),
            max_pages: shape.max_pages,
            joined: HashMap::new(),
        }
    }

    /// Two vectors in one buffer, made once.
    pub fn joined(&mut self, gpu: &Gpu, first: &GpuVector, second: &GpuVector) -> Buffer {
        let make = || Buffer::upload_f32(gpu, &[&first.host[..], &second.host[..]].concat());
        self.joined.entry((first.id, second.id)).or_insert_with(make).clone()
    }
}
