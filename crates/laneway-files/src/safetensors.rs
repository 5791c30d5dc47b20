use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::{Bytes, FileError, Format, Result, Tensor, sniff::not_a_model};

/// Longest header that the format's own readers accept.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One tensor of a shard as its header describes it.
#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    pub dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A shard's bytes and its header.
pub(crate) struct Shard {
    bytes: Bytes,
    data: usize,
    pub entries: Vec<(String, Entry)>,
}

impl Shard {
    /// Reads the header: a u64 length, then JSON.
    pub fn read(bytes: Bytes) -> Result<Self> {
        let expected = "a safetensors file";
        let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
        let length = length.ok_or_else(|| not_a_model(expected, &bytes))?;
        let opens_json = bytes.get(8) == Some(&b'{');
        if !opens_json || length > MAX_HEADER_BYTES {
            return Err(not_a_model(expected, &bytes));
        }
        let data = 8 + length as usize;
        let header = bytes.get(8..data).ok_or(FileError::Truncated {
            what: "the safetensors header",
            needed: length,
            available: bytes.len() as u64 - 8,
        })?;
        let header: Header =
            serde_json::from_slice(header).map_err(|source| FileError::Json { what: "safetensors header", source })?;
        Ok(Self { data, entries: header.0, bytes })
    }

    /// The tensor of an entry under another name; scalars become vectors of one element.
    pub fn tensor(&self, name: &str, entry: &Entry) -> Result<Tensor> {
        self.place(name, entry).map_err(|error| error.in_tensor(name))
    }

    fn place(&self, name: &str, entry: &Entry) -> Result<Tensor> {
        let format = Format::from_safetensors(&entry.dtype)?;
        let shape = entry.shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Vec<_>, _>>();
        let mut shape = shape.map_err(|_| FileError::invalid("shape", format!("{:?} is too large", entry.shape)))?;
        if shape.is_empty() {
            shape.push(1);
        }
        let [start, end] = entry.data_offsets;
        let available = (self.bytes.len() - self.data) as u64;
        if start > end {
            return Err(FileError::invalid("data_offsets", format!("[{start}, {end}] run backwards")));
        }
        if end > available {
            return Err(FileError::PastEnd { end, available });
        }
        let tensor = Tensor::new(name, format, shape, &self.bytes, self.data + start as usize)?;
        if tensor.byte_len() as u64 != end - start {
            let reason = format!("[{start}, {end}] span {} bytes, the shape needs {}", end - start, tensor.byte_len());
            return Err(FileError::invalid("data_offsets", reason));
        }
        Ok(tensor)
    }
}

/// The header's tensors in file order; a plain map would hide names that occur twice.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "__metadata__" => drop(map.next_value::<IgnoredAny>()?),
                        _ => entries.push((name, map.next_value()?)),
                    }
                }
                Ok(Header(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
