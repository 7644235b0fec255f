//! The time of the last Raft failure, in a file in the data directory. The process ends after a
//! failure, so the next process reports it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Name of the file. It contains the time in seconds since 1970, and the reason on the second line.
const FILE: &str = "last-failure";

/// The last failure in a data directory. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Failures {
    file: PathBuf,
    last_s: Arc<AtomicU64>,
}

impl Failures {
    /// Reads the record of an earlier process.
    pub(crate) fn open(data_dir: &Path) -> Self {
        let file = data_dir.join(FILE);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let last_s = text.lines().next().and_then(|line| line.parse().ok());
        Self {
            file,
            last_s: Arc::new(AtomicU64::new(last_s.unwrap_or_default())),
        }
    }

    /// The time of the last failure in seconds since 1970; 0 for none.
    pub(crate) fn last_s(&self) -> u64 {
        self.last_s.load(Ordering::Relaxed)
    }

    /// Records a failure now. The record may be lost if the disk has failed.
    pub(crate) fn note(&self, reason: &str) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_s = since.map_or(0, |since| since.as_secs());
        self.last_s.store(now_s, Ordering::Relaxed);
        if let Err(error) = std::fs::write(&self.file, format!("{now_s}\n{reason}\n")) {
            tracing::warn!(error = %error, "failure record not written");
        }
    }
}

#[cfg(test)]
mod tests;
