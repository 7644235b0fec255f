//! How far a fetch has come: for the worker's reports, the log, and a counter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_backend::LoadProgress;
use volley_telemetry::Metrics;

/// Between two events of one fetch.
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
    /// A fetch of `total` bytes begins.
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

    /// These bytes have arrived.
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

    /// These bytes were there already.
    pub(crate) fn skip(&self, bytes: u64) {
        self.here(bytes);
    }

    /// These bytes will be counted again.
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
