//! Where bytes live.

#[cfg(not(target_arch = "wasm32"))]
pub mod file;
pub mod memory;

use crate::error::StoreError;
use std::future::Future;
use std::pin::Pin;

/// What a store answers with, once it has.
#[cfg(not(target_arch = "wasm32"))]
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;
/// What a store answers with, once it has; a browser's stores belong to one thread.
#[cfg(target_arch = "wasm32")]
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + 'a>>;

/// `Send + Sync` where there are threads.
#[cfg(not(target_arch = "wasm32"))]
pub trait Portable: Send + Sync {}
#[cfg(not(target_arch = "wasm32"))]
impl<T: Send + Sync + ?Sized> Portable for T {}
/// Nothing where there are no threads.
#[cfg(target_arch = "wasm32")]
pub trait Portable {}
#[cfg(target_arch = "wasm32")]
impl<T: ?Sized> Portable for T {}

/// One stored object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, in milliseconds since 1970, where others may write to the same store.
    pub modified_ms: Option<u64>,
}

/// Named objects that appear whole or not at all.
///
/// Keys are one or two names of `a-z 0-9 - .` with a slash between them, see [`check_key`].
pub trait ByteStore: Portable {
    /// The whole object, or `None` if there is none.
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Vec<u8>>>;

    /// Stores the parts, joined, under a key, in place of what was there; durable once the future is done.
    ///
    /// # Errors
    /// [`StoreError::Full`] if only space is missing. The object is whole all the same: the old one or the new one.
    fn put<'a>(&'a self, key: &'a str, parts: &'a [&'a [u8]]) -> StoreFuture<'a, ()>;

    /// Removes an object; it is fine if there is none.
    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()>;

    /// All objects in a folder such as `pages/`, in no order, under their full keys.
    fn list<'a>(&'a self, folder: &'a str) -> StoreFuture<'a, Vec<Entry>>;

    /// Moves an object into the folder `quarantine/`, where nothing but a person looks at it.
    fn quarantine<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            if let Some(body) = self.get(key).await? {
                self.put(&quarantine_key(key), &[&body]).await?;
            }
            self.delete(key).await
        })
    }

    /// Space left on the device, where that can be known.
    fn free_bytes(&self) -> StoreFuture<'_, Option<u64>> {
        Box::pin(async { Ok(None) })
    }
}

impl<S: ByteStore + ?Sized> ByteStore for std::sync::Arc<S> {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        (**self).get(key)
    }
    fn put<'a>(&'a self, key: &'a str, parts: &'a [&'a [u8]]) -> StoreFuture<'a, ()> {
        (**self).put(key, parts)
    }
    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        (**self).delete(key)
    }
    fn list<'a>(&'a self, folder: &'a str) -> StoreFuture<'a, Vec<Entry>> {
        (**self).list(folder)
    }
    fn quarantine<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        (**self).quarantine(key)
    }
    fn free_bytes(&self) -> StoreFuture<'_, Option<u64>> {
        (**self).free_bytes()
    }
}

/// Checks that a key is one or two names of at most 180 of `a-z 0-9 - .`, none starting with a point.
///
/// # Errors
/// [`StoreError::Key`].
pub fn check_key(key: &str) -> Result<(), StoreError> {
    let good = |name: &str| {
        (1..=180).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
    };
    match key.split('/').count() <= 2 && key.split('/').all(good) {
        true => Ok(()),
        false => Err(StoreError::Key { key: key.to_owned() }),
    }
}

/// Where [`ByteStore::quarantine`] puts an object.
pub(crate) fn quarantine_key(key: &str) -> String {
    format!("quarantine/{}", key.rsplit('/').next().unwrap_or(key))
}

/// The name of a folder given with its slash.
pub fn folder_name(folder: &str) -> Result<&str, StoreError> {
    let name = folder.strip_suffix('/').unwrap_or(folder);
    match name.contains('/') {
        true => Err(StoreError::Key { key: folder.to_owned() }),
        false => check_key(name).map(|()| name),
    }
}
