//! What every store does.

use laneway_checkpoint::{ByteStore, StoreError};

fn wait<T>(work: impl Future<Output = T>) -> T {
    pollster::block_on(work)
}

pub fn keys(store: &dyn ByteStore, folder: &str) -> Vec<(String, u64)> {
    let mut found: Vec<_> =
        wait(store.list(folder)).unwrap().into_iter().map(|entry| (entry.key, entry.bytes)).collect();
    found.sort();
    found
}

/// L109: whole objects by key, in every store alike.
pub fn behaves_like_a_store(store: &dyn ByteStore) {
    let get = |key: &str| wait(store.get(key)).unwrap();
    assert_eq!(get("pages/a"), None);
    assert!(keys(store, "pages/").is_empty());
    wait(store.put("pages/a", &[b"one ", b"", b"two"])).unwrap();
    wait(store.put("pages/b.1-x", &[])).unwrap();
    wait(store.put("pages2/a", &[b"other"])).unwrap();
    assert_eq!(get("pages/a").as_deref(), Some(b"one two".as_slice()));
    assert_eq!(get("pages/b.1-x").as_deref(), Some(b"".as_slice()));
    assert_eq!(keys(store, "pages/"), [("pages/a".into(), 7), ("pages/b.1-x".into(), 0)]);
    wait(store.put("pages/a", &[b"new"])).unwrap();
    assert_eq!(get("pages/a").as_deref(), Some(b"new".as_slice()));
    wait(store.quarantine("pages/a")).unwrap();
    assert_eq!(get("pages/a"), None);
    assert_eq!(get("quarantine/a").as_deref(), Some(b"new".as_slice()));
    wait(store.quarantine("pages/none")).unwrap();
    wait(store.delete("pages/b.1-x")).unwrap();
    wait(store.delete("pages/b.1-x")).unwrap();
    assert!(keys(store, "pages/").is_empty());
    for bad in
        ["", "/", "a/", "/a", "a//b", "a/b/c", "../a", "a/..", ".lock", "pages/.tmp-1-1", "a b", "A", "a\\b", "a\0"]
    {
        assert!(matches!(wait(store.put(bad, &[b"x"])), Err(StoreError::Key { .. })), "{bad:?}");
        assert!(wait(store.get(bad)).is_err(), "{bad:?}");
        assert!(wait(store.delete(bad)).is_err(), "{bad:?}");
    }
    assert!(wait(store.list("pages/sub/")).is_err());
}
