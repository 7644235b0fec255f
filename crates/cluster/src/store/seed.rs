//! Creates a store around an existing registry, and reads the store of a stopped node.

use std::path::Path;

use openraft::{CommittedLeaderId, Membership, Vote as RaftVote};
use prost::Message;
use redb::{Database, ReadableDatabase};
use volley_proto::registry_records::state_to_wire;
use volley_types::registry::RegistryState;
use volley_types::{ErrorCode, NodeId, PredictError};

use super::disk::{self, FILE, RecoveredState};
use super::machine::replay;
use super::tables::{DiskError, FORMAT, LOG, META, other_format, unavailable};
use crate::raft_types::{LogId, MemberNode, SnapshotMeta, StoredMembership, Vote};

/// Contents of the store of a node that is not running.
pub(crate) struct LocalData {
    /// The registry after all log entries.
    pub(crate) state: RegistryState,
    /// Owner of the store.
    pub(crate) node: NodeId,
    /// Last log entry.
    pub(crate) last: Option<LogId>,
    /// Number of entries at the end of the log that this node does not know to be committed.
    pub(crate) unconfirmed: u64,
    /// Highest term that the node has seen.
    pub(crate) term: u64,
}

/// Reads the store in `directory` without changing it.
///
/// # Errors
/// `NotFound` without a store, `Unavailable` if it cannot be read or is in use, `Conflict` if
/// another version of Volley wrote it.
pub(crate) fn remains(directory: &Path) -> Result<LocalData, PredictError> {
    let file = directory.join(FILE);
    if !file.exists() {
        let message = "this directory has no data of a coordinator";
        return Err(PredictError::new(ErrorCode::NotFound, message));
    }
    let (owner, format, found) = read(&file).map_err(|error| {
        unavailable(
            "the coordinator's data cannot be read; does its process still run?",
            error,
        )
    })?;
    let node = owner
        .and_then(|owner| owner.parse().ok())
        .ok_or_else(|| other_format(format.as_deref().unwrap_or("none")))?;
    let committed = found.committed.map_or(0, |log| log.index);
    let snapshot = found.snapshot.as_ref();
    let from = snapshot.and_then(|(meta, _)| meta.last_log_id);
    let last = found.entries.last().map(|entry| entry.log_id).or(from);
    let unconfirmed = last.map_or(0, |last| last.index).saturating_sub(committed);
    let voted = found.vote.as_ref().map_or(0, |vote| vote.leader_id.term);
    let logged = last.map_or(0, |last| last.leader_id.term);
    Ok(LocalData {
        state: replay(found)?,
        node: NodeId(node),
        last,
        unconfirmed,
        term: voted.max(logged),
    })
}

/// The owner of a store of this format, its format, and its contents.
type FoundStore = (Option<String>, Option<String>, RecoveredState);

fn read(file: &Path) -> Result<FoundStore, DiskError> {
    let database = disk::patiently(|| Database::open(file))?;
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    let text = |key: &str| -> Result<Option<String>, DiskError> {
        let value = meta.get(key)?;
        Ok(value.map(|value| String::from_utf8_lossy(value.value()).into_owned()))
    };
    let format = text("format")?;
    let known = format.as_deref() == Some(FORMAT);
    let owner = text("node")?.filter(|_| known);
    Ok((owner, format, disk::read_all(&database)?))
}

/// Initial contents of a store.
pub(crate) struct Seed<'a> {
    /// Owner of the new store.
    pub(crate) node: NodeId,
    /// Address at which other coordinators will reach it, `host:port`.
    pub(crate) address: String,
    /// The registry.
    pub(crate) state: &'a RegistryState,
    /// Last index of the source. The new log continues after it.
    pub(crate) last_index: u64,
    /// Highest term of the source. The new terms are higher.
    pub(crate) term: u64,
    /// Epoch of the new history.
    pub(crate) epoch: u64,
    /// Incarnation of the new directory.
    pub(crate) incarnation: u64,
}

/// Creates a store in `directory` whose only voter is `node`.
///
/// # Errors
/// `Conflict` if there already is a store, `Unavailable` if it cannot be written.
pub(crate) fn sow(directory: &Path, seed: &Seed<'_>) -> Result<(), PredictError> {
    let failed = |error: DiskError| unavailable("the data directory cannot be written", error);
    std::fs::create_dir_all(directory).map_err(|error| failed(error.into()))?;
    if directory.join(FILE).exists() {
        return Err(PredictError::new(
            ErrorCode::Conflict,
            "the data directory already has data of a coordinator, which is never overwritten; \
             use an empty directory",
        ));
    }
    let write = || -> Result<(), DiskError> {
        fill(&disk::draft(directory)?, seed)?;
        disk::publish(directory)?;
        Ok(())
    };
    write().map_err(failed)
}

fn fill(file: &Path, seed: &Seed<'_>) -> Result<(), DiskError> {
    let (node, term) = (seed.node.0, seed.term + 1);
    let last = LogId::new(CommittedLeaderId::new(term, node), seed.last_index + 1);
    let first = MemberNode {
        addr: seed.address.clone(),
        incarnation: seed.incarnation,
    };
    let members = [(node, first)];
    let membership = Membership::new(
        vec![[node].into()],
        std::collections::BTreeMap::from(members),
    );
    let about = SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(last), membership),
        snapshot_id: last.to_string(),
    };
    let vote: Vote = RaftVote::new(term, node);
    let data = state_to_wire(seed.state).encode_to_vec();
    let database = Database::create(file)?;
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        transaction.open_table(LOG)?;
        meta.insert("format", FORMAT.as_bytes())?;
        meta.insert("node", node.to_string().as_bytes())?;
        meta.insert("vote", disk::encode(&vote)?.as_slice())?;
        meta.insert("purged", disk::encode(&last)?.as_slice())?;
        meta.insert("snapshot-meta", disk::encode(&about)?.as_slice())?;
        meta.insert("snapshot-data", data.as_slice())?;
        meta.insert("cluster_epoch", disk::encode(&seed.epoch)?.as_slice())?;
        let incarnation = disk::encode(&seed.incarnation)?;
        meta.insert("incarnation", incarnation.as_slice())?;
    }
    transaction.commit()?;
    Ok(())
}
