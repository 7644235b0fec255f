//! Shared types of Volley: ids, requests, chunks, errors, deadlines, and the trait [`Predict`] that
//! every hop implements.
//!
//! This crate does no I/O, reads no clock and starts no task. Tests of a hop replace the next hop
//! with another implementation of [`Predict`].
//!
//! Reading order: [`ids`], [`error`], [`request`], [`chat`], [`chunk`], [`predict`], [`registry`],
//! [`access`].

pub mod access;
pub mod arrow_messages;
pub mod chat;
pub mod checked;
pub mod chunk;
pub mod citation;
pub mod connector_check;
pub mod continuation;
pub mod control;
pub mod details;
pub mod exact;
pub mod input;
pub mod native;
pub mod octets;
pub mod params;
pub mod predict;
pub mod registry;
pub mod request;
pub mod resolved;
pub mod scale;
pub mod signature;
pub mod streams;
pub mod tasks;
pub mod worker;

pub use volley_base::{address, deadline, egress, error, ids, intake, trace};

pub use access::{
    ALL_MODELS, ApiKey, KeyHash, ModelPattern, ModelScope, NodeIdentity, Quota, Role,
};
pub use chat::ChatMessage;
pub use checked::Checked;
pub use chunk::{
    ChunkStream, FinishReason, GenerationChunk, GenerationChunks, GenerationRow, PromptUsage, Usage,
};
pub use citation::{Citation, CitedSpan, SpanUnit};
pub use connector_check::{CheckConnector, ConnectorCheck};
pub use continuation::{AnswerEnd, Continuation, SentAnswer, SentAnswers};
pub use control::{ClusterHandle, ClusterView, Membership, Registry};
pub use deadline::Deadline;
pub use details::{Details, WARNING};
pub use error::{ErrorCode, ErrorOrigin, ErrorReason, PredictError};
pub use ids::{
    ConnectorId, Incarnation, KeyId, ModelGroupId, ModelName, ModelRef, ModelVersion, NodeId,
    RequestId, Revision, SecretName, TenantId, WorkerId,
};
pub use input::{BatchStream, Input};
pub use intake::{Intake, Share};
pub use native::Native;
pub use params::{ParamValue, Parameters};
pub use predict::Predict;
pub use request::{Dialect, PredictRequest, Priority};
pub use resolved::Resolved;
pub use signature::{Signature, Task};
pub use streams::{EventId, EventPieces, ResumedStream, StreamId, StreamOwner, StreamSource};
pub use tasks::{StoredTask, TaskSource};
pub use trace::TraceContext;
pub use volley_base::nearest::{nearest, unknown_parameter};
pub use worker::{Assignments, FetchProgress, GpuReport, ReplicaReport, WorkerReport};
