//! How a write finds the leader and its answer.

use std::time::Duration;

use openraft::error::{ClientWriteError, RaftError};
use tokio::time::Instant;
use tonic::transport::Channel;
use volley_proto::raft::v1 as wire;
use volley_proto::raft::v1::membership_service_client::MembershipServiceClient;
use volley_proto::registry_records::{command_to_wire, reply_from_wire};
use volley_types::registry::{RegistryCommand, RegistryReply};
use volley_types::{ErrorCode, NodeId, PredictError, Revision};

use crate::raft_types::LogCommand;
use crate::service::from_status;
use crate::{Cluster, network, no_leader};

/// Between two looks for a leader, where nothing rings.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How one try ended.
enum Try {
    /// The registry answered.
    Answered(Result<RegistryReply, PredictError>),
    /// It surely was not proposed: try again.
    NotProposed,
}

impl Cluster {
    /// Applies a command through the leader, wherever that is, and waits until this node has
    /// applied it too. Once begun it runs to its end, even if the caller goes away.
    ///
    /// # Errors
    /// The registry's refusals; `Overloaded` when too many writes wait; `Unavailable` within
    /// the write timeout when no leader or quorum is there. After `Unavailable` the write may
    /// still take effect, unless the message says that there is no leader.
    pub async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        let cluster = self.clone();
        let work = async move {
            let by = Instant::now() + cluster.0.config.write_timeout;
            let reply = cluster.write_through_leader(&command, by).await?;
            cluster.wait_until_applied(reply.revision, by).await;
            Ok(reply)
        };
        let task = self.0.tasks.spawn(work);
        task.await
            .unwrap_or_else(|error| Err(PredictError::internal("the write failed", error)))
    }

    /// Applies a command here, if this node leads.
    ///
    /// # Errors
    /// As [`Cluster::write`].
    pub(crate) async fn write_here(
        &self,
        command: RegistryCommand,
    ) -> Result<RegistryReply, PredictError> {
        let by = Instant::now() + self.0.config.write_timeout;
        match self.propose(&command, by).await {
            Try::Answered(answer) => answer,
            Try::NotProposed => Err(no_leader()),
        }
    }

    async fn write_through_leader(
        &self,
        command: &RegistryCommand,
        by: Instant,
    ) -> Result<RegistryReply, PredictError> {
        let permit = tokio::time::timeout_at(by, self.0.gate.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            let message = "too many writes wait for the cluster; try again shortly";
            return Err(PredictError::new(ErrorCode::Overloaded, message)
                .with_retry_after(Duration::from_secs(1)));
        };
        while Instant::now() < by {
            let attempt = match self.leader() {
                Some((id, _)) if id == self.0.config.node_id => self.propose(command, by).await,
                Some((_, address)) => self.forward(&address, command, by).await,
                None => Try::NotProposed,
            };
            if let Try::Answered(answer) = attempt {
                return answer;
            }
            let mut status = self.raft();
            status.mark_unchanged();
            let look = LOOK_AGAIN.min(by.saturating_duration_since(Instant::now()));
            // Either a change or the time: both mean to look again.
            let _ = tokio::time::timeout(look, status.changed()).await;
        }
        Err(no_leader())
    }

    pub(crate) fn leader(&self) -> Option<(NodeId, String)> {
        let status = self.0.status.borrow();
        let leader = status.leader?;
        let member = status.members.iter().find(|member| member.id == leader)?;
        Some((leader, member.address.clone()))
    }

    async fn propose(&self, command: &RegistryCommand, by: Instant) -> Try {
        let proposal = self.0.raft.client_write(LogCommand::encode(command));
        match tokio::time::timeout_at(by, proposal).await {
            Ok(Ok(written)) => Try::Answered(written.data.into_result()),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Try::NotProposed,
            Ok(Err(error)) => Try::Answered(Err(unknown_outcome().with_source(error))),
            Err(_) => Try::Answered(Err(unknown_outcome())),
        }
    }

    async fn forward(&self, address: &str, command: &RegistryCommand, by: Instant) -> Try {
        let Ok(Some(channel)) = tokio::time::timeout_at(by, self.peer(address)).await else {
            // Nothing was sent.
            return Try::NotProposed;
        };
        let mut client = membership_client(channel);
        let request = wire::WriteRequest {
            command: Some(command_to_wire(command)),
            forwarded: true,
        };
        match tokio::time::timeout_at(by, client.write(request)).await {
            Ok(Ok(reply)) => Try::Answered(reply_from_wire(reply.into_inner())),
            Ok(Err(status)) => match from_status(&status) {
                Some(error) if error.message == no_leader().message => Try::NotProposed,
                Some(error) => Try::Answered(Err(error)),
                None => {
                    self.0.peers.lock().await.remove(address);
                    Try::Answered(Err(unknown_outcome().with_source(status)))
                }
            },
            Err(_) => Try::Answered(Err(unknown_outcome())),
        }
    }

    /// An open connection to another coordinator, or `None` when it cannot be reached.
    pub(crate) async fn peer(&self, address: &str) -> Option<Channel> {
        if let Some(channel) = self.0.peers.lock().await.get(address) {
            return Some(channel.clone());
        }
        let channel = network::endpoint(address).ok()?.connect().await.ok()?;
        self.0
            .peers
            .lock()
            .await
            .insert(address.to_owned(), channel.clone());
        Some(channel)
    }

    /// The write stands whether or not this node has applied it in time.
    async fn wait_until_applied(&self, revision: Revision, by: Instant) {
        let mut registry = self.registry();
        let applied = registry.wait_for(|state| revision <= state.revision);
        let _ = tokio::time::timeout_at(by, applied).await;
    }
}

pub(crate) fn membership_client(channel: Channel) -> MembershipServiceClient<Channel> {
    MembershipServiceClient::new(channel)
        .max_decoding_message_size(network::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(network::MAX_MESSAGE_BYTES)
}

fn unknown_outcome() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the write was not acknowledged in time and may still take effect; look before you \
         repeat it",
    )
    .with_retry_after(Duration::from_secs(1))
}
