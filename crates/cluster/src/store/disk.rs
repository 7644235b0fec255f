//! The writer thread and its file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use openraft::storage::LogFlushed;
use redb::{Database, Durability, ReadableDatabase, ReadableTable};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use volley_types::{NodeId, PredictError};

use super::claim::{Claim, claim};
use super::tables::{DiskError, LOG, META, unavailable};
use crate::identity::Draw;
use crate::raft_types::{Entry, LogId, SnapshotMeta, TypeConfig, Vote};

/// Name of the store in the data directory.
pub(super) const FILE: &str = "raft.redb";
/// Name of the store until it is complete: a partial store is never opened.
pub(super) const DRAFT: &str = "raft.redb.new";
/// Maximum number of operations that wait for the writer.
const QUEUE: usize = 1_024;
/// Maximum number of operations in one transaction.
const BATCH: usize = 256;
/// Time to wait for an earlier node in this process to close the file.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);

type WriteAck = oneshot::Sender<Result<(), String>>;

enum Write {
    Append(Vec<(u64, Vec<u8>)>, LogFlushed<TypeConfig>),
    Vote(Vec<u8>, WriteAck),
    /// Without an fsync: losing it in a crash only makes the replay start earlier.
    Committed(Vec<u8>),
    Truncate(u64, WriteAck),
    Purge(u64, Vec<u8>, WriteAck),
    Snapshot(Vec<u8>, Vec<u8>, WriteAck),
    ClusterEpoch(u64, WriteAck),
    /// Encoded records of other members, without an fsync: they reach the disk with the next write.
    Witness(Vec<u8>),
}

/// Handle to the writer thread. The thread ends and closes the file when the last handle is
/// dropped.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    queue: mpsc::Sender<Write>,
}

/// State that was read from disk.
#[derive(Debug, Default)]
pub(crate) struct RecoveredState {
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    pub(crate) purged: Option<LogId>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) snapshot: Option<(SnapshotMeta, Vec<u8>)>,
    pub(crate) epoch: u64,
    /// Encoded records of other members.
    pub(crate) witness: Vec<u8>,
    /// Ownership of the directory, set by [`Disk::open`].
    pub(crate) claim: Claim,
    /// Random numbers of this start.
    pub(crate) draw: Draw,
}

impl Disk {
    /// Opens or creates the store in `directory`, and claims it for `node`.
    ///
    /// # Errors
    /// `Conflict` if it belongs to another node, `Unavailable` if it cannot be opened.
    pub(crate) fn open(
        directory: &Path,
        node: NodeId,
    ) -> Result<(Self, RecoveredState), PredictError> {
        let database = open_database(directory)
            .map_err(|error| unavailable("the data directory cannot be opened", error))?;
        Self::over(database, node, Draw::random()?)
    }

    fn over(
        database: Database,
        node: NodeId,
        draw: Draw,
    ) -> Result<(Self, RecoveredState), PredictError> {
        let (disk, found, mut writer) = Self::begin(database, node, draw)?;
        std::thread::Builder::new()
            .name("raft-disk".to_owned())
            .spawn(move || {
                while let Some(write) = writer.queue.blocking_recv() {
                    writer.write(write);
                }
            })
            .map_err(|error| unavailable("the disk thread cannot be started", error.into()))?;
        Ok((disk, found))
    }

    /// Returns both ends of the queue, and the state on disk.
    fn begin(
        database: Database,
        node: NodeId,
        draw: Draw,
    ) -> Result<(Self, RecoveredState, Writer), PredictError> {
        let claim = claim(&database, node, &draw)?;
        let mut found = read_all(&database)
            .map_err(|error| unavailable("the data directory cannot be read", error))?;
        (found.claim, found.draw) = (claim, draw);
        let (queue, writes) = mpsc::channel(QUEUE);
        let writer = Writer {
            database,
            queue: writes,
            state: Ok(()),
        };
        Ok((Self { queue }, found, writer))
    }

    pub(crate) fn append(
        &self,
        entries: Vec<(u64, Vec<u8>)>,
        done: LogFlushed<TypeConfig>,
    ) -> Result<(), DiskError> {
        self.send(Write::Append(entries, done))
    }

    pub(crate) async fn vote(&self, vote: &Vote) -> Result<(), DiskError> {
        let vote = serde_json::to_vec(vote)?;
        self.wait(|done| Write::Vote(vote, done)).await
    }

    pub(crate) fn committed(&self, committed: Option<LogId>) -> Result<(), DiskError> {
        self.send(Write::Committed(serde_json::to_vec(&committed)?))
    }

    pub(crate) async fn truncate(&self, from: u64) -> Result<(), DiskError> {
        self.wait(|done| Write::Truncate(from, done)).await
    }

    pub(crate) async fn purge(&self, upto: LogId) -> Result<(), DiskError> {
        let meta = serde_json::to_vec(&upto)?;
        self.wait(|done| Write::Purge(upto.index, meta, done)).await
    }

    pub(crate) async fn snapshot(&self, meta: &SnapshotMeta, data: &[u8]) -> Result<(), DiskError> {
        let meta = serde_json::to_vec(meta)?;
        let data = data.to_vec();
        self.wait(|done| Write::Snapshot(meta, data, done)).await
    }

    pub(crate) async fn epoch(&self, mark: u64) -> Result<(), DiskError> {
        self.wait(|done| Write::ClusterEpoch(mark, done)).await
    }

    pub(crate) fn witness(&self, known: Vec<u8>) -> Result<(), DiskError> {
        self.send(Write::Witness(known))
    }

    /// Queues a write. Consensus waits for each write, so few are in flight and the queue does not
    /// fill.
    fn send(&self, write: Write) -> Result<(), DiskError> {
        self.queue.try_send(write).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => "the disk's queue is full".into(),
            mpsc::error::TrySendError::Closed(_) => "the disk thread has ended".into(),
        })
    }

    async fn wait(&self, write: impl FnOnce(WriteAck) -> Write) -> Result<(), DiskError> {
        let (done, result) = oneshot::channel();
        self.send(write(done))?;
        result
            .await
            .map_err(|_| DiskError::from("the disk thread has ended"))??;
        Ok(())
    }
}

fn open_database(directory: &Path) -> Result<Database, DiskError> {
    let file = directory.join(FILE);
    if !file.exists() {
        std::fs::create_dir_all(directory)?;
        drop(Database::create(draft(directory)?)?);
        publish(directory)?;
    }
    patiently(|| Database::create(&file))
}

/// Returns the path for a new store. A file from an earlier attempt was never used and is deleted.
pub(super) fn draft(directory: &Path) -> std::io::Result<PathBuf> {
    let draft = directory.join(DRAFT);
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(draft),
    }
}

/// Renames a complete store to its final name, durably: a power loss must not undo the directory
/// entry of a file that contains votes.
pub(super) fn publish(directory: &Path) -> std::io::Result<()> {
    std::fs::rename(directory.join(DRAFT), directory.join(FILE))?;
    std::fs::File::open(directory)?.sync_all()?;
    // A user who may not read the parent has not created the directory either.
    let directory = directory.canonicalize()?;
    match directory.parent().map(std::fs::File::open) {
        Some(Ok(parent)) => parent.sync_all(),
        Some(Err(_)) | None => Ok(()),
    }
}

/// Opens a store that another handle may keep open for another moment.
pub(super) fn patiently(
    open: impl Fn() -> Result<Database, redb::DatabaseError>,
) -> Result<Database, DiskError> {
    let started = Instant::now();
    loop {
        match open() {
            Err(redb::DatabaseError::DatabaseAlreadyOpen) if started.elapsed() < OPEN_PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return Ok(result?),
        }
    }
}

pub(super) fn read_all(database: &Database) -> Result<RecoveredState, DiskError> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    let log = transaction.open_table(LOG)?;
    let entries = log.iter()?.map(|item| {
        let (_, value) = item?;
        Ok(serde_json::from_slice(value.value())?)
    });
    let snapshot = match (meta.get("snapshot-meta")?, meta.get("snapshot-data")?) {
        (Some(about), Some(data)) => Some((
            serde_json::from_slice(about.value())?,
            data.value().to_vec(),
        )),
        _ => None,
    };
    Ok(RecoveredState {
        vote: read(&meta, "vote")?,
        committed: read::<Option<LogId>>(&meta, "committed")?.flatten(),
        purged: read(&meta, "purged")?,
        epoch: read(&meta, "cluster_epoch")?.unwrap_or_default(),
        witness: meta
            .get("witness")?
            .map(|value| value.value().to_vec())
            .unwrap_or_default(),
        claim: Claim::default(),
        draw: Draw::default(),
        entries: entries.collect::<Result<_, DiskError>>()?,
        snapshot,
    })
}

fn read<T: DeserializeOwned>(
    meta: &impl ReadableTable<&'static str, &'static [u8]>,
    key: &str,
) -> Result<Option<T>, DiskError> {
    let value = meta.get(key)?;
    Ok(value
        .map(|value| serde_json::from_slice(value.value()))
        .transpose()?)
}

/// Receiving end of the queue, which executes the writes.
struct Writer {
    database: Database,
    queue: mpsc::Receiver<Write>,
    /// After a failed write all following ones fail: an entry after a lost one would leave a gap in
    /// the log.
    state: Result<(), String>,
}

impl Writer {
    /// Executes this write together with those that wait behind it.
    fn write(&mut self, first: Write) {
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(next) = self.queue.try_recv()
        {
            batch.push(next);
        }
        if self.state.is_ok() {
            self.state = write_batch(&self.database, &batch).map_err(|error| {
                tracing::error!(
                    error = %error,
                    "disk write failed; coordinator leaves service until it is restarted"
                );
                error.to_string()
            });
        }
        for write in batch {
            match write {
                Write::Append(_, done) => {
                    done.log_io_completed(self.state.clone().map_err(std::io::Error::other));
                }
                Write::Committed(_) | Write::Witness(_) => {}
                Write::Vote(_, done)
                | Write::Truncate(_, done)
                | Write::Purge(_, _, done)
                | Write::Snapshot(_, _, done)
                | Write::ClusterEpoch(_, done) => {
                    // The caller may have gone; the write stands.
                    let _ = done.send(self.state.clone());
                }
            }
        }
    }
}

fn write_batch(database: &Database, batch: &[Write]) -> Result<(), DiskError> {
    let mut transaction = database.begin_write()?;
    if batch
        .iter()
        .all(|write| matches!(write, Write::Committed(_) | Write::Witness(_)))
    {
        transaction.set_durability(Durability::None)?;
    }
    {
        let mut meta = transaction.open_table(META)?;
        let mut log = transaction.open_table(LOG)?;
        for write in batch {
            match write {
                Write::Append(entries, _) => {
                    for (index, entry) in entries {
                        log.insert(index, entry.as_slice())?;
                    }
                }
                Write::Vote(vote, _) => {
                    meta.insert("vote", vote.as_slice())?;
                }
                Write::Committed(committed) => {
                    meta.insert("committed", committed.as_slice())?;
                }
                Write::Truncate(from, _) => log.retain_in(*from.., |_, _| false)?,
                Write::Purge(upto, purged, _) => {
                    meta.insert("purged", purged.as_slice())?;
                    log.retain_in(..=*upto, |_, _| false)?;
                }
                Write::Snapshot(about, data, _) => {
                    meta.insert("snapshot-meta", about.as_slice())?;
                    meta.insert("snapshot-data", data.as_slice())?;
                }
                Write::ClusterEpoch(mark, _) => {
                    meta.insert("cluster_epoch", serde_json::to_vec(mark)?.as_slice())?;
                }
                Write::Witness(known) => {
                    meta.insert("witness", known.as_slice())?;
                }
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Encodes an entry for the store.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, DiskError> {
    Ok(serde_json::to_vec(value)?)
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
pub(crate) mod faulty_disk;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
