//! Runs many seeds on all processors.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Reads a number from an environment variable; `None` if it is unset or not a number.
#[must_use]
pub fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Calls `work` for these seeds on all processors, until one call fails. Returns the results in the
/// order of the seeds.
///
/// # Errors
/// The failure of the lowest failed seed. Not all seeds may have been run.
///
/// # Panics
/// If `work` panics.
pub fn on_all_processors<T, E>(
    seeds: Range<u64>,
    work: impl Fn(u64) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E>
where
    T: Send,
    E: Send,
{
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seeds.end <= seed {
                        return;
                    }
                    let outcome = work(seed);
                    if outcome.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    done.lock().push((seed, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(seed, _)| *seed);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_the_first_failure_ends_it() {
        let squares = on_all_processors(3..8, |seed| Ok::<_, String>(seed * seed));
        assert_eq!(squares, Ok(vec![9, 16, 25, 36, 49]));
        let looked = AtomicU64::new(0);
        let failed = on_all_processors(0..1_000_000, |seed| {
            looked.fetch_add(1, Ordering::Relaxed);
            if seed == 2 { Err(seed) } else { Ok(()) }
        });
        assert_eq!(failed, Err(2));
        assert!(looked.into_inner() < 1_000_000);
    }
}
