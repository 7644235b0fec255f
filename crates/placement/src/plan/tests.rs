use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use volley_types::registry::{DeployOptions, Drain, PlacementStrategy, Rollout};
use volley_types::{ModelName, Revision};

use super::*;
use crate::input::{Moves, PlacementWorker};
use crate::output::Move;

mod drains;
mod moves;

const ZONES: [&str; 3] = ["a", "b", "c"];

/// A small cluster: workers in three zones, and models with sizes.
struct World {
    ids: Vec<WorkerId>,
    labels: Vec<BTreeMap<String, String>>,
    there: Vec<bool>,
    drained: BTreeMap<usize, Drain>,
    budget: u64,
    /// Budgets that differ from `budget`.
    budgets: BTreeMap<usize, u64>,
    most: Option<usize>,
    strategy: PlacementStrategy,
    /// Maximum number of running migrations.
    moves: usize,
    /// Difference above which workers are rebalanced, in thousandths.
    apart: Option<u64>,
    under_way: BTreeMap<ModelName, Move>,
    /// Models that must not migrate, and workers that must not be filled.
    fixed: BTreeSet<ModelName>,
    resting: BTreeSet<ModelName>,
    young: BTreeSet<WorkerId>,
    /// Workers whose heartbeats are late.
    silent: BTreeSet<usize>,
    state: RegistryState,
    sizes: BTreeMap<ModelName, u64>,
    failed: BTreeMap<(ModelName, WorkerId), String>,
    /// Ready replicas.
    ready: BTreeSet<(ModelName, ModelVersion, WorkerId)>,
}

fn model(index: usize) -> ModelName {
    ModelName::new(format!("m{index}")).unwrap()
}

impl World {
    fn new(workers: usize, budget: u64) -> Self {
        let zone =
            |index: usize| BTreeMap::from([("zone".to_owned(), ZONES[index % 3].to_owned())]);
        Self {
            ids: (0..workers)
                .map(|index| WorkerId::new(format!("w{index}")).unwrap())
                .collect(),
            labels: (0..workers).map(zone).collect(),
            there: vec![true; workers],
            drained: BTreeMap::new(),
            budget,
            budgets: BTreeMap::new(),
            most: None,
            strategy: PlacementStrategy::Spread,
            moves: 0,
            apart: None,
            under_way: BTreeMap::new(),
            fixed: BTreeSet::new(),
            resting: BTreeSet::new(),
            young: BTreeSet::new(),
            silent: BTreeSet::new(),
            state: RegistryState::default(),
            sizes: BTreeMap::new(),
            failed: BTreeMap::new(),
            ready: BTreeSet::new(),
        }
    }

    fn deploy(&mut self, index: usize, replicas: u32, size: u64, options: DeployOptions) {
        let deployment = Deployment {
            options,
            ..Deployment::new(ModelVersion(1), replicas, Revision(1))
        };
        let entry = ModelEntry {
            name: model(index),
            versions: BTreeMap::new(),
            deployment: Some(deployment),
            placement: Vec::new(),
            ever_deployed: true,
            group: None,
            deleted_tasks: BTreeSet::new(),
        };
        self.sizes.insert(model(index), size);
        self.state.models.insert(model(index), Arc::new(entry));
    }

    fn plan(&self) -> Plan {
        let workers = (0..self.ids.len()).map(|index| PlacementWorker {
            id: &self.ids[index],
            placeable: self.there[index]
                && !self.drained.contains_key(&index)
                && !self.silent.contains(&index),
            keep: self.there[index],
            labels: Some(&self.labels[index]),
            budget_bytes: self.budget_of(index),
            drain: self.drained.get(&index).copied(),
        });
        let versions = [ModelVersion(1), ModelVersion(2)];
        let sizes = self
            .sizes
            .iter()
            .flat_map(|(model, size)| versions.map(|version| ((model, version), *size)));
        let failed = self.failed.iter().map(|((model, worker), reason)| {
            let version = self.state.models[model]
                .deployment
                .as_ref()
                .unwrap()
                .version;
            ((model, version, worker), reason.as_str())
        });
        let input = PlacementInput {
            most_replicas: self.most,
            strategy: self.strategy,
            moves: Moves {
                under_way: self.under_way.iter().collect(),
                may_begin: self.moves.saturating_sub(self.under_way.len()),
                imbalance: self.apart,
                resting: self.resting.iter().collect(),
                fixed: self.fixed.iter().collect(),
                young: self.young.iter().collect(),
            },
            workers: workers.collect(),
            sizes: sizes.collect(),
            failed: failed.collect(),
            ready: self
                .ready
                .iter()
                .map(|(model, version, worker)| (model, *version, worker))
                .collect(),
        };
        plan(&self.state, &input)
    }

    /// Applies the plan as the registry does. Returns the number of replicas that changed their
    /// worker.
    fn follow(&mut self, plan: &Plan) -> usize {
        let mut moved = 0;
        for placing in &plan.placings {
            let entry = self.state.models.get_mut(&placing.model).unwrap();
            let entry = Arc::make_mut(entry);
            moved += placing
                .workers
                .iter()
                .filter(|worker| !entry.placement.contains(worker))
                .count();
            entry.placement.clone_from(&placing.workers);
            let deployment = entry.deployment.as_mut().unwrap();
            if let Some(rollout) = &mut deployment.rollout {
                rollout.previous.clone_from(&placing.previous);
                if rollout.previous.is_empty() && deployment.options.keep_previous == 0 {
                    deployment.rollout = None;
                }
            }
        }
        let begun = plan.moves.iter();
        self.under_way
            .extend(begun.map(|one| (one.model.clone(), one.clone())));
        let models = &self.state.models;
        self.under_way.retain(|name, one| {
            let Some(entry) = models.get(name) else {
                return false;
            };
            let wanted = entry
                .deployment
                .as_ref()
                .map_or(0, |it| it.replicas as usize);
            let placed = [&one.from, &one.to].map(|worker| entry.placement.contains(worker));
            placed == [true, true] && wanted < entry.placement.len()
        });
        moved
    }

    fn budget_of(&self, worker: usize) -> u64 {
        self.budgets.get(&worker).copied().unwrap_or(self.budget)
    }

    fn settle(&mut self) -> usize {
        let plan = self.plan();
        let moved = self.follow(&plan);
        assert_eq!(self.plan().placings, [], "one plan settles it");
        moved
    }

    fn placed(&self, index: usize) -> Vec<usize> {
        let placement = &self.state.models[&model(index)].placement;
        let place = |id: &WorkerId| self.ids.iter().position(|other| other == id).unwrap();
        placement.iter().map(place).collect()
    }

    fn taken(&self, worker: usize) -> u64 {
        let on = self.state.models.values().map(|entry| {
            let times = entry.placed(&self.ids[worker]).count() as u64;
            self.sizes[&entry.name] * times
        });
        on.sum()
    }
}

fn labelled(name: &str, value: &str) -> DeployOptions {
    DeployOptions {
        labels: BTreeMap::from([(name.to_owned(), value.to_owned())]),
        ..DeployOptions::default()
    }
}

fn spread() -> DeployOptions {
    DeployOptions {
        spread: Some("zone".to_owned()),
        ..DeployOptions::default()
    }
}

#[test]
fn replicas_go_to_the_emptiest_with_the_labels_over_the_zones_and_the_large_first() {
    let mut world = World::new(6, 10);
    world.deploy(0, 1, 2, labelled("zone", "b"));
    world.deploy(1, 3, 1, spread());
    world.deploy(2, 2, 9, DeployOptions::default());
    world.settle();
    assert_eq!(world.placed(0).len(), 1);
    assert_eq!(world.placed(0)[0] % 3, 1);
    let zones: BTreeSet<usize> = world.placed(1).iter().map(|worker| worker % 3).collect();
    assert_eq!(zones.len(), 3);
    assert_eq!(world.placed(2).len(), 2);
}

#[test]
fn what_fits_nowhere_waits_and_a_new_worker_takes_it() {
    let mut world = World::new(2, 10);
    world.there[1] = false;
    world.deploy(0, 1, 6, DeployOptions::default());
    world.deploy(1, 1, 6, DeployOptions::default());
    world.settle();
    assert_eq!((world.placed(0), world.placed(1)), (vec![0], vec![]));
    assert_eq!(world.plan().unschedulable, 1);
    world.there[1] = true;
    assert_eq!(world.settle(), 1, "and nothing else moves");
    assert_eq!(world.placed(1), [1]);
}

#[test]
fn a_list_of_workers_and_a_limit_for_each_are_kept_to() {
    let mut world = World::new(4, 10);
    world.deploy(0, 2, 0, DeployOptions::default());
    world.settle();
    assert_eq!(world.placed(0), [0, 1]);
    let allowed = vec![world.ids[1].clone(), world.ids[3].clone()];
    let entry = Arc::make_mut(world.state.models.get_mut(&model(0)).unwrap());
    entry.deployment.as_mut().unwrap().workers = allowed;
    world.settle();
    assert_eq!(world.placed(0), [1, 3]);
    world.most = Some(1);
    world.deploy(1, 4, 0, DeployOptions::default());
    world.settle();
    assert_eq!(world.placed(1), [0, 2], "the others have their one");
}

#[test]
fn a_failed_replica_migrations_where_it_can_and_stays_where_it_cannot() {
    let mut world = World::new(2, 10);
    world.deploy(0, 1, 1, DeployOptions::default());
    world.settle();
    world
        .failed
        .insert((model(0), world.ids[0].clone()), "why".to_owned());
    world.settle();
    assert_eq!(world.placed(0), [1]);
    world
        .failed
        .insert((model(0), world.ids[1].clone()), "why".to_owned());
    world.settle();
    assert_eq!(world.placed(0), [1]);
}

/// Starts to replace version 1 by version 2.
fn begin_roll(world: &mut World, options: DeployOptions) {
    world.deploy(0, 3, 1, options);
    world.settle();
    let entry = Arc::make_mut(world.state.models.get_mut(&model(0)).unwrap());
    let previous = std::mem::take(&mut entry.placement);
    for worker in &previous {
        world
            .ready
            .insert((model(0), ModelVersion(1), worker.clone()));
    }
    let deployment = entry.deployment.as_mut().unwrap();
    deployment.version = ModelVersion(2);
    deployment.rollout = Some(Rollout {
        from: ModelVersion(1),
        previous,
        paused: false,
        stopped: None,
    });
}

#[test]
fn a_roll_replaces_one_by_one_and_stops_at_the_first_that_cannot_be_loaded() {
    let mut world = World::new(4, 10);
    begin_roll(&mut world, DeployOptions::default());
    let mut rounds = 0;
    while let Some(rollout) = world.state.models[&model(0)]
        .deployment
        .clone()
        .unwrap()
        .rollout
    {
        let placed = world.placed(0).len();
        assert!(placed + rollout.previous.len() <= 4, "one too many at most");
        let serving = world.ready.iter().filter(|(name, version, worker)| {
            world.state.models[name]
                .placed(worker)
                .any(|held| held == *version)
        });
        assert!(3 <= serving.count(), "as many serve as before");
        let plan = world.plan();
        world.follow(&plan);
        for worker in world.state.models[&model(0)].placement.clone() {
            world.ready.insert((model(0), ModelVersion(2), worker));
        }
        rounds += 1;
        assert!(rounds < 20, "it ends");
    }
    assert_eq!(world.placed(0).len(), 3);

    let mut world = World::new(4, 10);
    begin_roll(&mut world, DeployOptions::default());
    let plan = world.plan();
    world.follow(&plan);
    let failed = world.state.models[&model(0)].placement[0].clone();
    world
        .failed
        .insert((model(0), failed), "no such file".to_owned());
    let plan = world.plan();
    assert_eq!(plan.stops, [(model(0), "no such file".to_owned())]);
    assert_eq!(plan.placings, [], "what serves goes on");
}

#[test]
fn a_version_that_stays_beside_another_keeps_its_number_whatever_dies() {
    let mut world = World::new(4, 10);
    let beside = DeployOptions {
        keep_previous: 2,
        ..DeployOptions::default()
    };
    begin_roll(&mut world, beside);
    let entry = Arc::make_mut(world.state.models.get_mut(&model(0)).unwrap());
    entry.deployment.as_mut().unwrap().replicas = 1;
    let previous = |world: &World| {
        let deployment = world.state.models[&model(0)].deployment.clone().unwrap();
        deployment.rollout.unwrap().previous
    };
    world.settle();
    assert_eq!(world.placed(0).len(), 1);
    assert_eq!(
        previous(&world).len(),
        3,
        "none goes before the new one serves"
    );
    let new = world.state.models[&model(0)].placement[0].clone();
    world.ready.insert((model(0), ModelVersion(2), new));
    world.settle();
    assert_eq!((world.placed(0).len(), previous(&world).len()), (1, 2));
    let gone = previous(&world)[0].clone();
    let place = world.ids.iter().position(|id| *id == gone).unwrap();
    world.there[place] = false;
    world.settle();
    assert_eq!(previous(&world).len(), 2, "it is brought back");
    assert!(!previous(&world).contains(&gone));
    world.there = vec![false; 4];
    world.settle();
    assert_eq!(previous(&world), []);
    world.there = vec![true; 4];
    world.settle();
    assert_eq!((world.placed(0).len(), previous(&world).len()), (1, 2));
}

fn any_options() -> impl Strategy<Value = DeployOptions> {
    prop_oneof![
        Just(DeployOptions::default()),
        Just(spread()),
        (0_usize..3).prop_map(|zone| labelled("zone", ZONES[zone])),
    ]
}

proptest! {
    #[test]
    fn never_over_memory_never_twice_on_one_worker_and_only_what_must_moves(
        models in proptest::collection::vec((1_u32..5, 0_u64..6, any_options()), 1..12),
        changes in proptest::collection::vec((0_usize..7, any::<bool>()), 0..12),
        budget in 0_u64..24,
    ) {
        let mut world = World::new(7, budget);
        for (index, (replicas, size, options)) in models.iter().enumerate() {
            world.deploy(index, *replicas, *size, options.clone());
        }
        world.settle();
        for (worker, there) in changes {
            // At most the replicas of the worker, and the unschedulable ones, may change their
            // worker.
            let lost = if there { 0 } else { world.state.models.values().map(|entry| entry.placed(&world.ids[worker]).count()).sum() };
            let unschedulable = world.plan().unschedulable;
            world.there[worker] = there;
            let moved = world.settle();
            prop_assert!(moved <= lost + unschedulable, "{moved} moved, {lost} lost, {unschedulable} waited");
            let again = world.plan();
            prop_assert_eq!(&again, &world.plan(), "the same every time");
            for (index, (replicas, _, options)) in models.iter().enumerate() {
                let placed = world.placed(index);
                prop_assert!(placed.len() <= *replicas as usize);
                prop_assert_eq!(placed.iter().collect::<BTreeSet<_>>().len(), placed.len());
                for worker in placed {
                    prop_assert!(world.there[worker]);
                    prop_assert!(options.labels.iter().all(|(name, value)| world.labels[worker].get(name) == Some(value)));
                }
            }
            for worker in 0..7 {
                prop_assert!(budget == 0 || world.taken(worker) <= budget);
            }
        }
    }
}
