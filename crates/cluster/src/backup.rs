//! The registry outside the cluster: backups, and new clusters made of a backup or of what one
//! node has left.
//!
//! A backup is one file: a line that names the format, a line of JSON that tells what is inside,
//! the registry as it is stored everywhere else, and a line with the SHA-256 of all before it.
//! Secrets are not in it: connectors name where workers find their keys, and API keys are hashes.

use std::path::Path;

use prost::Message;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use volley_proto::registry_records::state_to_wire;
use volley_types::registry::{LEVEL, RegistryState};
use volley_types::{ErrorCode, NodeId, PredictError, Revision};

use crate::identity::new_mark;
use crate::store::machine;
use crate::store::seed::{Seed, remains, sow};

/// The first line of every backup of this format.
const MAGIC: &str = "volley-backup 1\n";
const MAGIC_ANY: &[u8] = b"volley-backup ";
/// The last line: 64 digits and its end.
const SEAL_BYTES: usize = 65;
/// The largest backup that is read: the registry's own limit, and a page for the head.
pub const MAX_BACKUP_BYTES: usize = volley_registry::MAX_REGISTRY_BYTES + (64 << 10);

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHead {
    /// The version of Volley that wrote it.
    pub volley: String,
    /// When, in milliseconds since 1970 by that node's clock.
    pub created_ms: u64,
    /// The registry's revision: everything up to it is in, and nothing after it.
    pub revision: u64,
    /// How many models are in.
    pub models: usize,
    /// How many connectors.
    pub connectors: usize,
    /// How many API keys.
    pub keys: usize,
    /// Bytes of the registry that follow.
    pub bytes: usize,
}

/// The registry as a backup. It is consistent: a registry value is one revision.
#[must_use]
pub fn encode(state: &RegistryState, created_ms: u64) -> Vec<u8> {
    let payload = state_to_wire(state).encode_to_vec();
    let head = BackupHead {
        volley: env!("CARGO_PKG_VERSION").to_owned(),
        created_ms,
        revision: state.revision.0,
        models: state.models.len(),
        connectors: state.connectors.len(),
        keys: state.keys.len(),
        bytes: payload.len(),
    };
    #[expect(
        clippy::expect_used,
        reason = "serializing numbers and one text cannot fail"
    )]
    let head = serde_json::to_vec(&head).expect("numbers and a version are JSON");
    let mut out = MAGIC.as_bytes().to_vec();
    out.extend(head);
    out.push(b'\n');
    out.extend(payload);
    let seal = seal(&out);
    out.extend(seal.as_bytes());
    out
}

/// Checks a backup and reads it.
///
/// # Errors
/// `InvalidInput` when it is no backup, was cut or changed, or holds what this version of Volley
/// does not know.
pub fn decode(backup: &[u8]) -> Result<(BackupHead, RegistryState), PredictError> {
    let Some(rest) = backup.strip_prefix(MAGIC.as_bytes()) else {
        return Err(PredictError::invalid(if backup.starts_with(MAGIC_ANY) {
            "the backup has a format that this version of Volley does not support; restore it \
             with the version that wrote it, or a later one"
        } else {
            "this is not a backup of a registry"
        }));
    };
    let damaged = || PredictError::invalid("the backup was truncated or changed; use another one");
    let sealed = backup.len().checked_sub(SEAL_BYTES).ok_or_else(damaged)?;
    let (before, found) = backup.split_at(sealed);
    if seal(before).as_bytes() != found {
        return Err(damaged());
    }
    let end = rest.iter().position(|byte| *byte == b'\n');
    let (head, rest) = rest.split_at(end.ok_or_else(damaged)?);
    let head: BackupHead = serde_json::from_slice(head).map_err(|_| damaged())?;
    let payload = rest
        .get(1..rest.len().saturating_sub(SEAL_BYTES))
        .filter(|payload| payload.len() == head.bytes)
        .ok_or_else(damaged)?;
    let later = || {
        PredictError::invalid(format!(
            "the backup has records that this version of Volley does not support; restore it with \
             version {} or a later one",
            head.volley
        ))
    };
    let state = machine::decode(payload, LEVEL).map_err(|error| match error.code {
        ErrorCode::Conflict => later(),
        _ => error,
    })?;
    // What a later version wrote would be lost without a word.
    if state_to_wire(&state).encode_to_vec() != payload || state.revision.0 != head.revision {
        return Err(later());
    }
    Ok((head, state))
}

fn seal(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    let mut line: String = hash
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    line.push('\n');
    line
}

/// Where a new cluster begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSeed<'a> {
    /// The directory of its first coordinator, without a coordinator's data in it.
    pub data_dir: &'a Path,
    /// That coordinator's id.
    pub node: NodeId,
    /// Where other coordinators will reach it, `host:port`.
    pub advertise: String,
}

/// What was found of a coordinator that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverySource {
    /// Its id.
    pub node: NodeId,
    /// The registry's revision after all that is in its log.
    pub revision: Revision,
    /// How many models that registry has.
    pub models: usize,
    /// Entries at the end of its log that it does not know to be acknowledged.
    pub unconfirmed: u64,
}

/// Makes the data of a one-voter cluster that holds the registry of a backup.
///
/// # Errors
/// As [`decode`]; `Conflict` when the directory holds a coordinator's data already,
/// `Unavailable` when it cannot be written.
pub fn restore(backup: &[u8], beginning: &ClusterSeed<'_>) -> Result<BackupHead, PredictError> {
    let (head, state) = decode(backup)?;
    let seed = Seed {
        node: beginning.node,
        address: beginning.advertise.clone(),
        state: &state,
        last_index: 0,
        term: 0,
        epoch: new_mark()?,
        incarnation: new_mark()?,
    };
    sow(beginning.data_dir, &seed)?;
    Ok(head)
}

/// Looks at what a coordinator that is not running has left, and changes nothing.
///
/// # Errors
/// `NotFound` without its data, `Unavailable` when they cannot be read or are in use.
pub fn examine(data_dir: &Path) -> Result<RecoverySource, PredictError> {
    let remains = remains(data_dir)?;
    Ok(RecoverySource {
        node: remains.node,
        revision: remains.state.revision,
        models: remains.state.models.len(),
        unconfirmed: remains.unconfirmed,
    })
}

/// Makes the data of a one-voter cluster from what the coordinator of `old` has left, which
/// stays as it is. For when more than half of the voters are lost for ever: what was
/// acknowledged and never reached this coordinator is lost with them.
///
/// # Errors
/// `InvalidInput` when the new coordinator has the old one's id, and as [`examine`] and
/// [`restore`].
pub fn recover(old: &Path, beginning: &ClusterSeed<'_>) -> Result<RecoverySource, PredictError> {
    let remains = remains(old)?;
    if remains.node == beginning.node {
        return Err(PredictError::invalid(format!(
            "the old coordinator's id is {}; an id is never reused: give the new coordinator \
             another id",
            remains.node
        )));
    }
    let seed = Seed {
        node: beginning.node,
        address: beginning.advertise.clone(),
        state: &remains.state,
        last_index: remains.last.map_or(0, |last| last.index),
        term: remains.term,
        epoch: new_mark()?,
        incarnation: new_mark()?,
    };
    sow(beginning.data_dir, &seed)?;
    Ok(RecoverySource {
        node: remains.node,
        revision: remains.state.revision,
        models: remains.state.models.len(),
        unconfirmed: remains.unconfirmed,
    })
}

#[cfg(test)]
mod tests;
