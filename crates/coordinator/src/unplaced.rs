//! Why replicas of a deployment have no worker. Pure.

use volley_types::WorkerId;
use volley_types::control::{Liveness, Unplaced};
use volley_types::registry::{Deployment, ModelEntry, RegistryState, ReplicaState};

use crate::live::{LiveWorker, LiveWorkers};

/// Workers with their ids.
type Workers<'l> = Vec<(&'l WorkerId, &'l LiveWorker)>;

/// Whether a deployment allows a worker, by its list of workers and its labels.
pub(crate) fn allows(deployment: &Deployment, id: &WorkerId, worker: &LiveWorker) -> bool {
    names(deployment, id) && labels_match(deployment, worker)
}

fn names(deployment: &Deployment, id: &WorkerId) -> bool {
    deployment.workers.is_empty() || deployment.workers.contains(id)
}

fn labels_match(deployment: &Deployment, worker: &LiveWorker) -> bool {
    let given = &worker.report.labels;
    let mut labels = deployment.options.labels.iter();
    labels.all(|(name, value)| given.get(name) == Some(value))
}

/// The workers in service that a deployment allows, without `except`; otherwise the reason why
/// there are none. Memory is not considered.
pub(crate) fn allowed<'l>(
    deployment: &Deployment,
    state: &RegistryState,
    live: &'l LiveWorkers,
    except: Option<&WorkerId>,
) -> Result<Workers<'l>, String> {
    let works = |id: &WorkerId, worker: &LiveWorker| {
        let alive = worker.liveness != Liveness::Dead;
        Some(id) != except && alive && state.worker_drain(id).is_none()
    };
    let other = if except.is_some() { "other " } else { "" };
    let mut workers: Workers<'_> = live.iter().filter(|(id, it)| works(id, it)).collect();
    if workers.is_empty() {
        let reason = match except {
            Some(_) => "the cluster has no other worker",
            None => "the cluster has no worker in service",
        };
        return Err(reason.to_owned());
    }
    workers.retain(|(id, _)| names(deployment, id));
    if workers.is_empty() {
        return Err(format!(
            "its deployment allows no {other}live worker (node_ids)"
        ));
    }
    workers.retain(|(_, worker)| labels_match(deployment, worker));
    if workers.is_empty() {
        let labels = deployment.options.labels.iter();
        let labels: Vec<_> = labels
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        return Err(format!(
            "no {other}worker has the labels {}",
            labels.join(", ")
        ));
    }
    Ok(workers)
}

/// Why some replicas of a model have no worker; `None` if each has one, or will have one.
pub(crate) fn unplaced(
    entry: &ModelEntry,
    state: &RegistryState,
    live: &LiveWorkers,
) -> Option<Unplaced> {
    let deployment = entry.deployment.as_ref().filter(|it| it.replicas != 0)?;
    let wanted = deployment.replicas as usize;
    let mut workers = match allowed(deployment, state, live, None) {
        Ok(workers) => workers,
        Err(reason) => {
            // Workers that have not been heard yet may join.
            let permanent = live.iter().any(|(_, it)| it.liveness != Liveness::Dead);
            return Some(Unplaced { reason, permanent });
        }
    };
    let permanent = |reason| {
        Some(Unplaced {
            reason,
            permanent: true,
        })
    };
    let size = size(entry, deployment, live);
    let budgets = workers.iter().map(|(_, it)| it.report.memory_budget_bytes);
    let largest = budgets.max().unwrap_or(0);
    workers.retain(|(_, worker)| in_budget(worker, size));
    if workers.is_empty() {
        return permanent(format!(
            "a replica needs {size} bytes of memory, and the largest memory budget of a worker is \
             {largest} bytes"
        ));
    }
    if workers.len() < wanted {
        let (number, workers) = match workers.len() {
            1 => (1, "worker"),
            number => (number, "workers"),
        };
        return permanent(format!(
            "its {wanted} replicas need a worker each, and only {number} {workers} can hold one"
        ));
    }
    match deployment.rollout {
        Some(_) => None,
        None => no_room(entry, state, live, (&workers, size)),
    }
}

/// Why the missing replicas do not fit beside the other models of `workers`. That ends as soon as
/// others leave.
fn no_room(
    entry: &ModelEntry,
    state: &RegistryState,
    live: &LiveWorkers,
    (workers, size): (&Workers<'_>, u64),
) -> Option<Unplaced> {
    let wanted = entry.deployment.as_ref()?.replicas as usize;
    let holds = |id: &WorkerId| entry.placement.contains(id);
    let (placed, mut free): (Workers<'_>, Workers<'_>) =
        workers.iter().copied().partition(|(id, _)| holds(id));
    let missing = wanted.saturating_sub(placed.len());
    if missing == 0 {
        return None;
    }
    let most = state.max_models_on_worker().unwrap_or(usize::MAX);
    free.retain(|(id, _)| held(id, state).count() < most);
    let reason = match free.len() < missing {
        true => "every other worker that may hold a replica has its maximum number of models",
        false => {
            free.retain(|(id, worker)| {
                let others = held(id, state).filter_map(|other| {
                    let deployment = other.deployment.as_ref()?;
                    (!deployment.overcommit).then(|| self::size(other, deployment, live))
                });
                in_budget(worker, others.fold(size, u64::saturating_add))
            });
            "no other worker has enough of its memory budget free for a replica"
        }
    };
    (free.len() < missing).then(|| Unplaced {
        reason: reason.to_owned(),
        permanent: false,
    })
}

/// The models that are placed on a worker.
fn held<'s>(id: &'s WorkerId, state: &'s RegistryState) -> impl Iterator<Item = &'s ModelEntry> {
    let entries = state.models.values().map(|entry| &**entry);
    entries.filter(move |entry| entry.holders().any(|holder| holder == id))
}

/// Memory of a replica in bytes: as configured, or as reported by a loaded replica; 0 if it is
/// unknown.
fn size(entry: &ModelEntry, deployment: &Deployment, live: &LiveWorkers) -> u64 {
    if deployment.options.memory_bytes != 0 {
        return deployment.options.memory_bytes;
    }
    let replicas = live.replicas(&entry.name);
    let loaded = replicas.filter(|(_, replica)| {
        replica.version == deployment.version && replica.state == ReplicaState::Ready
    });
    let sizes = loaded.map(|(_, replica)| replica.memory_bytes);
    sizes.max().unwrap_or(0)
}

fn in_budget(worker: &LiveWorker, bytes: u64) -> bool {
    let budget = worker.report.memory_budget_bytes;
    budget == 0 || bytes <= budget
}

#[cfg(test)]
mod tests;
