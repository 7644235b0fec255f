//! Small clusters under random faults, thousands of seeds: what placement promises always holds,
//! and once the faults are over everything serves again. See `volley_sim::story`.

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

/// Stories in an ordinary run; `VOLLEY_SIM_SEEDS` asks for more.
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
    // Shown with `--nocapture`; nothing depends on it.
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
