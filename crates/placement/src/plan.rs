//! The decision about which workers hold which replicas.

use volley_types::registry::{Deployment, ModelEntry, PlacementDecision, RegistryState};
use volley_types::{ModelVersion, WorkerId};

use crate::desired::{DesiredVersion, need, workers_of};
use crate::fleet::Fleet;
use crate::input::PlacementInput;
use crate::moves;
use crate::output::Plan;
use crate::rollout::{self, RolloutStatus, RolloutStep};

/// Places all replicas.
///
/// A replica stays while its worker is present, has the labels and can load it. Missing replicas
/// are placed, the largest first, on workers with the labels, free memory, and no other replica of
/// that version. Among them the value of the spread label with the fewest replicas of the model
/// wins, then the emptiest worker, or the one with the least free memory with packing. A worker on
/// which loading failed is only used again if no other is left. A replica that is drained or
/// migrated stays until its replacement is ready.
#[must_use]
pub fn plan(state: &RegistryState, input: &PlacementInput<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut fleet = Fleet::new(input);
    let mut wanted = Vec::new();
    for entry in state.models.values() {
        let Some(deployment) = &entry.deployment else {
            continue;
        };
        match steps(entry, deployment, input) {
            Ok((new, old)) => {
                wanted.push(keep(entry, deployment, new, input, &fleet, false));
                if let Some(old) = old {
                    wanted.push(keep(entry, deployment, old, input, &fleet, true));
                }
            }
            Err(reason) => plan.stops.push((entry.name.clone(), reason)),
        }
    }
    for one in &wanted {
        for worker in one.kept.iter().chain(&one.leaving) {
            fleet.put(*worker, one.counted_size());
        }
    }
    let mut waiting = Vec::new();
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.retain(|index| wanted[*index].kept.len() < wanted[*index].count);
    order.sort_by_key(|index| (std::cmp::Reverse(wanted[*index].size), *index));
    for index in order {
        let missing = fill(&mut wanted, index, &mut fleet, input);
        plan.unschedulable += missing;
        if missing != 0 && lacks_room(&wanted[index], &fleet) {
            waiting.push(index);
        }
    }
    moves::begin(&mut wanted, &mut fleet, input, &waiting, &mut plan);
    for one in &mut wanted {
        stay_until_replaced(one, &fleet, input);
    }
    collect(&wanted, &fleet, &mut plan);
    plan
}

type Steps = (RolloutStep, Option<RolloutStep>);

/// Returns the desired number of replicas of the deployed version and of the previous one, or the
/// reason to stop the rollout.
fn steps(
    entry: &ModelEntry,
    deployment: &Deployment,
    input: &PlacementInput<'_>,
) -> Result<Steps, String> {
    let replicas = deployment.replicas as usize;
    let new = RolloutStep {
        version: deployment.version,
        count: replicas,
    };
    let Some(rollout) = &deployment.rollout else {
        return Ok((new, None));
    };
    let failed = entry
        .placement
        .iter()
        .find_map(|worker| input.failed.get(&(&entry.name, deployment.version, worker)));
    if let Some(reason) = failed
        && rollout.moves()
    {
        return Err((*reason).to_owned());
    }
    let ready = |version, workers: &[WorkerId]| {
        let held = workers.iter().map(|worker| (&entry.name, version, worker));
        held.filter(|held| input.ready.contains(held)).count()
    };
    let seen = RolloutStatus {
        replicas,
        new: entry.placement.len(),
        new_ready: ready(deployment.version, &entry.placement),
        old: rollout.previous.len(),
    };
    let stays = deployment.options.keep_previous as usize;
    if stays != 0 {
        let old = RolloutStep {
            version: rollout.from,
            count: rollout::beside(&seen, stays),
        };
        return Ok((new, Some(old)));
    }
    let (new_count, old_count) = rollout::step(&seen, &deployment.options, rollout.moves());
    let old = RolloutStep {
        version: rollout.from,
        count: old_count,
    };
    let new = RolloutStep {
        count: new_count,
        ..new
    };
    Ok((new, Some(old)))
}

/// Returns the replicas that stay on their workers.
fn keep<'a>(
    entry: &'a ModelEntry,
    deployment: &'a Deployment,
    step: RolloutStep,
    input: &PlacementInput<'_>,
    fleet: &Fleet<'_>,
    old: bool,
) -> DesiredVersion<'a> {
    let before = match (&deployment.rollout, old) {
        (Some(rollout), true) => &rollout.previous,
        _ => &entry.placement,
    };
    let (mut kept, mut failed, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
    let mut moving = moving(entry, deployment, input, fleet);
    let mut goes = None;
    for id in before {
        let Some(index) = fleet.find(id) else {
            continue;
        };
        let worker = fleet.worker(index);
        let named = workers_of(deployment, old);
        let allowed = named.is_empty() || named.contains(id);
        if !worker.keep || !allowed || !fleet.has_labels(index, &deployment.options.labels) {
            continue;
        }
        let held = (&entry.name, step.version, id);
        if worker.drain.is_some() {
            leaving.push(index);
        } else if input.failed.contains_key(&held) {
            failed.push(index);
        } else if !old && moving.is_some_and(|(from, _)| from == index) {
            goes = Some(index);
        } else {
            kept.push(index);
        }
    }
    // The source is only released if all other replicas and the target are in place.
    moving = moving.filter(|(_, to)| kept.contains(to) && step.count <= kept.len());
    match (goes, moving) {
        (Some(index), Some(_)) => leaving.push(index),
        (Some(index), None) => kept.push(index),
        (None, _) => moving = None,
    }
    if step.count < kept.len() {
        // Remove surplus replicas that do not serve yet first, then those in the fullest zones.
        let spread = deployment.options.spread.as_deref();
        let ready = |index: &usize| {
            let worker = fleet.worker(*index).id;
            input.ready.contains(&(&entry.name, step.version, worker))
        };
        fleet.drop_surplus(&mut kept, step.count, spread, ready);
    }
    DesiredVersion {
        entry,
        version: step.version,
        count: step.count,
        size: size_of(entry, deployment, step.version, input),
        kept,
        failed,
        leaving,
        moving,
        old,
    }
}

/// Returns the memory of a replica in bytes: as configured, or as reported by a loaded replica; 0
/// if it is unknown.
fn size_of(
    entry: &ModelEntry,
    deployment: &Deployment,
    version: ModelVersion,
    input: &PlacementInput<'_>,
) -> u64 {
    let reported = input.sizes.get(&(&entry.name, version)).copied();
    match deployment.options.memory_bytes {
        0 => reported.unwrap_or(0),
        asked => asked,
    }
}

/// Returns the source and the target of the model's running migration.
fn moving(
    entry: &ModelEntry,
    deployment: &Deployment,
    input: &PlacementInput<'_>,
    fleet: &Fleet<'_>,
) -> Option<(usize, usize)> {
    let one = input.moves.under_way.get(&entry.name)?;
    let stands = one.deployment == deployment.revision && deployment.rollout.is_none();
    let (from, to) = (fleet.find(&one.from)?, fleet.find(&one.to)?);
    let stays = |worker: usize| fleet.worker(worker).drain.is_none();
    (stands && stays(from) && stays(to)).then_some((from, to))
}

/// Returns whether some worker could hold a missing replica if it had free capacity.
fn lacks_room(one: &DesiredVersion<'_>, fleet: &Fleet<'_>) -> bool {
    let Some(deployment) = one.deployment() else {
        return false;
    };
    let need = need(one, deployment, &[]);
    (0..fleet.len()).any(|worker| fleet.could_hold(worker, &need, &one.kept))
}

/// Places the missing replicas. Returns the number that remain unplaced.
fn fill(
    wanted: &mut [DesiredVersion<'_>],
    index: usize,
    fleet: &mut Fleet<'_>,
    input: &PlacementInput<'_>,
) -> usize {
    let one = &wanted[index];
    let Some(deployment) = &one.entry.deployment else {
        return 0;
    };
    let (entry, version, count) = (one.entry, one.version, one.count);
    let counted = one.counted_size();
    let (mut kept, failed) = (one.kept.clone(), one.failed.clone());
    // The other version of a rollout is the neighbour in the list.
    let beside = if one.old {
        index.checked_sub(1)
    } else {
        Some(index + 1)
    };
    let other = beside.and_then(|at| wanted.get(at));
    let other = other.filter(|other| other.entry.name == entry.name);
    let avoid = other.map_or_else(Vec::new, |other| other.kept.clone());
    let need = need(one, deployment, &avoid);
    let has_failed = |worker: &WorkerId| input.failed.contains_key(&(&entry.name, version, worker));
    while kept.len() < count {
        let Some(found) = fleet.best(&need, &kept, |worker| !has_failed(worker)) else {
            break;
        };
        fleet.put(found, counted);
        kept.push(found);
    }
    // A failed replica is tried on other workers first, and stays if there is none.
    for failed in failed {
        if kept.len() < count && !kept.contains(&failed) {
            fleet.put(failed, counted);
            kept.push(failed);
        }
    }
    while kept.len() < count {
        let Some(found) = fleet.best(&need, &kept, |_| true) else {
            break;
        };
        fleet.put(found, counted);
        kept.push(found);
    }
    let missing = count.saturating_sub(kept.len());
    wanted[index].kept = kept;
    missing
}

/// Keeps replicas on workers that they leave, as many as are not ready yet elsewhere. With a forced
/// drain they only wait for replicas that are being loaded.
fn stay_until_replaced(
    one: &mut DesiredVersion<'_>,
    fleet: &Fleet<'_>,
    input: &PlacementInput<'_>,
) {
    if one.leaving.is_empty() {
        return;
    }
    let is_ready = |index: &usize| {
        let id = fleet.worker(*index).id;
        let held = (&one.entry.name, one.version, id);
        input.ready.contains(&held)
    };
    let ready = one.kept.iter().filter(|index| is_ready(index)).count();
    let (coming, missing) = (one.kept.len() - ready, one.count.saturating_sub(ready));
    let mut staying = Vec::new();
    for index in &one.leaving {
        let worker = fleet.worker(*index);
        // A worker that has not been heard yet may serve.
        let serves = is_ready(index) || worker.labels.is_none();
        let forced = worker.drain.is_some_and(|drain| drain.force);
        let most = if forced { coming.min(missing) } else { missing };
        if serves && staying.len() < most {
            staying.push(*index);
        }
    }
    one.kept.extend(staying);
}

/// Collects the placements that differ from the current ones.
fn collect(wanted: &[DesiredVersion<'_>], fleet: &Fleet<'_>, plan: &mut Plan) {
    let ids = |one: &DesiredVersion<'_>| -> Vec<WorkerId> {
        let workers = one.kept.iter().map(|index| fleet.worker(*index).id.clone());
        workers.collect()
    };
    for (index, one) in wanted.iter().enumerate().filter(|(_, one)| !one.old) {
        let Some(deployment) = one.deployment() else {
            continue;
        };
        let workers = ids(one);
        let old = wanted.get(index + 1).filter(|next| next.old);
        let previous = old.map_or_else(Vec::new, ids);
        let before = deployment.rollout.as_ref().map(|rollout| &rollout.previous);
        let same = workers == one.entry.placement
            && before.map_or(previous.is_empty(), |before| *before == previous);
        let works = |index: &&usize| fleet.worker(**index).drain.is_none();
        let working = one.kept.iter().filter(works).count();
        if !same {
            plan.placings.push(PlacementDecision {
                model: one.entry.name.clone(),
                deployment: deployment.revision,
                workers,
                previous,
                moving: (deployment.replicas as usize) < working,
            });
        }
    }
}

#[cfg(test)]
mod tests;
