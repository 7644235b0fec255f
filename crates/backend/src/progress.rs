//! How far bringing a model to a worker has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use volley_types::FetchProgress;

/// How far one model has come. Cloning gives another handle to the same numbers.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl LoadProgress {
    /// Begins anew; `total_bytes` are to come. With 0, nothing is under way.
    pub fn begin(&self, total_bytes: u64) {
        self.0.bytes.store(0, Ordering::Relaxed);
        self.0.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    /// This many bytes are here by now.
    pub fn set(&self, bytes: u64) {
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    /// What has been told; `None` while nothing is under way.
    #[must_use]
    pub fn get(&self) -> Option<FetchProgress> {
        let total_bytes = self.0.total_bytes.load(Ordering::Relaxed);
        (total_bytes != 0).then(|| FetchProgress {
            bytes: self.0.bytes.load(Ordering::Relaxed).min(total_bytes),
            total_bytes,
        })
    }
}
