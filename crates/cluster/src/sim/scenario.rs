//! What stories of coordinators are made of: how they begin, and what goes wrong.

use super::operator::Change;
use crate::store::disk::faulty_disk::Fault;

/// How a story begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitialState {
    /// How many coordinators there are.
    pub(super) first: u64,
    /// Entries between two snapshots.
    pub(super) snapshot_every: u64,
}

impl InitialState {
    pub(super) fn draw(random: &mut fastrand::Rng) -> Self {
        Self {
            first: [1, 3, 3, 3, 5, 5][random.usize(..6)],
            snapshot_every: random.u64(8..80),
        }
    }
}

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

impl Act {
    pub(super) fn draw(random: &mut fastrand::Rng) -> Self {
        let (one, other) = (random.usize(..5), random.usize(..5));
        let machine = random.bool();
        match random.u8(..58) {
            0..=6 => Self::Crash(one, machine, random.u64(100..8_000)),
            7 => Self::CrashAll(random.u64(100..3_000)),
            8 | 9 => Self::Stop(one, random.u64(100..4_000)),
            10..=13 => Self::Freeze(one, random.u64(200..6_000)),
            14..=16 => Self::CutLink(one, other),
            17 | 18 => Self::Deafen(one),
            19 | 20 => Self::Mute(one),
            21..=23 => Self::Split(random.u8(1..31)),
            24..=29 => Self::Mend,
            30 | 31 => Self::Lose,
            32 | 33 => Self::Delay(random.u64(20..400)),
            34 | 35 => Self::Calm,
            36 | 37 => Self::SlowDisk(one, random.u64(50..2_000), random.u64(500..6_000)),
            38..=40 => {
                let fault = Fault::ALL[random.usize(..Fault::ALL.len())];
                Self::FailDisk(one, random.u64(..30), fault)
            }
            41 | 42 => Self::Elect(one),
            43..=46 => Self::Change(Change::Join(random.bool())),
            47 | 48 => Self::Change(Change::Leave(one)),
            49..=51 => Self::Change(Change::Replace(one)),
            52 | 53 => Self::Change(Change::Lose(one)),
            54 | 55 => Self::Change(Change::Wipe(one)),
            _ => Self::Change(Change::TransferLeadership(one)),
        }
    }
}
