//! States of models and workers for users, from the registry and the heartbeats. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use volley_types::control::{ModelStatus, ReplicaStatus, WorkerStatus};
use volley_types::registry::{ModelEntry, ModelState, RegistryState, ReplicaState};
use volley_types::{ModelVersion, ReplicaReport, WorkerId};

use crate::live::{LiveWorker, LiveWorkers};
use crate::unplaced;

/// A model's state and replicas.
#[must_use]
pub fn model(entry: &ModelEntry, registry: &RegistryState, live: &LiveWorkers) -> ModelStatus {
    let deployment = entry.deployment.as_ref();
    let replicas: Vec<_> = deployment.map_or_else(Vec::new, |deployment| {
        let held = live.replicas(&entry.name);
        let held = held.map(|(id, replica)| replica_status(id, replica));
        held.filter(|replica| replica.version == deployment.version)
            .collect()
    });
    let state = state(entry, &replicas, live);
    let complete = state == ModelState::Deployed;
    ModelStatus {
        state,
        desired_replicas: deployment.map_or(0, |deployment| deployment.replicas),
        version: deployment.map(|deployment| deployment.version),
        replicas,
        serving: serving(entry, &live.ready_versions(&entry.name)),
        unplaced: match complete {
            true => None,
            false => unplaced::unplaced(entry, registry, live),
        },
    }
}

/// The versions that answer requests without one, as `predict` chooses them; `ready` counts the
/// ready replicas of each version.
fn serving(entry: &ModelEntry, ready: &BTreeMap<ModelVersion, usize>) -> Vec<ModelVersion> {
    let Some(deployment) = &entry.deployment else {
        return Vec::new();
    };
    let from = deployment.rollout.as_ref().map(|rollout| rollout.from);
    if deployment.options.keep_previous != 0
        && let Some(from) = from.filter(|from| ready.contains_key(from))
    {
        return vec![from];
    }
    let named = |version: &ModelVersion| *version == deployment.version || Some(*version) == from;
    let mut serving: Vec<_> = ready.keys().copied().filter(named).collect();
    if serving.is_empty() {
        serving.extend(ready.keys().next_back());
    }
    serving
}

/// A ready replica on a worker that the deployment does not allow any more serves, but does not
/// complete the deployment: the planner replaces it.
fn state(entry: &ModelEntry, replicas: &[ReplicaStatus], live: &LiveWorkers) -> ModelState {
    let Some(deployment) = &entry.deployment else {
        return if entry.ever_deployed {
            ModelState::Undeployed
        } else {
            ModelState::Registered
        };
    };
    let stays = |replica: &&ReplicaStatus| {
        let worker = live.get(&replica.worker);
        worker.is_some_and(|worker| unplaced::allows(deployment, &replica.worker, worker))
    };
    let ready = replicas
        .iter()
        .filter(|replica| replica.state == ReplicaState::Ready);
    let serves = ready.clone().next().is_some();
    let ready = ready.filter(stays).count();
    let failed = replicas
        .iter()
        .any(|replica| matches!(replica.state, ReplicaState::Failed(_)));
    if deployment.replicas as usize <= ready {
        ModelState::Deployed
    } else if serves {
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

#[cfg(test)]
mod tests;
