//! The consensus library's types, with Volley's command and answer filled in.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Deserialize, Serialize};
use volley_proto::registry::v1 as wire;
use volley_proto::registry_records::{command_from_wire, command_to_wire};
use volley_types::registry::{RegistryCommand, RegistryReply};
use volley_types::{ErrorCode, ModelVersion, PredictError, Revision};

openraft::declare_raft_types!(
    /// Registry commands in, their answers out, snapshots as bytes.
    pub(crate) TypeConfig:
        D = LogCommand,
        R = LogReply,
        SnapshotData = Vec<u8>,
);

pub(crate) type Raft = openraft::Raft<TypeConfig>;
pub(crate) type Entry = openraft::Entry<TypeConfig>;
pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type Node = openraft::BasicNode;
pub(crate) type StoredMembership = openraft::StoredMembership<u64, Node>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<u64, Node>;
pub(crate) type Snapshot = openraft::Snapshot<TypeConfig>;
pub(crate) type StorageError = openraft::StorageError<u64>;
pub(crate) type StorageIoError = openraft::StorageIOError<u64>;
pub(crate) type RaftError<E = openraft::error::Infallible> = openraft::error::RaftError<u64, E>;

/// A command as it stands in the log: protobuf in base64, so that the JSON around it stays
/// small and a later version may add fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogCommand(String);

impl LogCommand {
    pub(crate) fn encode(command: &RegistryCommand) -> Self {
        Self(STANDARD.encode(command_to_wire(command).encode_to_vec()))
    }

    pub(crate) fn decode(&self) -> Result<RegistryCommand, PredictError> {
        let malformed = |cause: String| PredictError::internal("a log entry is malformed", cause);
        let bytes = STANDARD
            .decode(&self.0)
            .map_err(|error| malformed(error.to_string()))?;
        let command = wire::Command::decode(bytes.as_slice());
        command_from_wire(command.map_err(|error| malformed(error.to_string()))?)
    }
}

/// What applying an entry gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LogReply {
    /// The entry held no command.
    Nothing,
    /// Applied.
    Applied {
        /// The registry's revision after it.
        revision: u64,
        /// The version that was registered or deployed.
        version: Option<u32>,
    },
    /// Refused; the registry is as it was.
    Refused {
        /// The error code's stable name.
        code: String,
        /// The public message.
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
                "a command's log entry gave no answer",
            )),
        }
    }
}
