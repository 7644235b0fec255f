//! Progress of a fetch, for the worker's reports, the log and a metric.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_backend::LoadProgress;
use volley_telemetry::Metrics;

/// Minimum interval between two log events of one fetch.
const INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Progress {
    model: String,
    total: u64,
    done: AtomicU64,
    told: Mutex<Instant>,
    reported: LoadProgress,
    metrics: Metrics,
}

impl Progress {
    /// Starts a fetch of `total` bytes.
    pub(crate) fn begin(model: &str, total: u64, reported: LoadProgress, metrics: Metrics) -> Self {
        reported.begin(total);
        Self {
            model: model.to_owned(),
            total,
            done: AtomicU64::new(0),
            told: Mutex::new(Instant::now()),
            reported,
            metrics,
        }
    }

    /// Adds received bytes.
    pub(crate) fn add(&self, bytes: u64) {
        self.metrics.fetched_bytes(bytes);
        let done = self.here(bytes);
        let mut told = self.told.lock();
        if told.elapsed() >= INTERVAL {
            *told = Instant::now();
            let (model, total) = (self.model.as_str(), self.total);
            tracing::info!(model, bytes = done, total, "model download in progress");
        }
    }

    /// Adds bytes that an earlier attempt has received.
    pub(crate) fn skip(&self, bytes: u64) {
        self.here(bytes);
    }

    /// Subtracts bytes that the next attempt will add again.
    pub(crate) fn take_back(&self, bytes: u64) {
        let done = self.done.fetch_sub(bytes, Ordering::Relaxed);
        self.reported.set(done.saturating_sub(bytes));
    }

    fn here(&self, bytes: u64) -> u64 {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.reported.set(done);
        done
    }
}
