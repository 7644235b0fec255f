use proptest::prelude::*;

use super::*;
use crate::input::PlacementWorker;

const ZONES: [Option<&str>; 3] = [Some("a"), Some("b"), None];

/// A generated worker: its zone, its budget, and whether it may receive replicas.
type Drawn = (usize, u64, bool);

/// The definition of the best worker: the minimum over all of them.
fn by_definition(
    fleet: &Fleet<'_>,
    need: &ReplicaRequirements<'_>,
    kept: &[usize],
) -> Option<usize> {
    let in_zone = |index: usize| {
        let zone = fleet.zone(index, need.spread);
        let mates = kept.iter();
        mates
            .filter(|mate| fleet.zone(**mate, need.spread) == zone)
            .count()
    };
    let can = |index: &usize| {
        let worker = &fleet.workers[*index];
        let room = fleet
            .most_replicas
            .is_none_or(|most| fleet.replicas[*index] < most);
        worker.placeable
            && room
            && (need.allowed.is_empty() || need.allowed.contains(worker.id))
            && fleet.fits(*index, need.size)
            && !kept.contains(index)
            && fleet.has_labels(*index, need.labels)
    };
    let order = |index: &usize| {
        let zones = match need.spread {
            Some(_) => in_zone(*index),
            None => 0,
        };
        let full = match need.size {
            0 => 0,
            _ => fleet.load(*index).standing,
        };
        let avoided = need.avoid.contains(index);
        (
            zones,
            avoided,
            full,
            fleet.replicas[*index],
            fleet.workers[*index].id,
        )
    };
    (0..fleet.workers.len()).filter(can).min_by_key(order)
}

proptest! {
    #[test]
    fn the_first_in_order_is_the_best_of_all(
        drawn in proptest::collection::vec((0_usize..3, 0_u64..4, any::<bool>()), 1..12),
        needs in proptest::collection::vec(
            (0_u64..3, any::<bool>(), any::<u16>(), any::<u16>(), any::<u16>()), 1..24),
        most in proptest::option::of(1_usize..4),
        packs in any::<bool>(),
    ) {
        let ids: Vec<_> = (0..drawn.len())
            // Ids are not in the order of the workers.
            .map(|index| WorkerId::new(format!("w{}", (index * 7) % 12)).unwrap())
            .collect();
        let labels: Vec<BTreeMap<String, String>> = drawn
            .iter()
            .map(|(zone, ..)| ZONES[*zone].map(|it| ("zone".to_owned(), it.to_owned())).into_iter().collect())
            .collect();
        let worker = |(index, (_, budget, placeable)): (usize, &Drawn)| PlacementWorker {
            id: &ids[index],
            placeable: *placeable,
            keep: true,
            labels: Some(&labels[index]),
            budget_bytes: budget * 3,
            drain: None,
        };
        let input = PlacementInput {
            workers: drawn.iter().enumerate().map(worker).collect(),
            most_replicas: most,
            strategy: if packs { PlacementStrategy::Pack } else { PlacementStrategy::Spread },
            ..PlacementInput::default()
        };
        let picked = |bits: u16| -> Vec<usize> {
            (0..drawn.len()).filter(|index| bits >> index & 1 == 1).collect()
        };
        let (mut fleet, none) = (Fleet::new(&input), BTreeMap::new());
        for (size, spread, kept, avoid, allowed) in needs {
            let (kept, avoid) = (picked(kept & 0x111), picked(avoid));
            let allowed: Vec<_> = picked(allowed).into_iter().map(|index| ids[index].clone()).collect();
            let need = ReplicaRequirements {
                labels: &none,
                allowed: if allowed.len() < 3 { &[] } else { &allowed },
                spread: spread.then_some("zone"),
                size,
                avoid: &avoid,
            };
            let wanted = by_definition(&fleet, &need, &kept);
            let found = fleet.best(&need, &kept, |_| true);
            prop_assert_eq!(found, wanted);
            if let Some(found) = found {
                fleet.put(found, size);
            }
        }
    }
}
