//! The worker: loads the replicas that coordinators assign to it, admits requests to them, and
//! sends heartbeats to every coordinator twice a second.
//!
//! Reading order: [`Worker`], `predict` (one request), `admission` (the queue of a replica),
//! `table` (assigned replicas), `load`, `memory_budget` and `eviction` (loading within the budget),
//! `heartbeat`.

mod abandoned_loads;
mod admission;
mod backend_slot;
mod config;
mod converge;
mod eviction;
mod gpus;
mod heartbeat;
mod load;
mod memory;
mod memory_budget;
mod predict;
mod replica;
mod table;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use volley_backend::BackendLoader;
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, BackendName};
use volley_types::{Assignments, Incarnation, ModelName, Revision};

use crate::abandoned_loads::AbandonedLoads;
pub use crate::config::WorkerConfig;
use crate::heartbeat::RunningStreams;
pub use crate::memory::system_bytes;
use crate::memory_budget::MemoryBudget;
use crate::replica::Replica;

/// A worker. Clones share their state.
#[derive(Clone)]
pub struct Worker(Arc<Shared>);

struct Shared {
    config: WorkerConfig,
    started: Instant,
    incarnation: Incarnation,
    loaders: BTreeMap<BackendName, Arc<dyn BackendLoader>>,
    metrics: Metrics,
    replicas: RwLock<Vec<Arc<Replica>>>,
    /// The newest assignments of any coordinator.
    wanted: Mutex<(Revision, Vec<Assignment>)>,
    /// The models whose replicas may be evicted while they are idle.
    overcommit: Mutex<BTreeSet<ModelName>>,
    /// Locked while one load reserves memory.
    making_room: Mutex<()>,
    /// Notifies when `wanted` changed.
    assigned: tokio::sync::Notify,
    /// Notifies about changes that must be reported immediately.
    news: watch::Sender<()>,
    loads: Semaphore,
    budget: MemoryBudget,
    abandoned_loads: AbandonedLoads,
    /// Last sample of the driver.
    gpus: Mutex<Vec<volley_types::GpuReport>>,
    streams: Mutex<RunningStreams>,
    members: watch::Sender<heartbeat::Members>,
    draining: AtomicBool,
    /// The grace period of a drain has ended.
    closed: AtomicBool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Shared {
    fn uptime_ms(&self, at: Instant) -> u64 {
        let uptime = at.saturating_duration_since(self.started).as_millis();
        u64::try_from(uptime).unwrap_or(u64::MAX)
    }
}

impl Worker {
    /// Starts the worker. It connects to its coordinators, retrying while they are down, and loads
    /// the assigned replicas. Its tasks run until [`Worker::shutdown`].
    #[must_use]
    pub fn start(
        config: WorkerConfig,
        loaders: Vec<Arc<dyn BackendLoader>>,
        metrics: Metrics,
    ) -> Self {
        let (incarnation, _) = uuid::Uuid::new_v4().as_u64_pair();
        let worker = Self(Arc::new(Shared {
            started: Instant::now(),
            incarnation: Incarnation(incarnation),
            loaders: loaders
                .into_iter()
                .map(|loader| (loader.name(), loader))
                .collect(),
            metrics,
            replicas: RwLock::default(),
            wanted: Mutex::default(),
            overcommit: Mutex::default(),
            making_room: Mutex::default(),
            assigned: tokio::sync::Notify::new(),
            news: watch::Sender::new(()),
            loads: Semaphore::new(config.concurrent_loads.max(1)),
            budget: MemoryBudget::new(config.effective_budget()),
            abandoned_loads: AbandonedLoads::default(),
            gpus: Mutex::default(),
            streams: Mutex::default(),
            members: watch::Sender::default(),
            draining: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            config,
        }));
        worker.spawn(worker.clone().run_table());
        worker.spawn(worker.clone().publish_memory());
        worker.spawn(worker.clone().watch_gpus());
        let budget = bytesize::ByteSize(worker.0.budget.budget());
        tracing::info!(%budget, "model memory budget set");
        worker.report_to(&Assignments {
            revision: Revision::default(),
            assignments: Vec::new(),
            coordinators: Vec::new(),
            overcommit: BTreeSet::new(),
        });
        worker
    }

    /// Reports to the coordinators that this worker accepts no new requests.
    pub fn begin_drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.notify_change();
    }

    /// Drains: notifies the coordinators, and waits until every stream has ended, at most
    /// `timeout`. Returns the number of streams that were still running then.
    pub async fn drain(&self, timeout: Duration) -> usize {
        self.begin_drain();
        let started = Instant::now();
        // Coordinators that have not received the report may still send requests.
        tokio::time::sleep(self.0.config.drain_grace.min(timeout)).await;
        self.0.closed.store(true, Ordering::Release);
        while self.active_streams() != 0 && started.elapsed() < timeout {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.active_streams()
    }

    /// Ends the heartbeats and unloads all replicas. Running streams are aborted.
    pub async fn shutdown(&self) {
        self.begin_drain();
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        let replicas = std::mem::take(&mut *self.0.replicas.write());
        replicas.iter().for_each(|replica| replica.abort());
    }

    /// Number of running and queued streams of all replicas.
    #[must_use]
    pub fn active_streams(&self) -> usize {
        let loads = self
            .0
            .replicas
            .read()
            .iter()
            .map(|replica| replica.load())
            .collect::<Vec<_>>();
        loads
            .into_iter()
            .map(|(running, waiting)| running + waiting)
            .sum()
    }

    /// Whether it accepts requests, that is, it is not draining.
    #[must_use]
    pub fn ready(&self) -> bool {
        !self.0.draining.load(Ordering::Acquire)
    }

    /// Notifies the heartbeats to report immediately.
    fn notify_change(&self) {
        self.0.news.send_replace(());
        let mut ready = BTreeMap::new();
        for replica in self.0.replicas.read().iter() {
            let count = ready.entry(replica.assignment.model.clone()).or_insert(0);
            *count += usize::from(replica.ready().is_some());
        }
        self.0.metrics.set_ready_replicas(&ready);
        self.publish();
    }

    /// Updates the memory metrics.
    async fn publish_memory(self) {
        let mut freed = self.0.budget.freed();
        let mut ended = self.0.abandoned_loads.ended();
        loop {
            self.publish();
            tokio::select! {
                changed = freed.changed() => if changed.is_err() { return },
                changed = ended.changed() => if changed.is_err() { return },
            }
        }
    }

    fn publish(&self) {
        let (mut bytes, mut evicted) = (BTreeMap::new(), BTreeMap::new());
        for replica in self.0.replicas.read().iter() {
            let model = &replica.assignment.model;
            *bytes.entry(model.clone()).or_insert(0) += replica.memory_bytes();
            let away = replica.slot().is_some_and(|slot| slot.is_evicted());
            *evicted.entry(model.clone()).or_insert(0) += usize::from(away);
        }
        self.0.metrics.set_evicted_replicas(&evicted);
        let (budget, held) = (self.0.budget.budget(), self.0.budget.held());
        self.0.metrics.set_memory(budget, held, &bytes);
        self.0
            .metrics
            .set_abandoned_loads(self.0.abandoned_loads.count());
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.0.stop.clone();
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }
}
