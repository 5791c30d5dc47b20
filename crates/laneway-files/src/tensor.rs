use std::{fmt, ops::Deref, ops::Range, sync::Arc};

use crate::{FileError, Format, Result};

/// Shared bytes of a file: a memory map, a `Vec`, or any other buffer, never copied.
#[derive(Clone)]
pub struct Bytes(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl Bytes {
    /// Takes ownership of a buffer whose content and length must stay the same.
    pub fn new(buffer: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Arc::new(buffer))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(buffer: Vec<u8>) -> Self {
        Self::new(buffer)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// A named matrix or vector that points into a file's bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Canonical (GGUF) name.
    pub name: String,
    /// How the elements are stored.
    pub format: Format,
    /// Row-major dimensions, slowest first; at least one, none is zero.
    pub shape: Vec<usize>,
    /// Factor on all elements: the per-tensor scale of NVFP4, else 1.
    pub scale: f32,
    data: Bytes,
    range: Range<usize>,
}

impl Tensor {
    /// A tensor over bytes of one's own.
    ///
    /// # Errors
    /// When `bytes` is shorter than `shape` in `format`, or a row is not whole blocks.
    pub fn from_bytes(name: &str, format: Format, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self> {
        Self::new(name, format, shape, &Bytes::from(bytes), 0)
    }

    /// Checks that `shape` in `format` is whole blocks per row and lies in `data` from byte `at` on.
    pub(crate) fn new(name: &str, format: Format, shape: Vec<usize>, data: &Bytes, at: usize) -> Result<Self> {
        let byte_len = tensor_bytes(format, &shape)?;
        let end = at.checked_add(byte_len).filter(|&end| end <= data.len());
        let end = end.ok_or(FileError::PastEnd {
            end: (at as u64).saturating_add(byte_len as u64),
            available: data.len() as u64,
        })?;
        Ok(Self { name: name.to_owned(), format, shape, scale: 1.0, data: data.clone(), range: at..end })
    }

    /// The stored bytes: `rows` times whole blocks.
    pub fn bytes(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }

    /// Number of stored bytes.
    pub fn byte_len(&self) -> usize {
        self.range.len()
    }

    /// Elements of a row: the last dimension.
    pub fn cols(&self) -> usize {
        *self.shape.last().expect("a tensor has at least one dimension")
    }

    /// Product of all dimensions but the last; 1 for a vector.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows() * self.cols()
    }

    /// Always false: a tensor with a zero dimension is refused on loading.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.byte_len() / self.rows()
    }

    /// Rows `start..end` as a matrix `[end − start, cols]` over the same bytes; an error when out of bounds or empty.
    pub fn row_range(&self, start: usize, end: usize) -> Result<Self> {
        if start >= end || end > self.rows() {
            let reason = format!("{start}..{end} are not within its {} rows", self.rows());
            return Err(FileError::invalid("rows", reason).in_tensor(&self.name));
        }
        let (first, stride) = (self.range.start, self.row_bytes());
        let range = first + start * stride..first + end * stride;
        Ok(Self { shape: vec![end - start, self.cols()], range, ..self.clone() })
    }

    /// All elements in row-major order, the per-tensor scale applied.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        self.dequantize(&mut out).expect("lengths were checked on loading");
        out
    }

    /// Writes all elements to `out`, the per-tensor scale applied; an error when `out` has another length.
    pub fn dequantize(&self, out: &mut [f32]) -> Result<()> {
        self.format.dequantize(self.bytes(), out)?;
        if self.scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= self.scale);
        }
        Ok(())
    }
}

fn tensor_bytes(format: Format, shape: &[usize]) -> Result<usize> {
    let described = || format!("of {} {shape:?}", format.name());
    if shape.is_empty() || shape.contains(&0) {
        return Err(FileError::invalid("shape", format!("{} has no elements", described())));
    }
    if !shape.last().is_some_and(|cols| cols.is_multiple_of(format.block_len())) {
        let reason = format!("{} has rows that are not whole blocks of {}", described(), format.block_len());
        return Err(FileError::invalid("shape", reason));
    }
    let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    // `to_f32` needs four bytes an element, which must be addressable too.
    let elements = elements.filter(|&n| n <= isize::MAX as usize / 4);
    let bytes = elements.and_then(|n| format.byte_len(n));
    bytes.ok_or_else(|| FileError::invalid("shape", format!("{} is too large", described())))
}

/// Refuses tensors that share bytes; `tensors` of one buffer.
pub(crate) fn refuse_overlap<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let mut sorted: Vec<_> = tensors.collect();
    sorted.sort_by_key(|tensor| tensor.range.start);
    match sorted.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        Some(pair) => Err(FileError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_ranges_are_views_of_the_same_bytes() {
        let values: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let tensor = Tensor::new("t", Format::F32, vec![2, 3, 2], &values.into(), 0).unwrap();
        assert_eq!((tensor.rows(), tensor.cols(), tensor.len()), (6, 2, 12));
        let view = tensor.row_range(1, 3).unwrap();
        assert_eq!((view.shape.as_slice(), view.to_f32()), ([2, 2].as_slice(), vec![2.0, 3.0, 4.0, 5.0]));
        assert_eq!(view.row_range(1, 2).unwrap().to_f32(), [4.0, 5.0]);
        assert!(tensor.row_range(5, 7).is_err() && tensor.row_range(2, 2).is_err());
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let data = Bytes::from(vec![0; 64]);
        let refused = |format, shape: &[usize], at, words: &str| {
            let error = Tensor::new("t", format, shape.to_vec(), &data, at).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(Format::F32, &[], 0, "no elements");
        refused(Format::F32, &[4, 0], 0, "no elements");
        refused(Format::Q4_0, &[2, 33], 0, "whole blocks of 32");
        refused(Format::F32, &[usize::MAX, usize::MAX], 0, "too large");
        refused(Format::F32, &[17], 0, "ends at byte 68 of a data section of 64");
        refused(Format::F32, &[1], usize::MAX, "past end");
    }
}
