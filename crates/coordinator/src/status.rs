//! States of models and workers for users, from the registry and the heartbeats. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use volley_types::control::{ModelStatus, ReplicaStatus, WorkerStatus};
use volley_types::registry::{ModelEntry, ModelState, ReplicaState};
use volley_types::{ModelVersion, ReplicaReport, WorkerId};

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
        serving: serving(entry, &live.ready_versions(&entry.name)),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use volley_types::registry::{Deployment, Rollout};
    use volley_types::{ModelName, Revision};

    use super::*;

    #[test]
    fn what_answers_during_a_rollout_is_told_and_so_after_it_failed() {
        let (one, two) = (ModelVersion(1), ModelVersion(2));
        let mut entry = ModelEntry {
            name: ModelName::new("m").unwrap(),
            versions: BTreeMap::new(),
            deployment: None,
            placement: Vec::new(),
            ever_deployed: true,
            group: None,
            deleted_tasks: BTreeSet::new(),
        };
        let ready = |versions: &[ModelVersion]| versions.iter().map(|it| (*it, 1)).collect();
        assert!(serving(&entry, &ready(&[one])).is_empty(), "not deployed");
        let deployment = entry
            .deployment
            .insert(Deployment::new(two, 1, Revision(1)));
        deployment.rollout = Some(Rollout {
            from: one,
            previous: Vec::new(),
            paused: false,
            stopped: Some("no graph".to_owned()),
        });
        for (there, told) in [
            (&[][..], &[][..]),
            (&[one], &[one]),
            (&[two], &[two]),
            (&[one, two], &[one, two]),
            (&[ModelVersion(7)], &[ModelVersion(7)]),
        ] {
            assert_eq!(serving(&entry, &ready(there)), told, "{there:?}");
        }
        if let Some(deployment) = &mut entry.deployment {
            deployment.options.keep_previous = 1;
        }
        assert_eq!(serving(&entry, &ready(&[one, two])), [one], "it stays");
    }
}
