//! Migrations between live workers.

use super::*;
use crate::output::MoveReason;

/// Maximum number of running migrations.
const MOST: usize = 8;
/// Rounds after which all migrations must have ended.
const ROUNDS: usize = 400;

impl World {
    /// Allows migrations, and rebalancing above this difference.
    fn moving(mut self, apart: u64) -> Self {
        self.moves = MOST;
        self.apart = Some(apart);
        self
    }

    fn serving(&self, index: usize) -> usize {
        let placed = self.placed(index);
        let ready = placed.iter().filter(|worker| {
            let held = (model(index), ModelVersion(1), self.ids[**worker].clone());
            self.there[**worker] && self.ready.contains(&held)
        });
        ready.count()
    }

    fn load_here(&mut self) {
        let placed = self.state.models.values().flat_map(|entry| {
            let workers = entry.placement.iter();
            workers.map(|id| (entry.name.clone(), ModelVersion(1), id.clone()))
        });
        self.ready = placed.collect();
    }

    /// Plans, applies and loads until nothing changes. Returns the started migrations.
    fn rest(&mut self) -> Vec<Move> {
        let mut begun = Vec::new();
        for _ in 0..ROUNDS {
            let before: Vec<_> = (0..self.state.models.len())
                .map(|index| self.serving(index))
                .collect();
            let plan = self.plan();
            self.check_begun(&plan);
            self.follow(&plan);
            begun.extend(plan.moves.iter().cloned());
            for (index, before) in before.iter().enumerate() {
                let wanted = self.state.models[&model(index)].deployment.as_ref();
                let wanted = wanted.map_or(0, |deployment| deployment.replicas as usize);
                let left = self.serving(index);
                assert!(
                    (*before).min(wanted) <= left,
                    "model {index} lost a replica"
                );
            }
            self.check();
            let loaded = self.ready.clone();
            self.load_here();
            let nothing_new = plan.placings.is_empty() && loaded == self.ready;
            if nothing_new && self.under_way.is_empty() {
                return begun;
            }
        }
        panic!("it never rests: {begun:?}");
    }

    /// Checks that started migrations are bounded, remove no replica, and do not worsen the spread.
    fn check_begun(&self, plan: &Plan) {
        assert!(self.under_way.len() + plan.moves.len() <= MOST);
        let mut models = BTreeSet::new();
        for one in &plan.moves {
            assert!(models.insert(&one.model) && !self.under_way.contains_key(&one.model));
            let entry = &self.state.models[&one.model];
            let deployment = entry.deployment.as_ref().unwrap();
            assert!(deployment.workers.is_empty() && deployment.rollout.is_none());
            let placing = plan.placings.iter().find(|it| it.model == one.model);
            let placed = &placing.unwrap().workers;
            assert!(entry.placement.contains(&one.from) && !entry.placement.contains(&one.to));
            assert!(entry.placement.iter().all(|worker| placed.contains(worker)));
            assert_eq!(placed.len(), entry.placement.len() + 1);
            let zone = |id: &WorkerId| self.ids.iter().position(|it| it == id).unwrap() % 3;
            let mates = |worker: &WorkerId| {
                let others = entry.placement.iter().filter(|other| **other != one.from);
                others.filter(|other| zone(other) == zone(worker)).count()
            };
            if deployment.options.spread.is_some() {
                assert!(mates(&one.to) <= mates(&one.from), "{one:?}");
            }
        }
    }

    fn check(&self) {
        for (index, entry) in self.state.models.values().enumerate() {
            let placed = &entry.placement;
            let distinct: BTreeSet<_> = placed.iter().collect();
            assert_eq!(
                distinct.len(),
                placed.len(),
                "model {index} is twice on one worker"
            );
            let moving = usize::from(self.under_way.contains_key(&entry.name));
            let wanted = entry
                .deployment
                .as_ref()
                .map_or(0, |it| it.replicas as usize);
            assert!(placed.len() <= wanted + moving, "model {index}: {placed:?}");
        }
        for worker in 0..self.ids.len() {
            let budget = self.budget_of(worker);
            assert!(
                budget == 0 || self.taken(worker) <= budget,
                "worker {worker}"
            );
        }
    }

    fn counts(&self) -> Vec<usize> {
        let held = self.ids.iter().map(|id| {
            let models = self.state.models.values();
            models.map(|entry| entry.placed(id).count()).sum()
        });
        held.collect()
    }
}

/// Three workers with twelve models, and a fourth worker that joins. With size 1 a model takes a
/// tenth of a worker.
fn with_a_new_worker(size: u64) -> World {
    let mut world = World::new(4, 10);
    world.there[3] = false;
    for index in 0..12 {
        world.deploy(index, 1, size, DeployOptions::default());
    }
    world.rest();
    assert_eq!(world.counts(), [4, 4, 4, 0]);
    world.there[3] = true;
    world
}

#[test]
fn a_new_worker_is_filled_two_at_a_time_and_then_nothing_moves_any_more() {
    for size in [1, 0] {
        let mut world = with_a_new_worker(size);
        assert_eq!(world.rest(), [], "nobody has asked for it");
        let mut world = world.moving(100);
        let plan = world.plan();
        assert_eq!(plan.moves.len(), 2);
        assert_eq!(world.follow(&plan), 2);
        assert_eq!(world.plan().placings, [], "those come first");
        world.load_here();
        let begun = world.rest();
        assert!(begun.iter().all(|one| one.reason == MoveReason::Rebalance));
        assert_eq!(world.counts(), [3, 3, 3, 3]);
        assert_eq!(begun.len() + 2, 3);
        assert!(!world.plan().moves_wanted);
    }
}

#[test]
fn who_is_not_far_fuller_keeps_what_it_has() {
    let mut world = with_a_new_worker(1).moving(400);
    assert!(!world.plan().moves_wanted, "400 apart is not more than 400");
    assert_eq!(world.rest(), []);
    // Migrating one large model would only swap the workers.
    let mut world = World::new(2, 10).moving(100);
    world.deploy(0, 1, 9, DeployOptions::default());
    assert_eq!(world.rest(), []);
}

#[test]
fn what_is_pinned_young_rolling_or_not_ready_stays() {
    let mut world = with_a_new_worker(1).moving(100);
    world.young.insert(world.ids[3].clone());
    assert_eq!(world.rest(), []);
    world.young.clear();
    world.resting = (0..12).map(model).collect();
    assert_eq!(world.rest(), []);
    world.resting.clear();
    world.fixed = (0..12).map(model).collect();
    assert_eq!(world.rest(), []);
    world.fixed.clear();
    world.ready.clear();
    assert_eq!(world.plan().moves, [], "none of them serves");
    world.load_here();
    world.drained.insert(0, Drain { force: false });
    assert!(world.plan().moves.is_empty(), "a drain comes first");
    world.drained.clear();
    for index in 0..12 {
        let home = world.ids[world.placed(index)[0]].clone();
        let entry = Arc::make_mut(world.state.models.get_mut(&model(index)).unwrap());
        entry.deployment.as_mut().unwrap().workers = vec![home];
    }
    assert_eq!(world.rest(), []);
    assert_eq!(world.counts(), [4, 4, 4, 0]);
}

#[test]
fn nothing_is_rebalanced_while_a_version_follows_another_or_a_worker_is_silent() {
    let mut world = World::new(7, 4).moving(100);
    begin_roll(&mut world, DeployOptions::default());
    assert!(!world.plan().moves_wanted);
    let entry = Arc::make_mut(world.state.models.get_mut(&model(0)).unwrap());
    let deployment = entry.deployment.as_mut().unwrap();
    deployment.rollout.as_mut().unwrap().paused = true;
    let plan = world.plan();
    assert!(
        plan.moves_wanted && plan.moves.is_empty(),
        "others may move"
    );
    let mut world = with_a_new_worker(1).moving(100);
    world.silent.insert(0);
    assert!(!world.plan().moves_wanted);
    world.silent.clear();
    assert!(world.plan().moves_wanted);
}

#[test]
fn a_replica_without_a_place_gets_in_by_one_move() {
    let mut world = World::new(2, 10);
    for (index, size) in [6, 3, 3].into_iter().enumerate() {
        world.deploy(index, 1, size, DeployOptions::default());
    }
    world.rest();
    world.deploy(3, 1, 7, DeployOptions::default());
    world.rest();
    assert_eq!((world.placed(3), world.plan().unschedulable), (vec![], 1));
    world.moves = MOST;
    let begun = world.rest();
    assert_eq!(begun.len(), 1);
    assert_eq!(begun[0].reason, MoveReason::Room);
    assert_eq!((world.placed(3), world.plan().unschedulable), (vec![1], 0));
}

#[test]
fn a_few_make_room_together_and_none_moves_for_what_cannot_be_helped() {
    let mut world = World::new(3, 10);
    for (index, size) in [3, 3, 3, 3, 6].into_iter().enumerate() {
        world.deploy(index, 1, size, DeployOptions::default());
    }
    world.rest();
    world.moves = MOST;
    world.deploy(5, 1, 10, DeployOptions::default());
    assert_eq!(world.rest().len(), 2);
    assert_eq!(world.plan().unschedulable, 0);
    world.deploy(6, 1, 5, DeployOptions::default());
    assert_eq!(world.rest(), []);
    assert_eq!(world.plan().unschedulable, 1);
    world.deploy(7, 1, 1, labelled("zone", "nowhere"));
    world.rest();
    assert_eq!(world.plan().unschedulable, 2);
}

#[test]
fn a_limit_on_the_number_of_models_is_room_too() {
    let mut world = World::new(4, 0);
    world.most = Some(1);
    world.deploy(0, 1, 0, DeployOptions::default());
    world.rest();
    assert_eq!(world.placed(0), [0]);
    world.deploy(1, 2, 0, labelled("zone", "a"));
    world.rest();
    assert_eq!(world.plan().unschedulable, 1);
    world.moves = MOST;
    world.rest();
    let mut placed = world.placed(1);
    placed.sort_unstable();
    assert_eq!((placed, world.plan().unschedulable), (vec![0, 3], 0));
}

#[test]
fn packed_replicas_leave_whole_workers_free_and_nothing_fills_them() {
    let mut spread = World::new(3, 10);
    let mut packed = World::new(3, 10).moving(100);
    packed.strategy = PlacementStrategy::Pack;
    packed.apart = None;
    for world in [&mut spread, &mut packed] {
        for index in 0..6 {
            world.deploy(index, 1, 2, DeployOptions::default());
        }
        world.rest();
        world.deploy(6, 1, 9, DeployOptions::default());
    }
    assert_eq!(spread.counts(), [2, 2, 2]);
    assert_eq!(packed.counts(), [5, 1, 0]);
    assert_eq!(packed.rest(), []);
    assert_eq!(
        (packed.plan().unschedulable, packed.placed(6)),
        (0, vec![2])
    );
    spread.rest();
    assert_eq!(spread.plan().unschedulable, 1, "until somebody moves");
    // Replicas without memory, and replicas that are spread over zones, are not packed.
    packed.deploy(7, 3, 0, DeployOptions::default());
    packed.rest();
    assert_eq!(packed.placed(7).len(), 3);
}

#[test]
fn a_move_is_over_when_its_new_worker_dies_or_the_leader_is_another() {
    for leader_lost in [false, true] {
        for ready in [false, true] {
            let mut world = with_a_new_worker(1).moving(100);
            let plan = world.plan();
            world.follow(&plan);
            let one = plan.moves[0].clone();
            if ready {
                world.load_here();
            }
            if leader_lost {
                world.under_way.clear();
            } else {
                world.there[3] = false;
            }
            world.moves = 0;
            let plan = world.plan();
            world.follow(&plan);
            let placed = &world.state.models[&one.model].placement;
            // If both replicas serve and the new leader does not know the migration, the last in
            // the list goes.
            let expected = if leader_lost && ready {
                &one.to
            } else {
                &one.from
            };
            assert_eq!(placed, std::slice::from_ref(expected));
            world.rest();
        }
    }
}

/// A change of the cluster.
#[derive(Clone, Debug)]
enum Change {
    Worker(usize, bool),
    Deploy(usize, u32, u64, DeployOptions),
    Scale(usize, u32),
    /// Another coordinator leads, and forgets the running migrations.
    Elect,
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0_usize..7, any::<bool>()).prop_map(|(worker, there)| Change::Worker(worker, there)),
        (0_usize..10, 1_u32..4, 0_u64..6, any_options())
            .prop_map(|(index, count, size, options)| Change::Deploy(index, count, size, options)),
        (0_usize..10, 0_u32..4).prop_map(|(index, count)| Change::Scale(index, count)),
        Just(Change::Elect),
    ]
}

impl World {
    fn perform(&mut self, change: &Change) {
        match change {
            Change::Worker(worker, there) => {
                self.there[*worker] = *there;
                if !there {
                    let id = self.ids[*worker].clone();
                    self.ready.retain(|(_, _, worker)| *worker != id);
                }
            }
            Change::Deploy(index, replicas, size, options) => {
                self.under_way.remove(&model(*index));
                self.deploy(*index, *replicas, *size, options.clone());
            }
            Change::Scale(index, replicas) => {
                let entry = self.state.models.get_mut(&model(*index)).unwrap();
                let deployment = Arc::make_mut(entry).deployment.as_mut().unwrap();
                deployment.replicas = *replicas;
            }
            Change::Elect => self.under_way.clear(),
        }
    }
}

proptest! {
    /// Workers join and leave, and models are deployed and scaled, during migrations or not. No
    /// replica is lost, duplicated or over its budget, no migration is undone, and all migrations
    /// end.
    #[test]
    fn moves_come_to_rest_and_take_nothing_from_anybody(
        models in proptest::collection::vec((1_u32..4, 0_u64..6, any_options()), 10),
        changes in proptest::collection::vec((any_change(), 0_usize..5), 1..12),
        budget in 4_u64..24,
        other in proptest::collection::vec((0_usize..7, 3_u64..40), 0..3),
        packs in any::<bool>(),
        apart in 0_u64..300,
    ) {
        let mut world = World::new(7, budget).moving(apart);
        world.budgets = other.into_iter().collect();
        if packs {
            (world.strategy, world.apart) = (PlacementStrategy::Pack, None);
        }
        for (index, (replicas, size, options)) in models.iter().enumerate() {
            world.deploy(index, *replicas, *size, options.clone());
        }
        world.rest();
        for (change, rounds) in changes {
            world.perform(&change);
            for _ in 0..rounds {
                let plan = world.plan();
                world.check_begun(&plan);
                world.follow(&plan);
            }
            if rounds % 2 == 0 {
                world.rest();
                prop_assert_eq!(world.plan().placings, []);
            }
        }
        world.rest();
    }
}
