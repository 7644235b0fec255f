//! Heartbeats: reports of a worker to every coordinator, twice a second and on every change.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Incarnation, ModelName, ModelVersion, Revision, WorkerId};
use crate::registry::{Assignment, ReplicaState};
use crate::signature::Signature;

/// One heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// The configured identity.
    pub id: WorkerId,
    /// Random at process start: distinguishes restarts of a worker.
    pub incarnation: Incarnation,
    /// Address of its Flight service, `host:port`.
    pub address: String,
    /// Labels from the worker's configuration.
    pub labels: BTreeMap<String, String>,
    /// Replicas that are loaded or loading.
    pub replicas: Vec<ReplicaReport>,
    /// The worker is shutting down and accepts no new requests.
    pub draining: bool,
    /// Running streams of all replicas.
    pub active: u32,
    /// Queued requests of all replicas.
    pub queued: u32,
    /// Resident memory of the process in bytes.
    pub memory_bytes: u64,
    /// Memory budget of all its models in bytes; 0 if it does not report one.
    pub memory_budget_bytes: u64,
    /// Time since the start of the process in milliseconds.
    pub uptime_ms: u64,
    /// Its GPUs, if the driver's library reports them.
    pub gpus: Vec<GpuReport>,
}

/// One GPU of a worker, as reported by its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReport {
    /// Index of the GPU, from 0.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Used memory in bytes, by all processes.
    pub used_bytes: u64,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// Share of the last sampling period in which the GPU was busy, 0 to 100.
    pub utilization_percent: u32,
}

/// Reply of a coordinator: the worker's assignments and the addresses of all coordinators.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignments {
    /// The registry's revision of these assignments. A worker applies the highest revision from any
    /// coordinator.
    pub revision: Revision,
    /// The assigned replicas.
    pub assignments: Vec<Assignment>,
    /// The internal addresses of all coordinators, `host:port`.
    pub coordinators: Vec<String>,
    /// The models whose replicas may be evicted while they are idle.
    pub overcommit: BTreeSet<ModelName>,
}

/// One replica in a [`WorkerReport`].
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaReport {
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
    /// Maximum number of concurrent streams; 0 until the replica is loaded.
    pub capacity: u32,
    /// Recent queue wait in milliseconds.
    pub queue_wait_ms: u32,
    /// The worker's uptime in milliseconds when the replica's last request ended. Only meaningful
    /// while no request runs.
    pub idle_since_ms: u64,
    /// Download progress while the model is fetched.
    pub fetch: Option<FetchProgress>,
    /// Signature of the model; `None` until the replica is loaded.
    pub signature: Option<Signature>,
    /// Whether the replica is ready but evicted. The next request reloads it.
    pub evicted: bool,
    /// Bytes of the worker's memory budget that it uses now.
    pub memory_bytes: u64,
}

/// Download progress of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchProgress {
    /// Downloaded bytes.
    pub bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
}
