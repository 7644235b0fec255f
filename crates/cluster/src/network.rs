//! Raft's messages between coordinators, over gRPC.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
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
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tower::util::{BoxCloneSyncService, ServiceExt};
use volley_proto::raft::v1 as wire;
use volley_proto::raft::v1::raft_service_client::RaftServiceClient;
use volley_proto::raft::v1::snapshot_part::Part;
use volley_security::nodes::{Dialer, NodeKind};

use crate::lineage::Lineage;
use crate::raft_types::{Node, RaftError, Snapshot, TypeConfig, Vote};

/// The largest message between coordinators.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// How much of a snapshot one part carries.
const PART_BYTES: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The way to call one other coordinator, whatever carries it. Cloning gives another handle.
pub(crate) type Line = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// How other coordinators are reached, by their addresses (`host:port`).
pub(crate) trait Lines: std::fmt::Debug + Send + Sync {
    /// A line that connects when it is first used.
    ///
    /// # Errors
    /// When the address is malformed.
    fn lazy(&self, address: &str) -> Result<Line, tonic::transport::Error>;

    /// A line that is connected, or `None` where nobody can be reached.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Option<Line>>;
}

impl Lines for Dialer {
    fn lazy(&self, address: &str) -> Result<Line, tonic::transport::Error> {
        let channel = Self::lazy(self, &endpoint(address)?, NodeKind::Coordinator);
        Ok(line(channel))
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Option<Line>> {
        let connect = async move {
            let endpoint = endpoint(address).ok()?;
            let channel = Self::connect(self, &endpoint, NodeKind::Coordinator).await;
            channel.ok().map(line)
        };
        connect.boxed()
    }
}

fn line(channel: Channel) -> Line {
    BoxCloneSyncService::new(channel.map_err(|error| Status::from_error(error.into())))
}

/// The endpoint of the coordinator at `address` (`host:port`).
fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true))
}

/// Makes a [`Peer`] for each other coordinator.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) lines: Arc<dyn Lines>,
    pub(crate) lineage: Arc<Lineage>,
}

/// The way to one other coordinator.
pub(crate) struct Peer {
    target: u64,
    node: Node,
    client: Option<RaftServiceClient<Line>>,
    lineage: Arc<Lineage>,
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &Node) -> Peer {
        let client = self.lines.lazy(&node.addr).map(|line| {
            RaftServiceClient::new(line)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES)
        });
        if let Err(error) = &client {
            tracing::error!(node = target, error = %error, "a coordinator's address is malformed");
        }
        Peer {
            target,
            node: node.clone(),
            client: client.ok(),
            lineage: self.lineage.clone(),
        }
    }
}

/// Why a call gave no answer.
enum CallError {
    Unreachable(Status),
    Failed(AnyError),
}

impl CallError {
    fn into_rpc<E: std::error::Error>(self) -> RPCError<u64, Node, E> {
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

    fn request<T>(&self, message: T, option: &RPCOption) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(option.hard_ttl());
        self.lineage.mark(request.metadata_mut());
        request
    }

    fn remote<E: std::error::Error>(&self, error: E) -> RemoteError<u64, Node, E> {
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

/// Cuts a snapshot as it is sent, so that only a few parts exist twice.
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
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, Node, RaftError>> {
        let answer: Result<Result<AppendEntriesResponse<u64>, RaftError>, CallError> = async {
            let payload = encode(&rpc).map_err(CallError::Failed)?;
            let answer = self
                .client()?
                .append(self.request(payload, &option))
                .await?;
            decode(answer.get_ref()).map_err(CallError::Failed)
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
    ) -> Result<VoteResponse<u64>, RPCError<u64, Node, RaftError>> {
        let answer: Result<Result<VoteResponse<u64>, RaftError>, CallError> = async {
            let payload = encode(&rpc).map_err(CallError::Failed)?;
            let answer = self.client()?.vote(self.request(payload, &option)).await?;
            decode(answer.get_ref()).map_err(CallError::Failed)
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
            let parts = self.request(futures::stream::iter(parts), &option);
            let answer = self.client()?.install_snapshot(parts).await?;
            decode(answer.get_ref()).map_err(CallError::Failed)
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
