//! Migrations of replicas between live workers: to free memory for an unschedulable replica, and
//! from full workers to emptier ones. Each replica is ready on its new worker before the old one
//! unloads it. Pure: running migrations and the limit of new ones are arguments.

mod balance;
mod room;

use volley_types::WorkerId;

use crate::desired::{DesiredVersion, need};
use crate::fleet::{Fleet, ReplicaRequirements};
use crate::input::PlacementInput;
use crate::output::{Move, MoveReason, Plan};

/// Maximum number of replicas that migrate to one worker at a time.
const MAX_COMING: usize = 2;

/// A possible migration: index of the desired version, source and target worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    wanted: usize,
    from: usize,
    to: usize,
}

/// Starts migrations up to the limit. `waiting` are the versions of `wanted` that only lack memory
/// or capacity, largest first.
pub(crate) fn begin(
    wanted: &mut [DesiredVersion<'_>],
    fleet: &mut Fleet<'_>,
    input: &PlacementInput<'_>,
    waiting: &[usize],
    plan: &mut Plan,
) {
    for one in wanted.iter() {
        one.moving(input).for_each(|(from, to)| {
            fleet.promise(from, to, one.counted_size());
        });
    }
    let may_rebalance = waiting.is_empty() && is_calm(wanted, input);
    let imbalance = input.moves.imbalance.filter(|_| may_rebalance);
    plan.moves_wanted = !waiting.is_empty()
        || imbalance.is_some_and(|limit| balance::is_far_apart(wanted, fleet, input, limit));
    if !plan.moves_wanted || input.moves.may_begin == 0 {
        return;
    }
    let held = held(wanted, fleet.len());
    let (steps, reason) = if waiting.is_empty() {
        let limit = imbalance.unwrap_or(u64::MAX);
        let steps = balance::steps(wanted, &held, fleet, input, limit);
        (steps, MoveReason::Rebalance)
    } else {
        let steps = room::steps(wanted, &held, fleet, input, waiting);
        (steps, MoveReason::Room)
    };
    for step in steps {
        let one = &mut wanted[step.wanted];
        let Some(deployment) = one.entry.deployment.as_ref() else {
            continue;
        };
        one.kept.retain(|worker| *worker != step.from);
        one.kept.push(step.to);
        one.leaving.push(step.from);
        plan.moves.push(Move {
            model: one.entry.name.clone(),
            deployment: deployment.revision,
            from: fleet.worker(step.from).id.clone(),
            to: fleet.worker(step.to).id.clone(),
            reason,
        });
    }
}

/// Whether the cluster is calm: no rollout, no drained worker with replicas, and no silent worker.
fn is_calm(wanted: &[DesiredVersion<'_>], input: &PlacementInput<'_>) -> bool {
    let goes_on = |one: &DesiredVersion<'_>| {
        let leaves = one.leaving.len() != one.moving(input).count();
        leaves || (one.old && rolls(one))
    };
    let silent = input
        .workers
        .iter()
        .any(|worker| worker.keep && !worker.placeable && worker.drain.is_none());
    !silent && !wanted.iter().any(goes_on)
}

/// Whether a rollout is running.
fn rolls(one: &DesiredVersion<'_>) -> bool {
    let deployment = one.entry.deployment.as_ref();
    deployment.is_some_and(|deployment| {
        let rollout = deployment.rollout.as_ref();
        deployment.options.keep_previous == 0 && rollout.is_some_and(|rollout| rollout.moves())
    })
}

/// Desired replicas on each worker.
fn held(wanted: &[DesiredVersion<'_>], workers: usize) -> Vec<Vec<usize>> {
    let mut held = vec![Vec::new(); workers];
    for (index, one) in wanted.iter().enumerate() {
        for worker in &one.kept {
            held[*worker].push(index);
        }
    }
    held
}

impl DesiredVersion<'_> {
    /// Running migrations of its replicas.
    fn moving(&self, input: &PlacementInput<'_>) -> impl Iterator<Item = (usize, usize)> + use<> {
        let under_way = input.moves.under_way.contains_key(&self.entry.name);
        let moving = self.moving.filter(|_| under_way && !self.old);
        moving.into_iter()
    }

    /// Whether one of its replicas may be migrated: all are placed and ready, no rollout is
    /// running, the deployment has no worker list, and no migration is running.
    fn may_move(&self, fleet: &Fleet<'_>, input: &PlacementInput<'_>) -> bool {
        let Some(deployment) = self.entry.deployment.as_ref() else {
            return false;
        };
        let settled = deployment.rollout.is_none()
            && deployment.workers.is_empty()
            && self.leaving.is_empty()
            && self.failed.is_empty()
            && self.kept.len() == self.count
            && self.entry.placement.len() == self.count;
        let name = &self.entry.name;
        settled
            && !input.moves.fixed.contains(name)
            && !input.moves.under_way.contains_key(name)
            && self.kept.iter().all(|worker| {
                let id = fleet.worker(*worker).id;
                let held = (name, self.version, id);
                self.entry.placement.contains(id) && input.ready.contains(&held)
            })
    }

    /// Returns the best worker for the replica on `from`, if the replicas are spread at least as
    /// well there.
    fn elsewhere(
        &self,
        from: usize,
        fleet: &mut Fleet<'_>,
        input: &PlacementInput<'_>,
        may: impl Fn(&WorkerId) -> bool,
    ) -> Option<usize> {
        let deployment = self.entry.deployment.as_ref()?;
        let others = self.kept.iter().copied();
        let others: Vec<_> = others.filter(|worker| *worker != from).collect();
        let need: ReplicaRequirements<'_> = need(self, deployment, &[]);
        let own = fleet.worker(from).id;
        let to = fleet.best(&need, &others, |worker| {
            let held = (&self.entry.name, self.version, worker);
            // A worker that already has a replica would be taken for the target of the migration.
            let fresh = !input.failed.contains_key(&held) && !input.ready.contains(&held);
            worker != own && fresh && may(worker)
        })?;
        let spread = need.spread;
        let mates = |worker: usize| fleet.mates(worker, &others, spread);
        (spread.is_none() || mates(to) <= mates(from)).then_some(to)
    }
}
