//! The registry, replicated to all coordinators: Raft, its store and its network. This is the only
//! crate that names the consensus library, and its interface exposes none of the library's types.
//! [`volley_registry::apply`] defines what a command does to the registry.
//!
//! Reading order: [`Cluster`] (the interface), `write` (how a write reaches the leader),
//! `visibility` (when the other coordinators have applied it), `election` (which voter stands for
//! election), `founding` (how a cluster starts), `membership`, `feature_level`, `store`, `network`
//! and `service`. [`backup`] moves a registry out of a cluster and into a new one.
//! `cluster_epoch`, `identity`, `witness` and `admission` keep out coordinators that must not
//! return.

mod admission;
pub mod backup;
mod cluster_epoch;
mod config;
mod describe;
mod election;
mod feature_level;
mod founding;
mod identity;
mod lines;
mod membership;
mod network;
mod raft_types;
pub mod service;
#[cfg(test)]
mod sim;
mod status;
mod store;
mod visibility;
mod witness;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use futures::future::BoxFuture;
use openraft::ServerState;
use openraft::error::Fatal;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use volley_proto::raft::v1::membership_service_server::MembershipServiceServer;
use volley_proto::raft::v1::raft_service_server::RaftServiceServer;
use volley_types::registry::{CoordinatorMember, RaftStatus, RegistryState};
use volley_types::{ErrorCode, NodeId, NodeIdentity, PredictError};

use crate::admission::Admission;
use crate::cluster_epoch::ClusterEpoch;
pub use crate::config::{ClusterConfig, MAX_RAFT_MULTIPLIER, RaftTiming};
use crate::feature_level::Reports;
use crate::lines::{Line, Lines};
use crate::raft_types::{MemberNode, Raft};
use crate::service::{MembershipEndpoint, RaftEndpoint};
use crate::store::Store;
use crate::store::disk::Disk;
use crate::store::log::LogStore;

/// Maximum number of writes in flight on one node. More would only queue behind its disk.
const WRITES_IN_FLIGHT: usize = 32;
/// Maximum number of writes in flight and waiting on one node. Further writes are rejected
/// immediately.
const WRITES_HELD: usize = 256;

/// Retry delay that is returned with transient errors.
const RETRY_AFTER: Duration = Duration::from_secs(1);

type Metrics = openraft::RaftMetrics<u64, MemberNode>;

/// Handle to this node's part in the cluster. Clones share their state.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    config: ClusterConfig,
    raft: Raft,
    log: LogStore,
    registry: watch::Receiver<Arc<RegistryState>>,
    status: watch::Receiver<RaftStatus>,
    gate: Semaphore,
    places: Arc<Semaphore>,
    /// Connects to other coordinators.
    lines: Arc<dyn Lines>,
    /// Connections to other coordinators, by address, for forwarding.
    peers: Mutex<BTreeMap<String, Line>>,
    /// Held during a membership change that this node makes.
    changing: Mutex<()>,
    epoch: Arc<ClusterEpoch>,
    /// Identity of this node, and the checks of other nodes' identities.
    identity: Arc<Admission>,
    /// Epoch of a cluster that this node founds.
    mark: u64,
    /// Taken when this node stops. The file is closed with the last handle.
    disk: Arc<parking_lot::Mutex<Option<Disk>>>,
    /// Held during a leadership transfer.
    transfer: Mutex<()>,
    /// While set, this node proposes nothing: the log must not grow during a leadership transfer.
    handing_over: AtomicBool,
    /// This node is about to stop and does not accept the leadership.
    retiring: AtomicBool,
    /// Held while a member is added, and while the first command of a feature level is proposed.
    admission: Mutex<()>,
    /// Latest reports of the coordinators.
    reports: watch::Receiver<Reports>,
    /// Number of prediction streams on this node.
    streams: AtomicU32,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Cluster {
    /// Opens the store and starts the Raft node. A new node waits until it is
    /// [bootstrapped](Cluster::bootstrap) or [added](Cluster::join). A node with data continues
    /// where it stopped.
    ///
    /// Cancel safe: dropping the future closes the store.
    ///
    /// # Errors
    /// `Conflict` if the data directory belongs to another node or needs a higher feature level,
    /// `Unavailable` if it cannot be used, `InvalidInput` if the configuration is invalid,
    /// `Internal` if the stored data are malformed or the Raft node does not start.
    pub fn start(config: ClusterConfig) -> BoxFuture<'static, Result<Self, PredictError>> {
        // Boxed, as are the other long calls of a node: the crate that polls an `async fn` compiles
        // its body, and with it all of openraft.
        Box::pin(Self::open(config))
    }

    async fn open(config: ClusterConfig) -> Result<Self, PredictError> {
        let (directory, node) = (config.data_dir.clone(), config.node_id);
        let opened = tokio::task::spawn_blocking(move || Disk::open(&directory, node)).await;
        let (disk, found) =
            opened.map_err(|error| PredictError::internal("opening the store failed", error))??;
        let store = Store::open(disk, node, found, config.level)?;
        let lines = Arc::new(config.dialer.clone());
        Self::start_over(config, lines, store).await
    }

    /// Starts the Raft node over an open store.
    async fn start_over(
        config: ClusterConfig,
        lines: Arc<dyn Lines>,
        store: Store,
    ) -> Result<Self, PredictError> {
        let raft_config = config.raft().validate().map_err(|error| {
            PredictError::invalid("the Raft timing is not consistent").with_source(error)
        })?;
        let epoch = Arc::new(ClusterEpoch::new(store.epoch));
        let registry = store.machine.registry();
        let disk = Arc::new(parking_lot::Mutex::new(Some(store.disk)));
        let admission = Arc::new(Admission::new(
            store.identity,
            (config.level, &config.advertise),
            lines.clone(),
            disk.clone(),
            &store.witness,
        ));
        let raft = Raft::new(
            config.node_id.0,
            Arc::new(raft_config),
            network::Peers {
                lines: lines.clone(),
                epoch: epoch.clone(),
                admission: admission.clone(),
            },
            store.log.clone(),
            store.machine,
        )
        .await
        .map_err(|error| PredictError::internal("the Raft node did not start", error))?;
        // The core answers once it has published the stored membership. `leave_service` reports a
        // core that has ended.
        _ = raft.with_raft_state(|_| ()).await;
        admission.watch(raft.metrics());
        let (publish, status) = watch::channel(raft_status(&raft.metrics().borrow()));
        let (publish_reports, reports) = watch::channel(Reports::new());
        let cluster = Self(Arc::new(ClusterInner {
            registry,
            status,
            gate: Semaphore::new(WRITES_IN_FLIGHT),
            places: Arc::new(Semaphore::new(WRITES_HELD)),
            log: store.log,
            lines,
            peers: Mutex::default(),
            changing: Mutex::default(),
            epoch,
            identity: admission,
            mark: store.mark,
            disk,
            transfer: Mutex::default(),
            handing_over: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            admission: Mutex::default(),
            reports,
            streams: AtomicU32::new(0),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            config,
            raft,
        }));
        cluster.warn_if_moved();
        cluster.spawn_tasks(publish, publish_reports);
        Ok(cluster)
    }

    /// Spawns the tasks that publish this node's state and follow its peers, until it stops.
    fn spawn_tasks(&self, status: watch::Sender<RaftStatus>, reports: watch::Sender<Reports>) {
        let tasks = &self.0.tasks;
        tasks.spawn(publish_status(
            self.0.raft.metrics(),
            status,
            self.0.identity.clone(),
            self.0.stop.clone(),
        ));
        tasks.spawn(self.clone().leave_service());
        tasks.spawn(self.clone().poll_peers(reports));
        tasks.spawn(self.clone().watch_the_leader());
    }

    /// Returns the gRPC services for the internal listener.
    #[must_use]
    pub fn services(
        &self,
    ) -> (
        RaftServiceServer<RaftEndpoint>,
        MembershipServiceServer<MembershipEndpoint>,
    ) {
        let raft = RaftServiceServer::new(RaftEndpoint(self.clone()))
            .max_decoding_message_size(lines::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(lines::MAX_MESSAGE_BYTES);
        (
            raft,
            MembershipServiceServer::new(MembershipEndpoint(self.clone())),
        )
    }

    /// Returns the registry as this node has applied it. The receiver is notified of every change.
    #[must_use]
    pub fn registry(&self) -> watch::Receiver<Arc<RegistryState>> {
        self.0.registry.clone()
    }

    /// Returns the Raft state as this node sees it. The receiver is notified of every change.
    #[must_use]
    pub fn raft(&self) -> watch::Receiver<RaftStatus> {
        self.0.status.clone()
    }

    /// Returns whether this node believes that it is the leader. Another leader may have been
    /// elected since.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0.raft.metrics().borrow().state == ServerState::Leader
    }

    /// Returns whether a certificate allows calls that are reserved for coordinators of the
    /// cluster. Before a membership exists, the certificate of every coordinator does. That of a
    /// worker never does.
    #[must_use]
    pub fn is_member(&self, node: &NodeIdentity) -> bool {
        let members = members(&self.0.raft.metrics().borrow());
        let is_in = |id: NodeId| members.iter().any(|member| member.id == id);
        match node {
            NodeIdentity::Coordinator(id) => members.is_empty() || is_in(*id),
            NodeIdentity::Worker(_) => false,
        }
    }

    /// Returns whether a coordinator was removed from the cluster. The certificate of a removed
    /// coordinator allows nothing, not even to join again: an id is used once.
    #[must_use]
    pub fn was_removed(&self, node: &NodeIdentity) -> bool {
        match node {
            NodeIdentity::Coordinator(id) => self.0.identity.was_removed(id.0),
            NodeIdentity::Worker(_) => false,
        }
    }

    /// Returns the log index of the current membership and the ids of its members; `None` before
    /// the first membership.
    #[must_use]
    pub fn membership(&self) -> Option<(u64, Vec<NodeId>)> {
        let metrics = self.0.raft.metrics();
        let metrics = metrics.borrow();
        let at = (*metrics.membership_config.log_id())?;
        let members = members(&metrics).into_iter();
        Some((at.index, members.map(|member| member.id).collect()))
    }

    /// Returns whether this node takes part in the cluster. After a [failure](Cluster::failure) it
    /// returns `false` until the process is restarted.
    #[must_use]
    pub fn healthy(&self) -> bool {
        let metrics = self.0.raft.metrics();
        // A panic of the consensus task drops the sender without a status.
        let runs = metrics.has_changed().is_ok() && metrics.borrow().running_state.is_ok();
        runs && !self.0.identity.has_failed()
    }

    /// Returns the reason why this node has left the cluster for good; `None` while it works.
    /// Reasons are a failed disk, a panic in consensus, or other members that rejected this node's
    /// identity. After a failure the local registry is not trustworthy, and the process should
    /// exit.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.0.identity.failure()
    }

    /// Stops consensus after a failure, so that this node answers no more Raft messages.
    async fn leave_service(self) {
        let mut failure = self.failure();
        let failed = tokio::select! {
            failed = failure.wait_for(Option::is_some) => failed.is_ok(),
            () = self.0.stop.cancelled() => false,
        };
        if failed && let Err(error) = self.0.raft.shutdown().await {
            tracing::debug!(error = %error, "Raft node already stopped");
        }
    }

    /// Returns whether this node has voted or has log entries.
    pub(crate) async fn is_initialised(&self) -> bool {
        !matches!(self.0.raft.is_initialized().await, Ok(false))
    }

    /// Stops the Raft node and its tasks. Writes in flight end with a reply or an error. The store
    /// is closed with the last handle.
    ///
    /// Dropping the future does not undo the stop, but tasks may still be running.
    pub fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.0.stop.cancel();
            if let Err(error) = self.0.raft.shutdown().await {
                tracing::error!(error = %error, "Raft node did not stop cleanly");
            }
            self.0.tasks.close();
            self.0.tasks.wait().await;
            self.0.disk.lock().take();
        })
    }

    pub(crate) fn raft_node(&self) -> &Raft {
        &self.0.raft
    }

    /// Warns if this node's address differs from the one in the membership, where others look for
    /// it.
    fn warn_if_moved(&self) {
        let config = &self.0.config;
        let members = members(&self.0.raft.metrics().borrow());
        let known = members.iter().find(|member| member.id == config.node_id);
        if let Some(known) = known
            && known.address != config.advertise
        {
            tracing::warn!(
                advertised = config.advertise,
                known = known.address,
                "membership has another address of this coordinator; restore that address, or \
                 remove the coordinator and add it under a new id"
            );
        }
    }
}

async fn publish_status(
    mut metrics: watch::Receiver<Metrics>,
    publish: watch::Sender<RaftStatus>,
    admission: Arc<Admission>,
    stop: CancellationToken,
) {
    loop {
        let status = {
            let metrics = metrics.borrow_and_update();
            if let Err(fatal) = &metrics.running_state
                && !matches!(fatal, Fatal::Stopped)
            {
                admission.fail(&format!(
                    "consensus has failed on this node and stays stopped until the process is \
                     restarted: {fatal}"
                ));
            }
            raft_status(&metrics)
        };
        publish.send_if_modified(|current| {
            let changed = *current != status;
            *current = status;
            changed
        });
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() {
                if !stop.is_cancelled() {
                    admission.fail("consensus on this node has panicked");
                }
                return;
            },
            () = stop.cancelled() => return,
        }
    }
}

fn raft_status(metrics: &Metrics) -> RaftStatus {
    let role = match metrics.state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Candidate => "candidate",
        ServerState::Learner => "learner",
        ServerState::Shutdown => "shutdown",
    };
    RaftStatus {
        id: NodeId(metrics.id),
        role,
        leader: metrics.current_leader.map(NodeId),
        term: metrics.current_term,
        last_log_index: metrics.last_log_index,
        last_applied: metrics.last_applied.map(|applied| applied.index),
        members: members(metrics),
    }
}

fn members(metrics: &Metrics) -> Vec<CoordinatorMember> {
    let membership = metrics.membership_config.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();
    let nodes = membership.nodes().map(|(id, node)| CoordinatorMember {
        id: NodeId(*id),
        address: node.addr.clone(),
        voter: voters.contains(id),
    });
    nodes.collect()
}

/// The error while there is no leader or no quorum.
fn no_leader() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the cluster has no leader: an election is running, or too few coordinators can reach \
         each other; deployed models continue to serve, writes must wait",
    )
    .with_retry_after(RETRY_AFTER)
}
