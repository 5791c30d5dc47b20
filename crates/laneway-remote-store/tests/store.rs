//! A remote store does what every store does.
#![allow(clippy::unwrap_used)]

#[path = "../../laneway-checkpoint/tests/common/mod.rs"]
mod common;
#[path = "../../laneway-checkpoint/tests/common/store.rs"]
mod store;

use common::{checkpoint, config, identity, wait};
use laneway_checkpoint::{Exactness, Library, Reason};

use laneway_remote_store::RemoteStore;
use std::sync::Arc;
use store::behaves_like_a_store;

#[test]
fn an_object_store_is_a_store() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    behaves_like_a_store(&RemoteStore::new(memory.clone(), "some/where"));
    behaves_like_a_store(&RemoteStore::new(memory.clone(), "some/where-else"));
    behaves_like_a_store(&RemoteStore::new(memory, ""));
    let root = tempfile::tempdir().unwrap();
    let files = object_store::local::LocalFileSystem::new_with_prefix(root.path()).unwrap();
    behaves_like_a_store(&RemoteStore::new(Arc::new(files), "checkpoints"));
}

/// A session that one machine stored is whole on another that reaches the same bucket.
#[test]
fn a_stored_session_is_found_from_another_machine() {
    let bucket = Arc::new(object_store::memory::InMemory::new());
    let store = || RemoteStore::new(bucket.clone(), "sessions");
    let stored = checkpoint(7, 640);
    let mut here = wait(Library::open(store(), config(1 << 24), 1_000)).unwrap();
    assert!(wait(here.save(&stored, Reason::Continued, 1_000)).id().is_some());
    drop(here);
    let mut there = wait(Library::open(store(), config(1 << 24), 2_000)).unwrap();
    let longer = [&stored.tokens[..], &[1, 2, 3]].concat();
    assert!(there.find(identity("another model"), &longer, Exactness::Exact).is_none());
    let found = there.find(stored.identity, &longer, Exactness::Exact).unwrap();
    assert_eq!((found.tokens, found.whole), (640, true));
    assert_eq!(wait(there.load(&found, 2_000)).unwrap(), stored);
}
