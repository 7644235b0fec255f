//! Responses of status and model calls. Unknown fields of later servers are ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The cluster as seen by one coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The coordinator that responded.
    pub node: NodeInfo,
    /// The revision of its registry.
    pub registry_revision: u64,
    /// The feature level of the registry.
    #[serde(default)]
    pub level: Option<u32>,
    /// All coordinators.
    pub coordinators: Vec<CoordinatorInfo>,
    /// Drained nodes.
    #[serde(default)]
    pub drains: Vec<DrainInfo>,
    /// All workers that the coordinator has heard from.
    pub workers: Vec<WorkerInfo>,
    /// All models.
    pub models: Vec<ModelSummary>,
    /// The placement of replicas.
    #[serde(default)]
    pub placement: Option<PlacementInfo>,
    /// Running prediction streams on this coordinator.
    pub active_streams: u32,
}

/// The coordinator that responded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The node id.
    pub id: u64,
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub role: String,
    /// The leader's id, if known.
    pub leader: Option<u64>,
    /// The Raft term.
    pub term: u64,
}

/// The placement of replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementInfo {
    /// `spread` or `pack`.
    pub strategy: String,
    /// Whether replicas migrate from full workers to emptier ones.
    pub rebalance: bool,
    /// Number of running migrations between live workers.
    pub migrating_replicas: u64,
    /// Number of replicas that fit on no worker.
    pub unschedulable_replicas: u64,
}

/// One coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorInfo {
    /// The node id.
    pub id: u64,
    /// The internal address, `host:port`.
    pub address: String,
    /// Whether the coordinator votes.
    pub voter: bool,
    /// The highest supported feature level; `None` if unreachable.
    #[serde(default)]
    pub level: Option<u32>,
    /// The version of Volley; `None` if unreachable.
    #[serde(default)]
    pub version: Option<String>,
    /// Running prediction streams; `None` if unreachable.
    #[serde(default)]
    pub active_streams: Option<u32>,
    /// `draining` or `drained` if an operator has drained the node.
    #[serde(default)]
    pub drain: Option<String>,
}

/// A drained node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainInfo {
    /// The node id.
    pub node: String,
    /// `worker` or `coordinator`.
    pub kind: String,
    /// `draining` or `drained`; `working` in the response to an undrain.
    pub state: String,
    /// Whether replicas are unloaded even if no other worker can load them.
    #[serde(default)]
    pub force: bool,
    /// Models of a worker that have not migrated yet.
    #[serde(default)]
    pub models: Vec<String>,
    /// Models that no other worker can load in the current state of the cluster.
    #[serde(default)]
    pub blocked: Vec<BlockedModel>,
    /// Streams that still run on the node or through it.
    #[serde(default)]
    pub active: u32,
}

/// A model that blocks the drain of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedModel {
    /// The model's id.
    pub model: String,
    /// Why no other worker can load it.
    pub reason: String,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The worker's id.
    pub id: String,
    /// The Flight address, `host:port`.
    pub address: String,
    /// `alive`, `suspect`, `dead` or `draining`.
    pub liveness: String,
    /// `draining` or `drained` if an operator has drained the node.
    #[serde(default)]
    pub drain: Option<String>,
    /// Time since the last heartbeat in milliseconds.
    pub last_heard_ms: u64,
    /// Resident memory of the process in bytes.
    pub memory_bytes: u64,
    /// Memory budget of all models in bytes.
    #[serde(default)]
    pub memory_budget_bytes: u64,
    /// The GPUs, if the driver reports them.
    #[serde(default)]
    pub gpus: Vec<GpuInfo>,
    /// The replicas on this worker.
    pub replicas: Vec<ReplicaInfo>,
}

/// One GPU of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// The number of the GPU, from 0.
    pub index: u32,
    /// The product name.
    pub name: String,
    /// Used memory in bytes, of all processes.
    pub used_bytes: u64,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// Utilization during the last sampling interval, 0 to 100.
    pub utilization_percent: u32,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// The model's name.
    pub model: String,
    /// The version.
    pub version: u32,
    /// `loading`, `ready`, `draining` or `failed`.
    pub state: String,
    /// Why loading failed.
    #[serde(default)]
    pub reason: Option<String>,
    /// Running streams.
    pub active: u32,
    /// Queued requests.
    pub queued: u32,
    /// Maximum number of concurrent streams.
    pub capacity: u32,
    /// Whether the ready replica is evicted. The next request reloads it.
    #[serde(default)]
    pub evicted: bool,
    /// Used part of the worker's memory budget in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Progress of the fetch while the model is fetched.
    #[serde(default)]
    pub fetch: Option<FetchInfo>,
}

/// The progress of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchInfo {
    /// Received bytes.
    pub bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
}

/// One model in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSummary {
    /// The model's id.
    pub id: String,
    /// The deployed version.
    pub version: Option<u32>,
    /// `REGISTERED`, `DEPLOYING`, `DEPLOYED`, `PARTIALLY_DEPLOYED`, `UNDEPLOYED` or
    /// `DEPLOY_FAILED`.
    pub state: String,
    /// Desired number of replicas.
    pub desired_replicas: u32,
    /// Number of ready replicas.
    pub ready_replicas: u32,
    /// Why the deployment does not become ready, if known.
    #[serde(default)]
    pub failure: Option<DeploymentFailure>,
}

/// A deployment that does not become ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentFailure {
    /// The version that could not be loaded.
    pub version: u32,
    /// The reason.
    pub reason: String,
    /// The previous version, if it still serves.
    pub serving_version: Option<u32>,
    /// The failure in one sentence.
    pub message: String,
    /// The next command for the operator.
    pub next_command: String,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The id of the model, which is its name.
    pub model_id: String,
    /// The described version: the deployed one, otherwise the newest.
    pub model_version: String,
    /// The name of the backend in capital letters.
    pub algorithm: Option<String>,
    /// A description for humans.
    pub description: Option<String>,
    /// The directory on the workers, for ONNX models.
    pub path: Option<String>,
    /// The URL that workers fetch, for ONNX models that are registered by URL.
    #[serde(default)]
    pub url: Option<String>,
    /// The SHA-256 hash of the content of `url`, in hexadecimal.
    #[serde(default)]
    pub model_content_hash_value: Option<String>,
    /// The connector of a remote model.
    pub connector_id: Option<String>,
    /// See [`ModelSummary::state`].
    pub model_state: String,
    /// The time of registration of the version, in milliseconds since 1970.
    pub created_time: Option<u64>,
    /// All versions.
    pub versions: Vec<u32>,
    /// The deployed version.
    pub deployed_version: Option<u32>,
    /// Desired number of replicas.
    pub desired_replicas: u32,
    /// Whether workers may evict the model while it is idle.
    #[serde(default)]
    pub overcommit: bool,
    /// The workers with a ready replica.
    pub current_worker_nodes: Vec<String>,
    /// Load errors by worker.
    #[serde(default)]
    pub failures: BTreeMap<String, String>,
    /// Why the deployment does not become ready, if known.
    #[serde(default)]
    pub failure: Option<DeploymentFailure>,
    /// Why some replicas have no worker, if that is known.
    #[serde(default)]
    pub unplaced: Option<Unplaced>,
}

/// Why replicas of a deployment have no worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// The reason.
    pub reason: String,
    /// Whether it stays until other workers join or the deployment changes.
    pub permanent: bool,
}

#[derive(Deserialize)]
pub(crate) struct Hits {
    hits: Inner,
}

#[derive(Deserialize)]
struct Inner {
    hits: Vec<Hit>,
}

#[derive(Deserialize)]
struct Hit {
    #[serde(rename = "_source")]
    source: ModelInfo,
}

impl Hits {
    pub(crate) fn into_models(self) -> Vec<ModelInfo> {
        self.hits.hits.into_iter().map(|hit| hit.source).collect()
    }
}
