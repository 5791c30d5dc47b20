use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::repack::{repack, row_words, widen_to_q8_0};
use laneway_files::{Format, Tensor};
use laneway_model::{ModelError, WeightSpace};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Weights on a GPU, quantised as in their file.
pub struct GpuSpace {
    gpu: Gpu,
    bytes: u64,
}

/// A matrix on a GPU: one part, or several where formats differ or one binding cannot hold it.
pub struct GpuMatrix {
    /// Parts in row order.
    pub parts: Vec<MatrixPart>,
    /// Rows of all parts.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// Consecutive rows in one buffer.
pub struct MatrixPart {
    /// Format of the part.
    pub format: Format,
    /// First row within the matrix.
    pub first_row: usize,
    /// Rows in this part.
    pub rows: usize,
    /// The planes.
    pub words: Buffer,
    /// Word offsets of planes 1, 2 and 3.
    pub starts: [u32; 3],
}

/// A vector on a GPU, with the host's copy (kernels that need two vectors in one binding join them).
pub struct GpuVector {
    /// The values on the device.
    pub values: Buffer,
    /// The same values on the host.
    pub host: Arc<[f32]>,
    /// Distinguishes vectors of one process.
    pub id: u64,
}

impl GpuSpace {
    /// Weights of one network on one device.
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), bytes: 0 }
    }

    /// Bytes stored so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn store(&mut self, format: Format, bytes: &[u8], cols: usize, matrix: &mut GpuMatrix) -> Result<(), ModelError> {
        let row_bytes = cols / format.block_len() * format.block_bytes();
        let words_per_row: usize = row_words(format, cols).iter().sum();
        let limit = self.binding_limit();
        let rows_per_part = (limit as usize / (4 * words_per_row)).max(1);
        if (4 * words_per_row) as u64 > limit {
            return Err(ModelError::OutOfMemory {
                what: "one row of a matrix".into(),
                needed_bytes: 4 * words_per_row as u64,
                available_bytes: limit,
            });
        }
        for part in bytes.chunks(rows_per_part * row_bytes) {
            let planes = repack(format, part, cols);
            let rows = part.len() / row_bytes;
            self.bytes += 4 * planes.words.len() as u64;
            let words = Buffer::upload(&self.gpu, planes.words);
            matrix.parts.push(MatrixPart { format, first_row: matrix.rows, rows, words, starts: planes.starts });
            matrix.rows += rows;
        }
        self.gpu.check().map_err(|e| ModelError::Device(e.to_string()))
    }

    fn binding_limit(&self) -> u64 {
        let limits = self.gpu.limits();
        limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)
    }
}

impl WeightSpace for GpuSpace {
    type Matrix = GpuMatrix;
    type Vector = GpuVector;

    fn matrix(&mut self, parts: &[&Tensor]) -> Result<GpuMatrix, ModelError> {
        let cols = parts.first().map_or(0, |t| t.cols());
        if cols == 0 || !cols.is_multiple_of(8) {
            return Err(ModelError::Device(format!("rows of {cols} weights: kernels need a multiple of 8")));
        }
        let mut matrix = GpuMatrix { parts: Vec::new(), rows: 0, cols };
        // A factor on a whole tensor has no place in its blocks; such files are rare enough to expand.
        if parts.iter().any(|t| t.scale != 1.0) {
            let bytes: Vec<u8> = parts.iter().flat_map(|t| t.to_f32()).flat_map(f32::to_le_bytes).collect();
            self.store(Format::F32, &bytes, cols, &mut matrix)?;
            return Ok(matrix);
        }
        let first = parts[0].format;
        let widens = |t: &&&Tensor| matches!(t.format, Format::Q4_0 | Format::Q5_0 | Format::Q8_0);
        if parts.iter().all(|t| t.format == first) {
            let bytes: Vec<u8>;
            let joined = if let [one] = parts {
                one.bytes()
            } else {
                bytes = parts.iter().flat_map(|t| t.bytes()).copied().collect();
                &bytes
            };
            self.store(first, joined, cols, &mut matrix)?;
        } else if parts.iter().filter(widens).count() == parts.len() {
            let bytes: Vec<u8> = parts.iter().flat_map(|t| widen_to_q8_0(t.format, t.bytes())).collect();
            self.store(Format::Q8_0, &bytes, cols, &mut matrix)?;
        } else {
            for tensor in parts {
                self.store(tensor.format, tensor.bytes(), cols, &mut matrix)?;
            }
        }
        Ok(matrix)
    }

    fn vector(&mut self, values: &[f32]) -> Result<GpuVector, ModelError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.bytes += 4 * values.len() as u64;
        Ok(GpuVector {
            values: Buffer::upload_f32(&self.gpu, values),
            host: values.into(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }
}
