//! What goes wrong, and when: a seeded plan that fires every kind of fault, and the hands that do
//! it and undo it.

use std::time::Duration;

use tokio::time::sleep;

use super::directories::{Wrong, clone, exchange};
use super::test_bed::{COORDINATORS, TestBed, WORKERS};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// SIGKILL to the coordinator that leads.
    KillLeader,
    /// SIGKILL to another coordinator.
    KillFollower,
    /// SIGKILL to a worker.
    KillWorker,
    /// SIGKILL to every node at once.
    KillAll,
    /// SIGSTOP, later SIGCONT, to the coordinator that leads.
    FreezeLeader,
    /// The same to a worker.
    FreezeWorker,
    /// The leader and the other coordinators hear nothing of each other.
    PartitionLeader,
    /// The others hear the leader, and it does not hear them.
    DeafLeader,
    /// The leader hears the others, and they do not hear it.
    MuteLeader,
    /// The leader and one other hear nothing of each other; the third hears both.
    PartitionPair,
    /// A worker and the coordinators hear nothing of each other.
    PartitionWorker,
    /// One coordinator with one worker on one side, all others on the other.
    PartitionHalves,
    /// A node's link goes down and comes up at once.
    LinkFlap,
    /// The way to a worker takes longer.
    Delay,
    /// Every connection to a worker is reset, again and again.
    Resets,
    /// A node loses one of ten packets that are sent to it.
    Loss,
    /// A coordinator's disk has no room.
    FullDisk,
    /// A coordinator's disk stalls for most of the time.
    SlowDisk,
    /// A coordinator comes back with an empty directory.
    WipedDisk,
    /// A coordinator comes back with the directory of an earlier start.
    StaleDisk,
    /// A coordinator comes back without the end of its log.
    CutLog,
    /// A second process runs over a copy of a coordinator's directory.
    CopiedDisk,
    /// A coordinator is an hour ahead.
    ClockAhead,
    /// A coordinator is an hour behind.
    ClockBehind,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Self; 24] = [
        Self::KillLeader,
        Self::KillFollower,
        Self::KillWorker,
        Self::KillAll,
        Self::FreezeLeader,
        Self::FreezeWorker,
        Self::PartitionLeader,
        Self::DeafLeader,
        Self::MuteLeader,
        Self::PartitionPair,
        Self::PartitionWorker,
        Self::PartitionHalves,
        Self::LinkFlap,
        Self::Delay,
        Self::Resets,
        Self::Loss,
        Self::FullDisk,
        Self::SlowDisk,
        Self::WipedDisk,
        Self::StaleDisk,
        Self::CutLog,
        Self::CopiedDisk,
        Self::ClockAhead,
        Self::ClockBehind,
    ];

    /// Its name in the report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KillLeader => "leader killed",
            Self::KillFollower => "follower killed",
            Self::KillWorker => "worker killed",
            Self::KillAll => "all nodes killed",
            Self::FreezeLeader => "leader frozen",
            Self::FreezeWorker => "worker frozen",
            Self::PartitionLeader => "leader cut off",
            Self::DeafLeader => "leader hears nothing",
            Self::MuteLeader => "leader is not heard",
            Self::PartitionPair => "leader and one apart",
            Self::PartitionWorker => "worker cut off",
            Self::PartitionHalves => "network in halves",
            Self::LinkFlap => "link down and up",
            Self::Delay => "worker 200 ms away",
            Self::Resets => "connections reset",
            Self::Loss => "packets lost",
            Self::FullDisk => "disk full",
            Self::SlowDisk => "disk stalls",
            Self::WipedDisk => "disk wiped",
            Self::StaleDisk => "disk of before",
            Self::CutLog => "log cut",
            Self::CopiedDisk => "disk used twice",
            Self::ClockAhead => "clock an hour ahead",
            Self::ClockBehind => "clock an hour behind",
        }
    }

    /// Whether it takes a worker away and leaves the coordinators alone.
    #[must_use]
    pub fn is_of_workers(self) -> bool {
        matches!(
            self,
            Self::KillWorker | Self::FreezeWorker | Self::PartitionWorker | Self::Resets
        )
    }
}

/// Numbers that look random and are the same for the same seed (SplitMix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of that seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed >> 1).unwrap_or(0) % limit.max(1)
    }

    /// All faults, in an order of their own.
    pub fn shuffled(&mut self) -> Vec<Fault> {
        let mut faults = Fault::ALL.to_vec();
        for index in (1..faults.len()).rev() {
            faults.swap(index, self.below(index + 1));
        }
        faults
    }
}

/// Whom a fault struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struck {
    /// What.
    pub fault: Fault,
    /// The nodes, by name.
    pub nodes: Vec<String>,
}

/// Does `fault` for `lasts`, then undoes it.
///
/// # Errors
/// When it could not be done: the run is no test of it then.
pub async fn strike(
    bed: &mut TestBed,
    fault: Fault,
    dice: &mut Dice,
    lasts: Duration,
) -> Result<Struck, String> {
    let leader = bed.leader().await.ok_or("nobody leads")?;
    let follower = (leader + 1 + dice.below(COORDINATORS - 1)) % COORDINATORS;
    let worker = COORDINATORS + dice.below(WORKERS);
    let all: Vec<_> = (0..bed.nodes.len()).collect();
    let nodes = match fault {
        Fault::KillLeader => kill(bed, &[leader], lasts).await?,
        Fault::KillFollower => kill(bed, &[follower], lasts).await?,
        Fault::KillWorker => kill(bed, &[worker], lasts).await?,
        Fault::KillAll => kill(bed, &all, Duration::ZERO).await?,
        Fault::FreezeLeader => freeze(bed, leader, lasts).await,
        Fault::FreezeWorker => freeze(bed, worker, lasts).await,
        Fault::PartitionLeader => {
            let others = others(leader);
            cut(bed, &[leader], &others, true, lasts).await?
        }
        Fault::DeafLeader => {
            let others = others(leader);
            cut(bed, &others, &[leader], false, lasts).await?;
            vec![leader]
        }
        Fault::MuteLeader => {
            let others = others(leader);
            cut(bed, &[leader], &others, false, lasts).await?
        }
        Fault::PartitionPair => {
            cut(bed, &[leader], &[follower], true, lasts).await?;
            vec![leader, follower]
        }
        Fault::PartitionWorker => {
            // Not the one behind the proxy, which is on neither side.
            let worker = COORDINATORS + dice.below(WORKERS - 1);
            let coordinators: Vec<_> = (0..COORDINATORS).collect();
            cut(bed, &[worker], &coordinators, true, lasts).await?
        }
        Fault::PartitionHalves => {
            let half = [follower, COORDINATORS + dice.below(WORKERS - 1)];
            let rest: Vec<_> = all.iter().copied().filter(|n| !half.contains(n)).collect();
            cut(bed, &half, &rest, true, lasts).await?
        }
        Fault::LinkFlap => flap(bed, dice.below(COORDINATORS + WORKERS)).await?,
        Fault::Delay => delay(bed, lasts).await,
        Fault::Resets => reset(bed, lasts).await,
        Fault::Loss => lose(bed, dice.below(COORDINATORS + WORKERS), lasts).await?,
        Fault::SlowDisk => stall(bed, dice.below(COORDINATORS), lasts).await?,
        Fault::FullDisk => fill(bed, dice.below(COORDINATORS), lasts).await?,
        Fault::WipedDisk => exchange(bed, follower, Wrong::Wiped, lasts).await?,
        Fault::StaleDisk => exchange(bed, follower, Wrong::Stale, lasts).await?,
        Fault::CutLog => exchange(bed, follower, Wrong::Cut, lasts).await?,
        Fault::CopiedDisk => clone(bed, follower).await?,
        Fault::ClockAhead => skew(bed, follower, "+3600", lasts).await?,
        Fault::ClockBehind => skew(bed, follower, "-3600", lasts).await?,
    };
    let name = |index: usize| bed.nodes[index].name.clone();
    Ok(Struck {
        fault,
        nodes: nodes.into_iter().map(name).collect(),
    })
}

fn others(coordinator: usize) -> Vec<usize> {
    (0..COORDINATORS).filter(|n| *n != coordinator).collect()
}

async fn kill(bed: &mut TestBed, nodes: &[usize], lasts: Duration) -> Result<Vec<usize>, String> {
    for index in nodes {
        bed.nodes[*index].kill();
    }
    sleep(lasts).await;
    for index in nodes {
        bed.begin(*index, None)?;
    }
    Ok(nodes.to_vec())
}

async fn freeze(bed: &mut TestBed, node: usize, lasts: Duration) -> Vec<usize> {
    bed.nodes[node].signal("-STOP");
    sleep(lasts).await;
    bed.nodes[node].signal("-CONT");
    vec![node]
}

/// What `from` sends to `to` is lost, and the other way round too where `both`.
async fn cut(
    bed: &mut TestBed,
    from: &[usize],
    to: &[usize],
    both: bool,
    lasts: Duration,
) -> Result<Vec<usize>, String> {
    let pairs: Vec<_> = from
        .iter()
        .flat_map(|a| to.iter().map(move |b| (*a, *b)))
        .flat_map(|(a, b)| [Some((a, b)), both.then_some((b, a))])
        .flatten()
        .collect();
    for (a, b) in &pairs {
        bed.nodes[*a].host.cut_towards(&bed.nodes[*b].host)?;
    }
    sleep(lasts).await;
    for (a, b) in &pairs {
        bed.nodes[*a].host.mend_towards(&bed.nodes[*b].host);
    }
    Ok(from.to_vec())
}

async fn flap(bed: &mut TestBed, node: usize) -> Result<Vec<usize>, String> {
    for _ in 0..3 {
        bed.nodes[node].host.link(false)?;
        sleep(Duration::from_millis(300)).await;
        bed.nodes[node].host.link(true)?;
        sleep(Duration::from_millis(700)).await;
    }
    Ok(vec![node])
}

async fn delay(bed: &mut TestBed, lasts: Duration) -> Vec<usize> {
    bed.proxy.delay(Duration::from_millis(200));
    sleep(lasts).await;
    bed.proxy.delay(Duration::ZERO);
    vec![COORDINATORS + WORKERS - 1]
}

async fn reset(bed: &mut TestBed, lasts: Duration) -> Vec<usize> {
    let until = tokio::time::Instant::now() + lasts;
    while tokio::time::Instant::now() < until {
        bed.proxy.reset();
        sleep(Duration::from_millis(500)).await;
    }
    vec![COORDINATORS + WORKERS - 1]
}

/// Fills a coordinator's disk, and makes room and starts it again as its operator would: one that
/// could not write acknowledges nothing until then.
async fn fill(bed: &mut TestBed, node: usize, lasts: Duration) -> Result<Vec<usize>, String> {
    let disk = bed.nodes[node].disk.as_ref();
    let disk = disk.ok_or("a node with no disk")?;
    disk.fill()?;
    sleep(lasts).await;
    disk.empty()?;
    bed.nodes[node].kill();
    bed.begin(node, None)?;
    Ok(vec![node])
}

/// Lets a coordinator's disk stall for most of the time.
async fn stall(bed: &mut TestBed, node: usize, lasts: Duration) -> Result<Vec<usize>, String> {
    let disk = bed.nodes[node].disk.as_ref();
    let disk = disk.ok_or("a node with no disk")?;
    let until = tokio::time::Instant::now() + lasts;
    while tokio::time::Instant::now() < until {
        disk.freeze()?;
        sleep(Duration::from_millis(200)).await;
        disk.thaw();
        sleep(Duration::from_millis(50)).await;
    }
    Ok(vec![node])
}

/// Loses packets that arrive at a node.
async fn lose(bed: &mut TestBed, node: usize, lasts: Duration) -> Result<Vec<usize>, String> {
    bed.nodes[node].host.lose()?;
    sleep(lasts).await;
    bed.nodes[node].host.lose_nothing();
    Ok(vec![node])
}

/// Starts a coordinator again under another clock, and later under its own.
async fn skew(
    bed: &mut TestBed,
    node: usize,
    by: &str,
    lasts: Duration,
) -> Result<Vec<usize>, String> {
    bed.nodes[node].kill();
    bed.begin(node, Some(by))?;
    sleep(lasts).await;
    if !bed.nodes[node].runs() {
        return Err(format!(
            "{} did not run under faketime: {}",
            bed.nodes[node].name,
            bed.nodes[node].last_words()
        ));
    }
    bed.nodes[node].kill();
    bed.begin(node, None)?;
    Ok(vec![node])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_plan_and_every_plan_has_every_fault() {
        let plan = |seed| Dice::new(seed).shuffled();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        for seed in 0..100 {
            let mut faults = plan(seed);
            faults.sort();
            let mut all = Fault::ALL.to_vec();
            all.sort();
            assert_eq!(faults, all);
        }
    }
}
