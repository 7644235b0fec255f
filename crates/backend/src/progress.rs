//! Download progress of a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use volley_types::FetchProgress;

/// Download progress of one model. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl LoadProgress {
    /// Starts a download of `total_bytes`; 0 means that no download is running.
    pub fn begin(&self, total_bytes: u64) {
        self.0.bytes.store(0, Ordering::Relaxed);
        self.0.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    /// Sets the number of downloaded bytes.
    pub fn set(&self, bytes: u64) {
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The progress; `None` while no download is running.
    #[must_use]
    pub fn get(&self) -> Option<FetchProgress> {
        let total_bytes = self.0.total_bytes.load(Ordering::Relaxed);
        (total_bytes != 0).then(|| FetchProgress {
            bytes: self.0.bytes.load(Ordering::Relaxed).min(total_bytes),
            total_bytes,
        })
    }
}
