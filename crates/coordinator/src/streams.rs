//! Resumable streams across coordinators: the service for this coordinator's streams, and the
//! client of the others'.

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_stream::try_stream;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};
use volley_proto::resume::{refusal_from_wire, refusal_to_wire};
use volley_proto::streams::v1 as wire;
use volley_proto::streams::v1::resume_reply::Reply;
use volley_proto::streams::v1::stream_service_client::StreamServiceClient;
use volley_proto::streams::v1::stream_service_server::{StreamService, StreamServiceServer};
use volley_types::{ErrorCode, NodeId, PredictError, ResumedStream, StreamId, StreamSource};

use crate::Coordinator;

/// Time limit for a coordinator's response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the channel to an internal address, `host:port`; connects when first used.
///
/// # Errors
/// `InvalidInput` when the address is malformed.
pub type OpenChannel = Arc<dyn Fn(&str) -> Result<Channel, PredictError> + Send + Sync>;

/// Serves `volley.streams.v1.StreamService`.
pub struct StreamEndpoint(Arc<dyn StreamSource>);

impl Coordinator {
    /// The gRPC service through which other coordinators resume the streams of `held`; for the
    /// internal listener.
    #[must_use]
    pub fn stream_service(
        &self,
        held: Arc<dyn StreamSource>,
    ) -> StreamServiceServer<StreamEndpoint> {
        StreamServiceServer::new(StreamEndpoint(held))
    }

    /// Access to the streams of another member; `None` for an unknown node.
    #[must_use]
    pub fn streams_of(&self, node: NodeId, open: &OpenChannel) -> Option<Arc<dyn StreamSource>> {
        let raft = self.0.cluster.raft();
        let members = &raft.borrow().members;
        let member = members.iter().find(|member| member.id == node)?;
        let channel = self.0.peers.channel(&member.address, open);
        Some(Arc::new(Peer(channel)))
    }
}

/// Channels to other coordinators, by address. The map has at most one entry for each address that
/// was ever a member's.
#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<String, Channel>>);

impl Peers {
    pub(crate) fn channel(
        &self,
        address: &str,
        open: &OpenChannel,
    ) -> Result<Channel, PredictError> {
        let mut channels = self.0.lock();
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let channel = open(address)?;
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

fn parse(stream: &str) -> Result<StreamId, PredictError> {
    stream.parse()
}

fn reply(reply: Reply) -> wire::ResumeReply {
    wire::ResumeReply { reply: Some(reply) }
}

#[tonic::async_trait]
impl StreamService for StreamEndpoint {
    type ResumeStream = Pin<Box<dyn Stream<Item = Result<wire::ResumeReply, Status>> + Send>>;

    async fn resume(
        &self,
        request: Request<wire::ResumeRequest>,
    ) -> Result<Response<Self::ResumeStream>, Status> {
        let request = request.into_inner();
        let resumed = match parse(&request.stream) {
            Ok(stream) => {
                let caller = &request.caller;
                self.0.resume(&stream, request.after, caller).await
            }
            Err(error) => Err(error),
        };
        let refused = |error: &PredictError| reply(Reply::Refused(refusal_to_wire(error)));
        let replies: Self::ResumeStream = match resumed {
            Ok(ResumedStream::Events(pieces)) => {
                let begun = stream::iter([reply(Reply::Begun(wire::Nothing {}))]);
                let rest = pieces.map(move |piece| match piece {
                    Ok(events) => reply(Reply::Events(events.into())),
                    Err(error) => refused(&error),
                });
                Box::pin(begun.chain(rest).map(Ok))
            }
            Ok(ResumedStream::Finished) => {
                let finished = reply(Reply::Finished(wire::Nothing {}));
                Box::pin(stream::iter([Ok(finished)]))
            }
            Err(error) => Box::pin(stream::iter([Ok(refused(&error))])),
        };
        Ok(Response::new(replies))
    }

    async fn cancel(
        &self,
        request: Request<wire::CancelRequest>,
    ) -> Result<Response<wire::CancelReply>, Status> {
        let request = request.into_inner();
        let cancelled = match parse(&request.stream) {
            Ok(stream) => self.0.cancel(&stream, &request.caller).await,
            Err(error) => Err(error),
        };
        let refused = cancelled.err().map(|error| refusal_to_wire(&error));
        Ok(Response::new(wire::CancelReply { refused }))
    }
}

/// The streams of another coordinator.
struct Peer(Result<Channel, PredictError>);

impl Peer {
    fn client(&self) -> Result<StreamServiceClient<Channel>, PredictError> {
        Ok(StreamServiceClient::new(self.0.clone()?))
    }
}

#[async_trait]
impl StreamSource for Peer {
    async fn resume(
        &self,
        stream: &StreamId,
        after: u64,
        caller: &str,
    ) -> Result<ResumedStream, PredictError> {
        let request = wire::ResumeRequest {
            stream: stream.to_string(),
            after,
            caller: caller.to_owned(),
        };
        let mut client = self.client()?;
        let begin = async {
            let mut replies = client.resume(request).await?.into_inner();
            let first = replies.message().await?;
            Ok((first.and_then(|first| first.reply), replies))
        };
        let (first, replies) = in_time(begin).await?;
        match first {
            Some(Reply::Begun(_)) => Ok(ResumedStream::Events(Box::pin(events(replies)))),
            Some(Reply::Finished(_)) => Ok(ResumedStream::Finished),
            Some(Reply::Refused(refusal)) => Err(refusal_from_wire(refusal)),
            Some(Reply::Events(_)) | None => Err(unanswered()),
        }
    }

    async fn cancel(&self, stream: &StreamId, caller: &str) -> Result<(), PredictError> {
        let request = wire::CancelRequest {
            stream: stream.to_string(),
            caller: caller.to_owned(),
        };
        let mut client = self.client()?;
        let reply = in_time(async { client.cancel(request).await }).await?;
        match reply.into_inner().refused {
            None => Ok(()),
            Some(refusal) => Err(refusal_from_wire(refusal)),
        }
    }
}

/// Awaits a response within the time limit. Dropping the future, or the replies in it, also cancels
/// the remote call.
async fn in_time<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, PredictError> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(failed(status)),
        Err(_) => Err(unanswered()),
    }
}

fn events(
    mut replies: Streaming<wire::ResumeReply>,
) -> impl Stream<Item = Result<Bytes, PredictError>> + Send {
    try_stream! {
        while let Some(next) = replies.message().await.map_err(failed)? {
            match next.reply {
                Some(Reply::Events(events)) => yield Bytes::from(events),
                Some(Reply::Refused(refusal)) => Err(refusal_from_wire(refusal))?,
                Some(Reply::Begun(_) | Reply::Finished(_)) | None => Err(unanswered())?,
            }
        }
    }
}

fn unanswered() -> PredictError {
    let message = "the coordinator of this stream does not answer; try again";
    PredictError::new(ErrorCode::Unavailable, message).with_retry_after(Duration::from_secs(1))
}

/// If no process listens, the coordinator has stopped and its state is lost.
fn failed(status: Status) -> PredictError {
    let error = if status.code() == Code::Unavailable && refused_connection(&status) {
        PredictError::new(
            ErrorCode::NotFound,
            "the coordinator of this stream has stopped, and the stream is lost; send the request \
             again",
        )
    } else {
        unanswered()
    };
    error.with_source(status)
}

pub(crate) fn refused_connection(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}
