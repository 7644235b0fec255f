use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use volley_types::registry::Deployment;
use volley_types::{ModelName, ModelVersion, Revision};

use super::*;

fn entry(replicas: u32, placement: &[usize]) -> ModelEntry {
    ModelEntry {
        name: ModelName::new("m").unwrap(),
        versions: BTreeMap::new(),
        deployment: Some(Deployment {
            version: ModelVersion(1),
            replicas,
            revision: Revision(1),
            overcommit: false,
            workers: Vec::new(),
        }),
        placement: placement.iter().map(|index| id(*index)).collect(),
        ever_deployed: true,
        group: None,
        deleted_tasks: BTreeSet::new(),
    }
}

fn id(index: usize) -> WorkerId {
    WorkerId::new(format!("w{index}")).unwrap()
}

fn alive(index: usize, replicas: usize) -> PlacementWorker {
    PlacementWorker {
        id: id(index),
        placeable: true,
        keep: true,
        replicas,
        failed: false,
    }
}

#[test]
fn new_replicas_go_to_the_least_loaded() {
    let workers = [alive(0, 3), alive(1, 0), alive(2, 1)];
    assert_eq!(plan(&entry(2, &[]), &workers), [id(1), id(2)]);
}

#[test]
fn a_replica_stays_on_a_worker_that_is_away_for_a_moment_and_moves_when_it_is_gone() {
    let mut workers = [alive(0, 1), alive(1, 0)];
    workers[0].placeable = false;
    assert_eq!(plan(&entry(1, &[0]), &workers), [id(0)]);
    workers[0].keep = false;
    assert_eq!(plan(&entry(1, &[0]), &workers), [id(1)]);
}

#[test]
fn a_failed_replica_moves_where_it_can_and_stays_where_it_cannot() {
    let mut workers = [alive(0, 1), alive(1, 0)];
    workers[0].failed = true;
    assert_eq!(plan(&entry(1, &[0]), &workers), [id(1)]);
    workers[1].failed = true;
    assert_eq!(plan(&entry(1, &[0]), &workers), [id(0)]);
}

fn any_workers() -> impl Strategy<Value = Vec<PlacementWorker>> {
    let one = (any::<bool>(), any::<bool>(), 0_usize..5, any::<bool>());
    proptest::collection::vec(one, 0..8).prop_map(|workers| {
        let numbered = workers.into_iter().enumerate();
        numbered
            .map(
                |(index, (placeable, keep, replicas, failed))| PlacementWorker {
                    id: id(index),
                    placeable,
                    keep: keep || placeable,
                    replicas,
                    failed,
                },
            )
            .collect()
    })
}

proptest! {
    #[test]
    fn placements_are_bounded_distinct_possible_and_stable(
        workers in any_workers(),
        replicas in 1_u32..6,
        held in proptest::collection::btree_set(0_usize..10, 0..4),
    ) {
        let held: Vec<_> = held.into_iter().collect();
        let before = entry(replicas, &held);
        let placed = plan(&before, &workers);
        prop_assert!(placed.len() <= replicas as usize);
        prop_assert_eq!(placed.iter().collect::<BTreeSet<_>>().len(), placed.len());
        for worker in &placed {
            let worker = workers.iter().find(|known| known.id == *worker).unwrap();
            let was_there = before.placement.contains(&worker.id);
            prop_assert!(worker.placeable || (was_there && worker.keep));
        }
        let healthy = workers
            .iter()
            .filter(|worker| worker.keep && !worker.failed && before.placement.contains(&worker.id));
        for worker in healthy.take(replicas as usize) {
            // Moves only when more are healthy than are wanted.
            let kept = placed.contains(&worker.id);
            prop_assert!(kept || placed.len() == replicas as usize);
        }
        let mut settled = before.clone();
        settled.placement.clone_from(&placed);
        prop_assert_eq!(
            plan(&settled, &workers).into_iter().collect::<BTreeSet<_>>(),
            placed.into_iter().collect::<BTreeSet<_>>()
        );
    }
}

#[test]
fn a_list_of_workers_is_kept_to() {
    let mut entry = entry(2, &[0, 3]);
    entry.deployment.as_mut().unwrap().workers = vec![id(2), id(3)];
    let workers = [alive(0, 0), alive(1, 0), alive(2, 9), alive(3, 9)];
    assert_eq!(plan(&entry, &workers), [id(3), id(2)]);
}
