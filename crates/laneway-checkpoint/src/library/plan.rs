//! What a head consists of, by name.

use super::CheckpointId;
use super::index::Stored;
use super::objects::{self, SegmentId, SegmentKind, USE_BYTES};
use crate::checkpoint::cuts;
use crate::container::Head;
use crate::descriptor::{Codec, Descriptor};
use crate::identity::{Digest, Exactness, Identity, TokenChain};
use std::collections::BTreeMap;

/// The hashes of a timeline at the ends of its pages.
pub(super) struct Timeline {
    ends: BTreeMap<u32, Digest>,
    last: Digest,
    exactness: Exactness,
}

impl Timeline {
    pub fn new<'a>(identity: Identity, tokens: &[u32], pages: impl Iterator<Item = &'a Descriptor> + Clone) -> Self {
        let exactness = match pages.clone().any(|page| page.codec != Codec::Raw) {
            true => Exactness::Lossy,
            false => Exactness::Exact,
        };
        let mut ends: BTreeMap<u32, Digest> = pages.map(|page| (page.tokens.end, Digest([0; 32]))).collect();
        let mut chain = TokenChain::new(identity, exactness);
        for (end, digest) in &mut ends {
            chain.advance(tokens, *end as usize);
            *digest = chain.digest();
        }
        chain.advance(tokens, tokens.len());
        Self { ends, last: chain.digest(), exactness }
    }

    pub fn id(&self) -> CheckpointId {
        objects::checkpoint_id(self.last)
    }

    pub fn page_key(&self, page: &Descriptor) -> Digest {
        objects::page_key(self.ends[&page.tokens.end], page)
    }

    pub fn logits_key(&self) -> Digest {
        objects::logits_key(self.last)
    }

    /// The segments of a head, pages first, each with its size.
    pub fn segments(&self, head: &Head) -> Vec<(SegmentId, u64)> {
        let pages = head.pages.iter().map(|page| {
            let key = self.page_key(&page.descriptor);
            (SegmentId { key, digest: page.digest, kind: SegmentKind::Page }, page.descriptor.stored_bytes)
        });
        let logits = head.logits.iter().map(|logits| {
            let id = SegmentId { key: self.logits_key(), digest: logits.digest, kind: SegmentKind::Logits };
            (id, u64::from(logits.count) * 4)
        });
        pages.chain(logits).collect()
    }

    /// The entry of a head whose manifest has `manifest_bytes`.
    pub fn stored(&self, head: &Head, manifest_bytes: u64, usage: super::Use) -> Stored {
        let segments = self.segments(head);
        let cuts = cuts(head.pages.iter().map(|page| &page.descriptor));
        Stored {
            identity: head.identity,
            exactness: self.exactness,
            tokens: head.tokens.len() as u32,
            has_logits: head.logits.is_some(),
            bytes: segments.iter().map(|(_, bytes)| bytes).sum::<u64>() + manifest_bytes + USE_BYTES,
            segments,
            manifest_bytes,
            cuts: cuts.into_iter().map(|len| (len, self.ends[&len])).collect(),
            usage,
        }
    }
}
