use super::{ByteStore, Entry, StoreFuture, check_key, folder_name, quarantine_key};
use crate::error::StoreError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Starts with a point, so that no key can name it.
const TEMPORARY: &str = ".tmp-";
const LOCK: &str = ".lock";

/// Objects as files of a directory that one process owns.
///
/// Futures do their work when first polled and block meanwhile: poll them where that is fine.
#[derive(Debug)]
pub struct FileStore {
    root: PathBuf,
    written: AtomicU64,
    /// Held for as long as the store is open; the system drops it with the process.
    _lock: File,
}

impl FileStore {
    /// Opens or creates a directory, private to the user, and removes what an interrupted write left.
    ///
    /// # Errors
    /// [`StoreError::Owned`] if another process has it open, or what the file system reports.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        let failed = |error| failure("opening", &root.display().to_string(), error);
        private_directory(&root).map_err(failed)?;
        let lock = private_file().truncate(false).open(root.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StoreError::Owned { path: root.display().to_string() }),
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        remove_temporaries(&root).map_err(failed)?;
        Ok(Self { root, written: AtomicU64::new(0), _lock: lock })
    }

    fn path(&self, key: &str) -> Result<PathBuf, StoreError> {
        check_key(key)?;
        Ok(self.root.join(key))
    }

    fn get_now(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match read_file(&self.path(key)?) {
            Ok(body) => Ok(Some(body)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failure("reading", key, error)),
        }
    }

    fn put_now(&self, key: &str, parts: &[&[u8]]) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let folder = path.parent().unwrap_or(&self.root);
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
        let stored = self.make_folder(folder).and_then(|()| {
            write_file(&temporary, parts)?;
            fs::rename(&temporary, &path)
        });
        if let Err(error) = stored {
            // A leftover is removed when the store is opened again.
            _ = fs::remove_file(&temporary);
            return Err(failure("writing", key, error));
        }
        sync_directory(folder).map_err(|error| failure("writing", key, error))
    }

    fn delete_now(&self, key: &str) -> Result<(), StoreError> {
        match fs::remove_file(self.path(key)?) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failure("deleting", key, error)),
            _ => Ok(()),
        }
    }

    fn list_now(&self, folder: &str) -> Result<Vec<Entry>, StoreError> {
        let name = folder_name(folder)?;
        let listed = match fs::read_dir(self.root.join(name)) {
            Ok(listed) => listed,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failure("listing", folder, error)),
        };
        let mut entries = Vec::new();
        for file in listed {
            let file = file.map_err(|error| failure("listing", folder, error))?;
            let Ok(metadata) = file.metadata() else { continue };
            let key = format!("{name}/{}", file.file_name().to_string_lossy());
            if metadata.is_file() && check_key(&key).is_ok() {
                entries.push(Entry { key, bytes: metadata.len(), modified_ms: None });
            }
        }
        Ok(entries)
    }

    fn quarantine_now(&self, key: &str) -> Result<(), StoreError> {
        let (from, to) = (self.path(key)?, self.path(&quarantine_key(key))?);
        let moved = self.make_folder(to.parent().unwrap_or(&self.root)).and_then(|()| fs::rename(from, to));
        match moved {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failure("moving", key, error)),
            _ => Ok(()),
        }
    }

    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        match folder.is_dir() {
            true => Ok(()),
            false => private_directory(folder).and_then(|()| sync_directory(&self.root)),
        }
    }
}

impl ByteStore for FileStore {
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { self.get_now(key) })
    }

    fn put<'a>(&'a self, key: &'a str, parts: &'a [&'a [u8]]) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.put_now(key, parts) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.delete_now(key) })
    }

    fn list<'a>(&'a self, folder: &'a str) -> StoreFuture<'a, Vec<Entry>> {
        Box::pin(async move { self.list_now(folder) })
    }

    fn quarantine<'a>(&'a self, key: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.quarantine_now(key) })
    }

    #[cfg(unix)]
    fn free_bytes(&self) -> StoreFuture<'_, Option<u64>> {
        Box::pin(async move {
            let space = rustix::fs::statvfs(&self.root).map_err(|error| failure("measuring", ".", error.into()))?;
            Ok(space.f_bavail.checked_mul(space.f_frsize))
        })
    }
}

fn failure(action: &'static str, key: &str, error: io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => StoreError::Full,
        _ => StoreError::Failed { action, key: key.to_owned(), source: error.into() },
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // Following a link could read, and later hand out, a file of somebody else's choice.
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut body = Vec::new();
    File::open(path)?.read_to_end(&mut body)?;
    Ok(body)
}

fn write_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = private_file().create_new(true).open(path)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()
}

fn remove_temporaries(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() && check_key(&name).is_ok() {
            remove_temporaries(&entry.path())?;
        } else if kind.is_file() && name.starts_with(TEMPORARY) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

#[cfg(not(unix))]
fn private_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes a rename in a directory survive a power cut.
#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
