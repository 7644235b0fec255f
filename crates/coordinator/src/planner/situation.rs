//! What placement is told of the workers.

use std::time::Instant;

use volley_cluster::placement::moves::Moves;
use volley_cluster::placement::{PlacementWorker, Situation};
use volley_types::control::Liveness;
use volley_types::registry::{RegistryState, ReplicaState};

use super::failures::Failures;
use crate::live::LiveWorkers;

/// Everything that placement looks at besides the registry. While the coordinator is `settling`,
/// workers that it has not heard yet are not gone.
#[must_use]
pub fn situation<'a>(
    state: &'a RegistryState,
    live: &'a LiveWorkers,
    failures: &'a Failures,
    moves: Moves<'a>,
    settling: bool,
    now: Instant,
) -> Situation<'a> {
    let mut situation = Situation {
        most_replicas: state.max_models_on_worker(),
        strategy: state.placement_strategy(),
        moves,
        ..Situation::default()
    };
    for (id, worker) in live.iter() {
        situation.workers.push(PlacementWorker {
            id,
            placeable: worker.liveness == Liveness::Alive && state.worker_drain(id).is_none(),
            keep: live.keeps_replicas(worker, now),
            labels: Some(&worker.report.labels),
            budget_bytes: worker.report.memory_budget_bytes,
            drain: state.worker_drain(id),
        });
        for replica in &worker.report.replicas {
            if replica.state == ReplicaState::Ready && replica.memory_bytes != 0 {
                let key = (&replica.model, replica.version);
                let size = situation.sizes.entry(key).or_default();
                *size = replica.memory_bytes.max(*size);
            }
        }
    }
    for (model, worker, reason) in failures.iter() {
        let Some(entry) = state.models.get_key_value(model) else {
            continue;
        };
        if let Some(deployment) = &entry.1.deployment {
            let held = (entry.0, deployment.version, worker);
            situation.failed.insert(held, reason);
        }
    }
    add_ready(state, live, &mut situation);
    if settling {
        add_unheard(state, live, &mut situation);
    }
    situation
}

/// What takes requests, of the models of which placement asks.
fn add_ready<'a>(state: &'a RegistryState, live: &'a LiveWorkers, situation: &mut Situation<'a>) {
    let may_move = situation.moves.may_begin != 0;
    for entry in state.models.values() {
        let Some(deployment) = &entry.deployment else {
            continue;
        };
        let surplus = (deployment.replicas as usize) < entry.placement.len();
        let leaves = !state.drains.is_empty()
            && entry
                .placement
                .iter()
                .any(|worker| state.worker_drain(worker).is_some());
        if deployment.rollout.is_none() && !surplus && !leaves && !may_move {
            continue;
        }
        for (worker, replica) in live.replicas(&entry.name) {
            if replica.state == ReplicaState::Ready {
                situation
                    .ready
                    .insert((&entry.name, replica.version, worker));
            }
        }
    }
}

/// Workers that hold replicas and have not been heard yet.
fn add_unheard<'a>(state: &'a RegistryState, live: &LiveWorkers, situation: &mut Situation<'a>) {
    let placed = state.models.values().flat_map(|entry| entry.holders());
    let unheard: std::collections::BTreeSet<_> =
        placed.filter(|id| live.get(id).is_none()).collect();
    situation
        .workers
        .extend(unheard.into_iter().map(|id| PlacementWorker {
            id,
            placeable: false,
            keep: true,
            labels: None,
            budget_bytes: 0,
            drain: state.worker_drain(id),
        }));
}
