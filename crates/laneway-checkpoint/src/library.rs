//! Which checkpoints a store holds, which of them serve a prompt, and which go when the budget is short.

mod index;
mod load;
mod objects;
mod plan;
mod save;
mod scan;

use crate::checkpoint::Checkpoint;
use crate::error::{FormatError, StoreError};
use crate::identity::{Digest, Exactness, Identity, TokenChain};
use crate::policy::EvictionRule;
use crate::store::ByteStore;
use index::Index;
use objects::SegmentId;
use std::collections::{BTreeMap, BTreeSet};

/// Names a stored checkpoint: the hash of its identity and all its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId(pub Digest);

/// Limits of a library.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes that all objects together may have.
    pub budget_bytes: u64,
    /// Space to leave on the device, where the store can tell.
    pub min_free_bytes: u64,
    /// Bytes that objects set aside may have.
    pub quarantine_bytes: u64,
    /// Shorter checkpoints are refused, and shorter matches are misses.
    pub min_tokens: usize,
    /// What a stored checkpoint is worth.
    pub eviction: EvictionRule,
    /// Unreferenced objects of others are left alone for this long, in milliseconds.
    pub orphan_grace_ms: u64,
    /// Never writes, deletes or sets aside.
    pub read_only: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            budget_bytes: 4 << 30,
            min_free_bytes: 1 << 30,
            quarantine_bytes: 64 << 20,
            min_tokens: 512,
            eviction: EvictionRule::default(),
            orphan_grace_ms: 60 * 60 * 1000,
            read_only: false,
        }
    }
}

/// Why a checkpoint is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Not known.
    #[default]
    Unknown = 0,
    /// The shared beginning of a new prompt.
    Cold = 1,
    /// A session grew past the next multiple.
    Continued = 2,
    /// A live state makes room for another.
    Evict = 3,
    /// The engine stops.
    Shutdown = 4,
    /// The beginning that an agent's requests share.
    AgentSystem = 5,
    /// An agent's session.
    AgentSession = 6,
}

/// How a checkpoint is used; kept beside it, so that a hit does not rewrite it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// When it was stored, in milliseconds of the caller's clock.
    pub created_ms: u64,
    /// When it was last stored or loaded.
    pub last_used_ms: u64,
    /// How often it was loaded.
    pub hits: u32,
    /// Why it was stored.
    pub reason: Reason,
}

/// What became of a checkpoint that was to be stored.
#[derive(Debug)]
pub enum Saved {
    /// It is stored.
    Stored {
        /// Under this name.
        id: CheckpointId,
        /// Bytes written for it, those of shared pages not among them.
        written_bytes: u64,
        /// Pages that were there before.
        shared_pages: usize,
    },
    /// It was stored before.
    Present {
        /// Under this name.
        id: CheckpointId,
    },
    /// It is not stored; nothing that was stored is lost by it.
    Refused(Refusal),
}

impl Saved {
    /// The stored checkpoint, if it is.
    pub fn id(&self) -> Option<CheckpointId> {
        match self {
            Self::Stored { id, .. } | Self::Present { id } => Some(*id),
            Self::Refused(_) => None,
        }
    }
}

/// Why a checkpoint was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It has fewer tokens than are worth storing.
    #[error("too short")]
    TooShort,
    /// It would not fit an empty store.
    #[error("larger than the budget")]
    Oversize,
    /// It does not fit beside what may not be evicted, or the device is full.
    #[error("not enough space")]
    InsufficientSpace,
    /// The library never writes.
    #[error("read-only")]
    ReadOnly,
    /// So little space is left on the device that nothing is written.
    #[error("read-only: little space is left on the device")]
    ReadOnlyLowSpace,
    /// The library was shut down.
    #[error("shut down")]
    Closed,
    /// The checkpoint contradicts itself.
    #[error("not a valid checkpoint")]
    Invalid(#[from] FormatError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] StoreError),
}

impl Refusal {
    /// A name for metrics that does not change.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::Oversize => "oversize",
            Self::InsufficientSpace => "insufficient_space",
            Self::ReadOnly => "read_only",
            Self::ReadOnlyLowSpace => "read_only_low_space",
            Self::Closed => "closed",
            Self::Invalid(_) => "invalid",
            Self::Store(_) => "store_failed",
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::InsufficientSpace,
            error => Self::Store(error),
        }
    }
}

/// A stored beginning of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The checkpoint that has it.
    pub id: CheckpointId,
    /// How many tokens of the prompt it covers.
    pub tokens: usize,
    /// Whether that is all of the checkpoint, so that its logits apply.
    pub whole: bool,
    /// Whether the pages are bit for bit what an engine computed.
    pub exactness: Exactness,
}

/// One stored checkpoint, as listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its name.
    pub id: CheckpointId,
    /// Its length.
    pub tokens: usize,
    /// Bytes of all its objects, shared ones among them.
    pub bytes: u64,
    /// How it is used.
    pub usage: Use,
}

/// Counts since the library was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Checkpoints held.
    pub checkpoints: usize,
    /// Bytes of all objects.
    pub used_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Checkpoints stored.
    pub saved: u64,
    /// Checkpoints refused.
    pub refused: u64,
    /// Checkpoints evicted.
    pub evicted: u64,
    /// Loads that gave a checkpoint.
    pub hits: u64,
    /// Loads that did not.
    pub misses: u64,
    /// Objects set aside.
    pub quarantined: u64,
}

/// Keeps checkpoints from eviction until it is given back.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Protection(u64);

/// Checkpoints in a store.
///
/// All methods take the time in milliseconds from the caller. A future that is dropped half way leaves the store
/// intact; what it had begun to write is removed by the next call of [`Library::save`].
#[derive(Debug)]
pub struct Library<S> {
    store: S,
    config: Config,
    index: Index,
    /// Segments held for a save under way.
    pending: Vec<SegmentId>,
    protected: BTreeMap<u64, BTreeSet<CheckpointId>>,
    protections: u64,
    stats: Stats,
    closed: bool,
}

impl<S: ByteStore> Library<S> {
    /// Reads what a store holds; what is wrong there is set aside, what is not referred to is removed.
    ///
    /// # Errors
    /// Only if the store cannot be listed.
    pub async fn open(store: S, config: Config, now_ms: u64) -> Result<Self, StoreError> {
        let mut library = Self {
            store,
            config,
            index: Index::default(),
            pending: Vec::new(),
            protected: BTreeMap::new(),
            protections: 0,
            stats: Stats::default(),
            closed: false,
        };
        library.refresh(now_ms).await?;
        Ok(library)
    }

    /// The name that an exact checkpoint of these tokens has or would have.
    pub fn id(identity: Identity, tokens: &[u32]) -> CheckpointId {
        let mut chain = TokenChain::new(identity, Exactness::Exact);
        chain.advance(tokens, tokens.len());
        objects::checkpoint_id(chain.digest())
    }

    /// Checkpoints that hold nothing but beginnings of `tokens`, without the one called `id`: it serves all they serve.
    pub fn beginnings(&self, identity: Identity, tokens: &[u32], id: CheckpointId) -> Vec<CheckpointId> {
        let Some(longer) = self.index.get(id) else { return Vec::new() };
        let serves = |shorter: &CheckpointId| {
            let shorter = self.index.get(*shorter);
            shorter.is_some_and(|shorter| {
                shorter.exactness == longer.exactness
                    && !shorter.has_logits
                    && longer.cuts.iter().any(|(len, _)| *len == shorter.tokens)
            })
        };
        self.index.prefixes(identity, tokens).into_iter().filter(|other| *other != id && serves(other)).collect()
    }

    /// A stored checkpoint as a whole, for [`Library::load`].
    pub fn whole(&self, id: CheckpointId) -> Option<Match> {
        let stored = self.index.get(id)?;
        Some(Match { id, tokens: stored.tokens as usize, whole: true, exactness: stored.exactness })
    }

    /// The longest stored beginning of `tokens`, lossy ones only if `accepted` says so; neither counts as a use.
    pub fn find(&self, identity: Identity, tokens: &[u32], accepted: Exactness) -> Option<Match> {
        let exact = self.index.longest(identity, Exactness::Exact, tokens);
        let lossy = match accepted {
            Exactness::Exact => None,
            Exactness::Lossy => self.index.longest(identity, Exactness::Lossy, tokens),
        };
        let longer = lossy.filter(|lossy| exact.is_none_or(|exact| lossy.tokens > exact.tokens));
        longer.or(exact).filter(|found| found.tokens >= self.config.min_tokens.max(1))
    }

    /// Whether a page of a timeline is stored, so that it need not be exported again: pass its descriptor and all
    /// tokens up to its end.
    pub fn has_page(&self, identity: Identity, tokens: &[u32], descriptor: &crate::Descriptor) -> bool {
        let exactness = match descriptor.codec {
            crate::Codec::Raw => Exactness::Exact,
            crate::Codec::CacheGen => Exactness::Lossy,
        };
        let mut chain = TokenChain::new(identity, exactness);
        chain.advance(tokens, tokens.len());
        let key = objects::page_key(chain.digest(), descriptor);
        descriptor.tokens.end as usize == tokens.len() && self.index.segment(key).is_some()
    }

    /// Keeps all checkpoints that begin `tokens`, and the one that [`Library::find`] would choose, from eviction.
    pub fn protect(&mut self, identity: Identity, tokens: &[u32]) -> Protection {
        let mut ids = self.index.prefixes(identity, tokens);
        ids.extend(self.find(identity, tokens, Exactness::Lossy).map(|found| found.id));
        ids.extend(self.find(identity, tokens, Exactness::Exact).map(|found| found.id));
        self.protections += 1;
        self.protected.insert(self.protections, ids);
        Protection(self.protections)
    }

    /// Ends a protection.
    pub fn unprotect(&mut self, protection: Protection) {
        self.protected.remove(&protection.0);
    }

    /// Stores what is live, then refuses everything that would write.
    pub async fn shutdown(&mut self, live: &[&Checkpoint], now_ms: u64) -> Vec<Saved> {
        let mut outcomes = Vec::with_capacity(live.len());
        for checkpoint in live {
            outcomes.push(self.save(checkpoint, Reason::Shutdown, now_ms).await);
        }
        self.closed = true;
        outcomes
    }

    /// Removes a checkpoint and the pages that no other one shares.
    ///
    /// # Errors
    /// The checkpoint stays if the store fails to delete it.
    pub async fn forget(&mut self, id: CheckpointId) -> Result<(), StoreError> {
        match self.index.get(id) {
            Some(_) if !self.config.read_only => self.remove(id).await,
            _ => Ok(()),
        }
    }

    /// All checkpoints, in order of their names.
    pub fn list(&self) -> Vec<Listing> {
        let listing = self.index.iter().map(|(id, stored)| Listing {
            id: *id,
            tokens: stored.tokens as usize,
            bytes: stored.bytes,
            usage: stored.usage,
        });
        listing.collect()
    }

    /// Counts.
    pub fn stats(&self) -> Stats {
        Stats { checkpoints: self.index.len(), used_bytes: self.index.used_bytes(), ..self.stats }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Deletes a checkpoint's manifest first: one that is there is complete.
    async fn remove(&mut self, id: CheckpointId) -> Result<(), StoreError> {
        self.store.delete(&objects::manifest_key(id)).await?;
        self.drop_entry(id).await;
        Ok(())
    }

    /// Forgets a checkpoint whose manifest is gone, and deletes what only it held.
    async fn drop_entry(&mut self, id: CheckpointId) {
        let orphans = self.index.remove(id);
        self.delete_segments(orphans).await;
        if !self.config.read_only {
            // What stays here is removed when the store is opened again.
            _ = self.store.delete(&objects::use_key(id)).await;
        }
    }

    async fn delete_segments(&mut self, orphans: Vec<SegmentId>) {
        for orphan in orphans.iter().filter(|_| !self.config.read_only) {
            // What stays here is removed when the store is opened again.
            _ = self.store.delete(&orphan.object()).await;
        }
    }
}
