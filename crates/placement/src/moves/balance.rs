//! Migrations from full workers to emptier ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use volley_types::WorkerId;

use super::{MAX_COMING, Step};
use crate::desired::DesiredVersion;
use crate::fleet::Fleet;
use crate::input::PlacementInput;

/// Minimum reduction of the fuller worker's memory use by a migration, in thousandths. A smaller
/// one is not worth a load.
const MARGIN: u64 = 50;
/// Maximum number of replicas per round for which a better worker is searched.
const MAX_TRIED: usize = 1_024;

/// Returns whether any two workers differ by more than `limit` thousandths: in memory use, or in
/// the number of replicas if the fuller worker has replicas without memory.
pub(super) fn is_far_apart(
    wanted: &[DesiredVersion<'_>],
    fleet: &Fleet<'_>,
    input: &PlacementInput<'_>,
    limit: u64,
) -> bool {
    let mut has_weightless = vec![false; fleet.len()];
    for one in wanted.iter().filter(|one| one.counted_size() == 0) {
        for worker in &one.kept {
            has_weightless[*worker] = true;
        }
    }
    let least = Emptiest::of(fleet, input, |_| true);
    let workers = (0..fleet.len()).filter(|worker| fleet.worker(*worker).placeable);
    let mut workers = workers.map(|worker| (worker, fleet.permille(worker, 0)));
    workers.any(|(worker, full)| {
        least.is_far_below(full, limit)
            || (has_weightless[worker] && least.has_far_fewer(fleet.staying(worker), limit))
    })
}

/// Returns whether one worker has so many more replicas than another that a migration makes them
/// more even.
fn outnumbers(most: usize, least: usize, limit: u64) -> bool {
    let apart = most.saturating_sub(least);
    let permille = apart.saturating_mul(1_000) / most.max(1);
    1 < apart && limit < u64::try_from(permille).unwrap_or(u64::MAX)
}

/// Minimum load among some workers.
#[derive(Clone, Copy)]
struct Emptiest {
    permille: Option<u64>,
    replicas: Option<usize>,
}

impl Emptiest {
    /// Computes the minimum over the workers that may receive replicas and are `meant`.
    fn of(fleet: &Fleet<'_>, input: &PlacementInput<'_>, meant: impl Fn(usize) -> bool) -> Self {
        let young = &input.moves.young;
        let workers = (0..fleet.len()).filter(|index| {
            let worker = fleet.worker(*index);
            worker.placeable && !young.contains(worker.id) && meant(*index)
        });
        let permille = workers.clone().filter_map(|it| fleet.permille(it, 0));
        Self {
            permille: permille.min(),
            replicas: workers.map(|it| fleet.staying(it)).min(),
        }
    }

    fn is_far_below(&self, full: Option<u64>, limit: u64) -> bool {
        let both = full.zip(self.permille);
        both.is_some_and(|(full, empty)| empty.saturating_add(limit) < full)
    }

    fn has_far_fewer(&self, count: usize, limit: u64) -> bool {
        self.replicas
            .is_some_and(|least| outnumbers(count, least, limit))
    }
}

/// Returns migrations from the fullest workers, as many as may start.
pub(super) fn steps(
    wanted: &[DesiredVersion<'_>],
    held: &[Vec<usize>],
    fleet: &mut Fleet<'_>,
    input: &PlacementInput<'_>,
    limit: u64,
) -> Vec<Step> {
    let mut search = Search {
        wanted,
        held,
        input,
        limit,
        tried: 0,
        steps: Vec::new(),
        hopeless: vec![false; fleet.len()],
        emptiest: HashMap::new(),
    };
    while search.steps.len() < input.moves.may_begin {
        let Some(step) = search.next(fleet) else {
            break;
        };
        let bytes = wanted[step.wanted].counted_size();
        fleet.put(step.to, bytes);
        fleet.promise(step.from, step.to, bytes);
        search.steps.push(step);
    }
    search.steps
}

struct Search<'s, 'a> {
    wanted: &'s [DesiredVersion<'a>],
    held: &'s [Vec<usize>],
    input: &'s PlacementInput<'s>,
    limit: u64,
    tried: usize,
    steps: Vec<Step>,
    /// Workers without a replica that can be migrated.
    hopeless: Vec<bool>,
    /// Minimum load of the workers with these labels.
    emptiest: HashMap<&'a BTreeMap<String, String>, Emptiest>,
}

impl<'a> Search<'_, 'a> {
    /// The next migration, from the fullest worker with a movable replica.
    fn next(&mut self, fleet: &mut Fleet<'_>) -> Option<Step> {
        let full = |worker: usize| Reverse((fleet.permille(worker, 0), fleet.staying(worker)));
        let mut sources: Vec<_> = (0..fleet.len())
            .filter(|worker| !self.hopeless[*worker] && fleet.worker(*worker).placeable)
            .map(|worker| (full(worker), fleet.worker(worker).id, worker))
            .collect();
        sources.sort_unstable();
        let busy: HashSet<_> = (0..fleet.len())
            .filter(|worker| MAX_COMING <= fleet.coming(*worker))
            .map(|worker| fleet.worker(worker).id)
            .collect();
        for (_, _, from) in sources {
            if let Some(step) = self.off(from, &busy, fleet) {
                return Some(step);
            }
            self.hopeless[from] = true;
        }
        None
    }

    /// Finds a migration of the largest replica that is better placed elsewhere.
    fn off(
        &mut self,
        from: usize,
        busy: &HashSet<&WorkerId>,
        fleet: &mut Fleet<'_>,
    ) -> Option<Step> {
        let mut on_it = self.held[from].clone();
        on_it.retain(|index| self.may_gain(*index, from, fleet));
        on_it.sort_by_key(|index| Reverse(self.wanted[*index].counted_size()));
        for index in on_it {
            if MAX_TRIED <= self.tried {
                return None;
            }
            self.tried += 1;
            let (one, young) = (&self.wanted[index], &self.input.moves.young);
            let to = one.elsewhere(from, fleet, self.input, |worker| {
                !young.contains(worker) && !busy.contains(worker)
            });
            if let Some(to) = to
                && self.improves(one.counted_size(), from, to, fleet)
            {
                let wanted = index;
                return Some(Step { wanted, from, to });
            }
        }
        None
    }

    /// Returns whether a replica may migrate, and a worker with its labels is far emptier.
    fn may_gain(&mut self, index: usize, from: usize, fleet: &Fleet<'_>) -> bool {
        let one = &self.wanted[index];
        let Some(deployment) = one.entry.deployment.as_ref() else {
            return false;
        };
        let labels: &'a BTreeMap<String, String> = &deployment.options.labels;
        let input = self.input;
        let emptiest = *self.emptiest.entry(labels).or_insert_with(|| {
            Emptiest::of(fleet, input, |worker| fleet.has_labels(worker, labels))
        });
        let gains = match one.counted_size() {
            0 => emptiest.has_far_fewer(fleet.staying(from), self.limit),
            _ => emptiest.is_far_below(fleet.permille(from, 0), self.limit),
        };
        gains
            && !self.steps.iter().any(|step| step.wanted == index)
            && !input.moves.resting.contains(&one.entry.name)
            && one.may_move(fleet, input)
    }

    /// Returns whether the fuller of the two workers is far fuller, is less full afterwards, and
    /// both together are more even. So no sequence of migrations returns to its start.
    fn improves(&self, size: u64, from: usize, to: usize, fleet: &Fleet<'_>) -> bool {
        if size == 0 {
            return outnumbers(fleet.staying(from), fleet.staying(to), self.limit);
        }
        let before = fleet.permille(from, 0).zip(fleet.permille(to, 0));
        let Some((full, empty)) = before else {
            return false;
        };
        let after = fleet.permille(to, size).unwrap_or(u64::MAX);
        let left = full.saturating_sub(share(size, fleet.worker(from).budget_bytes));
        let far = empty.saturating_add(self.limit) < full;
        let even = empty.saturating_add(after).saturating_add(MARGIN) <= full.saturating_add(left);
        far && even && after.saturating_add(MARGIN) <= full
    }
}

/// Share of a budget in thousandths, rounded up.
fn share(size: u64, budget: u64) -> u64 {
    let permille = (u128::from(size) * 1_000).div_ceil(u128::from(budget.max(1)));
    u64::try_from(permille).unwrap_or(u64::MAX)
}
