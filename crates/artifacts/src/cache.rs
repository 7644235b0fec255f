//! The cache directory of fetched models. Several workers on one machine may share it.
//!
//! ```text
//! KEY/         a complete model, moved here in one step
//! KEY.part/    a partial model: a fetch that is running, or that a later fetch resumes
//! KEY.json     description of KEY, for people
//! KEY.lock     locked by the readers or the writer of KEY; its modification time is the last use
//! KEY.gone/    a model that is being removed
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use volley_telemetry::Metrics;
use volley_types::{ErrorCode, PredictError};

use crate::failure::of_disk;

/// Maximum number of attempts to open a lock file that is replaced meanwhile.
const MAX_OPENS: usize = 16;

/// A model's name in the cache: 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) String);

/// A file lock on one key, released when dropped or when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// The description of a model for people, written beside it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    pub(crate) url: String,
    pub(crate) sha256: Option<String>,
    pub(crate) bytes: u64,
}

/// The cache. Clones share their state.
#[derive(Clone)]
pub(crate) struct Cache {
    root: PathBuf,
    limits: CacheLimits,
    /// Total bytes of each running fetch.
    reserved: Arc<Mutex<BTreeMap<Key, u64>>>,
    metrics: Metrics,
}

/// Size limits of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheLimits {
    /// Maximum bytes of all models.
    pub(crate) cache_bytes: u64,
    /// Minimum free bytes on the file system.
    pub(crate) min_free_bytes: u64,
}

/// A reservation of space for a fetch, released when dropped.
pub(crate) struct Reservation {
    key: Key,
    reserved: Arc<Mutex<BTreeMap<Key, u64>>>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.lock().remove(&self.key);
    }
}

/// The disk usage of one key.
#[derive(Debug)]
struct CacheEntry {
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    pub(crate) fn open(
        root: PathBuf,
        limits: CacheLimits,
        metrics: Metrics,
    ) -> Result<Self, PredictError> {
        fs::create_dir_all(&root).map_err(of_disk)?;
        Ok(Self {
            root: root.canonicalize().map_err(of_disk)?,
            limits,
            reserved: Arc::default(),
            metrics,
        })
    }

    fn at(&self, key: &Key, ending: &str) -> PathBuf {
        self.root.join(format!("{}{ending}", key.0))
    }

    /// Path of the complete model; it exists only when the model is complete.
    pub(crate) fn entry(&self, key: &Key) -> PathBuf {
        self.at(key, "")
    }

    /// Path of the partial model.
    pub(crate) fn partial(&self, key: &Key) -> PathBuf {
        self.at(key, ".part")
    }

    /// Takes a read lock; `None` while another process or task writes. Marks the model as used.
    pub(crate) fn try_read(&self, key: &Key) -> Result<Option<Lock>, PredictError> {
        let lock = self.try_lock(key, File::try_lock_shared).map_err(of_disk)?;
        if let Some(lock) = &lock {
            lock._file
                .set_modified(SystemTime::now())
                .map_err(of_disk)?;
        }
        Ok(lock)
    }

    /// Takes the write lock; `None` while others read or write. Marks the model as used.
    pub(crate) fn try_write(&self, key: &Key) -> Result<Option<Lock>, PredictError> {
        let lock = self.try_lock(key, File::try_lock).map_err(of_disk)?;
        if let Some(lock) = &lock {
            lock._file
                .set_modified(SystemTime::now())
                .map_err(of_disk)?;
        }
        Ok(lock)
    }

    fn try_lock(
        &self,
        key: &Key,
        lock: impl Fn(&File) -> Result<(), TryLockError>,
    ) -> io::Result<Option<Lock>> {
        let path = self.at(key, ".lock");
        for _ in 0..MAX_OPENS {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = options.open(&path)?;
            match lock(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // The eviction of a model deletes its lock file, possibly after this call has opened
            // it.
            let is_there = fs::metadata(&path).is_ok_and(|there| {
                file.metadata()
                    .is_ok_and(|held| (held.dev(), held.ino()) == (there.dev(), there.ino()))
            });
            if is_there {
                return Ok(Some(Lock { _file: file }));
            }
        }
        Ok(None)
    }

    /// Reserves `bytes` for `key` in total, including its bytes on disk. Evicts the least recently
    /// used models if necessary. Blocks on the disk.
    ///
    /// # Errors
    /// `TooLarge` when `bytes` exceeds the cache size; `Unavailable` when not enough space can be
    /// freed.
    pub(crate) fn reserve(&self, key: &Key, bytes: u64) -> Result<Reservation, PredictError> {
        let CacheLimits { cache_bytes, .. } = self.limits;
        if bytes > cache_bytes {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!("the model takes {bytes} bytes, artifacts.cache_size is {cache_bytes}"),
            ));
        }
        let mut reserved = self.reserved.lock();
        let mut held = self.scan().map_err(of_disk)?;
        let own = held.remove(key).map_or(0, |held| held.bytes);
        // A running fetch counts with its reserved bytes, of which a part may already be on disk.
        let mut others: u64 = reserved
            .iter()
            .filter(|(other, _)| *other != key)
            .map(|(other, bytes)| {
                let there = held.get(other).map_or(0, |held| held.bytes);
                bytes.saturating_sub(there)
            })
            .chain(held.values().map(|held| held.bytes))
            .fold(0, u64::saturating_add);
        let mut oldest_first: Vec<_> = held.into_iter().collect();
        oldest_first.sort_by_key(|(_, held)| held.used);
        let missing = bytes.saturating_sub(own);
        let mut candidates = oldest_first.into_iter();
        loop {
            let fits = others.saturating_add(bytes) <= cache_bytes;
            let free = self.free_bytes().map_err(of_disk)?;
            let is_free = missing.saturating_add(self.limits.min_free_bytes) <= free;
            if fits && is_free {
                break;
            }
            let Some((other, held)) = candidates.next() else {
                return Err(no_room(fits));
            };
            if self.remove(&other).map_err(of_disk)? {
                others = others.saturating_sub(held.bytes);
            }
        }
        self.metrics
            .set_artifact_cache_bytes(others.saturating_add(bytes));
        reserved.insert(key.clone(), bytes);
        Ok(Reservation {
            key: key.clone(),
            reserved: self.reserved.clone(),
        })
    }

    /// Fails with `Unavailable` if the file system has less than the minimum free space.
    pub(crate) fn check_free(&self) -> Result<(), PredictError> {
        let free = self.free_bytes().map_err(of_disk)?;
        if free < self.limits.min_free_bytes {
            return Err(no_room(true));
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.root)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Moves the complete model at `from`, which is below [`Cache::partial`], to its final path.
    /// The caller must hold the write lock.
    pub(crate) fn commit(&self, key: &Key, from: &Path, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(record)?;
        fs::write(self.at(key, ".json"), text)?;
        sync(from)?;
        fs::rename(from, self.entry(key))?;
        sync(&self.root)?;
        fs::remove_dir_all(self.partial(key)).or_else(missing_is_fine)
    }

    /// Evicts a model unless it is locked. Returns whether it was evicted.
    fn remove(&self, key: &Key) -> io::Result<bool> {
        let Some(lock) = self.try_lock(key, File::try_lock)? else {
            return Ok(false);
        };
        let gone = self.at(key, ".gone");
        fs::remove_dir_all(&gone).or_else(missing_is_fine)?;
        // The rename is atomic, so a half-deleted model is never visible as complete.
        fs::rename(self.entry(key), &gone).or_else(missing_is_fine)?;
        fs::remove_dir_all(&gone).or_else(missing_is_fine)?;
        fs::remove_dir_all(self.partial(key)).or_else(missing_is_fine)?;
        fs::remove_file(self.at(key, ".json")).or_else(missing_is_fine)?;
        fs::remove_file(self.at(key, ".lock")).or_else(missing_is_fine)?;
        drop(lock);
        tracing::info!(key = key.0, "unused model removed from the cache");
        Ok(true)
    }

    fn scan(&self) -> io::Result<BTreeMap<Key, CacheEntry>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            let Some((key, ending)) = name.to_str().and_then(split) else {
                continue;
            };
            if matches!(ending, ".json" | ".lock") {
                continue;
            }
            let path = self.at(&key, ending);
            let bytes = tree_bytes(&path)?;
            let lock = fs::metadata(self.at(&key, ".lock"));
            let used = lock.and_then(|lock| lock.modified());
            let held = found.entry(key).or_insert(CacheEntry {
                bytes: 0,
                used: used.unwrap_or(SystemTime::UNIX_EPOCH),
            });
            held.bytes = held.bytes.saturating_add(bytes);
        }
        Ok(found)
    }
}

fn no_room(fits_cache: bool) -> PredictError {
    let message = if fits_cache {
        "the disk of this worker's cache has no room for the model: free some, or lower \
         artifacts.min_free_size"
    } else {
        "this worker's cache is full of models in use: raise artifacts.cache_size, or undeploy one"
    };
    PredictError::new(ErrorCode::Unavailable, message)
}

/// Splits a file name in the cache directory into its key and its ending; `None` for foreign files.
fn split(name: &str) -> Option<(Key, &str)> {
    let (key, ending) = name.split_at_checked(64)?;
    let is_key = key.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_ours = matches!(ending, "" | ".part" | ".json" | ".lock" | ".gone");
    (is_key && is_ours).then(|| (Key(key.to_owned()), ending))
}

/// Bytes of all files in a tree. Files that are deleted meanwhile are ignored.
pub(crate) fn tree_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes: u64 = 0;
    let mut folders = vec![path.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => bytes = bytes.saturating_add(found.len()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

/// Makes the entries of a directory durable.
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests;
