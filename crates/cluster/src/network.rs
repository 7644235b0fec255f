//! Raft's messages between coordinators, over gRPC.

use std::sync::Arc;

use openraft::error::{
    Fatal, NetworkError, RPCError, RemoteError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::{Code, Request, Response, Status};
use volley_proto::raft::v1 as wire;
use volley_proto::raft::v1::raft_service_client::RaftServiceClient;
use volley_proto::raft::v1::snapshot_part::Part;

use crate::admission::Admission;
use crate::cluster_epoch::ClusterEpoch;
use crate::lines::{Line, Lines, MAX_MESSAGE_BYTES};
use crate::raft_types::{MemberNode, RaftError, Snapshot, TypeConfig, Vote};

/// Size of one part of a snapshot in bytes.
const PART_BYTES: usize = 1 << 20;
/// Creates a [`Peer`] for each other coordinator.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) lines: Arc<dyn Lines>,
    pub(crate) epoch: Arc<ClusterEpoch>,
    pub(crate) admission: Arc<Admission>,
}

/// Client of one other coordinator.
pub(crate) struct Peer {
    target: u64,
    node: MemberNode,
    client: Option<RaftServiceClient<Line>>,
    epoch: Arc<ClusterEpoch>,
    admission: Arc<Admission>,
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &MemberNode) -> Peer {
        let client = self.lines.lazy(&node.addr).map(|line| {
            RaftServiceClient::new(line)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES)
        });
        if let Err(error) = &client {
            tracing::error!(node = target, error = %error, "coordinator address is malformed");
        }
        Peer {
            target,
            node: node.clone(),
            client: client.ok(),
            epoch: self.epoch.clone(),
            admission: self.admission.clone(),
        }
    }
}

/// Failure of a call.
enum CallError {
    Unreachable(Status),
    Failed(AnyError),
}

impl CallError {
    fn into_rpc<E: std::error::Error>(self) -> RPCError<u64, MemberNode, E> {
        match self {
            Self::Unreachable(status) => RPCError::Unreachable(Unreachable::new(&status)),
            Self::Failed(error) => RPCError::Network(NetworkError::new(&error)),
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unavailable => Self::Unreachable(status),
            _ => Self::Failed(AnyError::new(&status)),
        }
    }
}

impl Peer {
    fn client(&self) -> Result<RaftServiceClient<Line>, CallError> {
        let malformed = || Status::unavailable("the coordinator's address is malformed");
        self.client
            .clone()
            .ok_or_else(|| CallError::Unreachable(malformed()))
    }

    async fn request<T>(&self, message: T, option: &RPCOption) -> Request<T> {
        self.admission.is_ready().await;
        let mut request = Request::new(message);
        request.set_timeout(option.hard_ttl());
        self.epoch.mark(request.metadata_mut());
        self.admission.address(self.target, request.metadata_mut());
        request
    }

    /// Decodes a reply after checking its sender.
    async fn answered<T: DeserializeOwned>(
        &self,
        answer: Result<Response<wire::Payload>, Status>,
    ) -> Result<T, CallError> {
        let answer = answer.inspect_err(|status| self.admission.heed(status))?;
        let checked = self.admission.check_answer(self.target, answer.metadata());
        checked.await?;
        decode(answer.get_ref()).map_err(CallError::Failed)
    }

    fn remote<E: std::error::Error>(&self, error: E) -> RemoteError<u64, MemberNode, E> {
        RemoteError::new_with_node(self.target, self.node.clone(), error)
    }
}

pub(crate) fn encode(value: &impl Serialize) -> Result<wire::Payload, AnyError> {
    let data = serde_json::to_vec(value).map_err(|error| AnyError::new(&error))?;
    Ok(wire::Payload { data })
}

pub(crate) fn decode<T: DeserializeOwned>(payload: &wire::Payload) -> Result<T, AnyError> {
    serde_json::from_slice(&payload.data).map_err(|error| AnyError::new(&error))
}

/// Splits a snapshot while it is sent, so that only a few parts are in memory twice.
fn data_parts(data: Vec<u8>) -> impl Iterator<Item = wire::SnapshotPart> + Send + 'static {
    (0..data.len()).step_by(PART_BYTES).map(move |start| {
        let end = data.len().min(start + PART_BYTES);
        wire::SnapshotPart {
            part: Some(Part::Data(data[start..end].to_vec())),
        }
    })
}

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, MemberNode, RaftError>> {
        let answer: Result<Result<AppendEntriesResponse<u64>, RaftError>, CallError> = async {
            let payload = encode(&rpc).map_err(CallError::Failed)?;
            let request = self.request(payload, &option).await;
            self.answered(self.client()?.append(request).await).await
        }
        .await;
        answer
            .map_err(CallError::into_rpc)?
            .map_err(|error| RPCError::RemoteError(self.remote(error)))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, MemberNode, RaftError>> {
        let answer: Result<Result<VoteResponse<u64>, RaftError>, CallError> = async {
            let payload = encode(&rpc).map_err(CallError::Failed)?;
            let request = self.request(payload, &option).await;
            self.answered(self.client()?.vote(request).await).await
        }
        .await;
        answer
            .map_err(CallError::into_rpc)?
            .map_err(|error| RPCError::RemoteError(self.remote(error)))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        let send = async {
            let header = encode(&(vote, &snapshot.meta)).map_err(CallError::Failed)?;
            let header = wire::SnapshotPart {
                part: Some(Part::Header(header.data)),
            };
            let parts = std::iter::once(header).chain(data_parts(*snapshot.snapshot));
            let parts = self.request(futures::stream::iter(parts), &option).await;
            let answer = self.client()?.install_snapshot(parts).await;
            self.answered(answer).await
        };
        let answer: Result<Result<SnapshotResponse<u64>, Fatal<u64>>, CallError> = tokio::select! {
            answer = send => answer,
            closed = cancel => return Err(StreamingError::Closed(closed)),
        };
        match answer {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(fatal)) => Err(StreamingError::RemoteError(self.remote(fatal))),
            Err(CallError::Unreachable(status)) => {
                Err(StreamingError::Unreachable(Unreachable::new(&status)))
            }
            Err(CallError::Failed(error)) => {
                Err(StreamingError::Network(NetworkError::new(&error)))
            }
        }
    }
}
