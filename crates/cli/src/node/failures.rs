//! When a coordinator's part in the cluster last failed: a file beside its data, so that the next
//! process can tell of it. The process in which it failed has ended by then.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// In the data directory: the time in seconds since 1970, and on the next line the reason.
const FILE: &str = "last-failure";

/// The last failure over a data directory. Cloning gives another handle.
#[derive(Clone, Debug)]
pub(crate) struct Failures {
    file: PathBuf,
    last_s: Arc<AtomicU64>,
}

impl Failures {
    /// What an earlier process has left.
    pub(crate) fn open(data_dir: &Path) -> Self {
        let file = data_dir.join(FILE);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let last_s = text.lines().next().and_then(|line| line.parse().ok());
        Self {
            file,
            last_s: Arc::new(AtomicU64::new(last_s.unwrap_or_default())),
        }
    }

    /// When it was, in seconds since 1970; 0 for never.
    pub(crate) fn last_s(&self) -> u64 {
        self.last_s.load(Ordering::Relaxed)
    }

    /// It fails now. The disk may be what has failed, so this may not be kept.
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
mod tests {
    use super::*;

    #[test]
    fn the_next_process_knows_when_the_last_one_failed() {
        let folder = tempfile::tempdir().unwrap();
        let failures = Failures::open(folder.path());
        assert_eq!(failures.last_s(), 0);
        failures.note("its disk was lost");
        assert_ne!(failures.last_s(), 0);
        assert_eq!(Failures::open(folder.path()).last_s(), failures.last_s());
    }
}
