use super::objects::{SegmentId, SegmentKind, USE_BYTES};
use super::{CheckpointId, Match, Use};
use crate::identity::{Digest, Exactness, Identity, TokenChain};
use crate::policy::EvictionRule;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A checkpoint that the store holds.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub identity: Identity,
    pub exactness: Exactness,
    pub tokens: u32,
    pub has_logits: bool,
    pub segments: Vec<(SegmentId, u64)>,
    pub manifest_bytes: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Lengths at which it may be cut, with the hash of the tokens so far; its own length is the last.
    pub cuts: Vec<(u32, Digest)>,
    pub usage: Use,
}

impl Stored {
    fn own_bytes(&self) -> u64 {
        self.manifest_bytes + USE_BYTES
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: u64,
    holders: usize,
}

/// What is stored, by name, by content and by beginning.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: BTreeMap<CheckpointId, Stored>,
    segments: BTreeMap<SegmentId, Held>,
    by_cut: HashMap<Digest, BTreeSet<CheckpointId>>,
    /// How many cuts there are of each length.
    lengths: BTreeMap<(Identity, Exactness, u32), usize>,
    used_bytes: u64,
}

impl Index {
    pub fn get(&self, id: CheckpointId) -> Option<&Stored> {
        self.entries.get(&id)
    }

    pub fn usage_mut(&mut self, id: CheckpointId) -> Option<&mut Use> {
        self.entries.get_mut(&id).map(|stored| &mut stored.usage)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&CheckpointId, &Stored)> {
        self.entries.iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub fn holds(&self, segment: &SegmentId) -> bool {
        self.segments.contains_key(segment)
    }

    /// A stored segment computed from what `key` names, with its size.
    pub fn segment(&self, key: Digest) -> Option<(SegmentId, u64)> {
        let first = SegmentId { key, digest: Digest([0; 32]), kind: SegmentKind::Page };
        let (id, held) = self.segments.range(first..).next()?;
        (id.key == key).then_some((*id, held.bytes))
    }

    /// Adds a holder to a segment, which is there from then on.
    pub fn hold(&mut self, segment: SegmentId, bytes: u64) {
        let held = self.segments.entry(segment).or_insert_with(|| {
            self.used_bytes += bytes;
            Held { bytes, holders: 0 }
        });
        held.holders += 1;
    }

    /// Takes a holder from a segment; true if it was the last.
    pub fn release(&mut self, segment: &SegmentId) -> bool {
        let Some(held) = self.segments.get_mut(segment) else { return false };
        held.holders -= 1;
        if held.holders > 0 {
            return false;
        }
        self.used_bytes -= held.bytes;
        self.segments.remove(segment);
        true
    }

    /// Adds a checkpoint that is not there.
    pub fn insert(&mut self, id: CheckpointId, stored: Stored) {
        for (segment, bytes) in &stored.segments {
            self.hold(*segment, *bytes);
        }
        self.used_bytes += stored.own_bytes();
        for (len, chain) in &stored.cuts {
            self.by_cut.entry(*chain).or_default().insert(id);
            *self.lengths.entry((stored.identity, stored.exactness, *len)).or_default() += 1;
        }
        let before = self.entries.insert(id, stored);
        debug_assert!(before.is_none(), "an entry was inserted twice");
    }

    /// Removes a checkpoint and gives back the segments that nothing holds any more.
    pub fn remove(&mut self, id: CheckpointId) -> Vec<SegmentId> {
        let Some(stored) = self.entries.remove(&id) else { return Vec::new() };
        self.used_bytes -= stored.own_bytes();
        for (len, chain) in &stored.cuts {
            if let Some(ids) = self.by_cut.get_mut(chain) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_cut.remove(chain);
                }
            }
            let length = (stored.identity, stored.exactness, *len);
            if let Some(count) = self.lengths.get_mut(&length) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&length);
                }
            }
        }
        stored.segments.iter().map(|(segment, _)| *segment).filter(|segment| self.release(segment)).collect()
    }

    /// Checkpoints that hold a segment.
    pub fn holders(&self, segment: &SegmentId) -> Vec<CheckpointId> {
        let holders = self.entries.iter().filter(|(_, stored)| stored.segments.iter().any(|(held, _)| held == segment));
        holders.map(|(id, _)| *id).collect()
    }

    /// The longest stored beginning of `tokens`, whole checkpoints before cut ones.
    pub fn longest(&self, identity: Identity, exactness: Exactness, tokens: &[u32]) -> Option<Match> {
        let (len, ids) = self.beginnings(identity, exactness, tokens).last()?;
        let whole = ids.iter().find(|id| self.entries[*id].tokens == len);
        let id = *whole.or(ids.first())?;
        Some(Match { id, tokens: len as usize, whole: whole.is_some(), exactness })
    }

    /// All checkpoints that are beginnings of `tokens` as a whole.
    pub fn prefixes(&self, identity: Identity, tokens: &[u32]) -> BTreeSet<CheckpointId> {
        let mut found = BTreeSet::new();
        for exactness in [Exactness::Exact, Exactness::Lossy] {
            for (len, ids) in self.beginnings(identity, exactness, tokens) {
                found.extend(ids.iter().filter(|id| self.entries[*id].tokens == len));
            }
        }
        found
    }

    fn beginnings<'a>(
        &'a self,
        identity: Identity,
        exactness: Exactness,
        tokens: &'a [u32],
    ) -> impl Iterator<Item = (u32, &'a BTreeSet<CheckpointId>)> {
        let longest = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let lengths = self.lengths.range((identity, exactness, 0)..=(identity, exactness, longest));
        let mut chain = TokenChain::new(identity, exactness);
        lengths.filter_map(move |((_, _, len), _)| {
            chain.advance(tokens, *len as usize);
            Some((*len, self.by_cut.get(&chain.digest())?))
        })
    }

    /// The least valuable checkpoints whose removal leaves at most `limit_bytes`, or `None` if `kept` prevents that.
    pub fn victims(
        &self,
        limit_bytes: u64,
        rule: &EvictionRule,
        now_ms: u64,
        kept: impl Fn(&CheckpointId) -> bool,
    ) -> Option<Vec<CheckpointId>> {
        let mut candidates: Vec<_> = self.entries.iter().filter(|(id, _)| !kept(id)).collect();
        candidates.sort_by(|(id, stored), (other_id, other)| {
            let score = |stored: &Stored| {
                let idle_ms = now_ms.saturating_sub(stored.usage.last_used_ms);
                rule.score(stored.usage.hits, idle_ms, stored.tokens as usize, stored.bytes)
            };
            let by_age = stored.usage.last_used_ms.cmp(&other.usage.last_used_ms);
            score(stored).total_cmp(&score(other)).then(by_age).then(id.cmp(other_id))
        });
        let mut used = self.used_bytes;
        let mut released: HashMap<SegmentId, usize> = HashMap::new();
        let mut victims = Vec::new();
        for (id, stored) in candidates {
            if used <= limit_bytes {
                break;
            }
            used -= stored.own_bytes();
            for (segment, bytes) in &stored.segments {
                let count = released.entry(*segment).or_default();
                *count += 1;
                if self.segments[segment].holders == *count {
                    used -= bytes;
                }
            }
            victims.push(*id);
        }
        (used <= limit_bytes).then_some(victims)
    }
}
