//! What every store does, and what only the one of files can do wrong.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/store.rs"]
mod store;

use common::wait;
use laneway_checkpoint::{ByteStore, FileStore, MemoryStore, StoreError, check_key};
use std::fs;
use std::sync::Arc;
use store::{behaves_like_a_store, keys};

#[test]
fn memory_is_a_store() {
    behaves_like_a_store(&MemoryStore::new());
    behaves_like_a_store(&Arc::new(MemoryStore::new()));
}

#[test]
fn a_directory_is_a_store() {
    let root = tempfile::tempdir().unwrap();
    behaves_like_a_store(&FileStore::open(root.path().join("deep/er")).unwrap());
}

#[test]
fn keys_have_a_longest_name() {
    assert!(check_key(&"a".repeat(180)).is_ok());
    assert!(check_key(&"a".repeat(181)).is_err());
}

/// G55: private to the user, also where the directory was not.
#[cfg(unix)]
#[test]
fn a_directory_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let open = root.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let store = FileStore::open(&open).unwrap();
    wait(store.put("pages/a", &[b"x"])).unwrap();
    let mode = |path: &str| fs::metadata(open.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("pages"), mode("pages/a")), (0o700, 0o700, 0o600));
}

/// L109: one process owns the directory, until it closes it.
#[test]
fn a_directory_has_one_owner() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::open(root.path()).unwrap();
    assert!(matches!(FileStore::open(root.path()), Err(StoreError::Owned { .. })));
    drop(store);
    FileStore::open(root.path()).unwrap();
}

/// G50, G55: what an interrupted write left is removed, and files of others are neither listed nor touched.
#[test]
fn leftovers_go_and_strangers_stay() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    wait(FileStore::open(root.path()).unwrap().put("pages/a", &[b"x"])).unwrap();
    for name in [".tmp-1-0", "pages/.tmp-99-3", "pages/Notes.txt", "pages/.hidden", "README"] {
        fs::write(at(name), "half").unwrap();
    }
    fs::create_dir(at("pages/folder")).unwrap();
    let store = FileStore::open(root.path()).unwrap();
    assert!(!at(".tmp-1-0").exists() && !at("pages/.tmp-99-3").exists());
    assert!(at("pages/Notes.txt").exists() && at("pages/.hidden").exists() && at("README").exists());
    assert_eq!(keys(&store, "pages/"), [("pages/a".into(), 1)]);
}

/// A link in the directory does not hand out the file it points to.
#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::open(root.path().join("store")).unwrap();
    wait(store.put("pages/a", &[b"x"])).unwrap();
    fs::write(root.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(root.path().join("secret"), root.path().join("store/pages/b")).unwrap();
    assert_eq!(keys(&store, "pages/").len(), 1);
    assert!(wait(store.get("pages/b")).is_err());
    wait(store.put("pages/b", &[b"mine"])).unwrap();
    assert_eq!(fs::read(root.path().join("secret")).unwrap(), b"secret");
    assert_eq!(wait(store.get("pages/b")).unwrap().as_deref(), Some(b"mine".as_slice()));
}

/// G55: a write that fails leaves the old object and no temporary file.
#[test]
fn a_failed_write_leaves_what_was_there() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::open(root.path()).unwrap();
    fs::create_dir_all(root.path().join("pages/a/inside")).unwrap();
    assert!(wait(store.put("pages/a", &[b"x"])).is_err());
    assert!(root.path().join("pages/a/inside").is_dir());
    let names: Vec<_> =
        fs::read_dir(root.path().join("pages")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["a"]);
}

#[cfg(unix)]
#[test]
fn a_directory_knows_how_much_space_is_left() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::open(root.path()).unwrap();
    assert!(wait(store.free_bytes()).unwrap().is_some_and(|free| free > 0));
    assert_eq!(wait(MemoryStore::new().free_bytes()).unwrap(), None);
}
