//! The coordinator: receives a [`PredictRequest`](volley_types::PredictRequest), chooses a replica,
//! calls it, retries on another one if that is safe, and streams the response back.
//!
//! Reading order: `predict` (the six steps), `alias` (resolution of names), `pipeline` (graphs of
//! models), `start` (a restarted coordinator), `attempts`, [`route`] (pure choice), [`live`] (live
//! workers), [`heartbeat`] (reports of workers), `planner` (placement), [`scaler`] (number of
//! replicas), [`status`] (states for users), [`streams`] (resuming on another coordinator),
//! [`tasks`] (tasks of other coordinators).

mod alias;
mod attempts;
mod budget;
mod config;
mod connectors;
mod control;
mod drain;
mod errors;
mod guard;
pub mod heartbeat;
pub mod live;
mod pipeline;
mod planner;
mod predict;
pub mod route;
pub mod scaler;
mod start;
pub mod status;
mod stream_limiter;
pub mod streams;
pub mod tasks;
mod unplaced;
pub mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use volley_cluster::Cluster;
use volley_placement::assignments::AssignmentIndex;
use volley_telemetry::{Metrics, WorkerCounts};
use volley_types::Predict;
use volley_types::control::Liveness;

use crate::budget::RetryBudget;
pub use crate::config::{CoordinatorConfig, LivenessConfig, RoutingConfig};
pub use crate::connectors::AskWorker;
use crate::live::LiveWorkers;
use crate::stream_limiter::StreamLimiter;

/// Makes the client of the worker at an internal address, `host:port`. It connects lazily and is
/// cached for the lifetime of the worker's process.
pub type Connect = Arc<dyn Fn(&str) -> Arc<dyn Predict> + Send + Sync>;

/// A coordinator. Clones share their state.
#[derive(Clone)]
pub struct Coordinator(Arc<Shared>);

struct Shared {
    config: CoordinatorConfig,
    cluster: Cluster,
    metrics: Metrics,
    live: RwLock<LiveWorkers>,
    connect: Connect,
    ask_worker: std::sync::OnceLock<AskWorker>,
    places: StreamLimiter,
    /// Permits of mirrored requests.
    copies: Arc<Semaphore>,
    retry_budget: RetryBudget,
    loss_budget: RetryBudget,
    draining: AtomicBool,
    /// It is about to stop: it reports that it is not ready, but still accepts requests.
    announced: AtomicBool,
    /// An operator drains it: it reports that it is not ready, but still accepts requests.
    leaving: AtomicBool,
    /// An operator drains it, and load balancers have had time to notice.
    left: AtomicBool,
    /// It has caught up with the cluster since its start.
    knows_cluster: AtomicBool,
    /// Notifies the planner about changes of workers or replicas.
    workers_changed: tokio::sync::Notify,
    /// Notifies all other tasks about the same changes.
    news: tokio::sync::watch::Sender<()>,
    /// Assignments of each worker.
    book: Mutex<AssignmentIndex>,
    /// Permits of requests that wait for an activation.
    pending_activations: Arc<Semaphore>,
    /// Locked while one of them requests the activation.
    activation_request: tokio::sync::Mutex<()>,
    next_heartbeat_stream: AtomicU64,
    peers: streams::Peers,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Coordinator {
    /// A coordinator over a started [`Cluster`]. Its background tasks (planner, liveness clock)
    /// run until [`Coordinator::shutdown`].
    #[must_use]
    pub fn start(
        config: CoordinatorConfig,
        cluster: Cluster,
        connect: Connect,
        metrics: Metrics,
    ) -> Self {
        let shared = Shared {
            places: StreamLimiter::new(config.max_streams),
            copies: Arc::new(Semaphore::new(alias::MAX_COPIES)),
            live: RwLock::new(
                LiveWorkers::new(config.liveness).in_zone(config.routing.zone.clone()),
            ),
            retry_budget: RetryBudget::new(config.retry_ratio),
            loss_budget: RetryBudget::of_losses(config.retry_ratio),
            draining: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            left: AtomicBool::new(false),
            knows_cluster: AtomicBool::new(false),
            workers_changed: tokio::sync::Notify::new(),
            news: tokio::sync::watch::Sender::new(()),
            book: Mutex::default(),
            pending_activations: Arc::new(Semaphore::new(config.max_pending_activations)),
            activation_request: tokio::sync::Mutex::default(),
            next_heartbeat_stream: AtomicU64::new(1),
            peers: streams::Peers::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            config,
            cluster,
            metrics,
            connect,
            ask_worker: std::sync::OnceLock::new(),
        };
        let coordinator = Self(Arc::new(shared));
        coordinator.spawn(coordinator.clone().run_planner());
        coordinator.spawn(coordinator.clone().run_scaler());
        coordinator.spawn(coordinator.clone().run_liveness_clock());
        coordinator.spawn(coordinator.clone().run_drains());
        coordinator
    }

    /// Reports that it is not ready from now on, but still accepts predictions.
    pub fn announce_drain(&self) {
        self.0.announced.store(true, Ordering::Release);
    }

    /// Rejects new predictions from now on; running streams continue.
    pub fn begin_drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// Number of running prediction streams.
    #[must_use]
    pub fn active_streams(&self) -> usize {
        self.0.places.held()
    }

    /// Ends the background tasks and the heartbeat streams, and waits for the tasks.
    pub async fn shutdown(&self) {
        self.begin_drain();
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Notifies about changes of workers or replicas.
    fn notify_change(&self) {
        self.0.workers_changed.notify_one();
        self.0.news.send_replace(());
    }

    fn accepts(&self) -> bool {
        !self.0.draining.load(Ordering::Acquire) && !self.0.left.load(Ordering::Acquire)
    }

    /// Whether load balancers should send requests here.
    fn invites(&self) -> bool {
        let leaves =
            self.0.announced.load(Ordering::Acquire) || self.0.leaving.load(Ordering::Acquire);
        self.accepts() && !leaves && self.knows_cluster()
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

    /// Updates the liveness of workers periodically, and publishes gauges.
    async fn run_liveness_clock(self) {
        let mut tick = tokio::time::interval(self.0.config.liveness.tick);
        let mut raft = self.0.cluster.raft();
        loop {
            tick.tick().await;
            let (counts, ready, changed) = {
                let mut live = self.0.live.write();
                let changed = live.tick(Instant::now());
                (count(&live), live.ready_replicas(), changed)
            };
            if changed {
                self.notify_change();
            }
            let state = self.0.cluster.registry().borrow().clone();
            let scale = scaler::signal::signal(&state, &self.0.live.read());
            self.0.metrics.set_scale(&scale);
            self.0.metrics.set_workers(counts);
            self.0.metrics.set_ready_replicas(&ready);
            self.0.metrics.set_raft(&raft.borrow_and_update());
        }
    }
}

fn count(live: &LiveWorkers) -> WorkerCounts {
    let mut counts = WorkerCounts::default();
    for (_, worker) in live.iter() {
        match worker.liveness {
            Liveness::Alive => counts.alive += 1,
            Liveness::Suspect => counts.suspect += 1,
            Liveness::Dead => counts.dead += 1,
            Liveness::Draining => counts.draining += 1,
        }
    }
    counts
}
