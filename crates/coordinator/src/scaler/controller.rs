//! Controller of a model's number of replicas. Pure: the load and the time are arguments.

use std::time::{Duration, Instant};

use volley_types::registry::Scaling;

/// Minimum time between two increases: the effect is only visible after the replicas have loaded.
const STEP: Duration = Duration::from_secs(3);
/// Time for which fewer replicas must suffice before a decrease.
const CALM: Duration = Duration::from_secs(60);
/// Fewer replicas suffice if they stay below this percentage of the target; otherwise the number
/// would rise again immediately.
const SLACK_PERCENT: u64 = 80;

/// The summed reports of one model's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLoad {
    /// Ready replicas.
    pub ready: u32,
    /// Running and queued streams.
    pub demand: u64,
    /// Maximum number of concurrent streams on all replicas.
    pub capacity: u64,
    /// Longest recent queue wait in milliseconds.
    pub queue_wait_ms: u32,
    /// Idle time of all replicas in milliseconds.
    pub idle_ms: u64,
}

impl ModelLoad {
    /// Number of replicas for this demand at `percent` of their capacity; `None` if the capacity is
    /// unknown.
    fn needed(&self, percent: u64) -> Option<u32> {
        if self.ready == 0 || self.capacity == 0 {
            return None;
        }
        let needed = self.demand * 100 * u64::from(self.ready);
        let needed = needed.div_ceil(self.capacity * percent.max(1));
        Some(u32::try_from(needed).unwrap_or(u32::MAX))
    }
}

/// State of one model between two rounds.
#[derive(Clone, Debug)]
pub struct Controller {
    changed: Option<Instant>,
    /// Start of the time in which fewer replicas suffice, and the maximum that was needed since.
    calm: Option<(Instant, u32)>,
}

impl Default for Controller {
    fn default() -> Self {
        Self::new()
    }
}

impl Controller {
    /// The initial state of a model.
    #[must_use]
    pub fn new() -> Self {
        Self {
            changed: None,
            calm: None,
        }
    }

    /// The new number of replicas, if it changes. It increases immediately with the demand or the
    /// queue wait, at most by a factor of two in one step. It decreases after one minute in which
    /// fewer replicas sufficed with a margin. It becomes 0 after the deployment's idle time; only a
    /// request changes it from 0.
    pub fn decide(
        &mut self,
        scaling: &Scaling,
        replicas: u32,
        load: &ModelLoad,
        now: Instant,
    ) -> Option<u32> {
        let bounds = |count: u32| count.clamp(scaling.min_replicas, scaling.max_replicas);
        if replicas != bounds(replicas) {
            return self.change(bounds(replicas), now);
        }
        if replicas == 0 {
            return None;
        }
        let target = u64::from(scaling.target_percent);
        let needed = load.needed(target)?;
        let slow = scaling.queue_wait_ms != 0 && scaling.queue_wait_ms < load.queue_wait_ms;
        let wanted = bounds(if slow {
            needed.max(replicas + 1)
        } else {
            needed
        });
        if replicas < wanted {
            self.calm = None;
            let rested = self
                .changed
                .is_none_or(|at| STEP <= now.saturating_duration_since(at));
            // The replicas of the last increase are still loading.
            let arrived = replicas <= load.ready;
            return (rested && arrived)
                .then(|| self.change(wanted.min(replicas * 2), now))
                .flatten();
        }
        let idle = load.demand == 0 && u64::from(scaling.idle_ms) <= load.idle_ms;
        if scaling.min_replicas == 0 && idle {
            return self.change(0, now);
        }
        self.fewer(scaling, replicas, load, now)
    }

    fn fewer(
        &mut self,
        scaling: &Scaling,
        replicas: u32,
        load: &ModelLoad,
        now: Instant,
    ) -> Option<u32> {
        let eased = u64::from(scaling.target_percent) * SLACK_PERCENT / 100;
        // The last replica is only removed when the model is idle.
        let enough = load.needed(eased)?.max(1).max(scaling.min_replicas);
        if replicas <= enough {
            self.calm = None;
            return None;
        }
        let (since, most) = self.calm.get_or_insert((now, enough));
        *most = enough.max(*most);
        let (since, most) = (*since, *most);
        (CALM <= now.saturating_duration_since(since))
            .then(|| self.change(most, now))
            .flatten()
    }

    fn change(&mut self, replicas: u32, now: Instant) -> Option<u32> {
        self.changed = Some(now);
        self.calm = None;
        Some(replicas)
    }
}

#[cfg(test)]
mod tests {
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
}
