//! Checkpoints whose every byte follows from their tokens, and a store that fails on demand.
#![allow(dead_code)]

use laneway_checkpoint::{
    ByteStore, Checkpoint, Codec, Config, Descriptor, ElementType, Entry, Identity, MemoryStore, PageRecord, Scope,
    StoreError, StoreFuture,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub const PAGE: usize = 64;
pub const ROW: usize = 32;

pub fn wait<F: Future>(future: F) -> F::Output {
    pollster::block_on(future)
}

pub fn identity(model: &str) -> Identity {
    let scope = Scope {
        model,
        topology: "one",
        stage: 0,
        layers: 0..2,
        schema: 1,
        kv_layout: "layer-major",
        kv_type: "f16/f16",
        positions: "rope 10000",
        namespace: "",
    };
    scope.identity()
}

pub fn mix(mut state: u64) -> u64 {
    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// `len` tokens of a conversation.
pub fn tokens(conversation: u64, len: usize) -> Vec<u32> {
    (0..len).map(|position| mix(conversation << 32 | position as u64) as u32 % 50_000).collect()
}

pub fn descriptor(tokens: Range<usize>) -> Descriptor {
    let bytes = (tokens.len() * ROW) as u64;
    Descriptor {
        layers: 0..2,
        layer_count: 2,
        tokens: tokens.start as u32..tokens.end as u32,
        k_type: ElementType::F16,
        v_type: ElementType::F16,
        k_row_bytes: ROW as u32 / 2,
        v_row_bytes: ROW as u32 / 2,
        indexer_row_bytes: 0,
        v_element_bytes: 2,
        v_transposed: false,
        payload_bytes: bytes,
        stored_bytes: bytes,
        codec: Codec::Raw,
        components: None,
    }
}

pub fn page(timeline: &[u32], range: Range<usize>) -> PageRecord {
    let payload = timeline[range.clone()].iter().zip(range.clone()).flat_map(|(token, position)| {
        (0..ROW as u64).map(move |at| mix(u64::from(*token) << 32 | (position as u64) << 8 | at) as u8)
    });
    PageRecord { payload: payload.collect(), descriptor: descriptor(range) }
}

/// The checkpoint of a timeline, in pages of 64 tokens.
pub fn checkpoint_of(model: &str, timeline: Vec<u32>, logits: bool) -> Checkpoint {
    let cuts = (0..timeline.len()).step_by(PAGE).map(|start| start..timeline.len().min(start + PAGE));
    Checkpoint {
        identity: identity(model),
        pages: cuts.map(|range| page(&timeline, range)).collect(),
        logits: logits.then(|| (0..100).map(|at| at as f32 * 0.5 - timeline.len() as f32).collect()),
        tokens: timeline,
    }
}

pub fn checkpoint(conversation: u64, len: usize) -> Checkpoint {
    checkpoint_of("m", tokens(conversation, len), true)
}

pub fn config(budget_bytes: u64) -> Config {
    Config { budget_bytes, min_free_bytes: 0, min_tokens: 32, ..Config::default() }
}

/// A store whose writes stop working at some byte or operation.
#[derive(Default)]
pub struct Faulty {
    pub inner: MemoryStore,
    /// Bytes that may still be written, if limited.
    pub left_bytes: AtomicU64,
    pub limited: AtomicBool,
    /// Operations until they fail; 0 for never.
    pub countdown: AtomicU64,
    /// Whether only one of them fails.
    pub once: AtomicBool,
    pub free: AtomicU64,
}

impl Faulty {
    pub fn limit_bytes(&self, bytes: u64) {
        self.left_bytes.store(bytes, Ordering::Relaxed);
        self.limited.store(true, Ordering::Relaxed);
    }

    pub fn unlimit(&self) {
        self.limited.store(false, Ordering::Relaxed);
        self.countdown.store(0, Ordering::Relaxed);
    }

    fn step(&self, key: &str) -> Result<(), StoreError> {
        match self.countdown.load(Ordering::Relaxed) {
            0 => Ok(()),
            1 => {
                let left = if self.once.load(Ordering::Relaxed) { 0 } else { 1 };
                self.countdown.store(left, Ordering::Relaxed);
                let source = "injected".into();
                Err(StoreError::Failed { action: "using", key: key.to_owned(), source })
            }
            left => {
                self.countdown.store(left - 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl ByteStore for Faulty {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.step(key)?;
            self.inner.get(key).await
        })
    }

    fn put<'a>(&'a self, key: &'a str, parts: &'a [&'a [u8]]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.step(key)?;
            if self.limited.load(Ordering::Relaxed) {
                let bytes = parts.iter().map(|part| part.len() as u64).sum();
                let left = self.left_bytes.load(Ordering::Relaxed).checked_sub(bytes).ok_or(StoreError::Full)?;
                self.left_bytes.store(left, Ordering::Relaxed);
            }
            self.inner.put(key, parts).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.step(key)?;
            self.inner.delete(key).await
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> StoreFuture<'a, Vec<Entry>> {
        Box::pin(async move {
            self.step(folder)?;
            self.inner.list(folder).await
        })
    }

    fn free_bytes(&self) -> StoreFuture<'_, Option<u64>> {
        Box::pin(async move { Ok(Some(self.free.load(Ordering::Relaxed)).filter(|&free| free > 0)) })
    }
}
