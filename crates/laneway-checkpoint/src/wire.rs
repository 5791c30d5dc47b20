//! Little-endian fields, read and written in order.

use crate::error::FormatError;

/// Reads fields from the front of a slice.
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what }
    }

    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(FormatError::Truncated {
            what: self.what,
            needed: count as u64,
            available: self.bytes.len() as u64,
        })?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        Ok(self.take(N)?.try_into().expect("take returns the length asked for"))
    }

    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn end(self) -> Result<(), FormatError> {
        match self.bytes.len() {
            0 => Ok(()),
            bytes => Err(FormatError::Trailing { bytes: bytes as u64 }),
        }
    }
}

/// An error for a value that makes no sense.
pub(crate) fn invalid(what: &'static str, reason: &'static str) -> FormatError {
    FormatError::Invalid { what, reason }
}
