//! What a coordinator keeps on disk: its id, vote, log and newest snapshot, in one redb file.
//!
//! All writes go through one thread ([`disk`]), which puts whatever is waiting into one
//! transaction: at most one fsync at a time, shared by all that waited for it. The log is also
//! held in memory ([`log`]) — snapshots keep it short — so that reading it never touches the
//! disk. The registry itself ([`machine`]) lives in memory and is rebuilt from the snapshot and
//! the log.

pub(crate) mod disk;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod seed;

use volley_types::PredictError;
use volley_types::registry::LEVEL;

use disk::{Disk, Found};
use log::LogStore;
use machine::Machine;

/// A node's store, open.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) disk: Disk,
    pub(crate) log: LogStore,
    pub(crate) machine: Machine,
    /// The mark of the history that it belongs to.
    pub(crate) lineage: u64,
}

impl Store {
    /// What was `found` on `disk`, for a node that speaks `level`.
    ///
    /// # Errors
    /// `InvalidInput` when this version does not speak that level, `Conflict` when what was found
    /// needs a higher one, `Internal` when it is malformed.
    pub(crate) fn open(disk: Disk, mut found: Found, level: u32) -> Result<Self, PredictError> {
        if level == 0 || LEVEL < level {
            return Err(PredictError::invalid(format!(
                "this version of Volley speaks levels 1 to {LEVEL}"
            )));
        }
        let log = LogStore::new(disk.clone(), &mut found);
        let machine = Machine::new(disk.clone(), &mut found, level)?;
        Ok(Self {
            disk,
            log,
            machine,
            lineage: found.lineage,
        })
    }
}

#[cfg(test)]
mod tests;
