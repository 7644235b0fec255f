//! The coordinator: takes a [`PredictRequest`](volley_types::PredictRequest), finds a replica,
//! calls it, tries another one where that is safe, and streams the answer back.
//!
//! Reading order: `predict` (the six steps), `alias` (which model a name stands for),
//! `pipeline` (graphs of models), `start` (who has just begun), `tries`, [`route`] (pure choice), [`live`]
//! (which workers there are), [`heartbeat`] (how that is known), `planner` (where replicas
//! go), [`scaler`] (how many there are), [`status`] (what users see), [`streams`] (what clients
//! take up again elsewhere), [`tasks`] (what they ask for elsewhere).

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

/// Makes the client of the worker at an internal address, `host:port`. It connects lazily and
/// is kept for as long as that life of the worker is known.
pub type Connect = Arc<dyn Fn(&str) -> Arc<dyn Predict> + Send + Sync>;

/// One coordinator. Cloning gives another handle.
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
    /// Places of requests' copies.
    copies: Arc<Semaphore>,
    retry_budget: RetryBudget,
    loss_budget: RetryBudget,
    draining: AtomicBool,
    /// It is about to stop: it says that it is not ready, and takes requests still.
    announced: AtomicBool,
    /// An operator drains it: the same.
    leaving: AtomicBool,
    /// An operator drains it, and load balancers have had time to hear of it.
    left: AtomicBool,
    /// It has caught up with the others since it was started.
    knows_cluster: AtomicBool,
    /// Rings when workers or their replicas changed, for the planner.
    workers_changed: tokio::sync::Notify,
    /// Rings with it, for everybody else.
    news: tokio::sync::watch::Sender<()>,
    /// What each worker shall hold.
    book: Mutex<AssignmentIndex>,
    /// Places for requests that wait for a model to come back from nothing.
    wakers: Arc<Semaphore>,
    /// Held while one of them asks for it.
    waking: tokio::sync::Mutex<()>,
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
            wakers: Arc::new(Semaphore::new(config.max_waking)),
            waking: tokio::sync::Mutex::default(),
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

    /// Says that it is not ready from now on, and goes on taking predictions.
    pub fn announce_drain(&self) {
        self.0.announced.store(true, Ordering::Release);
    }

    /// Refuses new predictions from now on; streams that run go on.
    pub fn begin_drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// How many prediction streams run through this coordinator.
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

    /// Workers or their replicas changed.
    fn notify_change(&self) {
        self.0.workers_changed.notify_one();
        self.0.news.send_replace(());
    }

    fn accepts(&self) -> bool {
        !self.0.draining.load(Ordering::Acquire) && !self.0.left.load(Ordering::Acquire)
    }

    /// Whether load balancers shall send requests here.
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

    /// Turns silence into suspicion and death, and publishes gauges.
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
