//! Detects unresponsive workers. A killed process resets its connections. A frozen or partitioned
//! process does not, and HTTP/2 notices that only after 15 seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use volley_types::control::Liveness;

use super::Replica;
use crate::live::LiveWorkers;

/// Time of the last message of an exchange.
pub(super) struct LivenessWatch {
    since: Instant,
    after_ms: AtomicU64,
}

impl LivenessWatch {
    /// Starts the watch now.
    pub(super) fn now() -> Self {
        Self {
            since: Instant::now(),
            after_ms: AtomicU64::new(0),
        }
    }

    /// Records a message.
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

/// State of a worker from the view of one exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerSignal {
    Speaks,
    /// No heartbeats arrive.
    Fades,
    /// Neither heartbeats nor messages arrive.
    Silent,
}

impl Replica {
    /// Completes when the worker is unresponsive: no heartbeat and no message of this exchange
    /// within the dead timeout. It checks twice, so that a coordinator that was itself paused first
    /// reads received messages. A worker that shuts down ends its heartbeats by itself and is not
    /// checked. Cancel safe: it only waits.
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
            // The worker was forgotten or restarted: this exchange belongs to the previous process.
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
