use super::index::Stored;
use super::objects::{self, LOGITS, MANIFESTS, PAGES, USES};
use super::plan::Timeline;
use super::{CheckpointId, Library, Use};
use crate::container::Head;
use crate::error::StoreError;
use crate::store::{ByteStore, Entry};
use std::collections::HashMap;

/// What a manifest turned out to be.
enum Found {
    Whole(Box<Stored>),
    Broken,
    /// It is no longer there, or the store failed to read it.
    Unread {
        gone: bool,
    },
}

impl<S: ByteStore> Library<S> {
    /// Takes in what others stored or removed, as when the library was opened.
    ///
    /// # Errors
    /// Only if the store cannot be listed.
    pub async fn refresh(&mut self, now_ms: u64) -> Result<(), StoreError> {
        // Manifests are written last: the pages of those listed here are listed after.
        let manifests = self.store.list(MANIFESTS).await?;
        let mut segments = self.store.list(PAGES).await?;
        segments.extend(self.store.list(LOGITS).await?);
        let sizes: HashMap<String, u64> = segments.iter().map(|entry| (entry.key.clone(), entry.bytes)).collect();
        let listed: HashMap<CheckpointId, u64> = manifests
            .iter()
            .filter_map(|entry| Some((objects::named_after(&entry.key, MANIFESTS)?, entry.bytes)))
            .collect();
        let known: Vec<_> = self.index.iter().map(|(id, stored)| (*id, stored.manifest_bytes)).collect();
        for (id, bytes) in known {
            if listed.get(&id) != Some(&bytes) {
                self.index.remove(id);
            }
        }
        let mut all_read = true;
        for (id, bytes) in listed {
            if self.index.get(id).is_some() {
                continue;
            }
            match self.read_manifest(id, bytes, &sizes, now_ms).await {
                Found::Whole(stored) => self.index.insert(id, *stored),
                Found::Broken => self.quarantine(&objects::manifest_key(id)).await,
                Found::Unread { gone } => all_read &= gone,
            }
        }
        // Whose pages an unread manifest names cannot be known.
        if all_read && !self.config.read_only {
            segments.extend(self.store.list(USES).await?);
            self.remove_orphans(segments, now_ms).await;
        }
        if !self.config.read_only {
            _ = self.make_room(0, None, now_ms).await;
        }
        Ok(())
    }

    async fn read_manifest(&self, id: CheckpointId, bytes: u64, sizes: &HashMap<String, u64>, now_ms: u64) -> Found {
        if bytes > self.config.budget_bytes {
            return Found::Broken;
        }
        let body = match self.store.get(&objects::manifest_key(id)).await {
            Ok(Some(body)) => body,
            Ok(None) => return Found::Unread { gone: true },
            Err(_) => return Found::Unread { gone: false },
        };
        let Ok(head) = Head::decode(&body) else { return Found::Broken };
        let timeline = Timeline::new(head.identity, &head.tokens, head.pages.iter().map(|page| &page.descriptor));
        let fresh = Use { created_ms: now_ms, last_used_ms: now_ms, ..Use::default() };
        let usage = match self.store.get(&objects::use_key(id)).await {
            Ok(Some(record)) => objects::decode_use(&record).unwrap_or(fresh),
            _ => fresh,
        };
        let stored = timeline.stored(&head, body.len() as u64, usage);
        let complete = stored.segments.iter().all(|(segment, bytes)| sizes.get(&segment.object()) == Some(bytes));
        match complete && timeline.id() == id {
            true => Found::Whole(Box::new(stored)),
            false => Found::Broken,
        }
    }

    async fn remove_orphans(&mut self, listed: Vec<Entry>, now_ms: u64) {
        let mut held = std::collections::HashSet::new();
        for (id, stored) in self.index.iter() {
            held.insert(objects::use_key(*id));
            held.extend(stored.segments.iter().map(|(segment, _)| segment.object()));
        }
        held.extend(self.pending.iter().map(|segment| segment.object()));
        for orphan in listed.iter().filter(|entry| !held.contains(&entry.key)) {
            let age_ms = orphan.modified_ms.map(|modified_ms| now_ms.saturating_sub(modified_ms));
            // Another machine may be about to write the manifest that names it.
            if age_ms.is_none_or(|age_ms| age_ms >= self.config.orphan_grace_ms) {
                _ = self.store.delete(&orphan.key).await;
            }
        }
    }
}
