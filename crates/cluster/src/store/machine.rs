//! The replicated state machine: the registry in memory, published to its subscribers.

use std::sync::Arc;

use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;
use volley_proto::registry::v1 as wire;
use volley_proto::registry_records::{state_from_wire, state_to_wire};
use volley_registry::apply;
use volley_types::registry::{LEVEL, RegistryCommand, RegistryState};

use crate::feature_level;
use crate::raft_types::{
    Entry, LogId, LogReply, MemberNode, Snapshot, SnapshotMeta, StorageError, StorageIoError,
    StoredMembership, TypeConfig,
};
use crate::store::disk::{Disk, RecoveredState};

#[derive(Debug, Default)]
struct AppliedState {
    last: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<Snapshot>,
}

/// Decoded payload of an entry.
enum Payload {
    Blank,
    Membership(openraft::Membership<u64, MemberNode>),
    Command(Box<RegistryCommand>),
}

/// The state machine of one node. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    disk: Disk,
    /// Highest feature level that this node supports.
    level: u32,
    applied: Arc<Mutex<AppliedState>>,
    registry: Arc<watch::Sender<Arc<RegistryState>>>,
}

impl Machine {
    /// Builds the state machine from the stored snapshot, or an empty one. `level` is the feature
    /// level that this node supports.
    ///
    /// # Errors
    /// `Conflict` if the snapshot needs a higher level, `Internal` if it is malformed.
    pub(crate) fn new(
        disk: Disk,
        found: &mut RecoveredState,
        level: u32,
    ) -> Result<Self, volley_types::PredictError> {
        let mut applied = AppliedState::default();
        let mut state = RegistryState::default();
        if let Some((meta, data)) = found.snapshot.take() {
            state = decode(&data, level)?;
            applied.last = meta.last_log_id;
            applied.membership = meta.last_membership.clone();
            applied.snapshot = Some(Snapshot {
                meta,
                snapshot: Box::new(data),
            });
        }
        Ok(Self {
            disk,
            level,
            applied: Arc::new(Mutex::new(applied)),
            registry: Arc::new(watch::Sender::new(Arc::new(state))),
        })
    }

    /// Returns the indexes of the last applied entry and of the last entry in the snapshot.
    #[cfg(test)]
    pub(crate) fn position(&self) -> (Option<u64>, Option<u64>) {
        let applied = self.applied.lock();
        let snapshot = applied.snapshot.as_ref();
        let snapshot = snapshot.and_then(|snapshot| snapshot.meta.last_log_id);
        let index = |id: LogId| id.index;
        (applied.last.map(index), snapshot.map(index))
    }

    /// Returns the registry. The receiver is notified of every change.
    pub(crate) fn registry(&self) -> watch::Receiver<Arc<RegistryState>> {
        self.registry.subscribe()
    }
}

/// Computes the registry after the snapshot and every log entry.
///
/// # Errors
/// `Internal` if one of them is malformed, `Conflict` if a later version wrote it.
pub(crate) fn replay(found: RecoveredState) -> Result<RegistryState, volley_types::PredictError> {
    let mut state = RegistryState::default();
    let mut after = None;
    if let Some((meta, data)) = found.snapshot {
        state = decode(&data, LEVEL)?;
        after = meta.last_log_id;
    }
    for entry in found.entries {
        if let EntryPayload::Normal(command) = entry.payload
            && after < Some(entry.log_id)
        {
            // The registry rejects the same commands as when they were first applied.
            let _ = apply(&mut state, &command.decode(LEVEL)?);
        }
    }
    Ok(state)
}

/// Decodes the registry in a snapshot, on a node that supports `level`.
///
/// # Errors
/// `Conflict` if it needs a higher level or contains unknown fields, `Internal` if it is malformed.
pub(crate) fn decode(data: &[u8], level: u32) -> Result<RegistryState, volley_types::PredictError> {
    let wire = wire::State::decode(data).map_err(|error| {
        volley_types::PredictError::internal("a registry snapshot is malformed", error)
    })?;
    if wire.encoded_len() != data.len() {
        return Err(feature_level::too_new("the registry"));
    }
    if level < wire.level {
        return Err(feature_level::needs("the registry", wire.level, level));
    }
    state_from_wire(wire)
}

/// Logs and returns the error that stops a node which cannot follow the others.
fn stopped(error: &volley_types::PredictError) -> StorageError {
    tracing::error!(
        error = error.chain(),
        "coordinator cannot apply the registry log and leaves service"
    );
    failed(error.chain())
}

fn failed(error: impl std::fmt::Display) -> StorageError {
    StorageIoError::write_state_machine(openraft::AnyError::error(error)).into()
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let (meta, state) = {
            // `apply` holds the same lock, so the position matches the registry.
            let applied = self.applied.lock();
            let meta = SnapshotMeta {
                last_log_id: applied.last,
                last_membership: applied.membership.clone(),
                snapshot_id: applied
                    .last
                    .map_or_else(|| "0".to_owned(), |last| last.to_string()),
            };
            (meta, self.registry.borrow().clone())
        };
        let data = state_to_wire(&state).encode_to_vec();
        self.disk.snapshot(&meta, &data).await.map_err(failed)?;
        let snapshot = Snapshot {
            meta,
            snapshot: Box::new(data),
        };
        self.applied.lock().snapshot = Some(snapshot.clone());
        Ok(snapshot)
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let applied = self.applied.lock();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<LogReply>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        // Decode all entries before applying any: a node stops at an entry that it cannot read.
        let mut read = Vec::new();
        for entry in entries {
            let payload = match entry.payload {
                EntryPayload::Blank => Payload::Blank,
                EntryPayload::Membership(membership) => Payload::Membership(membership),
                EntryPayload::Normal(command) => {
                    let command = command.decode(self.level);
                    Payload::Command(Box::new(command.map_err(|error| stopped(&error))?))
                }
            };
            read.push((entry.log_id, payload));
        }
        let mut applied = self.applied.lock();
        let mut replies = Vec::new();
        let mut next: Option<RegistryState> = None;
        for (log_id, payload) in read {
            applied.last = Some(log_id);
            replies.push(match payload {
                Payload::Blank => LogReply::Nothing,
                Payload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(log_id), membership);
                    LogReply::Nothing
                }
                Payload::Command(command) => {
                    let state = next.get_or_insert_with(|| (**self.registry.borrow()).clone());
                    LogReply::from(apply(state, &command))
                }
            });
        }
        if let Some(next) = next {
            self.registry.send_if_modified(|current| {
                let changed = current.revision != next.revision;
                *current = Arc::new(next);
                changed
            });
        }
        Ok(replies)
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Vec<u8>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Vec<u8>>,
    ) -> Result<(), StorageError> {
        let state = decode(&snapshot, self.level).map_err(|error| stopped(&error))?;
        self.disk.snapshot(meta, &snapshot).await.map_err(failed)?;
        let mut applied = self.applied.lock();
        applied.last = meta.last_log_id;
        applied.membership = meta.last_membership.clone();
        applied.snapshot = Some(Snapshot {
            meta: meta.clone(),
            snapshot,
        });
        self.registry.send_replace(Arc::new(state));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        Ok(self.applied.lock().snapshot.clone())
    }
}
