use crate::{
    Array, Bytes, FileError, Format, Metadata, Result, Tensor, Value, error::within, sniff::not_a_model,
    tensor::refuse_overlap,
};

/// Elements of all metadata arrays together; the largest vocabulary with merges needs two million.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
const MAX_ARRAY_DEPTH: u32 = 4;
const MAX_ALIGNMENT: u64 = 1 << 20;
const MAX_DIMS: u64 = 4;
/// Shortest possible metadata entry and tensor description, to bound the counts by the file's length.
const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads a GGUF file's metadata and tensor descriptions; the tensors point into `bytes`.
pub(crate) fn read(bytes: &Bytes) -> Result<(Metadata, Vec<Tensor>)> {
    if !bytes.starts_with(b"GGUF") {
        return Err(not_a_model("a GGUF file", bytes));
    }
    let mut reader = Reader { bytes, at: 4, elements: 0 };
    check_version(reader.u32("the version")?)?;
    let tensor_count = reader.u64("the tensor count")?;
    let entry_count = reader.u64("the metadata count")?;
    reader.bound("metadata", entry_count, MIN_ENTRY_BYTES)?;
    let mut metadata = Metadata::default();
    for _ in 0..entry_count {
        let key = reader.name("a metadata key")?;
        let kind = reader.u32("a value's type")?;
        let value = reader.value(kind).map_err(|error| with_key(error, &key))?;
        metadata.insert(key, value)?;
    }
    reader.bound("tensor descriptions", tensor_count, MIN_TENSOR_BYTES)?;
    let mut described = Vec::new();
    for _ in 0..tensor_count {
        described.push(reader.tensor()?);
    }
    let alignment = metadata.u64("general.alignment")?.unwrap_or(32);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(FileError::invalid(
            "general.alignment",
            format!("is {alignment}, expected a power of two up to {MAX_ALIGNMENT}"),
        ));
    }
    let data = (reader.at as u64).next_multiple_of(alignment);
    let tensors = described.into_iter().map(|tensor| tensor.place(bytes, data, alignment));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    refuse_overlap(tensors.iter())?;
    Ok((metadata, tensors))
}

fn check_version(version: u32) -> Result<()> {
    match version {
        2 | 3 => Ok(()),
        _ if version.swap_bytes() <= 3 => {
            Err(FileError::UnsupportedVersion { version: version.swap_bytes(), hint: "; the file is big-endian" })
        }
        _ => Err(FileError::UnsupportedVersion { version, hint: "" }),
    }
}

fn with_key(error: FileError, key: &str) -> FileError {
    match error {
        FileError::Invalid { what, reason } => FileError::Invalid { what: format!("{what} of `{key}`"), reason },
        other => other,
    }
}

struct Described {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl Described {
    fn place(self, bytes: &Bytes, data: u64, alignment: u64) -> Result<Tensor> {
        let place = || {
            let format = Format::from_ggml(self.kind)?;
            if !self.offset.is_multiple_of(alignment) {
                return Err(FileError::Misaligned { offset: self.offset, alignment });
            }
            let shape = self.dims.iter().rev().map(|&dim| usize::try_from(dim));
            let shape = shape.collect::<Result<Vec<_>, _>>();
            let shape = shape.map_err(|_| FileError::invalid("shape", format!("{:?} is too large", self.dims)))?;
            let at = data.checked_add(self.offset).and_then(|at| usize::try_from(at).ok());
            let available = (bytes.len() as u64).saturating_sub(data);
            let past = |end| FileError::PastEnd { end, available };
            Tensor::new(&self.name, format, shape, bytes, at.ok_or_else(|| past(self.offset))?).map_err(|error| {
                match error {
                    FileError::PastEnd { end, .. } => past(end.saturating_sub(data)),
                    other => other,
                }
            })
        };
        place().map_err(|error| error.in_tensor(&self.name))
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    elements: u64,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, what: &'static str, needed: u64) -> Result<&'a [u8]> {
        let truncated = FileError::Truncated { what, needed, available: self.left() };
        let end = usize::try_from(needed).ok().and_then(|needed| self.at.checked_add(needed));
        let taken = end.and_then(|end| self.bytes.get(self.at..end)).ok_or(truncated)?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let taken = self.take(what, N as u64)?;
        Ok(taken.try_into().expect("`take` gives the length asked for"))
    }

    fn u32(&mut self, what: &'static str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Refuses a count whose items cannot fit into the rest of the file.
    fn bound(&self, what: &'static str, count: u64, item_bytes: u64) -> Result<()> {
        let needed = count.saturating_mul(item_bytes);
        if needed > self.left() {
            return Err(FileError::Truncated { what, needed, available: self.left() });
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String> {
        let length = self.u64("a string's length")?;
        let text = self.take("a string", length)?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn name(&mut self, what: &'static str) -> Result<String> {
        let length = self.u64(what)?;
        let text = self.take(what, within(what, length, 1, 65_535)? as u64)?;
        let text = str::from_utf8(text).map_err(|_| FileError::invalid(what, "is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array("a u8")?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array("an i8")?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array("a u16")?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array("an i16")?).into()),
            4 => Value::Unsigned(self.u32("a u32")?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array("an i32")?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array("an f32")?).into()),
            7 => Value::Bool(self.array::<1>("a boolean")? != [0]),
            8 => Value::String(self.string()?),
            9 => Value::Array(self.items(0)?),
            10 => Value::Unsigned(self.u64("a u64")?),
            11 => Value::Signed(i64::from_le_bytes(self.array("an i64")?)),
            12 => Value::Float(f64::from_le_bytes(self.array("an f64")?)),
            _ => {
                return Err(FileError::invalid("value type", format!("is {kind}, expected 0 to 12")));
            }
        })
    }

    fn items(&mut self, depth: u32) -> Result<Array> {
        if depth == MAX_ARRAY_DEPTH {
            return Err(FileError::invalid("array", format!("is nested more than {MAX_ARRAY_DEPTH} deep")));
        }
        let kind = self.u32("an array's element type")?;
        let count = self.u64("an array's length")?;
        self.elements = self.elements.saturating_add(count);
        if self.elements > MAX_ARRAY_ELEMENTS {
            let reason =
                format!("brings the metadata to {} array elements, more than {MAX_ARRAY_ELEMENTS}", self.elements);
            return Err(FileError::invalid("array", reason));
        }
        Ok(match kind {
            0 => Array::Unsigned(self.numbers(count, u8::from_le_bytes)?),
            1 => Array::Signed(self.numbers(count, i8::from_le_bytes)?),
            2 => Array::Unsigned(self.numbers(count, u16::from_le_bytes)?),
            3 => Array::Signed(self.numbers(count, i16::from_le_bytes)?),
            4 => Array::Unsigned(self.numbers(count, u32::from_le_bytes)?),
            5 => Array::Signed(self.numbers(count, i32::from_le_bytes)?),
            6 => Array::Float(self.numbers(count, f32::from_le_bytes)?),
            7 => Array::Bool(self.numbers(count, |[byte]: [u8; 1]| byte != 0)?),
            8 => Array::String(self.repeated(count, 8, Self::string)?),
            9 => Array::Nested(self.repeated(count, 12, |reader| reader.items(depth + 1))?),
            10 => Array::Unsigned(self.numbers(count, u64::from_le_bytes)?),
            11 => Array::Signed(self.numbers(count, i64::from_le_bytes)?),
            12 => Array::Double(self.numbers(count, f64::from_le_bytes)?),
            _ => {
                return Err(FileError::invalid("array element type", format!("is {kind}, expected 0 to 12")));
            }
        })
    }

    fn numbers<const N: usize, T, U: From<T>>(&mut self, count: u64, read: impl Fn([u8; N]) -> T) -> Result<Vec<U>> {
        let taken = self.take("an array", count.saturating_mul(N as u64))?;
        Ok(taken.as_chunks().0.iter().map(|&item| read(item).into()).collect())
    }

    fn repeated<T>(&mut self, count: u64, item_bytes: u64, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.bound("an array", count, item_bytes)?;
        (0..count).map(|_| read(self)).collect()
    }

    fn tensor(&mut self) -> Result<Described> {
        let name = self.name("a tensor's name")?;
        let dims = self.u32("a tensor's dimension count")?;
        let dims = within("dimension count", dims.into(), 1, MAX_DIMS).map_err(|error| error.in_tensor(&name))?;
        let dims = (0..dims).map(|_| self.u64("a tensor's dimensions")).collect::<Result<_>>()?;
        let (kind, offset) = (self.u32("a tensor's type")?, self.u64("a tensor's offset")?);
        Ok(Described { name, dims, kind, offset })
    }
}
