//! What a coordinator keeps on disk: [whose it is](claim), vote, log and newest snapshot, and what
//! it knows of other members, in one redb file.
//!
//! All writes go through one thread ([`disk`]), which puts whatever is waiting into one
//! transaction: at most one fsync at a time, shared by all that waited for it. The log is also
//! held in memory ([`log`]) — snapshots keep it short — so that reading it never touches the
//! disk. The registry itself ([`machine`]) lives in memory and is rebuilt from the snapshot and
//! the log.

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

/// A node's store, open.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) disk: Disk,
    pub(crate) log: LogStore,
    pub(crate) machine: Machine,
    /// The mark of the history that it belongs to.
    pub(crate) epoch: u64,
    /// Who this process is to others.
    pub(crate) identity: Identity,
    /// What it knew of other members.
    pub(crate) witness: Vec<u8>,
    /// The mark of a cluster, should this node found one.
    pub(crate) mark: u64,
}

impl Store {
    /// What was `found` on `disk`, for a node that speaks `level`.
    ///
    /// # Errors
    /// `InvalidInput` when this version does not speak that level, `Conflict` when what was found
    /// needs a higher one, `Internal` when it is malformed.
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
