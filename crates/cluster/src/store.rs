//! Data of a coordinator on disk, in one redb file: [its owner](claim), the vote, the log, the
//! latest snapshot, and the records of other members.
//!
//! All writes go through one thread ([`disk`]), which combines waiting writes in one transaction,
//! so they share one fsync. The log is also kept in memory ([`log`]), where snapshots keep it
//! short, so reads never touch the disk. The registry itself ([`machine`]) is in memory only. It is
//! rebuilt from the snapshot and the log.

pub(crate) mod claim;
pub(crate) mod disk;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod seed;
pub(crate) mod tables;

use volley_types::registry::LEVEL;
use volley_types::{ErrorCode, NodeId, PredictError};

use disk::{Disk, RecoveredState};
use log::LogStore;
use machine::Machine;

use crate::identity::{Ballot, Identity};

/// The open store of a node.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) disk: Disk,
    pub(crate) log: LogStore,
    pub(crate) machine: Machine,
    /// Cluster epoch of the store.
    pub(crate) epoch: u64,
    /// Identity of this process.
    pub(crate) identity: Identity,
    /// Encoded records of other members.
    pub(crate) witness: Vec<u8>,
    /// Cluster epoch to use if this node founds a cluster.
    pub(crate) mark: u64,
}

impl Store {
    /// Builds the store from the state in `found` that was read from `disk`, for a node that
    /// supports `level`.
    ///
    /// # Errors
    /// `InvalidInput` if this version does not support the level, `Conflict` if the state needs a
    /// higher one or its log was truncated, `Internal` if the state is malformed.
    pub(crate) fn open(
        disk: Disk,
        node: NodeId,
        mut found: RecoveredState,
        level: u32,
    ) -> Result<Self, PredictError> {
        if level == 0 || LEVEL < level {
            return Err(PredictError::invalid(format!(
                "this version of Volley supports levels 1 to {LEVEL}"
            )));
        }
        let identity = identity(node, &found);
        let committed = found.committed.map_or(0, |committed| committed.index);
        if identity.last < committed {
            return Err(PredictError::new(
                ErrorCode::Conflict,
                format!(
                    "the log of coordinator {node} was truncated: it ends at {}, but entries up \
                     to {committed} were committed; it must not take part under this id: give it \
                     an empty directory and a new id, and run `volley cluster replace {node} \
                     NEW_ID HOST:PORT` against a working coordinator",
                    identity.last
                ),
            ));
        }
        let log = LogStore::new(disk.clone(), &mut found);
        let machine = Machine::new(disk.clone(), &mut found, level)?;
        Ok(Self {
            disk,
            log,
            machine,
            epoch: found.epoch,
            identity,
            witness: found.witness,
            mark: found.draw.cluster,
        })
    }
}

fn identity(node: NodeId, found: &RecoveredState) -> Identity {
    let snapshot = found.snapshot.as_ref();
    let ends = [
        found.entries.last().map(|entry| entry.log_id),
        found.purged,
        snapshot.and_then(|(about, _)| about.last_log_id),
    ];
    let last = ends.into_iter().flatten().map(|end| end.index).max();
    Identity {
        node: node.0,
        incarnation: found.claim.incarnation,
        start: found.claim.start,
        nonce: found.draw.nonce,
        vote: found.vote.map(Ballot::of).unwrap_or_default(),
        last: last.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
