//! Builds the input of a plan from the observed workers.

use std::collections::{BTreeSet, HashSet};

use volley_types::ModelName;
use volley_types::control::Liveness;
use volley_types::registry::{RegistryState, ReplicaState};

use super::failures::Failures;
use super::observed::ObservedWorkers;
use crate::input::{Moves, PlacementInput, PlacementWorker};

/// Builds the input of a plan. While the coordinator is settling, workers that it has not heard yet
/// count as present.
#[must_use]
pub fn input<'a>(
    state: &'a RegistryState,
    observed: &ObservedWorkers<'a>,
    failures: &'a Failures,
    moves: Moves<'a>,
) -> PlacementInput<'a> {
    let mut input = PlacementInput {
        most_replicas: state.max_models_on_worker(),
        strategy: state.placement_strategy(),
        moves,
        ..PlacementInput::default()
    };
    for (id, worker) in &observed.workers {
        input.workers.push(PlacementWorker {
            id,
            placeable: worker.liveness == Liveness::Alive && state.worker_drain(id).is_none(),
            keep: worker.keep,
            labels: Some(&worker.report.labels),
            budget_bytes: worker.report.memory_budget_bytes,
            drain: state.worker_drain(id),
        });
        for replica in &worker.report.replicas {
            if replica.state == ReplicaState::Ready && replica.memory_bytes != 0 {
                let key = (&replica.model, replica.version);
                let size = input.sizes.entry(key).or_default();
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
            input.failed.insert(held, reason);
        }
    }
    add_ready(state, observed, &mut input);
    if observed.settling {
        add_unheard(state, observed, &mut input);
    }
    input
}

/// Adds the ready replicas of the models whose readiness is relevant to the plan.
fn add_ready<'a>(
    state: &'a RegistryState,
    observed: &ObservedWorkers<'a>,
    input: &mut PlacementInput<'a>,
) {
    let may_move = input.moves.may_begin != 0;
    let models: HashSet<&ModelName> = state
        .models
        .values()
        .filter_map(|entry| {
            let deployment = entry.deployment.as_ref()?;
            let surplus = (deployment.replicas as usize) < entry.placement.len();
            let leaves = !state.drains.is_empty()
                && entry
                    .placement
                    .iter()
                    .any(|worker| state.worker_drain(worker).is_some());
            let counts = deployment.rollout.is_some() || surplus || leaves || may_move;
            counts.then_some(&entry.name)
        })
        .collect();
    if models.is_empty() {
        return;
    }
    let heard = observed.workers.iter();
    for (id, worker) in heard.filter(|(_, worker)| worker.liveness != Liveness::Dead) {
        for replica in &worker.report.replicas {
            if replica.state == ReplicaState::Ready && models.contains(&replica.model) {
                let held = (&replica.model, replica.version, *id);
                input.ready.insert(held);
            }
        }
    }
}

/// Adds workers that hold replicas and have not been heard yet.
fn add_unheard<'a>(
    state: &'a RegistryState,
    observed: &ObservedWorkers<'a>,
    input: &mut PlacementInput<'a>,
) {
    let placed = state.models.values().flat_map(|entry| entry.holders());
    let unheard: BTreeSet<_> = placed
        .filter(|id| !observed.workers.contains_key(id))
        .collect();
    input
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
