//! Drained workers: their replicas are removed once others are ready.

use super::*;

impl World {
    fn drain(&mut self, worker: usize, force: bool) {
        self.drained.insert(worker, Drain { force });
    }

    /// Makes every placed replica of version 1 ready, and no other.
    fn load_all(&mut self) {
        let placed = self.state.models.values().flat_map(|entry| {
            let workers = entry.placement.iter();
            workers.map(|id| (entry.name.clone(), ModelVersion(1), id.clone()))
        });
        self.ready = placed.collect();
    }

    /// Plans, applies and loads until nothing changes.
    fn converge(&mut self, mut look: impl FnMut(&Self)) {
        for _ in 0..20 {
            let plan = self.plan();
            self.follow(&plan);
            look(self);
            self.load_all();
            look(self);
            if plan.placings.is_empty() {
                return;
            }
        }
        panic!("it never settles");
    }
}

#[test]
fn the_replica_that_replaces_is_ready_before_the_drained_one_goes() {
    let mut world = World::new(3, 10);
    world.deploy(0, 2, 1, DeployOptions::default());
    world.converge(|_| {});
    assert_eq!(world.placed(0), [0, 1]);
    world.drain(0, false);
    let plan = world.plan();
    world.follow(&plan);
    assert_eq!(world.placed(0), [1, 2, 0], "beside the one that comes");
    assert_eq!(world.plan().placings, [], "and nothing moves until then");
    world.load_all();
    let plan = world.plan();
    world.follow(&plan);
    assert_eq!(world.placed(0), [1, 2]);
    world.drained.clear();
    world.converge(|_| {});
    assert_eq!(world.placed(0), [1, 2], "what has moved stays");
}

#[test]
fn without_room_elsewhere_it_waits_unless_it_is_forced() {
    let mut world = World::new(2, 10);
    world.deploy(0, 1, 6, DeployOptions::default());
    world.converge(|_| {});
    world.deploy(1, 1, 6, DeployOptions::default());
    world.converge(|_| {});
    assert_eq!((world.placed(0), world.placed(1)), (vec![0], vec![1]));
    world.drain(0, false);
    world.converge(|_| {});
    assert_eq!(world.placed(0), [0]);
    world.drain(0, true);
    world.converge(|_| {});
    assert_eq!(world.placed(0), Vec::<usize>::new());
    assert_eq!(world.plan().unschedulable, 1);
}

#[test]
fn a_drain_that_is_taken_back_halfway_leaves_as_many_as_are_wanted() {
    let mut world = World::new(3, 10);
    world.deploy(0, 2, 1, DeployOptions::default());
    world.converge(|_| {});
    world.drain(0, false);
    let plan = world.plan();
    world.follow(&plan);
    world.drained.clear();
    world.converge(|_| {});
    assert_eq!(world.placed(0).len(), 2);
}

proptest! {
    #[test]
    fn nothing_that_could_serve_ever_stops_serving(
        models in proptest::collection::vec((1_u32..4, 0_u64..4, any_options()), 1..8),
        drains in proptest::collection::vec((0_usize..6, any::<bool>()), 1..8),
        budget in 0_u64..16,
    ) {
        let mut world = World::new(6, budget);
        for (index, (replicas, size, options)) in models.iter().enumerate() {
            world.deploy(index, *replicas, *size, options.clone());
        }
        world.converge(|_| {});
        let serving = |world: &World, index: usize| {
            let placed = world.placed(index);
            let ready = |worker: &&usize| {
                let held = (model(index), ModelVersion(1), world.ids[**worker].clone());
                world.ready.contains(&held)
            };
            placed.iter().filter(ready).count()
        };
        for (worker, drained) in drains {
            let before: Vec<_> = (0..models.len()).map(|index| serving(&world, index)).collect();
            if drained {
                world.drain(worker, false);
            } else {
                world.drained.remove(&worker);
            }
            world.converge(|world| {
                for (index, before) in before.iter().enumerate() {
                    assert!(*before <= serving(world, index), "model {index} lost a replica");
                }
            });
            for (index, (replicas, _, _)) in models.iter().enumerate() {
                let placed = world.placed(index);
                prop_assert!(placed.len() <= *replicas as usize);
                // A drained worker only holds replicas that fit nowhere else.
                let stuck = placed.iter().any(|worker| world.drained.contains_key(worker));
                let unschedulable = world.plan().unschedulable;
                prop_assert!(!stuck || 0 < unschedulable);
            }
        }
    }
}
