//! The container: a head that describes everything and carries the digests, then logits and page payloads in order.
//!
//! Head: tag `LWCK`, u32 version, identity (32), u32 tokens, u32 logits, u32 pages, u32 zero; tokens; the digest of the
//! logits if there are any; per page its descriptor and the digest of its payload; the digest of the head so far.
//! A manifest is a head alone.

use crate::checkpoint::{Checkpoint, PageRecord, check_lengths, check_pages};
use crate::descriptor::{DESCRIPTOR_BYTES, Descriptor};
use crate::error::FormatError;
use crate::identity::{Digest, Identity};
use crate::wire::{Fields, invalid};
use std::io::{Read, Write};

const TAG: &[u8; 4] = b"LWCK";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 56;

/// The logits of a head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogitsHead {
    pub count: u32,
    pub digest: Digest,
}

/// A page of a head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PageHead {
    pub descriptor: Descriptor,
    pub digest: Digest,
}

/// A checkpoint without its bulk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub identity: Identity,
    pub tokens: Vec<u32>,
    pub logits: Option<LogitsHead>,
    pub pages: Vec<PageHead>,
}

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let bytes = FIXED_BYTES + self.tokens.len() * 4 + self.pages.len() * (DESCRIPTOR_BYTES + 32) + 64;
        let mut out = Vec::with_capacity(bytes);
        out.extend(TAG);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.identity.0.0);
        let logits = self.logits.as_ref().map_or(0, |logits| logits.count);
        for count in [self.tokens.len() as u32, logits, self.pages.len() as u32, 0] {
            out.extend(count.to_le_bytes());
        }
        out.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        out.extend(self.logits.iter().flat_map(|logits| logits.digest.0));
        for page in &self.pages {
            out.extend(page.descriptor.encode());
            out.extend(page.digest.0);
        }
        out.extend(Digest::of(&out).0);
        out
    }

    /// Reads a head that is all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut source = bytes;
        let head = Self::read(&mut source)?;
        match source.len() {
            0 => Ok(head),
            bytes => Err(FormatError::Trailing { bytes: bytes as u64 }),
        }
    }

    fn read(source: &mut impl Read) -> Result<Self, FormatError> {
        let mut hasher = blake3::Hasher::new();
        let mut part = |source: &mut _, bytes, what| -> Result<Vec<u8>, FormatError> {
            let part = read_exactly(source, bytes, what)?;
            hasher.update(&part);
            Ok(part)
        };
        let fixed = part(source, FIXED_BYTES as u64, "checkpoint head")?;
        let mut fields = Fields::new(&fixed, "checkpoint head");
        if fields.take(4)? != TAG {
            return Err(FormatError::NotOurs { expected: "checkpoint" });
        }
        match fields.u32()? {
            VERSION => {}
            found => return Err(FormatError::Version { what: "checkpoint", found, supported: VERSION }),
        }
        let identity = Identity(Digest(fields.array()?));
        let [tokens, logits, pages, zero] = [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        if zero != 0 {
            return Err(invalid("reserved bytes", "are not zero"));
        }
        check_lengths(tokens as usize, (logits > 0).then_some(logits as usize))?;
        let tokens = part(source, u64::from(tokens) * 4, "tokens")?;
        let logits_digest = match logits {
            0 => None,
            _ => Some(part(source, 32, "logits digest")?),
        };
        let records = part(source, u64::from(pages) * (DESCRIPTOR_BYTES as u64 + 32), "page descriptors")?;
        let digest = Digest(*hasher.finalize().as_bytes());
        if read_exactly(source, 32, "head digest")? != digest.0 {
            return Err(FormatError::Digest { what: "head" });
        }
        let pages = records.chunks_exact(DESCRIPTOR_BYTES + 32).map(|record| {
            let (descriptor, digest) = record.split_at(DESCRIPTOR_BYTES);
            Ok(PageHead { descriptor: Descriptor::decode(descriptor)?, digest: digest_from(digest) })
        });
        let head = Self {
            identity,
            tokens: words(&tokens).map(u32::from_le_bytes).collect(),
            logits: logits_digest.map(|digest| LogitsHead { count: logits, digest: digest_from(&digest) }),
            pages: pages.collect::<Result<_, FormatError>>()?,
        };
        check_pages(head.tokens.len(), head.pages.iter().map(|page| &page.descriptor))?;
        Ok(head)
    }
}

impl Checkpoint {
    /// Writes the container; payloads go straight from their pages.
    ///
    /// # Errors
    /// A checkpoint that is not [valid](Checkpoint::validate), before anything is written, or what `out` reports.
    pub fn write_to(&self, out: &mut impl Write) -> Result<(), FormatError> {
        self.validate()?;
        let logits = self.logits.as_ref().map(|logits| logits_bytes(logits));
        let pages = self
            .pages
            .iter()
            .map(|page| PageHead { descriptor: page.descriptor.clone(), digest: Digest::of(&page.payload) });
        let head = Head {
            identity: self.identity,
            tokens: self.tokens.clone(),
            logits: logits
                .as_ref()
                .map(|bytes| LogitsHead { count: (bytes.len() / 4) as u32, digest: Digest::of(bytes) }),
            pages: pages.collect(),
        };
        out.write_all(&head.encode())?;
        out.write_all(logits.as_deref().unwrap_or_default())?;
        for page in &self.pages {
            out.write_all(&page.payload)?;
        }
        Ok(())
    }

    /// The container as one vector.
    ///
    /// # Errors
    /// A checkpoint that is not [valid](Checkpoint::validate).
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut out = Vec::new();
        self.write_to(&mut out)?;
        Ok(out)
    }

    /// Reads a container up to its end and verifies all of it.
    ///
    /// # Errors
    /// Anything but exactly one intact checkpoint.
    pub fn read_from(source: &mut impl Read) -> Result<Self, FormatError> {
        let head = Head::read(source)?;
        let logits = match &head.logits {
            Some(logits) => {
                let bytes = read_exactly(source, u64::from(logits.count) * 4, "logits")?;
                Some(verified_logits(logits, &bytes)?)
            }
            None => None,
        };
        let mut pages = Vec::new();
        for page in head.pages {
            let payload = read_exactly(source, page.descriptor.stored_bytes, "page payload")?;
            pages.push(verified_page(page, payload)?);
        }
        if source.read(&mut [0])? > 0 {
            return Err(FormatError::Trailing { bytes: 1 });
        }
        Ok(Self { identity: head.identity, tokens: head.tokens, logits, pages })
    }

    /// Reads a container that is all of `bytes`.
    ///
    /// # Errors
    /// Anything but exactly one intact checkpoint.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, FormatError> {
        Self::read_from(&mut bytes)
    }
}

pub(crate) fn logits_bytes(logits: &[f32]) -> Vec<u8> {
    logits.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn verified_logits(head: &LogitsHead, bytes: &[u8]) -> Result<Vec<f32>, FormatError> {
    if bytes.len() as u64 != u64::from(head.count) * 4 || Digest::of(bytes) != head.digest {
        return Err(FormatError::Digest { what: "logits" });
    }
    Ok(words(bytes).map(f32::from_le_bytes).collect())
}

pub(crate) fn verified_page(head: PageHead, payload: Vec<u8>) -> Result<PageRecord, FormatError> {
    if payload.len() as u64 != head.descriptor.stored_bytes || Digest::of(&payload) != head.digest {
        return Err(FormatError::Digest { what: "page" });
    }
    Ok(PageRecord { descriptor: head.descriptor, payload })
}

/// Reads `bytes` bytes; memory grows with what arrives, not with what was announced.
fn read_exactly(source: &mut impl Read, bytes: u64, what: &'static str) -> Result<Vec<u8>, FormatError> {
    let mut out = Vec::new();
    source.by_ref().take(bytes).read_to_end(&mut out)?;
    match out.len() as u64 {
        available if available < bytes => Err(FormatError::Truncated { what, needed: bytes, available }),
        _ => Ok(out),
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|word| word.try_into().expect("chunks of four"))
}

fn digest_from(bytes: &[u8]) -> Digest {
    Digest(bytes.try_into().expect("32 bytes were read"))
}
