//! Planning state of the workers: their load, and the choice of the best worker for a replica.

use std::collections::{BTreeMap, HashMap};

use volley_types::WorkerId;
use volley_types::registry::PlacementStrategy;

use crate::input::{PlacementInput, PlacementWorker};
use crate::ranks::{Load, Ranks};

/// Requirements of a replica.
pub(crate) struct ReplicaRequirements<'a> {
    pub(crate) labels: &'a BTreeMap<String, String>,
    /// The only allowed workers; empty for any.
    pub(crate) allowed: &'a [WorkerId],
    pub(crate) spread: Option<&'a str>,
    pub(crate) size: u64,
    /// Workers that are only used if no other fits.
    pub(crate) avoid: &'a [usize],
}

/// All workers, with the replicas that the plan has placed so far.
pub(crate) struct Fleet<'a> {
    workers: &'a [PlacementWorker<'a>],
    index: HashMap<&'a WorkerId, usize>,
    taken_bytes: Vec<u64>,
    replicas: Vec<usize>,
    /// Bytes and replicas that leave each worker after their migrations.
    promised: Vec<(u64, usize)>,
    /// Number of replicas that migrate to each worker.
    coming: Vec<usize>,
    most_replicas: Option<usize>,
    strategy: PlacementStrategy,
    ranks: Ranks,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(input: &'a PlacementInput<'a>) -> Self {
        let workers = &input.workers;
        let numbered = workers.iter().enumerate();
        Self {
            index: numbered.map(|(index, worker)| (worker.id, index)).collect(),
            taken_bytes: vec![0; workers.len()],
            replicas: vec![0; workers.len()],
            promised: vec![(0, 0); workers.len()],
            coming: vec![0; workers.len()],
            most_replicas: input.most_replicas,
            strategy: input.strategy,
            ranks: Ranks::new(workers),
            workers,
        }
    }

    pub(crate) fn find(&self, id: &WorkerId) -> Option<usize> {
        self.index.get(id).copied()
    }

    pub(crate) fn worker(&self, index: usize) -> &'a PlacementWorker<'a> {
        &self.workers[index]
    }

    pub(crate) fn put(&mut self, index: usize, bytes: u64) {
        let before = self.load(index);
        self.replicas[index] += 1;
        self.taken_bytes[index] = self.taken_bytes[index].saturating_add(bytes);
        self.ranks.moved(index, before, self.load(index));
    }

    /// Removes a replica from a worker.
    pub(crate) fn take(&mut self, index: usize, bytes: u64) {
        let before = self.load(index);
        self.replicas[index] = self.replicas[index].saturating_sub(1);
        self.taken_bytes[index] = self.taken_bytes[index].saturating_sub(bytes);
        self.ranks.moved(index, before, self.load(index));
    }

    /// Records a migration from `from` to `to`. The replica counts on both workers until its end.
    pub(crate) fn promise(&mut self, from: usize, to: usize, bytes: u64) {
        self.promised[from].0 = self.promised[from].0.saturating_add(bytes);
        self.promised[from].1 += 1;
        self.coming[to] += 1;
    }

    /// Returns the number of replicas that migrate to a worker.
    pub(crate) fn coming(&self, index: usize) -> usize {
        self.coming[index]
    }

    /// Number of workers.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns the memory use of a worker in thousandths, after all migrations and with `more`
    /// bytes; `None` if its budget is unknown.
    pub(crate) fn permille(&self, index: usize, more: u64) -> Option<u64> {
        let budget = self.workers[index].budget_bytes;
        let stays = self.taken_bytes[index].saturating_sub(self.promised[index].0);
        let taken = u128::from(stays.saturating_add(more)) * 1_000;
        let permille = taken.checked_div(u128::from(budget))?;
        Some(u64::try_from(permille).unwrap_or(u64::MAX))
    }

    /// Number of replicas on a worker after all migrations.
    pub(crate) fn staying(&self, index: usize) -> usize {
        self.replicas[index].saturating_sub(self.promised[index].1)
    }

    /// Number of `kept` replicas in the zone of a worker.
    pub(crate) fn mates(&self, index: usize, kept: &[usize], spread: Option<&str>) -> usize {
        let zone = self.zone(index, spread);
        let mates = kept.iter();
        mates
            .filter(|mate| self.zone(**mate, spread) == zone)
            .count()
    }

    /// Whether a worker could hold one more replica beside `kept` if it were empty.
    pub(crate) fn could_hold(
        &self,
        index: usize,
        need: &ReplicaRequirements<'_>,
        kept: &[usize],
    ) -> bool {
        let worker = &self.workers[index];
        worker.placeable
            && (worker.budget_bytes == 0 || need.size <= worker.budget_bytes)
            && !kept.contains(&index)
            && (need.allowed.is_empty() || need.allowed.contains(worker.id))
            && self.has_labels(index, need.labels)
    }

    /// Missing capacity of a worker for one more replica of this size: bytes and replicas.
    pub(crate) fn lacks(&self, index: usize, size: u64) -> (u64, usize) {
        let budget = self.workers[index].budget_bytes;
        let wanted = self.taken_bytes[index].saturating_add(size);
        let bytes = match budget {
            0 => 0,
            _ => wanted.saturating_sub(budget),
        };
        let most = self.most_replicas.unwrap_or(usize::MAX);
        (bytes, (self.replicas[index] + 1).saturating_sub(most))
    }

    /// A worker with unknown labels counts as matching, because its heartbeat has not arrived yet.
    pub(crate) fn has_labels(&self, index: usize, wanted: &BTreeMap<String, String>) -> bool {
        let Some(labels) = self.workers[index].labels else {
            return true;
        };
        let mut wanted = wanted.iter();
        wanted.all(|(name, value)| labels.get(name) == Some(value))
    }

    fn zone(&self, index: usize, spread: Option<&str>) -> Option<&'a str> {
        let labels = self.workers[index].labels?;
        labels.get(spread?).map(String::as_str)
    }

    fn fits(&self, index: usize, size: u64) -> bool {
        let budget = self.workers[index].budget_bytes;
        budget == 0 || self.taken_bytes[index].saturating_add(size) <= budget
    }

    /// Returns the best worker for one more replica beside those in `kept`. Candidates have free
    /// capacity and `may` hold it. They are ordered by: the zone with the fewest of `kept`, not
    /// avoided, least full (or least free memory with packing), fewest replicas, lowest id.
    pub(crate) fn best(
        &mut self,
        need: &ReplicaRequirements<'_>,
        kept: &[usize],
        may: impl Fn(&WorkerId) -> bool,
    ) -> Option<usize> {
        self.order(need.spread);
        let order = self.ranks.order(need.spread)?;
        let can = |index: usize| {
            let worker = &self.workers[index];
            let room = self
                .most_replicas
                .is_none_or(|most| self.replicas[index] < most);
            room && (need.allowed.is_empty() || need.allowed.contains(worker.id))
                && self.fits(index, need.size)
                && !kept.contains(&index)
                && self.has_labels(index, need.labels)
                && may(worker.id)
        };
        // Workers with less free memory are ordered before this rank.
        let least = match self.strategy {
            PlacementStrategy::Spread => 0,
            PlacementStrategy::Pack => need.size,
        };
        let zones = order.emptiest_first(kept);
        for zones in zones.chunk_by(|one, other| one.0 == other.0) {
            for avoided in [false, true] {
                let is_meant = |index: usize| need.avoid.contains(&index) == avoided && can(index);
                let firsts = zones.iter().filter_map(|(_, zone)| {
                    order.first(*zone, need.size, least, |rank| {
                        is_meant(self.ranks.worker(rank))
                    })
                });
                if let Some(least) = firsts.min() {
                    return Some(self.ranks.worker(least.rank));
                }
                if need.avoid.is_empty() {
                    break;
                }
            }
        }
        None
    }

    /// Builds the order of the workers by zone, unless it is cached.
    fn order(&mut self, spread: Option<&str>) {
        if self.ranks.order(spread).is_some() {
            return;
        }
        let all = 0..self.workers.len();
        let all: Vec<_> = all
            .map(|index| (self.zone(index, spread), self.load(index)))
            .collect();
        self.ranks.put_in_order(spread, all.into_iter());
    }

    /// Load of a worker: memory rank and replicas. A worker with an unknown budget counts as empty
    /// and unlimited.
    fn load(&self, index: usize) -> Load {
        let (budget, taken) = (self.workers[index].budget_bytes, self.taken_bytes[index]);
        let standing = match (self.strategy, budget) {
            (PlacementStrategy::Spread, 0) => 0,
            (PlacementStrategy::Spread, _) => {
                let permille = u128::from(taken) * 1_000 / u128::from(budget);
                u64::try_from(permille).unwrap_or(u64::MAX)
            }
            (PlacementStrategy::Pack, 0) => u64::MAX,
            (PlacementStrategy::Pack, _) => budget.saturating_sub(taken),
        };
        Load {
            standing,
            replicas: self.replicas[index],
        }
    }

    /// Reduces `kept` to `count` replicas: removes replicas that are not ready first, then those in
    /// the fullest zones, last ones first.
    pub(crate) fn drop_surplus(
        &self,
        kept: &mut Vec<usize>,
        count: usize,
        spread: Option<&str>,
        ready: impl Fn(&usize) -> bool,
    ) {
        while count < kept.len() {
            let crowd = |index: &usize| {
                let zone = self.zone(*index, spread);
                kept.iter()
                    .filter(|other| self.zone(**other, spread) == zone)
                    .count()
            };
            let worst =
                (0..kept.len()).max_by_key(|at| (!ready(&kept[*at]), crowd(&kept[*at]), *at));
            match worst {
                Some(worst) => kept.remove(worst),
                None => return,
            };
        }
    }
}

#[cfg(test)]
mod tests;
