//! Writes: finding the leader, proposing the command, and returning the registry's reply.

use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::error::{ClientWriteError, RaftError};
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, SemaphorePermit};
use tokio::time::Instant;
use volley_proto::raft::v1 as wire;
use volley_proto::registry_records::{command_to_wire, reply_from_wire};
use volley_types::registry::{RegistryCommand, RegistryReply};
use volley_types::{ErrorCode, NodeId, PredictError, Revision};

use crate::lines::{Line, membership_client, was_not_sent};
use crate::raft_types::{LogCommand, LogId};
use crate::status::{from_status, was_not_proposed};
use crate::{Cluster, RETRY_AFTER, no_leader};

/// Maximum size of a command in bytes. In base64 it is a third larger, and an append holds 32.
const MAX_COMMAND_BYTES: usize = 512 << 10;
/// Delay before the leader is looked up again if nothing changes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Result of one attempt at a write.
pub(crate) enum Attempt {
    /// The registry replied, or the outcome is an error that must not be retried.
    Answered(Result<RegistryReply, PredictError>),
    /// The command was certainly not proposed; the write may be retried.
    NotProposed,
}

impl Cluster {
    /// Applies a command through the leader, and waits until this node has applied it too.
    ///
    /// Runs to completion even if the future is dropped; only the reply is lost.
    ///
    /// # Errors
    /// The registry's rejections; `TooLarge` for a command over 512 KiB; `Overloaded` if too many
    /// writes wait; `Conflict` if a coordinator does not support the command's feature level;
    /// `Unavailable` if there is no leader or quorum within the write timeout. After `Unavailable`
    /// the write may still take effect, unless the message states that there is no leader.
    pub async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        within_limit(&command)?;
        let place = self.place()?;
        let cluster = self.clone();
        let work = async move {
            let _place = place;
            let by = Instant::now() + cluster.0.config.write_timeout;
            let reply = cluster.write_through_leader(&command, by).await?;
            cluster.wait_until_applied(reply.revision, by).await;
            Ok(reply)
        };
        let task = self.0.tasks.spawn(work);
        task.await
            .unwrap_or_else(|error| Err(PredictError::internal("the write failed", error)))
    }

    /// Applies a command on this node if it leads.
    pub(crate) async fn write_here(&self, command: RegistryCommand) -> Attempt {
        let by = Instant::now() + self.0.config.write_timeout;
        let admitted = within_limit(&command).and_then(|()| self.place());
        let (_place, _permit) = match admitted {
            Ok(place) => match self.permit(by).await {
                Ok(permit) => (place, permit),
                Err(error) => return Attempt::Answered(Err(error)),
            },
            Err(error) => return Attempt::Answered(Err(error)),
        };
        self.propose(&command, by).await
    }

    /// Reserves a place among the writes of this node, if the node is healthy.
    fn place(&self) -> Result<OwnedSemaphorePermit, PredictError> {
        if !self.healthy() {
            return Err(stopped());
        }
        let place = self.0.places.clone().try_acquire_owned();
        place.map_err(|_| too_many())
    }

    async fn permit(&self, by: Instant) -> Result<SemaphorePermit<'_>, PredictError> {
        match tokio::time::timeout_at(by, self.0.gate.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(too_many()),
        }
    }

    async fn write_through_leader(
        &self,
        command: &RegistryCommand,
        by: Instant,
    ) -> Result<RegistryReply, PredictError> {
        let _permit = self.permit(by).await?;
        while Instant::now() < by {
            let attempt = match self.leader() {
                Some((id, _)) if id == self.0.config.node_id => self.propose(command, by).await,
                Some((id, address)) => match self.leader_takes(id, &address, command).await {
                    Ok(()) => self.forward(&address, command, by).await,
                    Err(error) if error.code == ErrorCode::Unavailable => Attempt::NotProposed,
                    Err(error) => return Err(error),
                },
                None => Attempt::NotProposed,
            };
            if let Attempt::Answered(answer) = attempt {
                return answer;
            }
            self.look_again(by).await?;
        }
        Err(no_leader())
    }

    /// Waits for a change of the Raft state or for a moment, but not beyond `by`.
    pub(crate) async fn look_again(&self, by: Instant) -> Result<(), PredictError> {
        let mut status = self.raft();
        status.mark_unchanged();
        let look = LOOK_AGAIN.min(by.saturating_duration_since(Instant::now()));
        // Both a change and a timeout are reasons to look again.
        match tokio::time::timeout(look, status.changed()).await {
            Ok(Err(_)) => Err(stopped()),
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn leader(&self) -> Option<(NodeId, String)> {
        let status = self.0.status.borrow();
        let leader = status.leader?;
        let member = status.members.iter().find(|member| member.id == leader)?;
        Some((leader, member.address.clone()))
    }

    async fn propose(&self, command: &RegistryCommand, by: Instant) -> Attempt {
        if self.0.handing_over.load(Ordering::Acquire) {
            return Attempt::NotProposed;
        }
        let _agreed = match self.agree(command, by).await {
            Ok(agreed) => agreed,
            Err(error) => return Attempt::Answered(Err(error)),
        };
        let entry = LogCommand::encode(command);
        // Reject a command that no node could read, because it would stop all of them.
        if let Err(error) = entry.decode(self.0.config.level) {
            return Attempt::Answered(Err(error));
        }
        let logged = entry.logged();
        let proposal = self.0.raft.client_write(entry);
        match tokio::time::timeout_at(by, proposal).await {
            Ok(Ok(written)) => Attempt::Answered(written.data.into_result()),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                // The reply is the same if another leader has truncated the entry from this log.
                match logged.at() {
                    Some(at) if !self.was_replaced(at, by).await => {
                        Attempt::Answered(Err(unknown_outcome()))
                    }
                    _ => Attempt::NotProposed,
                }
            }
            Ok(Err(error)) => Attempt::Answered(Err(unknown_outcome().with_source(error))),
            Err(_) => Attempt::Answered(Err(unknown_outcome())),
        }
    }

    /// Returns whether another entry was committed at the index of a truncated one. Until then it
    /// may still be in other logs, and one of their nodes may lead next.
    async fn was_replaced(&self, entry: LogId, by: Instant) -> bool {
        let mut metrics = self.0.raft.metrics();
        let applied = metrics.wait_for(|metrics| {
            let applied = metrics.last_applied;
            applied.is_some_and(|applied| entry.index <= applied.index)
        });
        if !matches!(tokio::time::timeout_at(by, applied).await, Ok(Ok(_))) {
            return false;
        }
        let there = self.0.log.id_at(entry.index);
        there.is_some_and(|there| there != entry)
    }

    async fn forward(&self, address: &str, command: &RegistryCommand, by: Instant) -> Attempt {
        let Ok(Some(channel)) = tokio::time::timeout_at(by, self.peer(address)).await else {
            // The connection failed, so nothing was sent.
            return Attempt::NotProposed;
        };
        let mut client = membership_client(channel);
        let request = wire::WriteRequest {
            command: Some(command_to_wire(command)),
            forwarded: true,
        };
        match tokio::time::timeout_at(by, client.write(request)).await {
            Ok(Ok(reply)) => Attempt::Answered(reply_from_wire(reply.into_inner())),
            Ok(Err(status)) if was_not_proposed(&status) => Attempt::NotProposed,
            Ok(Err(status)) => {
                if let Some(error) = from_status(&status) {
                    return Attempt::Answered(Err(error));
                }
                self.0.peers.lock().await.remove(address);
                if was_not_sent(&status) {
                    return Attempt::NotProposed;
                }
                Attempt::Answered(Err(unknown_outcome().with_source(status)))
            }
            Err(_) => Attempt::Answered(Err(unknown_outcome())),
        }
    }

    /// Returns a connection to another coordinator, or `None` if the coordinator cannot be reached.
    pub(crate) async fn peer(&self, address: &str) -> Option<Line> {
        if let Some(line) = self.0.peers.lock().await.get(address) {
            return Some(line.clone());
        }
        let line = self.0.lines.connect(address).await?;
        let mut peers = self.0.peers.lock().await;
        peers.insert(address.to_owned(), line.clone());
        Some(line)
    }

    /// Waits until this node has applied the write. The write stands even if that takes too long.
    async fn wait_until_applied(&self, revision: Revision, by: Instant) {
        let mut registry = self.registry();
        let applied = registry.wait_for(|state| revision <= state.revision);
        let _ = tokio::time::timeout_at(by, applied).await;
    }
}

/// Rejects a command that is too large to send to the other coordinators.
fn within_limit(command: &RegistryCommand) -> Result<(), PredictError> {
    if command_to_wire(command).encoded_len() <= MAX_COMMAND_BYTES {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::TooLarge,
        format!(
            "the command is over the limit of {} KiB; registry entries are for settings, not for \
             data",
            MAX_COMMAND_BYTES >> 10
        ),
    ))
}

fn stopped() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "this coordinator has left service (see its log); use another coordinator, and restart \
         this one when its disk works again",
    )
}

fn too_many() -> PredictError {
    PredictError::new(
        ErrorCode::Overloaded,
        "the write queue of the cluster is full; try again shortly",
    )
    .with_retry_after(RETRY_AFTER)
}

fn unknown_outcome() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the write was not acknowledged in time and may still take effect; read the entry before \
         you repeat the write",
    )
    .with_retry_after(RETRY_AFTER)
}
