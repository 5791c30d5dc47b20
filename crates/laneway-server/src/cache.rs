use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::catalogue::{Entry, HubFile};

/// The folder that holds downloaded models.
pub struct Cache(PathBuf);

impl Cache {
    /// `LANEWAY_CACHE`, else `laneway/models` in the user's cache folder.
    pub fn open() -> Result<Self> {
        if let Some(folder) = std::env::var_os("LANEWAY_CACHE").filter(|folder| !folder.is_empty()) {
            return Ok(Self(folder.into()));
        }
        let folder = dirs::cache_dir().context("this user has no cache folder; set LANEWAY_CACHE to one")?;
        Ok(Self(folder.join("laneway").join("models")))
    }

    /// Where a named model is kept.
    pub fn of_entry(&self, entry: &Entry) -> PathBuf {
        self.0.join(format!("{}.gguf", entry.name))
    }

    /// Where a file of Hugging Face is kept.
    pub fn of_hub(&self, file: &HubFile<'_>) -> PathBuf {
        self.0.join("hf").join(file.repository).join(file.file)
    }
}

/// Whether a named model is complete; its hash was checked before it got its name.
pub fn has_entry(path: &Path, entry: &Entry) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == entry.size_bytes)
}

/// `path` with `suffix` after its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes this process the only one that downloads `path`, until the lock is dropped; waits for others.
pub fn lock(path: &Path) -> Result<File> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|error| disk(folder, error))?;
    let place = beside(path, ".lock");
    let file = File::options().create(true).truncate(false).write(true).open(&place);
    let file = file.map_err(|error| disk(&place, error))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            eprintln!("waiting for another laneway that downloads this model");
            file.lock().map_err(|error| disk(&place, error))?;
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(disk(&place, error)),
    }
    Ok(file)
}

/// Gives a complete file its name, so that it is there whole or not at all even after a power cut.
pub fn publish(partial: &Path, path: &Path) -> Result<()> {
    std::fs::rename(partial, path).map_err(|error| disk(path, error))?;
    if let Some(folder) = path.parent()
        && cfg!(unix)
    {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| disk(folder, error))?;
    }
    Ok(())
}

/// Removes a file that may not be there.
pub fn discard(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk(path, error)),
        _ => Ok(()),
    }
}

/// A failure of the file system, which no other source of the model mends.
#[derive(Debug)]
pub struct Disk(String);

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Disk {}

/// A failure of the file system, in words that say what to do.
pub fn disk(path: &Path, error: io::Error) -> anyhow::Error {
    let path = path.display();
    let message = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("no space is left for {path}; free some, or set LANEWAY_CACHE to a folder on another disk")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("{path} may not be written ({error}); set LANEWAY_CACHE to a folder that may")
        }
        _ => format!("{path}: {error}"),
    };
    Disk(message).into()
}
