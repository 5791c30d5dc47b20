use super::{ByteStore, Entry, StoreFuture, check_key, folder_name};
use crate::error::StoreError;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Objects in memory, for tests and for a browser tab.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list_now(&self, folder: &str) -> Result<Vec<Entry>, StoreError> {
        let prefix = format!("{}/", folder_name(folder)?);
        let objects = self.objects();
        let listed = objects.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        Ok(listed.map(|(key, body)| Entry { key: key.clone(), bytes: body.len() as u64, modified_ms: None }).collect())
    }
}

impl ByteStore for MemoryStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            check_key(key)?;
            Ok(self.objects().get(key).cloned())
        })
    }

    fn put<'a>(&'a self, key: &'a str, parts: &'a [&'a [u8]]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            check_key(key)?;
            self.objects().insert(key.to_owned(), parts.concat());
            Ok(())
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            check_key(key)?;
            self.objects().remove(key);
            Ok(())
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> StoreFuture<'a, Vec<Entry>> {
        Box::pin(async move { self.list_now(folder) })
    }
}
