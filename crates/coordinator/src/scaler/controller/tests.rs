use proptest::prelude::*;

use super::*;

const SCALING: Scaling = Scaling {
    min_replicas: 0,
    max_replicas: 8,
    target_percent: 50,
    queue_wait_ms: 100,
    idle_ms: 10_000,
};

/// A model whose replicas have ten places each and load within two seconds.
struct ScaledModel {
    controller: Controller,
    start: Instant,
    second: u64,
    replicas: u32,
    ready: u32,
    idle_s: u64,
    changes: u32,
}

impl ScaledModel {
    fn new(replicas: u32) -> Self {
        Self {
            controller: Controller::new(),
            start: Instant::now(),
            second: 0,
            replicas,
            ready: replicas,
            idle_s: 0,
            changes: 0,
        }
    }

    fn run(&mut self, seconds: u64, demand: impl Fn(u64) -> u64) {
        for _ in 0..seconds {
            self.second += 1;
            let demand = demand(self.second);
            self.idle_s = if demand == 0 { self.idle_s + 1 } else { 0 };
            let capacity = u64::from(self.ready) * 10;
            let load = ModelLoad {
                ready: self.ready,
                demand,
                capacity,
                queue_wait_ms: if capacity < demand { 500 } else { 0 },
                idle_ms: self.idle_s * 1_000,
            };
            let now = self.start + Duration::from_secs(self.second);
            let next = self.controller.decide(&SCALING, self.replicas, &load, now);
            if self.second.is_multiple_of(2) {
                self.ready = self.replicas;
            }
            if let Some(next) = next {
                self.changes += 1;
                self.replicas = next;
                self.ready = self.ready.min(next);
            }
        }
    }
}

#[test]
fn it_follows_the_load_up_at_once_down_slowly_and_to_nothing_when_idle() {
    let mut bed = ScaledModel::new(1);
    bed.run(30, |_| 38);
    assert_eq!(bed.replicas, 8);
    bed.run(30, |_| 9);
    assert_eq!(bed.replicas, 8, "not yet");
    bed.run(60, |_| 9);
    assert_eq!(bed.replicas, 3);
    bed.run(9, |_| 0);
    assert_ne!(bed.replicas, 0);
    bed.run(9, |_| 0);
    assert_eq!(bed.replicas, 0);
    bed.run(60, |_| 0);
    assert_eq!(
        bed.replicas, 0,
        "a request brings it back, not the controller"
    );
}

proptest! {
    #[test]
    fn a_steady_load_comes_to_rest_and_stays_within_the_bounds(demand in 1_u64..200, first in 1_u32..9) {
        let mut bed = ScaledModel::new(first);
        bed.run(400, |_| demand);
        let (changes, replicas) = (bed.changes, bed.replicas);
        prop_assert!((1..=8).contains(&replicas));
        bed.run(400, |_| demand);
        prop_assert_eq!((bed.changes, bed.replicas), (changes, replicas));
        prop_assert!(replicas == 8 || demand <= u64::from(replicas) * 10);
    }

    #[test]
    fn a_load_that_swings_does_not_make_it_flap(
        low in 1_u64..20,
        high in 20_u64..39,
        period in 2_u64..40,
    ) {
        let mut bed = ScaledModel::new(1);
        bed.run(600, |second| if second % period < period / 2 { low } else { high });
        prop_assert!(bed.changes <= 6, "{} changes", bed.changes);
    }
}
