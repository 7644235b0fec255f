//! Which workers hold a model's replicas. Pure: everything that is known comes in, and the
//! same input always gives the same placement.

use volley_types::WorkerId;
use volley_types::registry::ModelEntry;

/// A worker as placement sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementWorker {
    /// Its id.
    pub id: WorkerId,
    /// It may be given a new replica: it is alive and not draining.
    pub placeable: bool,
    /// It keeps the replicas that it has: it is alive, or was until a moment ago.
    pub keep: bool,
    /// Replicas of all models that are placed on it.
    pub replicas: usize,
    /// Loading this version has failed there.
    pub failed: bool,
}

/// Where the replicas of `entry` go: at most as many workers as the deployment asks for, each
/// once, of those that it allows. Replicas stay where they are while they can; new ones go to the workers with the
/// fewest replicas, and where loading has failed only when no other worker is left.
#[must_use]
pub fn plan(entry: &ModelEntry, workers: &[PlacementWorker]) -> Vec<WorkerId> {
    let Some(deployment) = &entry.deployment else {
        return Vec::new();
    };
    let wanted = deployment.replicas as usize;
    let may = |worker: &&PlacementWorker| {
        deployment.workers.is_empty() || deployment.workers.contains(&worker.id)
    };
    let workers: Vec<_> = workers.iter().filter(may).cloned().collect();
    let find = |id: &WorkerId| workers.iter().find(|worker| worker.id == *id);

    let held = entry
        .placement
        .iter()
        .filter_map(find)
        .filter(|worker| worker.keep);
    let (mut kept, failed): (Vec<_>, Vec<_>) = held.partition(|worker| !worker.failed);
    let mut fresh: Vec<_> = workers
        .iter()
        .filter(|worker| {
            worker.placeable && !worker.failed && !entry.placement.contains(&worker.id)
        })
        .collect();
    fresh.sort_by_key(|worker| (worker.replicas, &worker.id));
    let mut last_resort: Vec<_> = workers
        .iter()
        .filter(|worker| worker.placeable && worker.failed && !entry.placement.contains(&worker.id))
        .collect();
    last_resort.sort_by_key(|worker| (worker.replicas, &worker.id));

    // A failed replica is tried elsewhere first, and stays where it is when there is nowhere.
    kept.extend(fresh);
    kept.extend(failed);
    kept.extend(last_resort);
    kept.truncate(wanted);
    kept.into_iter().map(|worker| worker.id.clone()).collect()
}

#[cfg(test)]
mod tests;
