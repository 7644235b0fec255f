//! Small clusters under random faults, with thousands of seeds: the invariants of the placement
//! always hold, and the cluster settles after the faults. See `volley_sim::scenario`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::io::Write;
use std::time::Instant;

use volley_sim::scenario::Drill;
use volley_sim_kit::Scenario;
use volley_sim_kit::scenario::run_all;
use volley_sim_kit::seeds::from_env;

/// Scenarios in an ordinary run; `VOLLEY_SIM_SEEDS` sets another number.
const SEEDS: u64 = 2_000;

#[test]
fn whatever_fails_the_cluster_keeps_its_promises_and_comes_to_rest() {
    let seeds = from_env("VOLLEY_SIM_SEEDS").unwrap_or(SEEDS);
    let began = Instant::now();
    let told = run_all::<Drill>(0..seeds).unwrap_or_else(|broken| panic!("{broken}"));
    let line = format!(
        "{} stories of faults in {:.0} s: no law was broken\n",
        told.len(),
        began.elapsed().as_secs_f64()
    );
    // Shown with `--nocapture`.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[test]
fn the_same_seed_gives_the_same_story_and_the_same_end() {
    for seed in 0..20 {
        let story = Scenario::<Drill>::new(seed);
        assert_eq!(story, Scenario::new(seed));
        assert_eq!(story.run(), story.run());
    }
}
