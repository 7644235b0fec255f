//! Ownership of a data directory: the node's id, the incarnation, drawn when the directory was
//! created, and the number of processes that were started over it.
//!
//! A directory without a vote, log entries or a snapshot has promised nothing, so it may change its
//! owner. It then gets another incarnation.

use redb::{Database, ReadableTable};
use volley_types::{ErrorCode, NodeId, PredictError};

use super::tables::{DiskError, FORMAT, LOG, META, other_format, unavailable};
use crate::identity::Draw;

/// Keys that exist once a node has voted, logged or installed anything.
const PROMISES: [&str; 3] = ["vote", "purged", "snapshot-meta"];

/// Ownership of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Random number as old as the directory; never 0.
    pub(crate) incarnation: u64,
    /// Number of processes that were started over it, including this one.
    pub(crate) start: u64,
}

/// Contents of the store before this start.
struct Before {
    format: Option<Vec<u8>>,
    owner: Option<Vec<u8>>,
    is_blank: bool,
    claim: Claim,
}

/// Writes format, node id and incarnation into a new store, or verifies those of an existing one.
/// Counts the start.
///
/// # Errors
/// `Conflict` if the store belongs to another node or has another format, `Unavailable` if it
/// cannot be written.
pub(super) fn claim(database: &Database, node: NodeId, draw: &Draw) -> Result<Claim, PredictError> {
    let failed = |error| unavailable("the data directory cannot be written", error);
    let before = read(database).map_err(failed)?;
    let mut format = before.format.iter();
    if let Some(format) = format.find(|format| format.as_slice() != FORMAT.as_bytes()) {
        return Err(other_format(&String::from_utf8_lossy(format)));
    }
    let owner = before.owner.as_deref().map(String::from_utf8_lossy);
    let is_own = owner
        .as_deref()
        .is_none_or(|owner| owner == node.to_string());
    if let Some(owner) = owner
        && !is_own
        && !before.is_blank
    {
        return Err(PredictError::new(
            ErrorCode::Conflict,
            format!(
                "the data directory belongs to node {owner}, not {node}; a node id is never \
                 reused: give each node its own directory, and a wiped node a new id"
            ),
        ));
    }
    let kept = match is_own {
        true => before.claim,
        false => Claim::default(),
    };
    let next = Claim {
        incarnation: match kept.incarnation {
            0 => draw.incarnation,
            incarnation => incarnation,
        },
        start: kept.start + 1,
    };
    write(database, node, next).map_err(failed)?;
    Ok(next)
}

fn read(database: &Database) -> Result<Before, DiskError> {
    let transaction = database.begin_write()?;
    let before = {
        let meta = transaction.open_table(META)?;
        let log = transaction.open_table(LOG)?;
        let text = |key: &str| -> Result<Option<Vec<u8>>, DiskError> {
            Ok(meta.get(key)?.map(|value| value.value().to_vec()))
        };
        let number = |key: &str| -> Result<u64, DiskError> {
            let value = text(key)?;
            let value = value.map(|value| serde_json::from_slice(&value));
            Ok(value.transpose()?.unwrap_or_default())
        };
        let mut is_blank = log.first()?.is_none();
        for promise in PROMISES {
            is_blank &= text(promise)?.is_none();
        }
        Before {
            format: text("format")?,
            owner: text("node")?,
            is_blank,
            claim: Claim {
                incarnation: number("incarnation")?,
                start: number("starts")?,
            },
        }
    };
    // The commit creates the tables of a new store.
    transaction.commit()?;
    Ok(before)
}

fn write(database: &Database, node: NodeId, claim: Claim) -> Result<(), DiskError> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT.as_bytes())?;
        meta.insert("node", node.to_string().as_bytes())?;
        let incarnation = serde_json::to_vec(&claim.incarnation)?;
        meta.insert("incarnation", incarnation.as_slice())?;
        meta.insert("starts", serde_json::to_vec(&claim.start)?.as_slice())?;
    }
    transaction.commit()?;
    Ok(())
}
