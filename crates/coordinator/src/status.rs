//! States of models and workers for users, from the registry and the heartbeats. Pure.

use std::time::Instant;

use volley_types::control::{ModelStatus, ReplicaStatus, WorkerStatus};
use volley_types::registry::{ModelEntry, ModelState, ReplicaState};
use volley_types::{ReplicaReport, WorkerId};

use crate::live::{LiveWorker, LiveWorkers};

/// A model's state and replicas.
#[must_use]
pub fn model(entry: &ModelEntry, live: &LiveWorkers) -> ModelStatus {
    let replicas = entry
        .deployment
        .as_ref()
        .map_or_else(Vec::new, |deployment| {
            let held = live.replicas(&entry.name);
            let held = held.map(|(id, replica)| replica_status(id, replica));
            held.filter(|replica| replica.version == deployment.version)
                .collect()
        });
    ModelStatus {
        state: state(entry, &replicas),
        desired_replicas: entry
            .deployment
            .as_ref()
            .map_or(0, |deployment| deployment.replicas),
        version: entry
            .deployment
            .as_ref()
            .map(|deployment| deployment.version),
        replicas,
    }
}

fn state(entry: &ModelEntry, replicas: &[ReplicaStatus]) -> ModelState {
    let Some(deployment) = &entry.deployment else {
        return if entry.ever_deployed {
            ModelState::Undeployed
        } else {
            ModelState::Registered
        };
    };
    let ready = replicas
        .iter()
        .filter(|replica| replica.state == ReplicaState::Ready)
        .count();
    let failed = replicas
        .iter()
        .any(|replica| matches!(replica.state, ReplicaState::Failed(_)));
    if deployment.replicas as usize <= ready {
        ModelState::Deployed
    } else if 0 < ready {
        ModelState::PartiallyDeployed
    } else if failed {
        ModelState::DeployFailed
    } else {
        ModelState::Deploying
    }
}

/// Every worker, by id.
#[must_use]
pub fn workers(live: &LiveWorkers, now: Instant) -> Vec<WorkerStatus> {
    live.iter()
        .map(|(id, worker)| worker_status(id, worker, now))
        .collect()
}

fn worker_status(id: &WorkerId, worker: &LiveWorker, now: Instant) -> WorkerStatus {
    WorkerStatus {
        id: id.clone(),
        incarnation: worker.report.incarnation,
        address: worker.report.address.clone(),
        liveness: worker.liveness,
        last_heard: LiveWorkers::silence(worker, now),
        replicas: worker
            .report
            .replicas
            .iter()
            .map(|replica| replica_status(id, replica))
            .collect(),
        memory_bytes: worker.report.memory_bytes,
        memory_budget_bytes: worker.report.memory_budget_bytes,
        gpus: worker.report.gpus.clone(),
    }
}

fn replica_status(worker: &WorkerId, replica: &ReplicaReport) -> ReplicaStatus {
    ReplicaStatus {
        worker: worker.clone(),
        model: replica.model.clone(),
        version: replica.version,
        state: replica.state.clone(),
        active: replica.active,
        queued: replica.queued,
        capacity: replica.capacity,
        evicted: replica.evicted,
        memory_bytes: replica.memory_bytes,
        fetch: replica.fetch,
    }
}
