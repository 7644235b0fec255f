//! Backups of the registry, and new clusters from a backup or from the data of one node.
//!
//! A backup is one file: a line with the format, a line of JSON ([`BackupHead`]), the registry in
//! its stored form (protobuf), and a line with the SHA-256 of all bytes before it. It contains no
//! plain credentials: secrets are sealed, connectors only reference theirs, and API keys are hashes.

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

/// First line of every backup of this format.
const MAGIC: &str = "volley-backup 1\n";
const MAGIC_ANY: &[u8] = b"volley-backup ";
/// Length of the last line in bytes: 64 hexadecimal digits and a line feed.
const SEAL_BYTES: usize = 65;
/// Maximum size of a backup in bytes: the limit of the registry, and 64 MiB for what that limit
/// does not bound: deployments, placements, drained nodes and tasks.
pub const MAX_BACKUP_BYTES: usize = volley_registry::MAX_REGISTRY_BYTES + (64 << 20);

/// Description of a backup, in its second line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHead {
    /// Version of Volley that wrote the backup.
    pub volley: String,
    /// Time of the backup in milliseconds since the Unix epoch, by the clock of the writer.
    pub created_ms: u64,
    /// Revision of the registry. The backup contains every change up to it, and none after it.
    pub revision: u64,
    /// Number of models.
    pub models: usize,
    /// Number of connectors.
    pub connectors: usize,
    /// Number of API keys.
    pub keys: usize,
    /// Size of the stored registry in bytes.
    pub bytes: usize,
}

/// Encodes the registry as a backup. The backup is consistent, because a registry value is one
/// revision.
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

/// Verifies and decodes a backup.
///
/// # Errors
/// `InvalidInput` if the bytes are not a backup, were truncated or changed, or contain records that
/// this version of Volley does not support.
pub fn decode(backup: &[u8]) -> Result<(BackupHead, RegistryState), PredictError> {
    let Some(rest) = backup.strip_prefix(MAGIC.as_bytes()) else {
        return Err(PredictError::invalid(if backup.starts_with(MAGIC_ANY) {
            "the backup has a format that this version of Volley does not support; restore it \
             with the version that wrote it, or a later one"
        } else {
            "not a Volley backup: the file does not start with 'volley-backup'"
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
    // Unknown fields of a later version would be dropped silently.
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

/// First coordinator of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSeed<'a> {
    /// Its data directory, without the data of a coordinator.
    pub data_dir: &'a Path,
    /// Its id.
    pub node: NodeId,
    /// Address at which other coordinators will reach it, `host:port`.
    pub advertise: String,
}

/// Data of a coordinator that is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverySource {
    /// Id of the coordinator.
    pub node: NodeId,
    /// Revision of the registry after all log entries.
    pub revision: Revision,
    /// Number of models in that registry.
    pub models: usize,
    /// Number of entries at the end of the log that the coordinator does not know to be committed.
    pub unconfirmed: u64,
}

/// Creates the data directory of a one-voter cluster with the registry of a backup.
///
/// # Errors
/// As [`decode`]; `Conflict` if the directory already has the data of a coordinator, `Unavailable`
/// if it cannot be written, `Internal` if the operating system returns no random bytes.
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

/// Describes the data of a coordinator that is not running, without changing them.
///
/// # Errors
/// `NotFound` if there are none, `Conflict` if another version of Volley wrote them, `Unavailable`
/// if they cannot be read or are in use.
pub fn examine(data_dir: &Path) -> Result<RecoverySource, PredictError> {
    let remains = remains(data_dir)?;
    Ok(RecoverySource {
        node: remains.node,
        revision: remains.state.revision,
        models: remains.state.models.len(),
        unconfirmed: remains.unconfirmed,
    })
}

/// Creates the data directory of a one-voter cluster from the data in `old`, which stay unchanged.
/// Use it after a permanent loss of the quorum. Acknowledged writes that never reached the
/// coordinator of `old` are lost.
///
/// # Errors
/// `InvalidInput` if the new coordinator has the id of the old one; otherwise as [`examine`] and
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
