//! Workers ordered by suitability for one more replica. A choice only checks the first few of each
//! zone instead of all workers.

use std::collections::{BTreeSet, HashMap};

use crate::input::PlacementWorker;

/// Maximum number of labels whose orders are cached. A plan with more labels builds some orders
/// repeatedly.
const MAX_ORDERS: usize = 8;

/// Load of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Rank for replicas with memory, lowest first: used share of memory, or free memory with
    /// packing.
    pub(crate) standing: u64,
    pub(crate) replicas: usize,
}

/// Rank in an order; the lowest is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerRank {
    memory: u64,
    replicas: usize,
    /// The worker's index by id.
    pub(crate) rank: usize,
}

/// The cached orders.
pub(crate) struct Ranks {
    /// Workers by id.
    by_id: Vec<usize>,
    /// Rank of each worker by id.
    rank: Vec<usize>,
    placeable: Vec<bool>,
    orders: HashMap<Option<String>, Order>,
}

/// The workers that may receive replicas, by the zones of one label.
pub(crate) struct Order {
    /// Zone of each worker.
    zone: Vec<usize>,
    /// Orders of each zone, for replicas with memory and without.
    sized: Vec<BTreeSet<WorkerRank>>,
    weightless: Vec<BTreeSet<WorkerRank>>,
}

impl Ranks {
    pub(crate) fn new(workers: &[PlacementWorker<'_>]) -> Self {
        let mut by_id: Vec<usize> = (0..workers.len()).collect();
        by_id.sort_by_key(|index| workers[*index].id);
        let mut rank = vec![0; workers.len()];
        for (place, index) in by_id.iter().enumerate() {
            rank[*index] = place;
        }
        Self {
            by_id,
            rank,
            placeable: workers.iter().map(|worker| worker.placeable).collect(),
            orders: HashMap::new(),
        }
    }

    /// Returns the worker with an id rank.
    pub(crate) fn worker(&self, rank: usize) -> usize {
        self.by_id[rank]
    }

    /// Returns the cached order by the zones of this label, or without zones.
    pub(crate) fn order(&self, spread: Option<&str>) -> Option<&Order> {
        self.orders.get(&spread.map(str::to_owned))
    }

    /// Builds the order of all workers from their zones and loads.
    pub(crate) fn put_in_order<'z>(
        &mut self,
        spread: Option<&str>,
        all: impl Iterator<Item = (Option<&'z str>, Load)>,
    ) {
        if MAX_ORDERS <= self.orders.len() {
            self.orders.clear();
        }
        let mut numbers: HashMap<Option<&str>, usize> = HashMap::new();
        let mut order = Order {
            zone: Vec::with_capacity(self.rank.len()),
            sized: Vec::new(),
            weightless: Vec::new(),
        };
        for (index, (name, load)) in all.enumerate() {
            let next = numbers.len();
            let zone = *numbers.entry(name).or_insert(next);
            if zone == next {
                order.sized.push(BTreeSet::new());
                order.weightless.push(BTreeSet::new());
            }
            order.zone.push(zone);
            if self.placeable[index] {
                order.enter(self.rank[index], zone, load);
            }
        }
        self.orders.insert(spread.map(str::to_owned), order);
    }

    /// Updates the orders after the load of a worker changed.
    pub(crate) fn moved(&mut self, index: usize, before: Load, now: Load) {
        if !self.placeable[index] {
            return;
        }
        let rank = self.rank[index];
        for order in self.orders.values_mut() {
            let zone = order.zone[index];
            order.leave(rank, zone, before);
            order.enter(rank, zone, now);
        }
    }
}

impl Order {
    fn enter(&mut self, rank: usize, zone: usize, load: Load) {
        let (sized, weightless) = standings(rank, load);
        self.sized[zone].insert(sized);
        self.weightless[zone].insert(weightless);
    }

    fn leave(&mut self, rank: usize, zone: usize, load: Load) {
        let (sized, weightless) = standings(rank, load);
        self.sized[zone].remove(&sized);
        self.weightless[zone].remove(&weightless);
    }

    /// Returns all zones with their number of `kept` replicas, fewest first.
    pub(crate) fn emptiest_first(&self, kept: &[usize]) -> Vec<(usize, usize)> {
        let mut zones: Vec<_> = (0..self.sized.len()).map(|zone| (0, zone)).collect();
        for index in kept {
            zones[self.zone[*index]].0 += 1;
        }
        zones.sort_unstable();
        zones
    }

    /// Returns the best worker of a zone for a replica of this size, among those that are meant and
    /// have a rank of at least `least`.
    pub(crate) fn first(
        &self,
        zone: usize,
        size: u64,
        least: u64,
        is_meant: impl Fn(usize) -> bool,
    ) -> Option<WorkerRank> {
        let (all, memory) = match size {
            0 => (&self.weightless[zone], 0),
            _ => (&self.sized[zone], least),
        };
        let from = WorkerRank {
            memory,
            replicas: 0,
            rank: 0,
        };
        all.range(from..).find(|it| is_meant(it.rank)).copied()
    }
}

/// Memory use is irrelevant for replicas without memory.
fn standings(rank: usize, load: Load) -> (WorkerRank, WorkerRank) {
    let sized = WorkerRank {
        memory: load.standing,
        replicas: load.replicas,
        rank,
    };
    let weightless = WorkerRank { memory: 0, ..sized };
    (sized, weightless)
}
