use super::objects::{self, SegmentId, SegmentKind, USE_BYTES};
use super::plan::Timeline;
use super::{CheckpointId, Library, Reason, Refusal, Saved, Use};
use crate::checkpoint::{Checkpoint, PageRecord};
use crate::container::{Head, LogitsHead, PageHead, logits_bytes};
use crate::identity::Digest;
use crate::policy::with_margin;
use crate::store::ByteStore;

/// A segment that the store does not have yet.
struct Fresh<'a> {
    id: SegmentId,
    body: &'a [u8],
}

impl<S: ByteStore> Library<S> {
    /// Stores a checkpoint: pages that are not there yet, then the manifest.
    ///
    /// A page computed earlier from the same tokens stands in for the one passed, whose payload may then be empty:
    /// [`Library::has_page`] says which need not be exported again.
    pub async fn save(&mut self, checkpoint: &Checkpoint, reason: Reason, now_ms: u64) -> Saved {
        self.release_pending().await;
        let saved = self.try_save(checkpoint, reason, now_ms).await;
        self.release_pending().await;
        saved.unwrap_or_else(|refusal| {
            self.stats.refused += 1;
            Saved::Refused(refusal)
        })
    }

    async fn try_save(&mut self, checkpoint: &Checkpoint, reason: Reason, now_ms: u64) -> Result<Saved, Refusal> {
        self.admit()?;
        if checkpoint.tokens.len() < self.config.min_tokens {
            return Err(Refusal::TooShort);
        }
        checkpoint.validate_ranges()?;
        let descriptors = checkpoint.pages.iter().map(|page| &page.descriptor);
        let timeline = Timeline::new(checkpoint.identity, &checkpoint.tokens, descriptors);
        let is_stored = |page: &PageRecord| self.index.segment(timeline.page_key(&page.descriptor)).is_some();
        checkpoint.validate_payloads(|page| page.payload.is_empty() && is_stored(page))?;
        let id = timeline.id();
        let present = self.index.get(id);
        if present.is_some_and(|stored| stored.has_logits || checkpoint.logits.is_none()) {
            self.touch(id, now_ms, 0).await;
            return Ok(Saved::Present { id });
        }
        let replaced = present.is_some();
        let logits = checkpoint.logits.as_ref().map(|logits| logits_bytes(logits));
        let (head, fresh) = self.arrange(checkpoint, &timeline, logits.as_deref());
        let manifest = head.encode();
        let usage = Use { created_ms: now_ms, last_used_ms: now_ms, hits: 0, reason };
        let stored = timeline.stored(&head, manifest.len() as u64, usage);
        if with_margin(stored.bytes) > self.config.budget_bytes {
            return Err(Refusal::Oversize);
        }
        let shared_pages = head.pages.len() - fresh.iter().filter(|fresh| fresh.id.kind == SegmentKind::Page).count();
        for (segment, bytes) in &stored.segments {
            if self.index.holds(segment) {
                self.index.hold(*segment, *bytes);
                self.pending.push(*segment);
            }
        }
        let new_bytes = fresh.iter().map(|fresh| fresh.body.len() as u64).sum::<u64>() + manifest.len() as u64;
        let written_bytes = new_bytes + USE_BYTES;
        self.make_room(written_bytes, Some(id), now_ms).await?;
        self.check_device(written_bytes).await?;
        for Fresh { id, body } in fresh {
            self.index.hold(id, body.len() as u64);
            self.pending.push(id);
            self.store.put(&id.object(), &[body]).await?;
            self.stats.written_bytes += body.len() as u64;
        }
        if let Err(error) = self.store.put(&objects::manifest_key(id), &[&manifest]).await {
            if !replaced {
                // A store may have written it all the same, and it must not outlive its pages.
                _ = self.store.delete(&objects::manifest_key(id)).await;
            }
            return Err(error.into());
        }
        self.stats.written_bytes += manifest.len() as u64;
        let orphans = self.index.remove(id);
        self.index.insert(id, stored);
        let orphans = orphans.into_iter().filter(|orphan| !self.index.holds(orphan)).collect();
        self.delete_segments(orphans).await;
        self.write_use(id).await;
        self.stats.saved += 1;
        // Whatever else changed meanwhile, the budget holds again; the new one stays.
        _ = self.make_room(0, Some(id), now_ms).await;
        Ok(Saved::Stored { id, written_bytes, shared_pages })
    }

    fn admit(&self) -> Result<(), Refusal> {
        if self.closed {
            return Err(Refusal::Closed);
        }
        if self.config.read_only {
            return Err(Refusal::ReadOnly);
        }
        Ok(())
    }

    /// The head, naming stored segments where there are some, and the segments to write.
    fn arrange<'a>(
        &self,
        checkpoint: &'a Checkpoint,
        timeline: &Timeline,
        logits: Option<&'a [u8]>,
    ) -> (Head, Vec<Fresh<'a>>) {
        let mut fresh: Vec<Fresh<'a>> = Vec::new();
        let mut digest_of = |key, kind, body: &'a [u8]| match self.index.segment(key) {
            Some((stored, bytes)) => (stored.digest, bytes),
            None => {
                let digest = Digest::of(body);
                fresh.push(Fresh { id: SegmentId { key, digest, kind }, body });
                (digest, body.len() as u64)
            }
        };
        let mut pages = Vec::with_capacity(checkpoint.pages.len());
        for page in &checkpoint.pages {
            let key = timeline.page_key(&page.descriptor);
            let (digest, stored_bytes) = digest_of(key, SegmentKind::Page, &page.payload);
            let mut descriptor = page.descriptor.clone();
            descriptor.stored_bytes = stored_bytes;
            pages.push(PageHead { descriptor, digest });
        }
        let logits = logits.map(|bytes| {
            let (digest, bytes) = digest_of(timeline.logits_key(), SegmentKind::Logits, bytes);
            LogitsHead { count: (bytes / 4) as u32, digest }
        });
        (Head { identity: checkpoint.identity, tokens: checkpoint.tokens.clone(), logits, pages }, fresh)
    }

    /// Evicts until `new_bytes` and a margin fit the budget; nothing if that cannot be reached.
    pub(super) async fn make_room(
        &mut self,
        new_bytes: u64,
        new: Option<CheckpointId>,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let limit = self.config.budget_bytes.checked_sub(with_margin(new_bytes)).ok_or(Refusal::InsufficientSpace)?;
        let kept = |id: &CheckpointId| Some(*id) == new || self.protected.values().any(|ids| ids.contains(id));
        let victims = self.index.victims(limit, &self.config.eviction, now_ms, kept);
        for victim in victims.ok_or(Refusal::InsufficientSpace)? {
            self.remove(victim).await?;
            self.stats.evicted += 1;
        }
        Ok(())
    }

    async fn check_device(&self, new_bytes: u64) -> Result<(), Refusal> {
        // A store that cannot tell is believed when it writes.
        let Ok(Some(free)) = self.store.free_bytes().await else { return Ok(()) };
        match free.checked_sub(self.config.min_free_bytes) {
            None => Err(Refusal::ReadOnlyLowSpace),
            Some(left) if left < with_margin(new_bytes) => Err(Refusal::InsufficientSpace),
            Some(_) => Ok(()),
        }
    }

    /// Counts a use of a stored checkpoint.
    pub(super) async fn touch(&mut self, id: CheckpointId, now_ms: u64, hits: u32) {
        if let Some(usage) = self.index.usage_mut(id) {
            usage.hits = usage.hits.saturating_add(hits);
            usage.last_used_ms = now_ms;
            self.write_use(id).await;
        }
    }

    async fn write_use(&mut self, id: CheckpointId) {
        let Some(stored) = self.index.get(id) else { return };
        if self.config.read_only || self.closed {
            return;
        }
        let record = objects::encode_use(&stored.usage);
        // A lost count makes an eviction less wise, nothing worse.
        if self.store.put(&objects::use_key(id), &[&record]).await.is_ok() {
            self.stats.written_bytes += record.len() as u64;
        }
    }

    /// Lets go of the segments of a save, and deletes those that came to nothing.
    async fn release_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let orphans = pending.into_iter().filter(|segment| self.index.release(segment)).collect();
        self.delete_segments(orphans).await;
    }
}
