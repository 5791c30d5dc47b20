use super::objects;
use super::plan::Timeline;
use super::{CheckpointId, Library, Match};
use crate::checkpoint::{Checkpoint, PageRecord};
use crate::container::{Head, PageHead, verified_logits, verified_page};
use crate::error::{FormatError, StoreError};
use crate::store::{ByteStore, quarantine_key};
use objects::SegmentId;

/// Why a checkpoint could not be read back.
enum Damage {
    /// The store failed or the match is out of date; what is stored may be fine.
    Unread,
    /// The manifest is gone, or something it names is.
    Missing,
    /// The manifest is not what was written.
    Manifest,
    /// An object of a page or of logits is not what was written.
    Segment(SegmentId),
}

impl From<StoreError> for Damage {
    fn from(_: StoreError) -> Self {
        Self::Unread
    }
}

impl From<FormatError> for Damage {
    fn from(_: FormatError) -> Self {
        Self::Manifest
    }
}

impl<S: ByteStore> Library<S> {
    /// Reads a match back, verified and cut to its length, and counts the use.
    ///
    /// What is not exactly what was stored is set aside, and the answer is `None`: a request goes on without it.
    pub async fn load(&mut self, found: &Match, now_ms: u64) -> Option<Checkpoint> {
        match self.read(found.id, found.tokens).await {
            Ok(checkpoint) => {
                self.stats.hits += 1;
                self.touch(found.id, now_ms, 1).await;
                Some(checkpoint)
            }
            Err(damage) => {
                self.stats.misses += 1;
                self.set_aside(found.id, damage).await;
                None
            }
        }
    }

    async fn read(&self, id: CheckpointId, tokens: usize) -> Result<Checkpoint, Damage> {
        let stored = self.index.get(id).ok_or(Damage::Unread)?;
        let manifest = self.store.get(&objects::manifest_key(id)).await?.ok_or(Damage::Missing)?;
        let mut head = Head::decode(&manifest)?;
        let timeline = Timeline::new(head.identity, &head.tokens, head.pages.iter().map(|page| &page.descriptor));
        let segments = timeline.segments(&head);
        if timeline.id() != id || segments != stored.segments {
            return Err(Damage::Manifest);
        }
        if !stored.cuts.iter().any(|(len, _)| *len as usize == tokens) {
            return Err(Damage::Unread);
        }
        let whole = tokens == head.tokens.len();
        head.tokens.truncate(tokens);
        let mut pages = Vec::new();
        for (page, (segment, _)) in head.pages.into_iter().zip(&segments) {
            if page.descriptor.tokens.end as usize <= tokens {
                pages.push(self.read_page(page, segment).await?);
            }
        }
        let logits = match head.logits.zip(segments.last()).filter(|_| whole) {
            Some((logits, (segment, _))) => {
                let body = self.store.get(&segment.object()).await?.ok_or(Damage::Missing)?;
                Some(verified_logits(&logits, &body).map_err(|_| Damage::Segment(*segment))?)
            }
            None => None,
        };
        Ok(Checkpoint { identity: head.identity, tokens: head.tokens, logits, pages })
    }

    async fn read_page(&self, page: PageHead, segment: &SegmentId) -> Result<PageRecord, Damage> {
        let body = self.store.get(&segment.object()).await?.ok_or(Damage::Missing)?;
        verified_page(page, body).map_err(|_| Damage::Segment(*segment))
    }

    async fn set_aside(&mut self, id: CheckpointId, damage: Damage) {
        match damage {
            Damage::Unread => {}
            Damage::Missing | Damage::Manifest => self.set_aside_checkpoint(id).await,
            Damage::Segment(segment) => {
                self.quarantine(&segment.object()).await;
                for holder in self.index.holders(&segment) {
                    self.set_aside_checkpoint(holder).await;
                }
            }
        }
    }

    pub(super) async fn set_aside_checkpoint(&mut self, id: CheckpointId) {
        self.quarantine(&objects::manifest_key(id)).await;
        self.drop_entry(id).await;
    }

    /// Moves an object out of the way and keeps the quarantine within its bytes.
    pub(super) async fn quarantine(&mut self, key: &str) {
        if self.config.read_only {
            return;
        }
        self.stats.quarantined += 1;
        if self.config.quarantine_bytes == 0 || self.store.quarantine(key).await.is_err() {
            // It fails again when it is read again, which is a miss like this one.
            _ = self.store.delete(key).await;
            return;
        }
        let Ok(mut aside) = self.store.list(objects::QUARANTINE).await else { return };
        // The newest goes last.
        aside.sort_by_key(|entry| entry.key == quarantine_key(key));
        let mut bytes: u64 = aside.iter().map(|entry| entry.bytes).sum();
        for entry in aside {
            if bytes <= self.config.quarantine_bytes {
                break;
            }
            bytes -= entry.bytes;
            _ = self.store.delete(&entry.key).await;
        }
    }
}
