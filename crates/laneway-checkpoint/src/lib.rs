//! Stored sessions: what a session computed, kept where a restart, a crash or another machine finds it again.
//!
//! - [`format`](crate::Checkpoint): one container, verified before anything of it is used.
//! - [`ByteStore`]: where bytes live: memory and files; `laneway-remote-store` adds whatever `object_store` speaks to.
//! - [`Library`]: which checkpoints are worth their bytes, over any store and a clock the caller passes.
//! - [`cachegen`]: a smaller, lossy representation of KV pages.
//!
//! A checkpoint is stored as one object per page and a small manifest, written last: a manifest that is there is
//! complete. Pages are named by the identity of the model and all tokens up to their end, so the next turn of a
//! conversation writes only its own pages. What is wrong on the way back is set aside and reported as a miss.
//!
//! Left out on purpose: a hit never consumes its checkpoint, however long it is, because pages are shared between the
//! checkpoints of a conversation and consuming one would make the next turn write them again. The prompt is in a
//! checkpoint verbatim: a store is as private as the conversations in it, and may be deleted at any time.

#![forbid(unsafe_code)]

mod checkpoint;
mod container;
mod descriptor;
mod error;
mod identity;
mod library;
mod policy;
mod store;
mod wire;

pub mod cachegen;

pub use checkpoint::{Checkpoint, PageRecord};
pub use descriptor::{Codec, Component, Descriptor, ElementType};
pub use error::{FormatError, StoreError};
pub use identity::{Digest, Exactness, Identity, Scope, TokenChain};
pub use library::{CheckpointId, Config, Library, Listing, Match, Protection, Reason, Refusal, Saved, Stats, Use};
pub use policy::{EvictionRule, LengthRule, Schedule};
pub use store::memory::MemoryStore;
pub use store::{ByteStore, Entry, Portable, StoreFuture, check_key, folder_name};

#[cfg(not(target_arch = "wasm32"))]
pub use store::file::FileStore;
