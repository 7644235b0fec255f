//! Coordinators come and go.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::error::{ClientWriteError, RaftError};
use tokio::time::Instant;
use volley_proto::raft::v1 as wire;
use volley_types::registry::CoordinatorMember;
use volley_types::{ErrorCode, NodeId, PredictError};

use crate::raft_types::Node;
use crate::service::{from_reply, from_status};
use crate::write::membership_client;
use crate::{Cluster, no_leader};

/// How long a new coordinator may take to catch up.
const CATCH_UP: Duration = Duration::from_secs(60);
/// Between two tries while another change is under way.
const RETRY: Duration = Duration::from_millis(200);

type ChangeError = RaftError<u64, ClientWriteError<u64, Node>>;

impl Cluster {
    /// Adds the coordinator `node`, reached at `address`: first as a learner, and as a voter
    /// once it has caught up. Does nothing when it is a voter there already.
    ///
    /// # Errors
    /// `Conflict` when the id has another address, `Unavailable` without a leader or when the
    /// new coordinator does not catch up within a minute.
    pub async fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        if self.is_leader() {
            return self.join_here(node, address).await;
        }
        let request = wire::JoinRequest {
            node_id: node.0,
            address,
            forwarded: true,
        };
        let leader = self.leader_channel().await?;
        let reply = membership_client(leader).join(request).await;
        reply
            .map(|reply| from_reply(reply.into_inner()))
            .map_err(|status| failed_call(&status))
    }

    /// Removes the coordinator `node`.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` when it is the last voter, `Unavailable` without a leader.
    pub async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        if self.is_leader() {
            return self.leave_here(node).await;
        }
        let request = wire::LeaveRequest {
            node_id: node.0,
            forwarded: true,
        };
        let leader = self.leader_channel().await?;
        let reply = membership_client(leader).leave(request).await;
        reply
            .map(|reply| from_reply(reply.into_inner()))
            .map_err(|status| failed_call(&status))
    }

    /// Asks the coordinators at `seeds` (`host:port`), one after the other and again and again,
    /// to add this node. Returns once it is a voter. Dropping the future stops asking.
    pub async fn request_join(&self, seeds: &[String]) {
        let node = self.0.config.node_id;
        let is_member = |cluster: &Self| {
            let status = cluster.0.status.borrow();
            status
                .members
                .iter()
                .any(|member| member.id == node && member.voter)
        };
        while !is_member(self) {
            for seed in seeds {
                let Some(channel) = self.peer(seed).await else {
                    continue;
                };
                let request = wire::JoinRequest {
                    node_id: node.0,
                    address: self.0.config.advertise.clone(),
                    forwarded: false,
                };
                match membership_client(channel).join(request).await {
                    Ok(_) => {
                        tracing::info!(node = %node, "joined the cluster");
                        return;
                    }
                    Err(status) => {
                        self.0.peers.lock().await.remove(seed);
                        tracing::warn!(seed, reason = status.message(), "not joined yet");
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    pub(crate) async fn join_here(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        if !self.is_leader() {
            return Err(no_leader());
        }
        let known = self.members().into_iter().find(|member| member.id == node);
        match known {
            Some(known) if known.address != address => {
                return Err(PredictError::new(
                    ErrorCode::Conflict,
                    format!(
                        "node {node} is known at another address; an id is never reused: give \
                         the new coordinator a new one"
                    ),
                ));
            }
            Some(known) if known.voter => return Ok(self.members()),
            _ => {}
        }
        let by = Instant::now() + CATCH_UP;
        let learner = Node::new(address);
        self.change(by, || {
            self.0.raft.add_learner(node.0, learner.clone(), true)
        })
        .await?;
        let voters = ChangeMembers::AddVoterIds(BTreeSet::from([node.0]));
        self.change(by, || self.0.raft.change_membership(voters.clone(), false))
            .await?;
        tracing::info!(node = %node, "coordinator joined");
        Ok(self.members())
    }

    pub(crate) async fn leave_here(
        &self,
        node: NodeId,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        if !self.is_leader() {
            return Err(no_leader());
        }
        let members = self.members();
        let Some(known) = members.iter().find(|member| member.id == node) else {
            let message = format!("no coordinator {node} is in the cluster");
            return Err(PredictError::new(ErrorCode::NotFound, message));
        };
        let by = Instant::now() + CATCH_UP;
        if known.voter {
            if members.iter().filter(|member| member.voter).count() == 1 {
                let message = "the last voter cannot leave; add another coordinator first";
                return Err(PredictError::new(ErrorCode::Conflict, message));
            }
            let voters = ChangeMembers::RemoveVoters(BTreeSet::from([node.0]));
            self.change(by, || self.0.raft.change_membership(voters.clone(), false))
                .await?;
        } else {
            let nodes = ChangeMembers::RemoveNodes(BTreeSet::from([node.0]));
            self.change(by, || self.0.raft.change_membership(nodes.clone(), false))
                .await?;
        }
        tracing::info!(node = %node, "coordinator left");
        Ok(self.members())
    }

    /// Makes one membership change, waiting while another is under way.
    async fn change<T, F>(
        &self,
        by: Instant,
        mut make: impl FnMut() -> F,
    ) -> Result<(), PredictError>
    where
        F: Future<Output = Result<T, ChangeError>>,
    {
        loop {
            match tokio::time::timeout_at(by, make()).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                    return Err(no_leader());
                }
                Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))))
                    if Instant::now() + RETRY < by =>
                {
                    tracing::debug!(error = %error, "another membership change is under way");
                    tokio::time::sleep(RETRY).await;
                }
                Ok(Err(error)) => return Err(not_changed().with_source(error)),
                Err(_) => return Err(not_changed()),
            }
        }
    }

    fn members(&self) -> Vec<CoordinatorMember> {
        crate::members(&self.0.raft.metrics().borrow())
    }

    async fn leader_channel(&self) -> Result<tonic::transport::Channel, PredictError> {
        let (_, address) = self.leader().ok_or_else(no_leader)?;
        let by = Instant::now() + self.0.config.write_timeout;
        let peer = tokio::time::timeout_at(by, self.peer(&address)).await;
        peer.ok().flatten().ok_or_else(no_leader)
    }
}

fn not_changed() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the membership was not changed in time; check that the coordinator runs and can be \
         reached at its address",
    )
}

fn failed_call(status: &tonic::Status) -> PredictError {
    from_status(status).unwrap_or_else(|| no_leader().with_source(status.clone()))
}
