//! Tasks across coordinators: the service for this coordinator's tasks, and the client of the
//! others'.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use volley_proto::registry::v1::Task;
use volley_proto::resume::{refusal_from_wire, refusal_to_wire};
use volley_proto::task_records::{task_from_wire, task_to_wire};
use volley_proto::tasks::v1 as wire;
use volley_proto::tasks::v1::get_reply::Reply;
use volley_proto::tasks::v1::task_service_client::TaskServiceClient;
use volley_proto::tasks::v1::task_service_server::{TaskService, TaskServiceServer};
use volley_types::{ErrorCode, NodeId, PredictError, StoredTask, TaskSource};

use crate::Coordinator;
use crate::streams::{OpenChannel, refused_connection};

/// Time limit for a coordinator's response, and between two parts of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of one message of a response in bytes.
const PIECE: usize = 1 << 20;
/// Maximum size of a response in bytes: the limit of what a coordinator keeps.
const MAX_ANSWER: usize = 256 << 20;

/// Serves `volley.tasks.v1.TaskService`.
pub struct TaskEndpoint(Arc<dyn TaskSource>);

impl Coordinator {
    /// The gRPC service through which other coordinators access the tasks of `held`; for the
    /// internal listener.
    #[must_use]
    pub fn task_service(&self, held: Arc<dyn TaskSource>) -> TaskServiceServer<TaskEndpoint> {
        TaskServiceServer::new(TaskEndpoint(held))
    }

    /// Access to the tasks of another member; `None` for an unknown node.
    #[must_use]
    pub fn tasks_of(&self, node: NodeId, open: &OpenChannel) -> Option<Arc<dyn TaskSource>> {
        let raft = self.0.cluster.raft();
        let members = &raft.borrow().members;
        let member = members.iter().find(|member| member.id == node)?;
        let channel = self.0.peers.channel(&member.address, open);
        Some(Arc::new(Peer { node, channel }))
    }
}

fn replied(done: Result<(), PredictError>) -> Response<wire::TaskReply> {
    let refused = done.err().map(|error| refusal_to_wire(&error));
    Response::new(wire::TaskReply { refused })
}

fn told(task: &StoredTask) -> Task {
    task_to_wire(&task.id, &task.record)
}

#[tonic::async_trait]
impl TaskService for TaskEndpoint {
    type GetStream = Pin<Box<dyn Stream<Item = Result<wire::GetReply, Status>> + Send>>;

    async fn list(
        &self,
        _: Request<wire::ListRequest>,
    ) -> Result<Response<wire::ListReply>, Status> {
        let tasks = self.0.list().await;
        let tasks = tasks.map_err(|error| Status::unavailable(error.message))?;
        let tasks = tasks.iter().map(told).collect();
        Ok(Response::new(wire::ListReply { tasks }))
    }

    async fn get(
        &self,
        request: Request<wire::TaskRequest>,
    ) -> Result<Response<Self::GetStream>, Status> {
        let (first, answer) = match self.0.get(&request.get_ref().id).await {
            Ok(task) => (Reply::Task(told(&task)), task.response.unwrap_or_default()),
            Err(error) => (Reply::Refused(refusal_to_wire(&error)), Bytes::new()),
        };
        let pieces = (0..answer.len()).step_by(PIECE).map(move |at| {
            let end = answer.len().min(at + PIECE);
            Reply::Answer(answer[at..end].to_vec())
        });
        let replies = std::iter::once(first).chain(pieces);
        let replies = replies.map(|reply| Ok(wire::GetReply { reply: Some(reply) }));
        Ok(Response::new(Box::pin(stream::iter(replies))))
    }

    async fn cancel(
        &self,
        request: Request<wire::TaskRequest>,
    ) -> Result<Response<wire::TaskReply>, Status> {
        Ok(replied(self.0.cancel(&request.get_ref().id).await))
    }

    async fn forget(
        &self,
        request: Request<wire::TaskRequest>,
    ) -> Result<Response<wire::TaskReply>, Status> {
        Ok(replied(self.0.forget(&request.get_ref().id).await))
    }
}

/// The tasks of another coordinator.
struct Peer {
    node: NodeId,
    channel: Result<Channel, PredictError>,
}

impl Peer {
    fn client(&self) -> Result<TaskServiceClient<Channel>, PredictError> {
        Ok(TaskServiceClient::new(self.channel.clone()?))
    }

    /// Awaits a response within the time limit. Dropping the future also cancels the remote call.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, PredictError> {
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(self.failed(status)),
            Err(_) => Err(self.unanswered()),
        }
    }

    fn unanswered(&self) -> PredictError {
        let node = self.node;
        let message =
            format!("coordinator {node}, which runs this batch, does not answer; try again");
        PredictError::new(ErrorCode::Unavailable, message).with_retry_after(Duration::from_secs(1))
    }

    /// If no process listens, the coordinator has stopped and its state is lost.
    fn failed(&self, status: Status) -> PredictError {
        let node = self.node;
        let error = match status.code() {
            Code::Unavailable if refused_connection(&status) => {
                let message = format!("coordinator {node}, which ran this batch, has stopped");
                PredictError::new(ErrorCode::NotFound, message)
            }
            Code::Unimplemented => {
                let message = format!(
                    "coordinator {node} runs this batch with an earlier version of Volley, which \
                     does not share its state; send the request to that coordinator, or finish \
                     the upgrade"
                );
                PredictError::new(ErrorCode::Unavailable, message)
            }
            _ => self.unanswered(),
        };
        error.with_source(status)
    }

    fn read(&self, task: Task) -> Result<StoredTask, PredictError> {
        let read = task_from_wire(task);
        let (id, record) = read.map_err(|error| self.unanswered().with_source(error))?;
        Ok(StoredTask {
            id,
            record,
            response: None,
        })
    }
}

fn done(reply: Response<wire::TaskReply>) -> Result<(), PredictError> {
    match reply.into_inner().refused {
        None => Ok(()),
        Some(refusal) => Err(refusal_from_wire(refusal)),
    }
}

fn named(id: &str) -> wire::TaskRequest {
    wire::TaskRequest { id: id.to_owned() }
}

#[async_trait]
impl TaskSource for Peer {
    async fn list(&self) -> Result<Vec<StoredTask>, PredictError> {
        let mut client = self.client()?;
        let listed = self.in_time(client.list(wire::ListRequest {})).await?;
        let tasks = listed.into_inner().tasks.into_iter();
        tasks.map(|task| self.read(task)).collect()
    }

    async fn get(&self, id: &str) -> Result<StoredTask, PredictError> {
        let mut client = self.client()?;
        let begin = async {
            let mut replies = client.get(named(id)).await?.into_inner();
            let first = replies.message().await?;
            Ok((first.and_then(|first| first.reply), replies))
        };
        let (first, mut replies) = self.in_time(begin).await?;
        let mut task = match first {
            Some(Reply::Task(task)) => self.read(task)?,
            Some(Reply::Refused(refusal)) => return Err(refusal_from_wire(refusal)),
            Some(Reply::Answer(_)) | None => return Err(self.unanswered()),
        };
        let mut answer = BytesMut::new();
        while let Some(next) = self.in_time(replies.message()).await? {
            match next.reply {
                Some(Reply::Answer(piece)) if answer.len() + piece.len() <= MAX_ANSWER => {
                    answer.extend_from_slice(&piece);
                }
                _ => return Err(self.unanswered()),
            }
        }
        task.response = Some(Bytes::from(answer)).filter(|answer| !answer.is_empty());
        Ok(task)
    }

    async fn cancel(&self, id: &str) -> Result<(), PredictError> {
        let mut client = self.client()?;
        done(self.in_time(client.cancel(named(id))).await?)
    }

    async fn forget(&self, id: &str) -> Result<(), PredictError> {
        let mut client = self.client()?;
        done(self.in_time(client.forget(named(id))).await?)
    }
}
