//! Migrations that free capacity for an unschedulable replica, if the migrated replicas fit
//! elsewhere.

use super::Step;
use crate::desired::{DesiredVersion, need};
use crate::fleet::{Fleet, ReplicaRequirements};
use crate::input::PlacementInput;

/// Maximum number of unschedulable replicas per round.
const MAX_WAITING: usize = 8;
/// Maximum number of candidate workers for each of them.
const MAX_TARGETS: usize = 16;
/// Maximum number of replicas of each worker that are tried.
const MAX_TRIED: usize = 32;
/// Maximum number of replicas that migrate together.
const MAX_TOGETHER: usize = 3;

/// Returns the migrations that free capacity for the first waiting replica that can be placed; none
/// while other migrations run.
pub(super) fn steps(
    wanted: &[DesiredVersion<'_>],
    held: &[Vec<usize>],
    fleet: &mut Fleet<'_>,
    input: &PlacementInput<'_>,
    waiting: &[usize],
) -> Vec<Step> {
    // A running migration may already free the capacity.
    if !input.moves.under_way.is_empty() {
        return Vec::new();
    }
    for index in waiting.iter().take(MAX_WAITING) {
        let one = &wanted[*index];
        let Some(deployment) = one.entry.deployment.as_ref() else {
            continue;
        };
        let need = need(one, deployment, &[]);
        for target in targets(one, &need, fleet, input) {
            let maker = Maker {
                wanted,
                held,
                input,
                target,
                size: need.size,
            };
            if let Some(steps) = maker.steps(fleet) {
                return steps;
            }
        }
    }
    Vec::new()
}

/// Candidate workers that only lack capacity: those in better zones first, then those that lack the
/// least.
fn targets(
    one: &DesiredVersion<'_>,
    need: &ReplicaRequirements<'_>,
    fleet: &Fleet<'_>,
    input: &PlacementInput<'_>,
) -> Vec<usize> {
    let right = (0..fleet.len()).filter(|worker| {
        let id = fleet.worker(*worker).id;
        let held = (&one.entry.name, one.version, id);
        fleet.could_hold(*worker, need, &one.kept) && !input.failed.contains_key(&held)
    });
    let mates = |worker: usize| match need.spread {
        Some(_) => fleet.mates(worker, &one.kept, need.spread),
        None => 0,
    };
    let lacks = |worker: usize| fleet.lacks(worker, need.size);
    let id = |worker: usize| fleet.worker(worker).id;
    let mut right: Vec<_> = right
        .map(|worker| (mates(worker), lacks(worker), id(worker), worker))
        .collect();
    right.sort_unstable();
    right.truncate(MAX_TARGETS);
    right.into_iter().map(|(.., worker)| worker).collect()
}

/// Frees capacity on one worker.
struct Maker<'s, 'a> {
    wanted: &'s [DesiredVersion<'a>],
    held: &'s [Vec<usize>],
    input: &'s PlacementInput<'s>,
    target: usize,
    size: u64,
}

impl Maker<'_, '_> {
    /// Returns the fewest migrations found that free the capacity: of the smallest sufficient
    /// replica, or of a few of the largest ones.
    fn steps(&self, fleet: &mut Fleet<'_>) -> Option<Vec<Step>> {
        let (bytes, places) = fleet.lacks(self.target, self.size);
        let freed = |index: &usize| self.wanted[*index].counted_size();
        let mut movable = self.held[self.target].clone();
        movable.retain(|index| {
            (bytes == 0 || freed(index) != 0) && self.wanted[*index].may_move(fleet, self.input)
        });
        movable.sort_by_key(freed);
        if places <= 1 {
            let enough = movable.partition_point(|index| freed(index) < bytes);
            for index in movable[enough..].iter().take(MAX_TRIED) {
                if let Some(step) = self.step(*index, fleet) {
                    return Some(vec![step]);
                }
            }
        }
        self.together(&movable, bytes, places, fleet)
    }

    /// Collects a few replicas, largest first; discards them if they are not enough.
    fn together(
        &self,
        movable: &[usize],
        bytes: u64,
        places: usize,
        fleet: &mut Fleet<'_>,
    ) -> Option<Vec<Step>> {
        let most = self.input.moves.may_begin.min(MAX_TOGETHER);
        let mut steps: Vec<Step> = Vec::new();
        let mut freed = 0_u64;
        for index in movable.iter().rev().take(MAX_TRIED) {
            if most <= steps.len() {
                break;
            }
            let Some(step) = self.step(*index, fleet) else {
                continue;
            };
            let size = self.wanted[*index].counted_size();
            fleet.put(step.to, size);
            freed = freed.saturating_add(size);
            steps.push(step);
            if bytes <= freed && places <= steps.len() {
                return Some(steps);
            }
        }
        for step in steps {
            fleet.take(step.to, self.wanted[step.wanted].counted_size());
        }
        None
    }

    fn step(&self, index: usize, fleet: &mut Fleet<'_>) -> Option<Step> {
        let from = self.target;
        let to = self.wanted[index].elsewhere(from, fleet, self.input, |_| true)?;
        Some(Step {
            wanted: index,
            from,
            to,
        })
    }
}
