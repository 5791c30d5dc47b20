use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::scratch::Loan;
use crate::weights::GpuVector;
use laneway_model::{KvShape, KvType, PAGE_POSITIONS};
use std::collections::HashMap;
use std::sync::Arc;

/// What lives on the device between steps: pages, page tables, sampling state, and the inputs of the step to come.
pub(crate) struct DeviceState {
    /// `[max_rows]` of (token, position, lane, block), the last as in [`laneway_model::Row::block_word`].
    pub rows: Buffer,
    /// `[max_rows]` indices of rows that want logits or drafts.
    pub wanted: Buffer,
    /// (row, token) of each label, all ones past the last; as many as a step has had so far.
    pub labels: Buffer,
    /// `[max_rows]` of (temperature, draw).
    pub drafts: Buffer,
    /// `[slots, canvas, hidden]` soft embeddings that drafts left.
    pub soft: Buffer,
    /// Positions of a block that `soft` has room for.
    pub canvas: usize,
    /// (from, to) of pages to be copied, all ones past the last.
    pub copies: Buffer,
    /// `[slots, max_pages]`.
    pub tables: Buffer,
    /// The token each lane sampled last.
    pub sampled: Buffer,
    /// `[lanes]` of 12 words: see `struct Lane` in `shaders/score.wgsl`.
    pub lanes: Buffer,
    /// `[lanes, vocab]`.
    pub counts: Buffer,
    /// Pages by layer; `None` where a layer reads another's.
    pub kv: Vec<Option<LayerPages>>,
    /// Type of the values in the pages.
    pub kv_type: KvType,
    /// Pages a lane's table can name.
    pub max_pages: usize,
    /// `[max_rows, hidden]` that another stage left; none in a network that begins with tokens.
    pub boundary: Option<Arc<Loan>>,
    joined: HashMap<(u64, u64), Buffer>,
}

/// Keys and values of one layer: `[pages, 32, K, d]` each; of q8 each page has its bytes first, then the scales.
pub(crate) struct LayerPages {
    pub keys: Buffer,
    pub values: Buffer,
    /// `K · d`.
    pub width: usize,
    /// Words of a page.
    pub page_words: usize,
}

/// Sizes of the state.
#[derive(Clone, Copy, Debug)]
pub struct StateShape {
    /// Lanes.
    pub lanes: usize,
    /// Page tables: the lanes', then those of branches, which never sample.
    pub slots: usize,
    /// KV pages all lanes share.
    pub pages: usize,
    /// Pages one lane can use.
    pub max_pages: usize,
    /// Rows of one step.
    pub max_rows: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Positions of a block whose soft embeddings are kept from draft to draft; 0 for a model that is not conditioned
    /// on them.
    pub canvas_length: usize,
    /// Width of a soft embedding.
    pub hidden: usize,
    /// Type of the values in the pages.
    pub kv_type: KvType,
}

/// Words of one lane's sampling parameters.
pub(crate) const LANE_WORDS: usize = 12;
/// Pages that one launch copies at most.
pub(crate) const COPIES: usize = 64;

impl DeviceState {
    pub fn new(gpu: &Gpu, kv: &[Option<KvShape>], shape: StateShape) -> Self {
        let pages = |s: &KvShape| {
            let width = s.kv_heads * s.head_dim;
            let page_words = page_words(shape.kv_type, width);
            let words = shape.pages * page_words;
            LayerPages { keys: Buffer::zeros(gpu, words), values: Buffer::zeros(gpu, words), width, page_words }
        };
        Self {
            rows: Buffer::zeros(gpu, 4 * shape.max_rows),
            wanted: Buffer::zeros(gpu, shape.max_rows),
            labels: Buffer::zeros(gpu, 2 * 64),
            drafts: Buffer::zeros(gpu, 2 * shape.max_rows),
            soft: Buffer::zeros(gpu, shape.slots * shape.canvas_length * shape.hidden),
            canvas: shape.canvas_length,
            copies: Buffer::zeros(gpu, 2 * COPIES),
            tables: Buffer::zeros(gpu, shape.slots * shape.max_pages),
            sampled: Buffer::zeros(gpu, shape.lanes),
            lanes: Buffer::zeros(gpu, shape.lanes * LANE_WORDS),
            counts: Buffer::zeros(gpu, shape.lanes * shape.vocab),
            kv: kv.iter().map(|layer| layer.as_ref().map(pages)).collect(),
            kv_type: shape.kv_type,
            max_pages: shape.max_pages,
            boundary: None,
            joined: HashMap::new(),
        }
    }

    /// Two vectors in one buffer, made once.
    pub fn joined(&mut self, gpu: &Gpu, first: &GpuVector, second: &GpuVector) -> Buffer {
        let make = || Buffer::upload_f32(gpu, &[&first.host[..], &second.host[..]].concat());
        self.joined.entry((first.id, second.id)).or_insert_with(make).clone()
    }
}

/// 32-bit words of one page of keys or values.
pub(crate) fn page_words(kind: KvType, width: usize) -> usize {
    match kind {
        KvType::F32 => PAGE_POSITIONS * width,
        KvType::F16 => PAGE_POSITIONS * width / 2,
        KvType::Q8 => PAGE_POSITIONS * (width / 4 + width / KvType::BLOCK),
    }
}
