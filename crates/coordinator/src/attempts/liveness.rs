//! The verdict on a worker that says nothing any more. A process that is killed resets its
//! connections; one that is frozen, or cut off, leaves them as they are, and HTTP/2 notices after
//! a quarter of a minute.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use volley_types::control::Liveness;

use super::Replica;
use crate::live::LiveWorkers;

/// When an exchange last brought something.
pub(super) struct LivenessWatch {
    since: Instant,
    after_ms: AtomicU64,
}

impl LivenessWatch {
    /// Now.
    pub(super) fn now() -> Self {
        Self {
            since: Instant::now(),
            after_ms: AtomicU64::new(0),
        }
    }

    /// Something came.
    pub(super) fn again(&self) {
        let after = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.after_ms.store(after, Ordering::Relaxed);
    }

    fn silence(&self, now: Instant) -> Duration {
        let after = Duration::from_millis(self.after_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.since)
            .saturating_sub(after)
    }
}

/// How a worker looks to one exchange with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerSignal {
    Speaks,
    /// Its heartbeats have ended.
    Fades,
    /// And nothing else has come for as long.
    Silent,
}

impl Replica {
    /// Waits until the worker is given up: for as long as makes it dead, neither a heartbeat nor
    /// anything of this exchange has come. It is looked at twice, so that a coordinator that was
    /// itself held up hears first what has come meanwhile. A worker that shuts down ends its
    /// heartbeats by itself, and is not judged.
    pub(super) async fn given_up(&self, watch: &LivenessWatch) {
        let shared = &self.coordinator.0;
        let mut news = shared.news.subscribe();
        let mut before = WorkerSignal::Speaks;
        loop {
            let signal = self.signal(watch, Instant::now());
            if signal == WorkerSignal::Speaks {
                if news.changed().await.is_err() {
                    return std::future::pending().await;
                }
            } else if signal == WorkerSignal::Silent && before == WorkerSignal::Silent {
                return;
            } else {
                tokio::time::sleep(shared.config.liveness.tick).await;
            }
            before = signal;
        }
    }

    fn signal(&self, watch: &LivenessWatch, now: Instant) -> WorkerSignal {
        let shared = &self.coordinator.0;
        let live = shared.live.read();
        let silence = match live.get(&self.candidate.worker) {
            // It was forgotten, or lives anew: this exchange is of a life before.
            None => Duration::MAX,
            Some(worker) if !Arc::ptr_eq(&worker.client, &self.candidate.client) => Duration::MAX,
            Some(worker) if worker.liveness != Liveness::Dead || worker.report.draining => {
                return WorkerSignal::Speaks;
            }
            Some(worker) => LiveWorkers::silence(worker, now),
        };
        if shared.config.liveness.dead_after <= silence.min(watch.silence(now)) {
            WorkerSignal::Silent
        } else {
            WorkerSignal::Fades
        }
    }
}
