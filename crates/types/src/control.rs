//! Interfaces of a cluster besides predictions: [`Registry`], [`ClusterView`] and [`Membership`].
//! The coordinator implements all three; tests of the edges use other implementations. A
//! [`ClusterHandle`] combines them.

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

/// Read and write access to the replicated registry.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// The registry as this node has applied it. Cheap; never waits.
    fn state(&self) -> Arc<RegistryState>;

    /// Applies a write through the leader, and waits until this node has also applied it and, for a
    /// bounded time, until the other coordinators have.
    ///
    /// # Cancel safety
    /// The write runs to its end even if the caller drops the future.
    ///
    /// # Errors
    /// Errors of the command (`NotFound`, `Conflict`, `InvalidInput`); `Unavailable` within 2 s if
    /// there is no leader or no quorum.
    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError>;

    /// Checks a connector on every live worker and returns their reports. The connector need not be
    /// in the registry; see
    /// [`CheckConnector::check_connector`](crate::CheckConnector::check_connector). Empty if no
    /// worker can be reached.
    /// # Errors
    /// `PermissionDenied` if the caller may not create the connector.
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
    /// A model's state and replicas; `None` if it is not registered.
    fn model_status(&self, model: &ModelName) -> Option<ModelStatus>;

    /// Nodes, roles, leader, replicas and load.
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
    /// `Conflict` if a coordinator with this id has another address; `Unavailable` without a
    /// leader.
    async fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError>;

    /// Removes a coordinator; returns the new membership.
    ///
    /// # Errors
    /// `NotFound` for an unknown coordinator; `Conflict` for the last voter; `Unavailable` without
    /// a leader.
    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError>;

    /// Replaces the coordinator `old` by a new one at an internal address, in one membership
    /// change; returns the new membership. `old` may be down.
    ///
    /// # Errors
    /// `NotFound` if `old` is not a member; otherwise as for [`Membership::join`].
    async fn replace(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError>;

    /// Transfers leadership to `to`, or by default to the most up-to-date voter. Returns the new
    /// leader.
    ///
    /// # Errors
    /// `NotFound` if `to` is not a voter; `Conflict` if there is no other voter; `Unavailable`
    /// without a leader or if no voter accepted the leadership.
    async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, PredictError>;

    /// Encodes the registry at one revision as a backup file, from which a new cluster can be
    /// started. The file has no plain secrets, but it has the hashes of all API keys.
    ///
    /// # Errors
    /// `PermissionDenied` if the caller may not create backups.
    async fn backup(&self) -> Result<Vec<u8>, PredictError>;
}

/// The four interfaces of a cluster, so that a function receives only the one that it needs.
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
    /// Desired number of replicas; 0 if the model is not deployed.
    pub desired_replicas: u32,
    /// The deployed version; `None` if the model is not deployed.
    pub version: Option<ModelVersion>,
    /// Replicas of the deployed version on live workers.
    pub replicas: Vec<ReplicaStatus>,
    /// The versions whose replicas answer requests that name no version, the oldest first. During a
    /// rollout, also a failed one, that includes the replaced version. Empty for aliases, for
    /// pipelines and for models without a ready replica.
    pub serving: Vec<ModelVersion>,
    /// Why some replicas have no worker, if that is known.
    pub unplaced: Option<Unplaced>,
}

/// Why replicas of a deployment have no worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The reason. Public text.
    pub reason: String,
    /// Whether it stays until other workers join or the deployment changes.
    pub permanent: bool,
}

impl ModelStatus {
    /// The version that lists name: the newest that answers, otherwise the deployed one.
    #[must_use]
    pub fn listed_version(&self) -> Option<ModelVersion> {
        self.serving.last().copied().or(self.version)
    }

    /// Whether only other versions than the deployed one answer.
    #[must_use]
    pub fn serves_another(&self) -> bool {
        !self.serving.is_empty() && !self.serving.iter().any(|it| Some(*it) == self.version)
    }

    /// The state as far as callers are concerned: if another version answers in place of the
    /// deployed one, that is partially deployed.
    #[must_use]
    pub fn callable_state(&self) -> ModelState {
        match self.state {
            ModelState::DeployFailed | ModelState::Deploying if self.serves_another() => {
                ModelState::PartiallyDeployed
            }
            state => state,
        }
    }
}

/// A failed deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentFailure {
    /// The version that could not be loaded.
    pub version: ModelVersion,
    /// The reason that its worker reports. Public text.
    pub reason: String,
    /// The previous version, if it still serves.
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

    /// Summary for an operator, one sentence.
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

/// One replica, as last reported by its worker.
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
    /// Running streams.
    pub active: u32,
    /// Queued requests.
    pub queued: u32,
    /// Maximum number of concurrent streams.
    pub capacity: u32,
    /// The replica is ready but evicted; the next request reloads it.
    pub evicted: bool,
    /// Bytes of its worker's memory budget that it uses now.
    pub memory_bytes: u64,
    /// Download progress of its model, while it is fetched.
    pub fetch: Option<FetchProgress>,
}

impl ReplicaStatus {
    /// The reason if the replica could not be loaded. Public text.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match &self.state {
            ReplicaState::Failed(reason) => Some(reason),
            ReplicaState::Loading | ReplicaState::Ready | ReplicaState::Draining => None,
        }
    }
}

/// Liveness of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Liveness {
    /// A heartbeat arrived within 1.5 s.
    Alive,
    /// No heartbeat for 1.5 s. New requests go to other workers if those can serve them.
    Suspect,
    /// No heartbeat for 3 s, or its connection was reset.
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
    /// Identity of this process start.
    pub incarnation: Incarnation,
    /// Its Flight address, `host:port`.
    pub address: String,
    /// Whether it can be sent requests.
    pub liveness: Liveness,
    /// Time since the last heartbeat.
    pub last_heard: Duration,
    /// Its replicas.
    pub replicas: Vec<ReplicaStatus>,
    /// Resident memory in bytes.
    pub memory_bytes: u64,
    /// Memory budget for all its models in bytes; 0 if it does not report one.
    pub memory_budget_bytes: u64,
    /// Its GPUs, if the driver's library reports them.
    pub gpus: Vec<GpuReport>,
}

/// The cluster as one coordinator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStatus {
    /// Raft: this node's id and role, the leader, all coordinators.
    pub raft: RaftStatus,
    /// Every worker that has sent a heartbeat since the start of this coordinator, ordered by id.
    pub workers: Vec<WorkerStatus>,
    /// Prediction streams that run through this coordinator.
    pub active_streams: u32,
    /// Input for an external autoscaler.
    pub scale: ScaleSignal,
    /// Last report of each coordinator. Unreachable coordinators are missing.
    pub reports: BTreeMap<NodeId, CoordinatorReport>,
    /// Feature level of the registry, see [`LEVEL`](crate::registry::LEVEL).
    pub level: u32,
    /// Drained nodes and their progress.
    pub drains: Vec<DrainStatus>,
}

/// Report of a coordinator to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorReport {
    /// Highest feature level that it accepts.
    pub level: u32,
    /// Its version of Volley; empty if that version does not report it.
    pub version: String,
    /// Prediction streams that run through the coordinator.
    pub active_streams: u32,
    /// Last applied log index; `None` if nothing is applied, or if that version does not report it.
    pub last_applied: Option<u64>,
}

/// Progress of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainStatus {
    /// The node.
    pub node: NodeIdentity,
    /// Whether replicas are unloaded even if no other worker can hold them.
    pub force: bool,
    /// Whether the drain is complete.
    pub done: bool,
    /// Models of a worker that have not been migrated yet, by name.
    pub models: Vec<ModelName>,
    /// The models that no other worker can hold, with the reason. Public text.
    pub blocked: BTreeMap<ModelName, String>,
    /// Streams that still run on the worker or through the coordinator.
    pub active: u32,
}

impl DrainStatus {
    /// `draining` or `drained`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        if self.done { "drained" } else { "draining" }
    }
}
