//! Simulation of coordinators: all of this crate (consensus, store and services) on simulated time,
//! over a network and disks that fail as a seed decides.
//!
//! One thread runs one scenario. Time is tokio's paused clock, which advances to the next event.
//! The [network](net) carries the same gRPC requests to the same services. The disks are faulty
//! disks, which lose unsynced writes. The processes are [lives](volley_sim_kit::process::Life),
//! which end and freeze between two steps of any task. The seed alone determines a
//! [scenario](volley_sim_kit::Scenario).
//!
//! `VOLLEY_RAFT_SEEDS=1000 VOLLEY_RAFT_SEED=7` runs 1000 scenarios from seed 7, as does `just
//! simulate --raft 1000 --seed 7`. `VOLLEY_RAFT_TRACE=1` prints the trace of the first scenario
//! that broke an invariant.

mod history;
mod invariants;
mod killed;
mod lost;
mod net;
mod operator;
mod runner;
pub(crate) mod runtime;
mod scenario;
mod scripted;
mod users;
mod world;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Instant;

use volley_sim_kit::Scenario;
use volley_sim_kit::scenario::{FailedScenario, run_all};
use volley_sim_kit::seeds::from_env;
use volley_sim_kit::trace::Trace;

use runner::{Consensus, Summary};

/// Scenarios in an ordinary run.
const SEEDS: u64 = 25;

/// Prints a line, which is shown with `--nocapture`.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs a scenario, and returns its mark and its trace, whether it fails or not.
fn traced(story: &Scenario<Consensus>) -> (u64, Vec<String>) {
    let trace = Trace::new(true);
    if let Err(why) = story.run_with_trace(&trace) {
        trace.line(format_args!("{why}"));
    }
    (trace.mark(), trace.lines())
}

/// Describes a scenario that broke an invariant.
fn explain(broken: &FailedScenario<Consensus>) -> String {
    let seed = broken.story.seed;
    let mut text = format!("{broken}again: just simulate --raft 1 --seed {seed}");
    if from_env("VOLLEY_RAFT_TRACE").is_some() {
        text = format!("{text}\n{}", traced(&broken.story).1.join("\n"));
    }
    text
}

#[test]
fn whatever_fails_coordinators_agree_and_lose_nothing() {
    let first = from_env("VOLLEY_RAFT_SEED").unwrap_or(0);
    let count = from_env("VOLLEY_RAFT_SEEDS").unwrap_or(SEEDS);
    let began = Instant::now();
    let told = run_all::<Consensus>(first..first + count);
    let told = told.unwrap_or_else(|broken| panic!("{}", explain(&broken)));
    let mut sum = Summary::default();
    told.iter().for_each(|one| sum.add(one));
    let took = began.elapsed().as_secs_f64();
    say(&format!(
        "{count} stories of coordinators in {took:.0} s: no law was broken\n{sum}"
    ));
}

/// Tokio wakes the waiters of one change in an order that no seed decides. So two runs may diverge,
/// but they start alike, and nearly always end alike.
#[test]
fn the_same_seed_gives_the_same_story_and_mostly_the_same_steps() {
    let count = from_env("VOLLEY_RAFT_TWICE").unwrap_or(3);
    let mut same = 0;
    for seed in 0..count {
        let story = Scenario::<Consensus>::new(seed);
        assert_eq!(story, Scenario::new(seed));
        let ((mark, lines), (again, others)) = (traced(&story), traced(&story));
        // Before the first users start.
        let first = |line: &&String| line.as_str() < "   1000";
        let began = |lines: &[String]| lines.iter().filter(first).cloned().collect::<BTreeSet<_>>();
        assert_eq!(began(&lines), began(&others), "seed {seed}");
        same += u64::from(mark == again);
        let parted = lines.iter().zip(&others).find(|(one, other)| one != other);
        if let Some(parted) = parted.filter(|_| mark != again) {
            say(&format!("seed {seed} parts at {parted:?}"));
        }
    }
    say(&format!(
        "{same} of {count} stories went twice the same way"
    ));
}
