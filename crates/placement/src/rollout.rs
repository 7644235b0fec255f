//! Number of replicas of each version during a rollout. Pure.

use volley_types::ModelVersion;
use volley_types::registry::DeployOptions;

/// Next number of replicas of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutStep {
    /// Version of the model.
    pub version: ModelVersion,
    /// Number of replicas.
    pub count: usize,
}

/// Current replicas of both versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutStatus {
    /// Desired number of replicas in total.
    pub replicas: usize,
    /// Number of placed replicas of the new version.
    pub new: usize,
    /// Number of ready replicas among them.
    pub new_ready: usize,
    /// Number of placed replicas of the old version.
    pub old: usize,
}

/// Returns the next numbers of replicas of the new and the old version. At most `max_unavailable`
/// replicas are missing at any time, and at most `max_surge` exist above the desired number. A
/// paused rollout (`moves` is false) keeps the current numbers.
#[must_use]
pub fn step(seen: &RolloutStatus, options: &DeployOptions, moves: bool) -> (usize, usize) {
    if !moves {
        return (seen.new.min(seen.replicas), seen.old);
    }
    let (surge, unavailable) = (options.max_surge as usize, options.max_unavailable as usize);
    let must_serve = seen.replicas.saturating_sub(unavailable);
    let old = must_serve.saturating_sub(seen.new_ready).min(seen.old);
    let room = (seen.replicas + surge).saturating_sub(old);
    // Replicas that are already placed stay.
    let new = room.max(seen.new).min(seen.replicas);
    (new, old)
}

/// Returns the number of replicas of the old version if `stays` of them are kept beside the new
/// one. None is removed before the new version serves.
#[must_use]
pub fn beside(seen: &RolloutStatus, stays: usize) -> usize {
    if seen.new_ready < seen.replicas {
        stays.max(seen.old)
    } else {
        stays
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(max_surge: u32, max_unavailable: u32) -> DeployOptions {
        DeployOptions {
            max_surge,
            max_unavailable,
            ..DeployOptions::default()
        }
    }

    #[test]
    fn one_at_a_time_each_way() {
        let seen = |new, new_ready, old| RolloutStatus {
            replicas: 3,
            new,
            new_ready,
            old,
        };
        let surge = options(1, 0);
        assert_eq!(step(&seen(0, 0, 3), &surge, true), (1, 3));
        assert_eq!(step(&seen(1, 0, 3), &surge, true), (1, 3), "not ready yet");
        assert_eq!(step(&seen(1, 1, 3), &surge, true), (2, 2));
        assert_eq!(step(&seen(3, 3, 1), &surge, true), (3, 0));
        let swap = options(0, 1);
        assert_eq!(step(&seen(0, 0, 3), &swap, true), (1, 2));
        assert_eq!(step(&seen(1, 1, 2), &swap, true), (2, 1));
        assert_eq!(step(&seen(1, 1, 2), &swap, false), (1, 2), "paused");
    }

    proptest! {
        #[test]
        fn it_ends_and_keeps_its_bounds_whatever_is_slow(
            replicas in 1_usize..9,
            surge in 0_u32..4,
            unavailable in 0_u32..4,
            slow in proptest::collection::vec(any::<bool>(), 200),
        ) {
            prop_assume!(0 < surge + unavailable);
            let options = options(surge, unavailable);
            let (mut new, mut ready, mut old) = (0, 0, replicas);
            for slow in slow {
                let seen = RolloutStatus { replicas, new, new_ready: ready, old };
                (new, old) = step(&seen, &options, true);
                prop_assert!(new + old <= replicas + surge as usize);
                prop_assert!(replicas <= ready + old + unavailable as usize);
                prop_assert!(ready <= new);
                if !slow && ready < new {
                    ready += 1;
                }
            }
            let seen = RolloutStatus { replicas, new, new_ready: new, old };
            let (_, left) = step(&seen, &options, true);
            prop_assert!(left < old || old == 0);
        }
    }
}
