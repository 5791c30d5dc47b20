use crate::{FileError, Result, blocks};

/// How a tensor's elements are stored: plain floats or blocks of quantised values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
    Nvfp4,
}

/// Known ggml types without a decoder here, to name them in the error.
const UNDECODED: [(u32, &str); 20] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
];

impl Format {
    /// Every format that has a decoder.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Nvfp4,
    ];

    /// ggml id, name, elements per block, bytes per block.
    const fn facts(self) -> (u32, &'static str, usize, usize) {
        match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::BF16 => (30, "BF16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q2K => (10, "Q2_K", 256, 84),
            Self::Q3K => (11, "Q3_K", 256, 110),
            Self::Q4K => (12, "Q4_K", 256, 144),
            Self::Q5K => (13, "Q5_K", 256, 176),
            Self::Q6K => (14, "Q6_K", 256, 210),
            Self::Iq4Nl => (20, "IQ4_NL", 32, 18),
            Self::Iq4Xs => (23, "IQ4_XS", 256, 136),
            Self::Mxfp4 => (39, "MXFP4", 32, 17),
            Self::Nvfp4 => (40, "NVFP4", 64, 36),
        }
    }

    /// Elements in one block; rows are whole blocks.
    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// The format's name as ggml spells it.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }

    /// The ggml type id.
    pub const fn ggml_id(self) -> u32 {
        self.facts().0
    }

    /// The format of a ggml type id; an error names the type and lists what is supported.
    pub fn from_ggml(id: u32) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.ggml_id() == id).ok_or_else(|| {
            let known = UNDECODED.iter().find(|(known, _)| *known == id);
            let found = known.map_or_else(|| format!("type {id}"), |(_, name)| format!("{name} (type {id})"));
            FileError::UnsupportedFormat { found }
        })
    }

    /// The format of a safetensors dtype.
    pub(crate) fn from_safetensors(dtype: &str) -> Result<Self> {
        match dtype {
            "F32" => Ok(Self::F32),
            "F16" => Ok(Self::F16),
            "BF16" => Ok(Self::BF16),
            _ => Err(FileError::UnsupportedFeature {
                what: "safetensors dtype".into(),
                found: dtype.to_owned(),
                supported: "F32, F16, BF16",
            }),
        }
    }

    /// Bytes that `elements` take, or `None` when they are not whole blocks or overflow.
    pub fn byte_len(self, elements: usize) -> Option<usize> {
        let blocks = elements / self.block_len();
        elements.is_multiple_of(self.block_len()).then(|| blocks.checked_mul(self.block_bytes()))?
    }

    /// Decodes whole blocks into `out`; both must describe the same number of elements.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        if self.byte_len(out.len()) != Some(bytes.len()) {
            return Err(FileError::WrongLength { format: self.name(), bytes: bytes.len(), elements: out.len() });
        }
        match self {
            Self::F32 => each(bytes, out, |b, o: &mut [f32; 1]| o[0] = f32::from_le_bytes(*b)),
            Self::F16 => each(bytes, out, |b, o: &mut [f32; 1]| o[0] = blocks::f16(*b)),
            Self::BF16 => each(bytes, out, |b, o: &mut [f32; 1]| o[0] = blocks::bf16(*b)),
            Self::Q4_0 => each(bytes, out, blocks::q4_0),
            Self::Q4_1 => each(bytes, out, blocks::q4_1),
            Self::Q5_0 => each(bytes, out, blocks::q5_0),
            Self::Q5_1 => each(bytes, out, blocks::q5_1),
            Self::Q8_0 => each(bytes, out, blocks::q8_0),
            Self::Q2K => each(bytes, out, blocks::q2_k),
            Self::Q3K => each(bytes, out, blocks::q3_k),
            Self::Q4K => each(bytes, out, blocks::q4_k),
            Self::Q5K => each(bytes, out, blocks::q5_k),
            Self::Q6K => each(bytes, out, blocks::q6_k),
            Self::Iq4Nl => each(bytes, out, blocks::iq4_nl),
            Self::Iq4Xs => each(bytes, out, blocks::iq4_xs),
            Self::Mxfp4 => each(bytes, out, blocks::mxfp4),
            Self::Nvfp4 => each(bytes, out, blocks::nvfp4),
        }
        Ok(())
    }

    pub(crate) fn supported() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn(&[u8; B], &mut [f32; N])) {
    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_types_are_named_and_the_supported_listed() {
        let message = Format::from_ggml(18).unwrap_err().to_string();
        assert!(message.contains("IQ3_XXS (type 18)") && message.contains("NVFP4"), "{message}");
        assert!(Format::from_ggml(4).unwrap_err().to_string().contains("type 4"));
        assert_eq!(Format::from_ggml(14).unwrap(), Format::Q6K);
    }

    #[test]
    fn lengths_must_be_whole_blocks() {
        let mut out = [0.0; 31];
        assert!(Format::Q4_0.dequantize(&[0; 18], &mut out).is_err());
        assert!(Format::Q4_0.dequantize(&[0; 17], &mut [0.0; 32]).is_err());
        assert_eq!(Format::Q8_0.byte_len(usize::MAX / 32 * 32), None);
        assert_eq!(Format::Q6K.byte_len(512), Some(420));
    }
}
