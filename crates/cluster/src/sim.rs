//! Stories of coordinators on simulated time: the whole of this crate, consensus and store and
//! doors, over a network and disks that fail as a seed decides.
//!
//! One thread tells one story. Its time is tokio's paused clock, which leaps to the next thing
//! that happens; its [network](net) carries the same gRPC requests to the same services; its
//! disks are platters, which lose what was not synced; its processes are [lives](runtime), which
//! end and freeze between two steps of any task. A [story](story) is made of its seed alone.
//!
//! `VOLLEY_RAFT_SEEDS=1000 VOLLEY_RAFT_SEED=7` tells so many from that seed on, which is what
//! `just simulate --raft 1000 --seed 7` does; `VOLLEY_RAFT_TRACE=1` prints what happened in the
//! first that broke a law.

mod history;
mod killed;
mod laws;
mod net;
mod operator;
pub(crate) mod runtime;
mod scripted;
mod story;
mod telling;
mod trace;
mod users;
mod world;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use story::Story;
use telling::Summary;

/// Stories in an ordinary run.
const SEEDS: u64 = 25;

fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Shown with `--nocapture`; nothing depends on it.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Tells one story; where it breaks a law, all that is known of that.
fn tell(seed: u64) -> Result<Summary, String> {
    let story = Story::new(seed);
    story.tell().map_err(|why| {
        let (short, why) = story.shrunk(why);
        let mut text = format!(
            "{why}\n{}again: just simulate --raft 1 --seed {seed}",
            short.text()
        );
        if asked("VOLLEY_RAFT_TRACE").is_some() {
            text = format!("{text}\n{}", short.traced().1.join("\n"));
        }
        text
    })
}

#[test]
fn whatever_fails_coordinators_agree_and_lose_nothing() {
    let first = asked("VOLLEY_RAFT_SEED").unwrap_or(0);
    let count = asked("VOLLEY_RAFT_SEEDS").unwrap_or(SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let (sum, broken) = (Mutex::new(Summary::default()), Mutex::new(None));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if count <= at {
                        return;
                    }
                    match tell(first + at) {
                        Ok(summary) => sum.lock().add(&summary),
                        Err(why) => {
                            failed.store(true, Ordering::Relaxed);
                            broken.lock().get_or_insert(why);
                        }
                    }
                }
            });
        }
    });
    if let Some(why) = broken.into_inner() {
        panic!("{why}");
    }
    let took = began.elapsed().as_secs_f64();
    say(&format!(
        "{count} stories of coordinators in {took:.0} s: no law was broken\n{}",
        sum.into_inner()
    ));
}

/// Tokio wakes those who wait for one change in an order of its own, which no seed decides. So
/// two tellings may part; they begin alike, and nearly always end so.
#[test]
fn the_same_seed_gives_the_same_story_and_mostly_the_same_steps() {
    let count = asked("VOLLEY_RAFT_TWICE").unwrap_or(3);
    let mut same = 0;
    for seed in 0..count {
        let story = Story::new(seed);
        assert_eq!(story, Story::new(seed));
        let ((mark, lines), (again, others)) = (story.traced(), story.traced());
        // Before the first users come.
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
