//! The registry on all coordinators: Raft, its store and network. The only crate that names the
//! consensus library; none of its types is in this crate's interface. What a command does to the
//! registry is [`volley_registry::apply`].
//!
//! Reading order: [`Cluster`] (what others call), `write` (how a
//! write finds the leader), `election` (who stands for it), `founding` (how a cluster begins),
//! `membership`, `levels`, `store`, `network`, `service`; [`backup`] for what is kept elsewhere,
//! and `epoch`, `identity`, `witness` and `admission` for what must not come back.

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

/// Writes that may be in flight on one node; more would only queue behind its disk.
const WRITES_IN_FLIGHT: usize = 32;
/// Writes that one node holds in all, in flight and waiting; more are refused at once.
const WRITES_HELD: usize = 256;

/// When to come back after a refusal that passes by itself.
const RETRY_AFTER: Duration = Duration::from_secs(1);

type Metrics = openraft::RaftMetrics<u64, MemberNode>;

/// One coordinator's part in the cluster. Cloning gives another handle.
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
    /// How other coordinators are reached.
    lines: Arc<dyn Lines>,
    /// Connections to them, for forwarding.
    peers: Mutex<BTreeMap<String, Line>>,
    /// Held while this node changes who is in the cluster.
    changing: Mutex<()>,
    epoch: Arc<ClusterEpoch>,
    /// Who this node is to others, and they to it.
    identity: Arc<Admission>,
    /// The mark of a cluster that this node founds.
    mark: u64,
    /// Until this node stops; the file is let go of with the last handle.
    disk: Arc<parking_lot::Mutex<Option<Disk>>>,
    /// One at a time.
    transfer: Mutex<()>,
    /// Proposes nothing: the log must not grow while another voter takes over.
    handing_over: AtomicBool,
    /// Is about to stop, and takes over from nobody.
    retiring: AtomicBool,
    /// Held while somebody is let in, and while the first command of a level is proposed.
    admission: Mutex<()>,
    /// What coordinators said of themselves when they were last asked.
    reports: watch::Receiver<Reports>,
    /// Prediction streams that run here.
    streams: AtomicU32,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Cluster {
    /// Opens the store and starts the Raft node: a new one waits to be bootstrapped or joined,
    /// an old one goes on where it stopped.
    ///
    /// # Errors
    /// `Conflict` when the data directory belongs to another node, `Unavailable` when it cannot
    /// be used, `InvalidInput` when the configuration is refused.
    pub fn start(config: ClusterConfig) -> BoxFuture<'static, Result<Self, PredictError>> {
        // Boxed, as are the other long calls of a node: the body of an `async fn` is compiled by
        // the crate that polls it, and with it all of openraft.
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

    /// Starts over a store that is open.
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
        cluster.0.tasks.spawn(publish_status(
            cluster.0.raft.metrics(),
            publish,
            cluster.0.identity.clone(),
            cluster.0.stop.clone(),
        ));
        cluster.0.tasks.spawn(cluster.clone().leave_service());
        let asking = cluster.clone().poll_peers(publish_reports);
        cluster.0.tasks.spawn(asking);
        cluster.0.tasks.spawn(cluster.clone().watch_the_leader());
        Ok(cluster)
    }

    /// The services for the internal listener.
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

    /// The registry as this node has applied it, with a bell for changes.
    #[must_use]
    pub fn registry(&self) -> watch::Receiver<Arc<RegistryState>> {
        self.0.registry.clone()
    }

    /// Raft's state as this node sees it, with a bell for changes.
    #[must_use]
    pub fn raft(&self) -> watch::Receiver<RaftStatus> {
        self.0.status.clone()
    }

    /// Whether this node believes that it leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0.raft.metrics().borrow().state == ServerState::Leader
    }

    /// Whether a node's certificate is good for calls that only coordinators of the cluster make.
    /// Before there is a membership every coordinator's is.
    #[must_use]
    pub fn is_member(&self, node: &NodeIdentity) -> bool {
        let members = members(&self.0.raft.metrics().borrow());
        let is_in = |id: NodeId| members.iter().any(|member| member.id == id);
        match node {
            NodeIdentity::Coordinator(id) => members.is_empty() || is_in(*id),
            NodeIdentity::Worker(_) => false,
        }
    }

    /// Whether a coordinator was a member of the cluster and is none any more. Its certificate is
    /// good for nothing then, not even to be let in again: an id is used once.
    #[must_use]
    pub fn was_removed(&self, node: &NodeIdentity) -> bool {
        match node {
            NodeIdentity::Coordinator(id) => self.0.identity.was_removed(id.0),
            NodeIdentity::Worker(_) => false,
        }
    }

    /// The members' ids, and where in the log they stand; `None` while there are none.
    #[must_use]
    pub fn membership(&self) -> Option<(u64, Vec<NodeId>)> {
        let metrics = self.0.raft.metrics();
        let metrics = metrics.borrow();
        let at = (*metrics.membership_config.log_id())?;
        let members = members(&metrics).into_iter();
        Some((at.index, members.map(|member| member.id).collect()))
    }

    /// Whether this node takes part in the cluster; once it has [failed](Cluster::failure) it
    /// stays so until the process is started again.
    #[must_use]
    pub fn healthy(&self) -> bool {
        let metrics = self.0.raft.metrics();
        // The core that ended without a word has dropped the other end.
        let runs = metrics.has_changed().is_ok() && metrics.borrow().running_state.is_ok();
        runs && !self.0.identity.has_failed()
    }

    /// Why this node takes no part in the cluster any more, once that is so: its disk failed,
    /// consensus panicked, or the others do not take it for the member that its id names. What it
    /// has of the registry is not to be believed from then on, and the process should end.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.0.identity.failure()
    }

    /// Ends consensus here once this node has failed: it answers nobody any more.
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

    /// Whether it has voted, or has something in its log.
    pub(crate) async fn is_initialised(&self) -> bool {
        !matches!(self.0.raft.is_initialized().await, Ok(false))
    }

    /// Stops the Raft node. Writes in flight end with an error or their answer.
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

    /// The membership holds addresses: at another one than it was let in with, this node is not
    /// found.
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

/// No leader or no quorum now.
fn no_leader() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the cluster has no leader now, because too few coordinators can reach each other; \
         deployed models continue to serve, writes must wait",
    )
    .with_retry_after(RETRY_AFTER)
}
