//! The types of the consensus library, with Volley's command and reply.

use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Deserialize, Serialize};
use volley_proto::registry::v1 as wire;
use volley_proto::registry_records::{command_from_wire, command_to_wire};
use volley_types::registry::{RegistryCommand, RegistryReply};
use volley_types::{ErrorCode, ModelVersion, PredictError, Revision};

use crate::feature_level;

/// Runtime of the consensus library's tasks.
#[cfg(not(test))]
type Runtime = openraft::TokioRuntime;
#[cfg(test)]
type Runtime = crate::sim::runtime::SimRuntime;

openraft::declare_raft_types!(
    /// Registry commands in, their answers out, snapshots as bytes.
    pub(crate) TypeConfig:
        D = LogCommand,
        R = LogReply,
        Node = MemberNode,
        SnapshotData = Vec<u8>,
        AsyncRuntime = Runtime,
);

pub(crate) type Raft = openraft::Raft<TypeConfig>;
pub(crate) type Entry = openraft::Entry<TypeConfig>;
pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type StoredMembership = openraft::StoredMembership<u64, MemberNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<u64, MemberNode>;
pub(crate) type Snapshot = openraft::Snapshot<TypeConfig>;
pub(crate) type StorageError = openraft::StorageError<u64>;
pub(crate) type StorageIoError = openraft::StorageIOError<u64>;
pub(crate) type RaftError<E = openraft::error::Infallible> = openraft::error::RaftError<u64, E>;

/// A member in the membership. Versions before level 6 only read the address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberNode {
    /// Address at which other coordinators reach it, `host:port`.
    pub(crate) addr: String,
    /// Incarnation of its data directory; 0 if it is not recorded.
    #[serde(default, skip_serializing_if = "is_unknown")]
    pub(crate) incarnation: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_unknown(incarnation: &u64) -> bool {
    *incarnation == 0
}

/// A command in the log: protobuf in base64. Base64 keeps the JSON around it small, and protobuf
/// lets later versions add fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct LogCommand {
    text: String,
    #[serde(skip)]
    logged: ProposalPosition,
}

/// Position of a command in the log of the node that proposed it, once it is known. Clones share
/// the position. It is not serialized.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProposalPosition(Option<Arc<OnceLock<LogId>>>);

impl ProposalPosition {
    pub(crate) fn at(&self) -> Option<LogId> {
        self.0.as_ref()?.get().copied()
    }
}

/// The position is not part of the command.
impl PartialEq for ProposalPosition {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ProposalPosition {}

impl LogCommand {
    pub(crate) fn encode(command: &RegistryCommand) -> Self {
        Self {
            text: STANDARD.encode(command_to_wire(command).encode_to_vec()),
            logged: ProposalPosition(Some(Arc::default())),
        }
    }

    /// Returns a handle to the command's position in this node's log.
    pub(crate) fn logged(&self) -> ProposalPosition {
        self.logged.clone()
    }

    /// Sets the position when the command enters the log.
    pub(crate) fn set_logged(&self, at: LogId) {
        if let Some(logged) = &self.logged.0 {
            logged.get_or_init(|| at);
        }
    }

    /// Decodes the command on a node that supports `level`.
    ///
    /// # Errors
    /// `Conflict` if the command needs a higher level or contains unknown fields, `Internal` if it
    /// is malformed. In either case the node must not skip it, because the others have applied it.
    pub(crate) fn decode(&self, level: u32) -> Result<RegistryCommand, PredictError> {
        let malformed = |cause: String| PredictError::internal("a log entry is malformed", cause);
        let bytes = STANDARD
            .decode(&self.text)
            .map_err(|error| malformed(error.to_string()))?;
        let wire = wire::Command::decode(bytes.as_slice());
        let wire = wire.map_err(|error| malformed(error.to_string()))?;
        // Decoding drops the fields of a later version, so the decoded command is shorter.
        if wire.encoded_len() != bytes.len() {
            return Err(feature_level::too_new("a command in the log"));
        }
        let command = command_from_wire(wire)?;
        if level < command.level() {
            return Err(feature_level::needs(
                "a command in the log",
                command.level(),
                level,
            ));
        }
        Ok(command)
    }
}

/// Result of applying an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogReply {
    /// The entry held no command.
    Nothing,
    /// The registry accepted the command.
    Applied {
        /// Revision of the registry after it.
        revision: u64,
        /// Version that was registered or deployed.
        version: Option<u32>,
    },
    /// The registry rejected the command and is unchanged.
    Refused {
        /// Stable name of the error code.
        code: String,
        /// Public error message.
        message: String,
    },
}

impl From<Result<RegistryReply, PredictError>> for LogReply {
    fn from(result: Result<RegistryReply, PredictError>) -> Self {
        match result {
            Ok(reply) => Self::Applied {
                revision: reply.revision.0,
                version: reply.version.map(|version| version.0),
            },
            Err(error) => Self::Refused {
                code: error.code.as_str().to_owned(),
                message: error.message,
            },
        }
    }
}

impl LogReply {
    pub(crate) fn into_result(self) -> Result<RegistryReply, PredictError> {
        match self {
            Self::Applied { revision, version } => Ok(RegistryReply {
                revision: Revision(revision),
                version: version.map(ModelVersion),
            }),
            Self::Refused { code, message } => Err(PredictError::new(
                ErrorCode::from_name(&code).unwrap_or(ErrorCode::Internal),
                message,
            )),
            Self::Nothing => Err(PredictError::internal(
                "the write was not applied",
                "a command's log entry returned no result",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_types::registry::{Drain, LEVEL};
    use volley_types::{ModelName, NodeId, NodeIdentity};

    use super::*;

    #[test]
    fn what_a_later_version_wrote_is_never_taken_for_something_else() {
        let command = RegistryCommand::Undeploy(ModelName::new("m").unwrap());
        let entry = LogCommand::encode(&command);
        assert_eq!(entry.decode(1).unwrap(), command);
        let bytes = STANDARD.decode(&entry.text).unwrap();
        // Field 2047, a varint: after the known fields, and instead of them.
        let unknown = [0xf8, 0x7f, 0x01];
        for bytes in [[&bytes[..], &unknown].concat(), unknown.to_vec()] {
            let entry = LogCommand {
                text: STANDARD.encode(bytes),
                logged: ProposalPosition::default(),
            };
            let refused = entry.decode(LEVEL).unwrap_err();
            assert_eq!(refused.code, ErrorCode::Conflict);
            assert!(refused.message.contains("later version"), "{refused:?}");
        }
    }

    #[test]
    fn a_node_that_is_held_back_takes_nothing_above_its_level() {
        let node = NodeIdentity::Coordinator(NodeId(1));
        let entry = LogCommand::encode(&RegistryCommand::Drain(node, Drain::default()));
        assert!(entry.decode(2).is_ok());
        let refused = entry.decode(1).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains("needs level 2"), "{refused:?}");
    }
}
