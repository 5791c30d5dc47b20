use crate::matrix::CpuMatrix;
use crate::memory::Arena;
use crate::pack::Source;
use crate::pool::Pool;
use crate::simd::Tier;
use laneway_files::Tensor;
use laneway_model::{ModelError, WeightSpace};
use std::sync::Arc;

/// Host memory for weights, and the threads that compute with them.
pub struct CpuSpace {
    pub(crate) pool: Pool,
    pub(crate) tier: Tier,
    arena: Arena,
    weight_bytes: usize,
}

impl CpuSpace {
    /// A space whose steps run on `threads` threads (one on platforms without threads).
    pub fn new(threads: usize) -> Self {
        Self::with_tier(threads, Tier::best())
    }

    /// A space that computes with the given instruction set.
    pub fn with_tier(threads: usize, tier: Tier) -> Self {
        Self { pool: Pool::new(threads), tier, arena: Arena::default(), weight_bytes: 0 }
    }

    /// Bytes of all weights stored so far.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Threads that share the work, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs a whole step inside the thread pool, where its many small parallel parts cost least.
    pub fn run<R: Send>(&self, step: impl FnOnce() -> R + Send) -> R {
        self.pool.run(step)
    }
}

impl WeightSpace for CpuSpace {
    type Matrix = Arc<CpuMatrix>;
    type Vector = Vec<f32>;

    fn matrix(&mut self, parts: &[&Tensor]) -> Result<Arc<CpuMatrix>, ModelError> {
        let sources: Vec<Source<'_>> = parts.iter().map(|part| Source::from(*part)).collect();
        let matrix = CpuMatrix::new(&sources, &self.arena, &self.pool)
            .ok_or_else(|| ModelError::Device("stacked tensors have different numbers of columns".into()))?;
        self.weight_bytes += matrix.byte_len();
        Ok(Arc::new(matrix))
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>, ModelError> {
        self.weight_bytes += size_of_val(values);
        Ok(values.to_vec())
    }
}
