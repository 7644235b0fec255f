//! What the edges need of a cluster besides predictions: the [`Registry`], a [`ClusterView`] and
//! the [`Membership`]. The coordinator implements all three; an edge is tested with another
//! implementation. A [`ClusterHandle`] holds them together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::access::NodeIdentity;
use crate::connector_check::ConnectorCheck;
use crate::error::PredictError;
use crate::ids::{Incarnation, ModelName, ModelVersion, NodeId, WorkerId};
use crate::predict::Predict;
use crate::registry::{
    ConnectorSpec, CoordinatorMember, Deployment, ModelState, RaftStatus, RegistryCommand,
    RegistryReply, RegistryState, ReplicaState,
};
use crate::scale::ScaleSignal;
use crate::worker::{FetchProgress, GpuReport};

/// The replicated registry as a node's edges read and change it.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// The registry as this node has applied it. Cheap; never waits.
    fn state(&self) -> Arc<RegistryState>;

    /// Applies a write through the leader and waits until this node has applied it too.
    ///
    /// # Cancel safety
    /// The write runs to its end even if the caller drops the future.
    ///
    /// # Errors
    /// The command's own refusals (`NotFound`, `Conflict`, `InvalidInput`); `Unavailable` within
    /// 2 s when there is no leader or no quorum.
    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError>;

    /// The report of each live worker about a connector, which need not be in the registry; see
    /// [`CheckConnector::check_connector`](crate::CheckConnector::check_connector). Empty where no
    /// worker can be reached.
    ///
    /// # Errors
    /// `PermissionDenied` and the like, as for creating the connector.
    async fn check_connector(
        &self,
        _connector: &ConnectorSpec,
        _test: bool,
    ) -> Result<Vec<ConnectorCheck>, PredictError> {
        Ok(Vec::new())
    }
}

/// The running cluster, read only: nodes, replicas and load as this node observes them. Cheap;
/// never waits.
pub trait ClusterView: Send + Sync + 'static {
    /// A model's state and replicas; `None` when it is not registered.
    fn model_status(&self, model: &ModelName) -> Option<ModelStatus>;

    /// Nodes, roles, leader, replicas, load.
    fn status(&self) -> ClusterStatus;

    /// Whether this node accepts new requests: it is not draining and its Raft node runs.
    fn ready(&self) -> bool;
}

/// The coordinators that replicate the registry, and their leader.
///
/// # Cancel safety
/// A change that has reached the leader runs to its end even if the caller drops the future.
#[async_trait]
pub trait Membership: Send + Sync + 'static {
    /// Adds a coordinator at an internal address; returns the new membership.
    ///
    /// # Errors
    /// `Conflict` when another address has the id, `Unavailable` without a leader.
    async fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError>;

    /// Removes a coordinator; returns the new membership.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` when it is the last voter, `Unavailable` without a leader.
    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError>;

    /// Puts a coordinator at an internal address in the place of another, in one change of the
    /// voters; returns the new membership. `old` need not run any more.
    ///
    /// # Errors
    /// `NotFound` when there is no `old`, else as for `join`.
    async fn replace(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError>;

    /// Makes `to` the leader, or the most up-to-date voter where `to` is `None`; returns the new
    /// leader.
    ///
    /// # Errors
    /// `NotFound` when `to` is no voter, `Conflict` when there is no other voter, `Unavailable`
    /// without a leader or when no voter could take over.
    async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, PredictError>;

    /// The registry at one revision, as a file from which a new cluster can be started. Holds no
    /// secrets, but the hashes of all API keys.
    ///
    /// # Errors
    /// `PermissionDenied`.
    async fn backup(&self) -> Result<Vec<u8>, PredictError>;
}

/// A cluster in its parts, so that each function takes only the part that it needs.
#[derive(Clone)]
pub struct ClusterHandle {
    /// Runs predictions.
    pub inference: Arc<dyn Predict>,
    /// Reads and changes the registry.
    pub registry: Arc<dyn Registry>,
    /// Nodes, replicas and load.
    pub view: Arc<dyn ClusterView>,
    /// The coordinators.
    pub membership: Arc<dyn Membership>,
}

impl ClusterHandle {
    /// A handle whose four parts are one implementation.
    pub fn new<C: Predict + Registry + ClusterView + Membership>(cluster: Arc<C>) -> Self {
        Self {
            inference: cluster.clone(),
            registry: cluster.clone(),
            view: cluster.clone(),
            membership: cluster,
        }
    }
}

/// A model's state and where it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStatus {
    /// The state that users see.
    pub state: ModelState,
    /// How many replicas are asked for; 0 when not deployed.
    pub desired_replicas: u32,
    /// The deployed version.
    pub version: Option<ModelVersion>,
    /// Replicas on live workers.
    pub replicas: Vec<ReplicaStatus>,
}

/// A deployment that does not come up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentFailure {
    /// The version that could not be loaded.
    pub version: ModelVersion,
    /// Why, as its worker reports it. Public text.
    pub reason: String,
    /// The version before it, where that still serves.
    pub serving: Option<ModelVersion>,
}

impl DeploymentFailure {
    /// The failure of a model's deployment; `None` where none is known.
    #[must_use]
    pub fn find(deployment: Option<&Deployment>, status: &ModelStatus) -> Option<Self> {
        let deployment = deployment?;
        let rollout = deployment.rollout.as_ref();
        let stopped = rollout.and_then(|rollout| rollout.stopped.clone());
        let reported = || {
            let failed = status.state == ModelState::DeployFailed;
            let reasons = status.replicas.iter().filter_map(|it| it.failure());
            reasons.map(ToOwned::to_owned).find(|_| failed)
        };
        Some(Self {
            version: deployment.version,
            reason: stopped.or_else(reported)?,
            serving: rollout
                .filter(|rollout| !rollout.previous.is_empty())
                .map(|rollout| rollout.from),
        })
    }

    /// One sentence for people.
    #[must_use]
    pub fn message(&self) -> String {
        let Self {
            version,
            reason,
            serving,
        } = self;
        match serving {
            Some(serving) => format!(
                "version {version} could not be loaded: {reason}; version {serving} still serves"
            ),
            None => format!("version {version} could not be loaded: {reason}"),
        }
    }

    /// The command that an operator runs next.
    #[must_use]
    pub fn next_command(&self, model: &ModelName) -> String {
        match self.serving {
            Some(_) => format!("volley model rollout undo {model}"),
            None => format!("volley model undeploy {model}"),
        }
    }
}

/// One replica, as last reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The worker that holds it.
    pub worker: WorkerId,
    /// The model.
    pub model: ModelName,
    /// The version.
    pub version: ModelVersion,
    /// Its state.
    pub state: ReplicaState,
    /// Streams that run now.
    pub active: u32,
    /// Requests that wait.
    pub queued: u32,
    /// How many may run at once.
    pub capacity: u32,
    /// It is ready and was unloaded to make room; the next request loads it again.
    pub evicted: bool,
    /// Bytes that it takes of its worker's memory budget now.
    pub memory_bytes: u64,
    /// How far its model has come to the worker, while it is fetched.
    pub fetch: Option<FetchProgress>,
}

impl ReplicaStatus {
    /// Why it could not be loaded.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.state {
            ReplicaState::Failed(reason) => Some(reason),
            ReplicaState::Loading | ReplicaState::Ready | ReplicaState::Draining => None,
        }
    }
}

/// Whether a worker can be sent requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Liveness {
    /// Heard within 1.5 s.
    Alive,
    /// Not heard for 1.5 s: sent nothing new while others can serve.
    Suspect,
    /// Not heard for 3 s, or its connection was reset.
    Dead,
    /// Alive and shutting down.
    Draining,
}

impl Liveness {
    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Dead => "dead",
            Self::Draining => "draining",
        }
    }
}

/// One worker as a coordinator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerStatus {
    /// Its id.
    pub id: WorkerId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// Its Flight address, `host:port`.
    pub address: String,
    /// Whether it can be sent requests.
    pub liveness: Liveness,
    /// Since the last heartbeat.
    pub last_heard: Duration,
    /// Its replicas.
    pub replicas: Vec<ReplicaStatus>,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Bytes that all its models together may take; 0 where it does not tell.
    pub memory_budget_bytes: u64,
    /// Its GPUs, where its driver tells of them.
    pub gpus: Vec<GpuReport>,
}

/// The cluster as one coordinator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStatus {
    /// Raft: this node's id and role, the leader, all coordinators.
    pub raft: RaftStatus,
    /// Every worker heard from since this coordinator's start, by id.
    pub workers: Vec<WorkerStatus>,
    /// Prediction streams that run through this coordinator now.
    pub active_streams: u32,
    /// How many workers the cluster could use.
    pub scale: ScaleSignal,
    /// What coordinators said of themselves when they were last asked; those that could not be
    /// reached are missing.
    pub reports: BTreeMap<NodeId, CoordinatorReport>,
    /// The level that the registry is at, see [`LEVEL`](crate::registry::LEVEL).
    pub level: u32,
    /// Nodes that operators drain, and how far they are.
    pub drains: Vec<DrainStatus>,
}

/// What a coordinator says of itself to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorReport {
    /// The highest level of commands that it takes.
    pub level: u32,
    /// Its version of Volley; empty where it is too old to tell.
    pub version: String,
    /// Prediction streams that run through it.
    pub active_streams: u32,
    /// The last index of the log that it has applied; `None` where it has none, or is too old to
    /// tell.
    pub last_applied: Option<u64>,
}

/// How far a node is that an operator drains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainStatus {
    /// The node.
    pub node: NodeIdentity,
    /// Whether its replicas go even where no other worker can take them.
    pub force: bool,
    /// It has nothing left to do.
    pub done: bool,
    /// A worker's models that are not elsewhere yet, by name.
    pub models: Vec<ModelName>,
    /// Those of them that no other worker can take as the cluster is now, and why. Public text.
    pub blocked: BTreeMap<ModelName, String>,
    /// Streams that run on it, or through it, still.
    pub active: u32,
}

impl DrainStatus {
    /// `draining` or `drained`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        if self.done { "drained" } else { "draining" }
    }
}
