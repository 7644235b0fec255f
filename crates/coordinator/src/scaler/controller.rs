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
mod tests;
