//! The Raft log: written by the disk thread, read from memory.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};
use parking_lot::Mutex;

use crate::raft_types::{Entry, LogId, StorageError, StorageIoError, TypeConfig, Vote};
use crate::store::disk::{self, Disk, RecoveredState};

#[derive(Debug, Default)]
struct Tail {
    entries: BTreeMap<u64, Entry>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
}

/// The log of one node. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    disk: Disk,
    tail: Arc<Mutex<Tail>>,
}

impl LogStore {
    pub(crate) fn new(disk: Disk, found: &mut RecoveredState) -> Self {
        let entries = std::mem::take(&mut found.entries);
        let tail = Tail {
            entries: entries
                .into_iter()
                .map(|entry| (entry.log_id.index, entry))
                .collect(),
            purged: found.purged,
            vote: found.vote,
            committed: found.committed,
        };
        Self {
            disk,
            tail: Arc::new(Mutex::new(tail)),
        }
    }

    /// Returns the id of the entry at `index`; `None` if the entry does not exist or was purged.
    pub(crate) fn id_at(&self, index: u64) -> Option<LogId> {
        let tail = self.tail.lock();
        tail.entries.get(&index).map(|entry| entry.log_id)
    }

    /// Returns the persisted vote and the last index that is known to be committed.
    pub(crate) fn reach(&self) -> (Option<Vote>, u64) {
        let tail = self.tail.lock();
        let committed = tail.committed.map_or(0, |committed| committed.index);
        (tail.vote, committed)
    }

    /// Returns the id of the last entry, even if it was purged.
    pub(crate) fn last_id(&self) -> Option<LogId> {
        let tail = self.tail.lock();
        let last = tail.entries.values().next_back().map(|entry| entry.log_id);
        last.or(tail.purged)
    }
}

#[cfg(test)]
impl LogStore {
    /// Returns the entries from `index` to `last` that exist.
    pub(crate) fn between(&self, index: u64, last: u64) -> Vec<Entry> {
        let tail = self.tail.lock();
        let entries = tail.entries.range(index..(last + 1).max(index));
        entries.map(|(_, entry)| entry.clone()).collect()
    }
}

fn write_failed(error: impl std::fmt::Display) -> StorageError {
    StorageIoError::write_logs(openraft::AnyError::error(error)).into()
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + std::fmt::Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        let start = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        // An empty or inverted range has no entries; `BTreeMap::range` panics on an inverted one.
        if end <= start {
            return Ok(Vec::new());
        }
        let tail = self.tail.lock();
        Ok(tail
            .entries
            .range(start..end)
            .map(|(_, entry)| entry.clone())
            .collect())
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let tail = self.tail.lock();
        let last = tail.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState {
            last_purged_log_id: tail.purged,
            last_log_id: last.or(tail.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        self.disk
            .vote(vote)
            .await
            .map_err(|error| StorageIoError::write_vote(openraft::AnyError::error(error)))?;
        self.tail.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.tail.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        self.disk.committed(committed).map_err(write_failed)?;
        self.tail.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.tail.lock().committed)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut encoded = Vec::new();
        {
            // Readable immediately; durable when the callback is called.
            let mut tail = self.tail.lock();
            for entry in entries {
                if let EntryPayload::Normal(command) = &entry.payload {
                    command.set_logged(entry.log_id);
                }
                encoded.push((
                    entry.log_id.index,
                    disk::encode(&entry).map_err(write_failed)?,
                ));
                tail.entries.insert(entry.log_id.index, entry);
            }
        }
        self.disk.append(encoded, callback).map_err(write_failed)
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.tail.lock().entries.split_off(&log_id.index);
        self.disk.truncate(log_id.index).await.map_err(write_failed)
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        {
            let mut tail = self.tail.lock();
            tail.entries = tail.entries.split_off(&(log_id.index + 1));
            tail.purged = Some(log_id);
        }
        self.disk.purge(log_id).await.map_err(write_failed)
    }
}
