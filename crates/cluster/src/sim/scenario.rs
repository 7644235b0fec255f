//! Elements of a scenario: the initial state and the faults.

use super::operator::Change;
use crate::store::disk::faulty_disk::Fault;

/// Initial state of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitialState {
    /// Number of coordinators.
    pub(super) first: u64,
    /// Number of entries between two snapshots.
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

/// A fault or an action of the operator. Indexes count the expected members; times are in
/// milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Ends a process, or its machine (`true`), and restarts it after a time.
    Crash(usize, bool, u64),
    /// Ends all machines.
    CrashAll(u64),
    /// Stops a process in order, and restarts it after a time.
    Stop(usize, u64),
    /// Freezes a process for a time.
    Freeze(usize, u64),
    /// Cuts the link from the first to the second coordinator.
    CutLink(usize, usize),
    /// Cuts all links to a coordinator.
    Deafen(usize),
    /// Cuts all links from a coordinator.
    Mute(usize),
    /// Cuts all links between the coordinators in the mask and the others.
    Split(u8),
    /// Restores all links.
    Mend,
    /// Messages get lost and are duplicated.
    Lose,
    /// Delays messages.
    Delay(u64),
    /// Restores normal network conditions.
    Calm,
    /// Slows each write to a disk by up to this time, for a time.
    SlowDisk(usize, u64, u64),
    /// Fails the call to a disk after this number of other calls.
    FailDisk(usize, u64, Fault),
    /// Makes a coordinator stand for election.
    Elect(usize),
    /// Requests a change from the operator.
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
