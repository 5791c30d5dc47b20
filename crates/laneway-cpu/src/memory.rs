//! Zeroed memory for weights, in few large pieces that the system may back with huge pages.
//!
//! Reading weights is what decoding waits for; on pages of 4 KiB a core read half as many bytes per second here.

use crate::simd::{LANES, Line};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of one piece; what is never written stays without memory.
#[cfg(target_os = "linux")]
const CHUNK_BYTES: usize = 64 << 20;

/// Types for which all-zero bytes are a value.
///
/// # Safety
/// The type must be plain numbers with an alignment of at most 64.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: plain numbers.
unsafe impl Plain for Line {}
// SAFETY: plain numbers.
unsafe impl Plain for [f32; LANES] {}
// SAFETY: plain numbers.
unsafe impl Plain for [u16; LANES] {}
// SAFETY: plain numbers.
unsafe impl Plain for [i8; LANES] {}

/// Where blocks come from.
#[derive(Default)]
pub(crate) struct Arena(Mutex<Option<Open>>);

/// A piece that has room left.
struct Open {
    chunk: Arc<Chunk>,
    start: *mut u8,
    used: usize,
    len: usize,
}

// SAFETY: `start` points into `chunk`, which any thread may own.
unsafe impl Send for Open {}

/// Keeps the memory alive; it is only reached through blocks.
struct Chunk {
    #[cfg(target_os = "linux")]
    _map: memmap2::MmapMut,
    #[cfg(not(target_os = "linux"))]
    _lines: Vec<Line>,
}

/// An owned slice of an arena.
pub(crate) struct Block<T> {
    _chunk: Option<Arc<Chunk>>,
    data: *mut T,
    len: usize,
}

// SAFETY: a block owns its part of the chunk alone.
unsafe impl<T: Plain> Send for Block<T> {}
// SAFETY: as above; shared references only read.
unsafe impl<T: Plain> Sync for Block<T> {}

impl Arena {
    /// `len` zeroed values.
    pub fn block<T: Plain>(&self, len: usize) -> Block<T> {
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_next_multiple_of(64));
        let bytes = bytes.expect("packed weights are about as large as the file's, which are in memory");
        if bytes == 0 {
            return Block { _chunk: None, data: std::ptr::NonNull::dangling().as_ptr(), len: 0 };
        }
        let mut open = self.0.lock().expect("no thread panics while it holds the lock");
        if open.as_ref().is_none_or(|open| open.len - open.used < bytes) {
            *open = Some(Open::new(bytes));
        }
        let open = open.as_mut().expect("just opened");
        // SAFETY: `used + bytes <= len` was ensured above, so the block lies inside the chunk, at a multiple of 64.
        let data = unsafe { open.start.add(open.used) }.cast();
        open.used += bytes;
        Block { _chunk: Some(open.chunk.clone()), data, len }
    }
}

impl Open {
    #[cfg(target_os = "linux")]
    fn new(bytes: usize) -> Self {
        let len = bytes.max(CHUNK_BYTES).next_multiple_of(HUGE_PAGE);
        let mut map = memmap2::MmapMut::map_anon(len + HUGE_PAGE).expect("the system has memory for the weights");
        // Without huge pages everything works, only slower.
        let _ = map.advise(memmap2::Advice::HugePage);
        let skip = map.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: the map is longer than `len` by one huge page, and `skip` is less than one.
        let start = unsafe { map.as_mut_ptr().add(skip) };
        Self { chunk: Arc::new(Chunk { _map: map }), start, used: 0, len }
    }

    #[cfg(not(target_os = "linux"))]
    fn new(bytes: usize) -> Self {
        let mut lines = vec![Line([0; 64]); bytes / 64];
        let start = lines.as_mut_ptr().cast();
        Self { chunk: Arc::new(Chunk { _lines: lines }), start, used: 0, len: bytes }
    }
}

impl<T: Plain> Deref for Block<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `Arena::block` gave out `len` zeroed values to this block alone, and the chunk lives as long.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl<T: Plain> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroed_aligned_and_apart() {
        let arena = Arena::default();
        let mut blocks: Vec<Block<[u16; LANES]>> = (0..50).map(|i| arena.block(i * 7000)).collect();
        for (i, block) in blocks.iter_mut().enumerate() {
            assert!(block.len() == i * 7000 && (i == 0 || block.as_ptr().addr().is_multiple_of(64)));
            assert!(block.iter().all(|x| *x == [0; LANES]));
            block.fill([i as u16 + 1; LANES]);
        }
        drop(arena);
        assert!(blocks.iter().enumerate().all(|(i, block)| block.iter().all(|x| *x == [i as u16 + 1; LANES])));
    }
}
