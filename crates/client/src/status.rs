//! The answers of status and model calls. Fields that a later server adds are ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The cluster as one coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The coordinator that answered.
    pub node: NodeInfo,
    /// The registry's revision there.
    pub registry_revision: u64,
    /// The level of commands that the registry is at.
    #[serde(default)]
    pub level: Option<u32>,
    /// All coordinators.
    pub coordinators: Vec<CoordinatorInfo>,
    /// Nodes that operators drain.
    #[serde(default)]
    pub drains: Vec<DrainInfo>,
    /// All workers that it has heard of.
    pub workers: Vec<WorkerInfo>,
    /// All models.
    pub models: Vec<ModelSummary>,
    /// How replicas are placed.
    #[serde(default)]
    pub placement: Option<PlacementInfo>,
    /// Prediction streams that run through it.
    pub active_streams: u32,
}

/// The coordinator that answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its id.
    pub id: u64,
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub role: String,
    /// The leader's id, where one is known.
    pub leader: Option<u64>,
    /// Raft's term.
    pub term: u64,
}

/// How replicas are placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementInfo {
    /// `spread` or `pack`.
    pub strategy: String,
    /// Whether replicas go from full workers to emptier ones.
    pub rebalance: bool,
    /// How many go from one worker to another now although both are there.
    pub migrating_replicas: u64,
    /// How many have no place.
    pub unschedulable_replicas: u64,
}

/// One coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorInfo {
    /// Its id.
    pub id: u64,
    /// Its internal address, `host:port`.
    pub address: String,
    /// Whether it votes.
    pub voter: bool,
    /// The highest level of commands that it takes, where it could be asked.
    #[serde(default)]
    pub level: Option<u32>,
    /// Its version of Volley, where it could be asked.
    #[serde(default)]
    pub version: Option<String>,
    /// Prediction streams that run through it, where it could be asked.
    #[serde(default)]
    pub active_streams: Option<u32>,
    /// `draining` or `drained`, where an operator has asked for it.
    #[serde(default)]
    pub drain: Option<String>,
}

/// A node that an operator drains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainInfo {
    /// Its id.
    pub node: String,
    /// `worker` or `coordinator`.
    pub kind: String,
    /// `draining`, `drained`; or `working` in the answer to an undrain.
    pub state: String,
    /// Whether its replicas go even where no other worker can take them.
    #[serde(default)]
    pub force: bool,
    /// A worker's models that are not elsewhere yet.
    #[serde(default)]
    pub models: Vec<String>,
    /// Those of them that no other worker can take as the cluster is now.
    #[serde(default)]
    pub blocked: Vec<BlockedModel>,
    /// Streams that run on it, or through it, still.
    #[serde(default)]
    pub active: u32,
}

/// A model that keeps a worker from being drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedModel {
    /// Its id.
    pub model: String,
    /// Why no other worker can take it.
    pub reason: String,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its id.
    pub id: String,
    /// Its Flight address, `host:port`.
    pub address: String,
    /// `alive`, `suspect`, `dead` or `draining`.
    pub liveness: String,
    /// `draining` or `drained`, where an operator has asked for it.
    #[serde(default)]
    pub drain: Option<String>,
    /// Milliseconds since its last heartbeat.
    pub last_heard_ms: u64,
    /// Its resident memory in bytes.
    pub memory_bytes: u64,
    /// Bytes that all its models together may take.
    #[serde(default)]
    pub memory_budget_bytes: u64,
    /// Its GPUs, where its driver tells of them.
    #[serde(default)]
    pub gpus: Vec<GpuInfo>,
    /// What it holds.
    pub replicas: Vec<ReplicaInfo>,
}

/// One GPU of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// Its number, from 0.
    pub index: u32,
    /// What its maker calls it.
    pub name: String,
    /// Bytes of its memory that are taken, by whomever.
    pub used_bytes: u64,
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// The share of the last moment in which it ran anything, 0 to 100.
    pub utilization_percent: u32,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// The model.
    pub model: String,
    /// The version.
    pub version: u32,
    /// `loading`, `ready`, `draining` or `failed`.
    pub state: String,
    /// Why it failed.
    #[serde(default)]
    pub reason: Option<String>,
    /// Streams that run.
    pub active: u32,
    /// Requests that wait.
    pub queued: u32,
    /// How many may run at once.
    pub capacity: u32,
    /// It is ready and was unloaded to make room; the next request loads it again.
    #[serde(default)]
    pub evicted: bool,
    /// Bytes that it takes of its worker's memory budget now.
    #[serde(default)]
    pub memory_bytes: u64,
    /// How far its model has come to the worker, while it is fetched.
    #[serde(default)]
    pub fetch: Option<FetchInfo>,
}

/// How far a fetch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchInfo {
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// One model in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSummary {
    /// Its id.
    pub id: String,
    /// The deployed version.
    pub version: Option<u32>,
    /// `REGISTERED`, `DEPLOYING`, `DEPLOYED`, `PARTIALLY_DEPLOYED`, `UNDEPLOYED` or
    /// `DEPLOY_FAILED`.
    pub state: String,
    /// How many replicas are asked for.
    pub desired_replicas: u32,
    /// How many are ready.
    pub ready_replicas: u32,
    /// Why its deployment does not come up, where that is known.
    #[serde(default)]
    pub failure: Option<DeploymentFailure>,
}

/// A deployment that does not come up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentFailure {
    /// The version that could not be loaded.
    pub version: u32,
    /// Why.
    pub reason: String,
    /// The version before it, where that still serves.
    pub serving_version: Option<u32>,
    /// All of that in a sentence.
    pub message: String,
    /// The command that an operator runs next.
    pub next_command: String,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its id: its name.
    pub model_id: String,
    /// The version that this describes: the deployed one, else the newest.
    pub model_version: String,
    /// The backend's name in capitals.
    pub algorithm: Option<String>,
    /// A sentence for people.
    pub description: Option<String>,
    /// Its directory on the workers, for ONNX models.
    pub path: Option<String>,
    /// Where workers fetch it, for ONNX models that are fetched.
    #[serde(default)]
    pub url: Option<String>,
    /// The SHA-256 of what is at `url`, in hexadecimal.
    #[serde(default)]
    pub model_content_hash_value: Option<String>,
    /// Its connector, for remote models.
    pub connector_id: Option<String>,
    /// As [`ModelSummary::state`].
    pub model_state: String,
    /// When the version was registered, in milliseconds since 1970.
    pub created_time: Option<u64>,
    /// All versions.
    pub versions: Vec<u32>,
    /// The deployed version.
    pub deployed_version: Option<u32>,
    /// How many replicas are asked for.
    pub desired_replicas: u32,
    /// Whether workers may unload it while it is idle.
    #[serde(default)]
    pub overcommit: bool,
    /// The workers with a ready replica.
    pub current_worker_nodes: Vec<String>,
    /// Why replicas failed to load, by worker.
    #[serde(default)]
    pub failures: BTreeMap<String, String>,
    /// Why its deployment does not come up, where that is known.
    #[serde(default)]
    pub failure: Option<DeploymentFailure>,
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
