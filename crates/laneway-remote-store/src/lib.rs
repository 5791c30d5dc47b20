//! Checkpoints in S3-compatible and other remote stores, through `object_store`.
//!
//! A workspace of its own: what `object_store` needs would give shared libraries other features, and with them build
//! the tensor library of the main workspace twice.
#![forbid(unsafe_code)]

use bytes::Bytes;
use futures_util::TryStreamExt;
use laneway_checkpoint::{ByteStore, Entry, StoreError, StoreFuture, check_key, folder_name};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;

/// Objects of an S3-compatible or other store, under a prefix of it.
///
/// Several machines may use one prefix: a checkpoint of one is there for the others after
/// [`Library::refresh`](laneway_checkpoint::Library::refresh), and what one evicts is a miss for the others.
#[derive(Debug, Clone)]
pub struct RemoteStore {
    store: Arc<dyn ObjectStore>,
    root: Path,
}

impl RemoteStore {
    /// Uses `store` below `root`, which may be empty.
    pub fn new(store: Arc<dyn ObjectStore>, root: &str) -> Self {
        Self { store, root: Path::from(root) }
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        check_key(key)?;
        Ok(key.split('/').fold(self.root.clone(), |path, name| path.join(name)))
    }
}

impl ByteStore for RemoteStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let found = match self.store.get(&self.path(key)?).await {
                Ok(found) => found.bytes().await,
                Err(error) => Err(error),
            };
            match found {
                Ok(body) => Ok(Some(body.into())),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(failure("reading", key, error)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a str, parts: &'a [&'a [u8]]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let body: PutPayload = parts.iter().map(|part| Bytes::copy_from_slice(part)).collect();
            let put = self.store.put(&self.path(key)?, body).await;
            put.map(|_| ()).map_err(|error| failure("writing", key, error))
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            match self.store.delete(&self.path(key)?).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(failure("deleting", key, error)),
            }
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> StoreFuture<'a, Vec<Entry>> {
        Box::pin(async move {
            let name = folder_name(folder)?;
            let objects = self.store.list(Some(&self.root.clone().join(name))).try_collect::<Vec<_>>().await;
            let objects = objects.map_err(|error| failure("listing", folder, error))?;
            let entries = objects.into_iter().filter_map(|object| {
                let key = format!("{name}/{}", object.location.filename()?);
                let modified_ms = u64::try_from(object.last_modified.timestamp_millis()).ok();
                // A deeper object has the name of a key of ours, but not its place.
                let ours = check_key(&key).is_ok() && self.path(&key).ok()? == object.location;
                ours.then_some(Entry { key, bytes: object.size, modified_ms })
            });
            Ok(entries.collect())
        })
    }
}

fn failure(action: &'static str, key: &str, error: object_store::Error) -> StoreError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if matches!(kind, Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)) {
            return StoreError::Full;
        }
        cause = error.source();
    }
    StoreError::Failed { action, key: key.to_owned(), source: error.into() }
}
