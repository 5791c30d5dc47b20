//! Names of objects, and the small record of a checkpoint's use.

use super::{CheckpointId, Reason, Use};
use crate::descriptor::Descriptor;
use crate::error::FormatError;
use crate::identity::Digest;
use crate::wire::{Fields, invalid};

pub(super) const MANIFESTS: &str = "manifests/";
pub(super) const PAGES: &str = "pages/";
pub(super) const LOGITS: &str = "logits/";
pub(super) const USES: &str = "uses/";
pub(super) const QUARANTINE: &str = "quarantine/";

/// Bytes of an encoded [`Use`].
pub(super) const USE_BYTES: u64 = 64;

const CHECKPOINT: &str = "laneway 2026-11 checkpoint name v1";
const PAGE: &str = "laneway 2026-11 checkpoint page v1";
const LOGITS_OF: &str = "laneway 2026-11 checkpoint logits v1";
const USE_TAG: &[u8; 4] = b"LWUS";
const USE_VERSION: u32 = 1;

/// Names an object of pages or logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SegmentId {
    /// What the content was computed from.
    pub key: Digest,
    /// Its digest: two machines may compute bytes that differ, and neither may pass for the other's.
    pub digest: Digest,
    pub kind: SegmentKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum SegmentKind {
    Page,
    Logits,
}

impl SegmentId {
    pub fn object(&self) -> String {
        let folder = match self.kind {
            SegmentKind::Page => PAGES,
            SegmentKind::Logits => LOGITS,
        };
        // Half of the digest tells versions apart; all of it is checked when the object is read.
        let digest = self.digest.to_string();
        format!("{folder}{}-{}", self.key, &digest[..32])
    }
}

pub(super) fn checkpoint_id(chain: Digest) -> CheckpointId {
    CheckpointId(Digest::derive(CHECKPOINT, &[&chain.0]))
}

/// The name of a page by the tokens up to its end and by everything that can be known before it is exported.
pub(super) fn page_key(chain: Digest, descriptor: &Descriptor) -> Digest {
    let known = Descriptor { stored_bytes: 0, ..descriptor.clone() };
    Digest::derive(PAGE, &[&chain.0, &known.encode()])
}

pub(super) fn logits_key(chain: Digest) -> Digest {
    Digest::derive(LOGITS_OF, &[&chain.0])
}

pub(super) fn manifest_key(id: CheckpointId) -> String {
    format!("{MANIFESTS}{}", id.0)
}

pub(super) fn use_key(id: CheckpointId) -> String {
    format!("{USES}{}", id.0)
}

/// The checkpoint that an object of a folder is named after.
pub(super) fn named_after(key: &str, folder: &str) -> Option<CheckpointId> {
    Digest::from_hex(key.strip_prefix(folder)?).map(CheckpointId)
}

pub(super) fn encode_use(usage: &Use) -> Vec<u8> {
    let mut out = Vec::with_capacity(USE_BYTES as usize);
    out.extend(USE_TAG);
    out.extend(USE_VERSION.to_le_bytes());
    out.extend(usage.created_ms.to_le_bytes());
    out.extend(usage.last_used_ms.to_le_bytes());
    out.extend(usage.hits.to_le_bytes());
    out.extend((usage.reason as u32).to_le_bytes());
    let digest = Digest::of(&out);
    out.extend(digest.0);
    out
}

pub(super) fn decode_use(bytes: &[u8]) -> Result<Use, FormatError> {
    let body = &bytes[..bytes.len().saturating_sub(32)];
    let mut fields = Fields::new(bytes, "use record");
    if fields.take(4)? != USE_TAG {
        return Err(FormatError::NotOurs { expected: "use record" });
    }
    match fields.u32()? {
        USE_VERSION => {}
        found => return Err(FormatError::Version { what: "use record", found, supported: USE_VERSION }),
    }
    let (created_ms, last_used_ms, hits) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let reason = match fields.u32()? {
        0 => Reason::Unknown,
        1 => Reason::Cold,
        2 => Reason::Continued,
        3 => Reason::Evict,
        4 => Reason::Shutdown,
        5 => Reason::AgentSystem,
        6 => Reason::AgentSession,
        _ => return Err(invalid("reason", "is not known")),
    };
    if fields.array::<32>()? != Digest::of(body).0 {
        return Err(FormatError::Digest { what: "use record" });
    }
    fields.end()?;
    Ok(Use { created_ms, last_used_ms, hits, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G51, G52, G54: the counters and the reason survive, and nothing that was changed is believed.
    #[test]
    fn a_use_record_is_itself_or_nothing() {
        let reasons = [
            Reason::Unknown,
            Reason::Cold,
            Reason::Continued,
            Reason::Evict,
            Reason::Shutdown,
            Reason::AgentSystem,
            Reason::AgentSession,
        ];
        for reason in reasons {
            let usage = Use { created_ms: 1, last_used_ms: u64::MAX, hits: 7, reason };
            let bytes = encode_use(&usage);
            assert_eq!(bytes.len() as u64, USE_BYTES);
            assert_eq!(decode_use(&bytes).unwrap(), usage);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 4;
                assert!(decode_use(&changed).is_err(), "byte {at}");
                assert!(decode_use(&bytes[..at]).is_err(), "length {at}");
            }
        }
    }
}
