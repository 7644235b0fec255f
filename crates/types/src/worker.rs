//! What a worker tells every coordinator about itself, twice a second and on every change.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Incarnation, ModelName, ModelVersion, Revision, WorkerId};
use crate::registry::{Assignment, ReplicaState};
use crate::signature::Signature;

/// One heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// The configured identity.
    pub id: WorkerId,
    /// Random at process start: tells one life of a worker from the next.
    pub incarnation: Incarnation,
    /// Where its Flight service is reached, `host:port`.
    pub address: String,
    /// Free labels from its configuration.
    pub labels: BTreeMap<String, String>,
    /// What it holds or is loading, by model.
    pub replicas: Vec<ReplicaReport>,
    /// It is shutting down: send it nothing new.
    pub draining: bool,
    /// Streams that run now, over all replicas.
    pub active: u32,
    /// Requests that wait for a permit, over all replicas.
    pub queued: u32,
    /// Resident memory of the process in bytes.
    pub memory_bytes: u64,
    /// Bytes that all its models together may take; 0 where it does not tell.
    pub memory_budget_bytes: u64,
    /// Since its start.
    pub uptime_ms: u64,
    /// Its GPUs, where the driver's library tells of them.
    pub gpus: Vec<GpuReport>,
}

/// One GPU of a worker, as its driver tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReport {
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

/// What a coordinator answers: what the worker shall hold, and who else wants to hear of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignments {
    /// The registry's revision that they follow from. A worker follows the highest that it has
    /// seen from any coordinator.
    pub revision: Revision,
    /// What to hold.
    pub assignments: Vec<Assignment>,
    /// The internal addresses of all coordinators, `host:port`.
    pub coordinators: Vec<String>,
    /// The models whose replicas may be unloaded while they are idle, to make room.
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
    /// Streams that run now.
    pub active: u32,
    /// Requests that wait for a permit.
    pub queued: u32,
    /// How many streams may run at once; 0 until it is loaded.
    pub capacity: u32,
    /// How long requests waited for a permit of late, in milliseconds.
    pub queue_wait_ms: u32,
    /// The worker's uptime at which its last request ended; tells something only while none runs.
    pub idle_since_ms: u64,
    /// How far its model has come here, while it is fetched.
    pub fetch: Option<FetchProgress>,
    /// What it takes and gives; known once it is loaded.
    pub signature: Option<Signature>,
    /// It is ready and was unloaded to make room; the next request loads it again.
    pub evicted: bool,
    /// Bytes that it takes of the worker's memory budget now.
    pub memory_bytes: u64,
}

/// How far a model has come from where it is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchProgress {
    /// Bytes that are here.
    pub bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}
