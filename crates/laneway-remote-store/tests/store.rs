//! A remote store does what every store does.
#![allow(clippy::unwrap_used)]

#[path = "../../laneway-checkpoint/tests/common/store.rs"]
mod store;

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
