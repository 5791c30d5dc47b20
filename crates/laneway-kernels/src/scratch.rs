use crate::buffer::Buffer;
use crate::device::Gpu;
use std::sync::{Arc, Mutex};

/// Activation buffers that come back when the last user drops them.
///
/// Plans may share them: steps run one after another on one queue, so only lives within a step can collide.
#[derive(Clone)]
pub(crate) struct Scratch {
    gpu: Gpu,
    free: Arc<Mutex<Vec<Buffer>>>,
}

/// A buffer on loan.
pub(crate) struct Loan {
    pub buffer: Buffer,
    home: Arc<Mutex<Vec<Buffer>>>,
}

impl Scratch {
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), free: Arc::default() }
    }

    /// A buffer of at least `words`; the smallest free one that is not more than twice too large.
    pub fn take(&self, words: usize) -> Arc<Loan> {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        let fits = |b: &Buffer| b.words() >= words && b.words() <= 2 * words.max(1024);
        let best = free.iter().enumerate().filter(|(_, b)| fits(b)).min_by_key(|(_, b)| b.words()).map(|(i, _)| i);
        let buffer = match best {
            Some(index) => free.swap_remove(index),
            None => Buffer::zeros(&self.gpu, words.next_multiple_of(64)),
        };
        Arc::new(Loan { buffer, home: self.free.clone() })
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.home.lock().unwrap_or_else(|e| e.into_inner()).push(self.buffer.clone());
    }
}
