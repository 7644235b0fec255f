//! Stories: what goes wrong, and what is changed meanwhile.

use std::fmt::Write;

use super::operator::Change;
use super::runtime;
use super::telling::{Summary, Telling};
use super::trace::Trace;
use crate::store::disk::platter::Fault;
/// One thing that goes wrong, or that an operator does. Coordinators are counted among those that
/// shall be in the cluster; times are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A process ends, or its machine, and is back after a time.
    Crash(usize, bool, u64),
    /// All of them do.
    CrashAll(u64),
    /// A process is stopped in order, and is back after a time.
    Stop(usize, u64),
    /// A process stands still for a time.
    Freeze(usize, u64),
    /// Nothing comes from the first to the second any more.
    CutLink(usize, usize),
    /// One hears nobody.
    Deafen(usize),
    /// One is heard by nobody.
    Mute(usize),
    /// Those of the mask, and the others, hear nothing of each other.
    Split(u8),
    /// All hear all.
    Mend,
    /// Messages get lost, and come twice.
    Lose,
    /// Messages are late.
    Delay(u64),
    /// Messages fare well again.
    Calm,
    /// Each write to a disk takes up to so long, for a time.
    SlowDisk(usize, u64, u64),
    /// The call to a disk after so many others goes wrong.
    FailDisk(usize, u64, Fault),
    /// One stands for election.
    Elect(usize),
    /// The operator has something to do.
    Change(Change),
}

/// Acts, each with the time after it in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Story {
    pub(super) seed: u64,
    /// How many coordinators begin.
    pub(super) first: u64,
    pub(super) snapshot_every: u64,
    pub(super) acts: Vec<(Act, u64)>,
}

impl Story {
    /// The story of that seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let first = [1, 3, 3, 3, 5, 5][random.usize(..6)];
        let snapshot_every = random.u64(8..80);
        let count = random.usize(4..18);
        let acts = (0..count).map(|_| {
            let act = act(&mut random);
            // Mostly one upon the other, at times after everything has come to rest.
            let after = [300, 1_500, 6_000][random.usize(..3)];
            (act, random.u64(..after))
        });
        Self {
            seed,
            first,
            snapshot_every,
            acts: acts.collect(),
        }
    }

    /// Tells it.
    ///
    /// # Errors
    /// The first law that was broken.
    pub(super) fn tell(&self) -> Result<Summary, String> {
        self.tell_to(&Trace::new(false))
    }

    /// Tells it, and gives its mark and what happened, whatever its end.
    pub(super) fn traced(&self) -> (u64, Vec<String>) {
        let trace = Trace::new(true);
        if let Err(why) = self.tell_to(&trace) {
            trace.line(format_args!("{why}"));
        }
        (trace.mark(), trace.lines())
    }

    fn tell_to(&self, trace: &Trace) -> Result<Summary, String> {
        let told = async { Telling::new(self, trace.clone()).tell(self).await };
        runtime::on_simulated_time(self.seed ^ 3, told)
    }

    /// The shortest story that ends badly too, as far as leaving out one act after the other
    /// finds it, and how it ends.
    pub(super) fn shrunk(&self, why: String) -> (Self, String) {
        let (mut story, mut why) = (self.clone(), why);
        let mut at = 0;
        while at < story.acts.len() {
            let mut shorter = story.clone();
            shorter.acts.remove(at);
            match shorter.tell() {
                Err(still) => (story, why) = (shorter, still),
                Ok(_) => at += 1,
            }
        }
        (story, why)
    }

    /// The story, for people.
    pub(super) fn text(&self) -> String {
        let (seed, first, every) = (self.seed, self.first, self.snapshot_every);
        let mut text = format!("seed {seed}, coordinators 1 to {first}, snapshots of {every}\n");
        let mut at = 0;
        for (act, after) in &self.acts {
            let _ = writeln!(text, "{at:>7} ms  {act:?}");
            at += after;
        }
        let _ = writeln!(text, "{at:>7} ms  all works again");
        text
    }
}

fn act(random: &mut fastrand::Rng) -> Act {
    let (one, other) = (random.usize(..5), random.usize(..5));
    let machine = random.bool();
    match random.u8(..56) {
        0..=6 => Act::Crash(one, machine, random.u64(100..8_000)),
        7 => Act::CrashAll(random.u64(100..3_000)),
        8 | 9 => Act::Stop(one, random.u64(100..4_000)),
        10..=13 => Act::Freeze(one, random.u64(200..6_000)),
        14..=16 => Act::CutLink(one, other),
        17 | 18 => Act::Deafen(one),
        19 | 20 => Act::Mute(one),
        21..=23 => Act::Split(random.u8(1..31)),
        24..=29 => Act::Mend,
        30 | 31 => Act::Lose,
        32 | 33 => Act::Delay(random.u64(20..400)),
        34 | 35 => Act::Calm,
        36 | 37 => Act::SlowDisk(one, random.u64(50..2_000), random.u64(500..6_000)),
        38..=40 => {
            let fault = Fault::ALL[random.usize(..Fault::ALL.len())];
            Act::FailDisk(one, random.u64(..30), fault)
        }
        41 | 42 => Act::Elect(one),
        43..=46 => Act::Change(Change::Join(random.bool())),
        47 | 48 => Act::Change(Change::Leave(one)),
        49..=51 => Act::Change(Change::Replace(one)),
        52 | 53 => Act::Change(Change::Lose(one)),
        _ => Act::Change(Change::HandOver(one)),
    }
}
