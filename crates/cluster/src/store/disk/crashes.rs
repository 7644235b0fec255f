//! Every call to the disk fails in turn, in every way that disks fail, during votes, appends,
//! snapshots and truncations. After each fault the store opens again with everything that was
//! acknowledged, in the requested order, and accepts writes. After the first failure it
//! acknowledges nothing more.

use std::collections::BTreeMap;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, EntryPayload};
use volley_types::ModelName;
use volley_types::registry::RegistryCommand;

use super::faulty_disk::{Fault, FaultyDisk};
use super::*;
use crate::raft_types::{Entry, LogCommand};
use crate::store::log::LogStore;

/// Scenarios in an ordinary run; `VOLLEY_CRASH_SEEDS` sets another number.
const SEEDS: u64 = 3;
/// Groups of operations in one scenario.
const GROUPS: usize = 16;

/// Contents of a store.
#[derive(Clone, Debug, Default, PartialEq)]
struct StoreContents {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    log: BTreeMap<u64, Entry>,
    snapshot: Option<(String, Vec<u8>)>,
    epoch: u64,
}

/// An operation on a store.
#[derive(Clone, Debug)]
enum Step {
    Vote(Vote),
    Append(Vec<Entry>),
    Committed(LogId),
    Truncate(LogId),
    Purge(LogId),
    Snapshot(SnapshotMeta, Vec<u8>),
    ClusterEpoch(u64),
}

impl StoreContents {
    fn of(found: RecoveredState) -> Self {
        let entries = found.entries.into_iter();
        let snapshot = found.snapshot;
        Self {
            vote: found.vote,
            committed: found.committed,
            purged: found.purged,
            log: entries.map(|entry| (entry.log_id.index, entry)).collect(),
            snapshot: snapshot.map(|(about, data)| (about.snapshot_id, data)),
            epoch: found.epoch,
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Vote(vote) => self.vote = Some(*vote),
            Step::Append(entries) => {
                let entries = entries.iter().cloned();
                self.log
                    .extend(entries.map(|entry| (entry.log_id.index, entry)));
            }
            Step::Committed(committed) => self.committed = Some(*committed),
            Step::Truncate(from) => drop(self.log.split_off(&from.index)),
            Step::Purge(upto) => {
                self.log = self.log.split_off(&(upto.index + 1));
                self.purged = Some(*upto);
            }
            Step::Snapshot(about, data) => {
                self.snapshot = Some((about.snapshot_id.clone(), data.clone()));
            }
            Step::ClusterEpoch(mark) => self.epoch = *mark,
        }
    }
}

/// Generates operations as consensus does: the log has no gap, terms grow, committed entries stay.
struct Author {
    random: fastrand::Rng,
    kept: StoreContents,
    term: u64,
    next: u64,
}

impl Author {
    fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            kept: StoreContents::default(),
            term: 1,
            next: 1,
        }
    }

    /// Returns operations in groups that are requested at the same time.
    fn story(mut self) -> Vec<Vec<Step>> {
        let mut groups = Vec::new();
        for _ in 0..GROUPS {
            let count = self.random.usize(1..=3);
            let mut group = Vec::new();
            for _ in 0..count {
                let step = self.step();
                self.kept.take(&step);
                group.push(step);
            }
            groups.push(group);
        }
        groups
    }

    fn id(&self, index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(self.term, 1), index)
    }

    fn step(&mut self) -> Step {
        let last = self.kept.log.values().next_back().map(|entry| entry.log_id);
        let committed = self.kept.committed.map_or(0, |committed| committed.index);
        match (self.random.u8(..12), last) {
            (0 | 1, _) => {
                self.term += 1;
                Step::Vote(Vote::new(self.term, 1))
            }
            (2, _) => Step::ClusterEpoch(self.random.u64(..)),
            (3, Some(last)) if committed < last.index => {
                self.term += 1;
                let from = self.random.u64(committed + 1..=last.index);
                self.next = from;
                Step::Truncate(self.id(from))
            }
            (4, Some(last)) => Step::Committed(last),
            (5, Some(last)) => {
                let about = SnapshotMeta {
                    last_log_id: Some(last),
                    snapshot_id: format!("{last}"),
                    ..SnapshotMeta::default()
                };
                Step::Snapshot(about, self.bytes(40_000))
            }
            (6, Some(_)) if self.kept.log.contains_key(&committed) => {
                Step::Purge(self.kept.log[&committed].log_id)
            }
            _ => Step::Append(
                (0..self.random.usize(1..=4))
                    .map(|_| self.entry())
                    .collect(),
            ),
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.random.usize(..most);
        let byte = self.random.u8(..);
        vec![byte; length]
    }

    fn entry(&mut self) -> Entry {
        let name = "m".repeat(self.random.usize(1..120));
        let command = RegistryCommand::Undeploy(ModelName::new(name).unwrap());
        let log_id = self.id(self.next);
        self.next += 1;
        Entry {
            log_id,
            payload: EntryPayload::Normal(LogCommand::encode(&command)),
        }
    }
}

/// One run of the process.
struct Life {
    disk: Disk,
    log: LogStore,
}

impl Life {
    /// Opens the store, and returns its contents.
    fn begin(faulty_disk: &FaultyDisk) -> Result<(Self, StoreContents), String> {
        let database = Database::builder().create_with_backend(faulty_disk.clone());
        let database = database.map_err(|error| error.to_string())?;
        let opened =
            Disk::over(database, NodeId(1), Draw::default()).map_err(|error| error.chain())?;
        let (disk, found) = opened;
        let whole = RecoveredState {
            entries: found.entries.clone(),
            snapshot: found.snapshot.clone(),
            witness: found.witness.clone(),
            ..found
        };
        let mut found = found;
        let log = LogStore::new(disk.clone(), &mut found);
        Ok((Self { disk, log }, StoreContents::of(whole)))
    }

    /// Requests one operation. Returns `None` if the operation has no acknowledgement.
    fn ask(&self, step: Step) -> BoxFuture<'static, Option<bool>> {
        let (mut log, disk) = (self.log.clone(), self.disk.clone());
        async move {
            let done = match step {
                Step::Vote(vote) => log.save_vote(&vote).await.is_ok(),
                Step::Append(entries) => log.blocking_append(entries).await.is_ok(),
                Step::Truncate(from) => log.truncate(from).await.is_ok(),
                Step::Purge(upto) => log.purge(upto).await.is_ok(),
                Step::Snapshot(about, data) => disk.snapshot(&about, &data).await.is_ok(),
                Step::ClusterEpoch(mark) => disk.epoch(mark).await.is_ok(),
                Step::Committed(committed) => {
                    // The disk does not acknowledge it.
                    let _ = log.save_committed(Some(committed)).await;
                    return None;
                }
            };
            Some(done)
        }
        .boxed()
    }
}

/// Number of operations that were requested, and that were acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct LifeProgress {
    asked: usize,
    acknowledged: usize,
}

/// Runs the operations on a disk, until the group after the first failure.
async fn live(faulty_disk: &FaultyDisk, story: &[Vec<Step>], at: &str) -> LifeProgress {
    let mut told = LifeProgress::default();
    let Ok((life, found)) = Life::begin(faulty_disk) else {
        return told;
    };
    assert_eq!(found, StoreContents::default(), "{at}: it was new");
    let mut failed_before = false;
    for group in story {
        let asked = group.iter().cloned().map(|step| life.ask(step));
        let mut failed = failed_before;
        for done in join_all(asked).await {
            told.asked += 1;
            match done {
                Some(true) => {
                    assert!(!failed, "{at}: acknowledged after a failure");
                    told.acknowledged = told.asked;
                }
                Some(false) => failed = true,
                None => {}
            }
        }
        if failed_before {
            break;
        }
        failed_before = failed;
    }
    told
}

/// Reopens a store: it has one of the `allowed` states and accepts a write.
async fn reopen(image: Vec<u8>, allowed: &[StoreContents], at: &str) -> Vec<u8> {
    let faulty_disk = FaultyDisk::new(image);
    let (life, found) = Life::begin(&faulty_disk).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert!(
        allowed.contains(&found),
        "{at}: what is found is none of the {} states that it may be in:\n{found:#?}",
        allowed.len()
    );
    let vote = Vote::new(1_000, 2);
    assert_eq!(life.ask(Step::Vote(vote)).await, Some(true), "{at}");
    drop(life);
    let image = faulty_disk.into_image();
    let faulty_disk = FaultyDisk::new(image.clone());
    let (_, again) = Life::begin(&faulty_disk).unwrap_or_else(|error| panic!("{at}: {error}"));
    let expected = StoreContents {
        vote: Some(vote),
        ..found
    };
    assert_eq!(again, expected, "{at}: after it went on");
    image
}

/// Returns the image of a new store.
fn fresh() -> Vec<u8> {
    let faulty_disk = FaultyDisk::new(Vec::new());
    drop(
        Database::builder()
            .create_with_backend(faulty_disk.clone())
            .unwrap(),
    );
    faulty_disk.into_image()
}

/// Returns all states that the operations go through.
fn states(story: &[Vec<Step>]) -> Vec<StoreContents> {
    let mut kept = StoreContents::default();
    let mut states = vec![kept.clone()];
    for step in story.iter().flatten() {
        kept.take(step);
        states.push(kept.clone());
    }
    states
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.build().expect("a runtime")
}

/// One call fails in one way, and another call fails while the store is reopened.
fn crash(
    empty: &[u8],
    story: &[Vec<Step>],
    states: &[StoreContents],
    seed: u64,
    point: (u64, Fault),
) {
    let at = format!("seed {seed}, call {} ({:?})", point.0, point.1);
    let mixed = seed ^ point.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    runtime().block_on(async {
        let faulty_disk = FaultyDisk::failing(empty.to_vec(), Some(point), mixed);
        let told = live(&faulty_disk, story, &at).await;
        let image = faulty_disk.into_image();
        let allowed = &states[told.acknowledged..=told.asked];
        let second = (
            1 + mixed % 24,
            Fault::ALL[mixed as usize % Fault::ALL.len()],
        );
        let faulty_disk = FaultyDisk::failing(image, Some(second), mixed);
        drop(Life::begin(&faulty_disk));
        let at = format!("{at}, then call {} ({:?})", second.0, second.1);
        reopen(faulty_disk.into_image(), allowed, &at).await;
    });
}

#[test]
fn whatever_call_to_the_disk_fails_what_was_acknowledged_is_there() {
    let asked = std::env::var("VOLLEY_CRASH_SEEDS").ok();
    let seeds = asked.and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (empty, began) = (fresh(), Instant::now());
    let mut points = 0;
    for seed in 0..seeds {
        let story = Author::new(seed).story();
        let states = states(&story);
        let faulty_disk = FaultyDisk::new(empty.clone());
        let told = runtime().block_on(live(&faulty_disk, &story, "without a fault"));
        assert_eq!(told.asked, states.len() - 1);
        let calls = faulty_disk.calls();
        drop(faulty_disk.into_image());
        let all: Vec<_> = (1..=calls)
            .flat_map(|call| Fault::ALL.map(|fault| (call, fault)))
            .collect();
        points += all.len();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (all, story, states, empty) = (&all, &story, &states, &empty);
                scope.spawn(move || {
                    for point in all.iter().skip(thread).step_by(threads) {
                        crash(empty, story, states, seed, *point);
                    }
                });
            }
        });
    }
    let took = began.elapsed().as_secs_f64();
    told(&format!(
        "{points} crash points in {took:.1} s: nothing acknowledged was lost\n"
    ));
}

fn told(line: &str) {
    // Shown with `--nocapture`.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

#[test]
fn a_store_that_was_never_made_whole_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let draft = directory.path().join(DRAFT);
    std::fs::write(&draft, vec![7; 10_000]).unwrap();
    let (disk, found) = Disk::open(directory.path(), NodeId(1)).unwrap();
    assert!(found.vote.is_none() && !draft.exists());
    drop(disk);
    Disk::open(directory.path(), NodeId(1)).unwrap();
}
