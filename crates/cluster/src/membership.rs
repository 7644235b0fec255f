//! Adding, removing and replacing coordinators.

mod change;
mod leadership_transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::BoxFuture;
use openraft::ChangeMembers;
use tokio::time::Instant;
use tonic::{Response, Status};
use volley_proto::raft::v1 as wire;
use volley_proto::raft::v1::membership_service_client::MembershipServiceClient;
use volley_types::registry::{CoordinatorMember, MEMBER_LEVEL};
use volley_types::{ErrorCode, NodeId, PredictError};

use self::change::MembershipChange;
use crate::admission::reason;
use crate::feature_level::Reports;
use crate::lines::{Line, membership_client, was_not_sent};
use crate::raft_types::MemberNode;
use crate::status::{from_reply, from_status, was_not_proposed};
use crate::witness::Refusal;
use crate::{Cluster, no_leader};

/// Time that a new coordinator has to catch up.
const CATCH_UP: Duration = Duration::from_secs(60);

type Leader = MembershipServiceClient<Line>;

impl Cluster {
    /// Adds the coordinator `node` at `address` (`host:port`): first as a learner, and as a voter
    /// once it has caught up. Returns the members afterwards. Does nothing if the node already
    /// votes.
    ///
    /// Cancel safe: a change that has reached the leader runs to its end. A leader that stops
    /// meanwhile may leave it half done; repeat the call to finish it.
    ///
    /// # Errors
    /// `Conflict` if the id has another address or another data directory, or if the node's feature
    /// level is too low; `Unavailable` without a leader, or if the node does not catch up within a
    /// minute.
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
        let reply = self.through_leader(|mut leader: Leader| {
            let request = request.clone();
            async move { leader.join(request).await }
        });
        reply.await.map(from_reply)
    }

    /// Removes the coordinator `node` and returns the remaining members. A leader that removes
    /// itself first transfers the leadership.
    ///
    /// Cancel safe, as [`Cluster::join`].
    ///
    /// # Errors
    /// `NotFound` without such a member, `Conflict` if it is the last voter, `Unavailable` without
    /// a leader.
    pub async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        if self.is_leader() {
            return self.leave_here(node).await;
        }
        let request = wire::LeaveRequest {
            node_id: node.0,
            forwarded: true,
        };
        let ask = |mut leader: Leader| async move { leader.leave(request).await };
        self.through_leader(ask).await.map(from_reply)
    }

    /// Replaces the coordinator `old` by `node` at `address` (`host:port`), and returns the members
    /// afterwards. The new one catches up as a learner, and then one change of the voters adds it
    /// and removes `old`. A majority of the voters before and after must be reachable; `old` need
    /// not be.
    ///
    /// Cancel safe, as [`Cluster::join`].
    ///
    /// # Errors
    /// `NotFound` if there is no `old`, `InvalidInput` if both ids are the same; otherwise as
    /// [`Cluster::join`].
    pub async fn replace(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        if self.is_leader() {
            return self.replace_here(old, node, address).await;
        }
        let request = wire::ReplaceRequest {
            old_id: old.0,
            node_id: node.0,
            address,
            forwarded: true,
        };
        let reply = self.through_leader(|mut leader: Leader| {
            let request = request.clone();
            async move { leader.replace(request).await }
        });
        reply.await.map(from_reply)
    }

    /// Asks the coordinators at `seeds` (`host:port`) in turn, repeatedly, to add this node.
    /// Returns once it is a voter. Also returns if this node has [failed](Cluster::failure),
    /// because its id belongs to a member whose disk was lost.
    ///
    /// Cancel safe: dropping the future stops the requests. A request in flight may still take
    /// effect.
    pub fn request_join<'a>(&'a self, seeds: &'a [String]) -> BoxFuture<'a, ()> {
        Box::pin(self.ask_to_join(seeds))
    }

    async fn ask_to_join(&self, seeds: &[String]) {
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
                if !self.healthy() || self.check_not_lost(seed).await.is_err() {
                    return;
                }
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
                        tracing::warn!(
                            seed,
                            reason = status.message(),
                            "join request failed; trying again"
                        );
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Adds a coordinator as the leader. As the other changes, it runs in a task of this node,
    /// which a dropped caller does not stop.
    pub(crate) fn join_here(&self, node: NodeId, address: String) -> MembershipChange {
        let cluster = self.clone();
        self.in_task(async move { cluster.add_voter(node, address).await })
    }

    /// Replaces a coordinator as the leader.
    pub(crate) fn replace_here(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> MembershipChange {
        let cluster = self.clone();
        self.in_task(async move { cluster.replace_voter(old, node, address).await })
    }

    /// Removes a coordinator as the leader.
    pub(crate) fn leave_here(&self, node: NodeId) -> MembershipChange {
        let cluster = self.clone();
        self.in_task(async move { cluster.remove_member(node).await })
    }

    async fn add_voter(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        if !self.is_leader() {
            return Err(no_leader());
        }
        self.finish_change(Instant::now() + CATCH_UP).await?;
        if self.known_voter(node, &address).await? {
            return Ok(self.members());
        }
        let by = Instant::now() + CATCH_UP;
        self.add_learner(node, address, by).await?;
        let voters = ChangeMembers::AddVoterIds(BTreeSet::from([node.0]));
        self.change(by, || self.0.raft.change_membership(voters.clone(), false))
            .await?;
        tracing::info!(node = %node, "coordinator joined");
        Ok(self.members())
    }

    async fn replace_voter(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        if !self.is_leader() {
            return Err(no_leader());
        }
        if old == node {
            return Err(PredictError::invalid(
                "the new coordinator needs another id than the replaced one; an id is never reused",
            ));
        }
        self.finish_change(Instant::now() + CATCH_UP).await?;
        let is_in = self.known_voter(node, &address).await?;
        let members = self.members();
        let Some(known) = members.iter().find(|member| member.id == old) else {
            if is_in {
                // An earlier call has already replaced it.
                return Ok(members);
            }
            return Err(unknown_member(old));
        };
        if is_in || !known.voter {
            self.add_voter(node, address).await?;
            return self.remove_member(old).await;
        }
        let by = Instant::now() + CATCH_UP;
        self.add_learner(node, address, by).await?;
        let voters = members.iter().filter(|member| member.voter);
        let voters: BTreeSet<u64> = voters
            .map(|member| member.id.0)
            .filter(|id| *id != old.0)
            .chain([node.0])
            .collect();
        let voters = ChangeMembers::ReplaceAllVoters(voters);
        self.change(by, || self.0.raft.change_membership(voters.clone(), false))
            .await?;
        tracing::info!(old = %old, node = %node, "coordinator replaced");
        Ok(self.members())
    }

    async fn remove_member(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        if !self.is_leader() {
            return Err(no_leader());
        }
        if node == self.0.config.node_id && self.transfer_leadership_here(None).await.is_ok() {
            // The new leader removes this node. If no other voter can lead, this node removes
            // itself.
            return self.leave(node).await;
        }
        let members = self.members();
        let Some(known) = members.iter().find(|member| member.id == node) else {
            return Err(unknown_member(node));
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

    /// Returns whether `node` is a voter already.
    ///
    /// # Errors
    /// `Conflict` if its id is known at another address, or with another data directory.
    async fn known_voter(&self, node: NodeId, address: &str) -> Result<bool, PredictError> {
        let known = self.members();
        if known
            .iter()
            .any(|member| member.id == node && member.address == address)
            && let Ok(described) = self.ask_at(address, None).await
            && self.0.identity.is_other(node.0, described.incarnation)
        {
            let highest = known.iter().map(|member| member.id.0).max();
            let text = reason(Refusal::Lost, node.0, address, highest);
            return Err(PredictError::new(ErrorCode::Conflict, text));
        }
        match self.members().into_iter().find(|member| member.id == node) {
            Some(known) if known.address != address => Err(PredictError::new(
                ErrorCode::Conflict,
                format!(
                    "coordinator {node} is a member at {}; an id is never reused: give the new \
                     coordinator an unused id",
                    known.address
                ),
            )),
            known => Ok(known.is_some_and(|known| known.voter)),
        }
    }

    /// Adds `node` as a learner and waits until it has the log.
    async fn add_learner(
        &self,
        node: NodeId,
        address: String,
        by: Instant,
    ) -> Result<(), PredictError> {
        let (_admitted, incarnation) = self.agree_to_admit(node, &address, by).await?;
        let learner = MemberNode {
            addr: address,
            incarnation,
        };
        self.change(by, || {
            self.0.raft.add_learner(node.0, learner.clone(), true)
        })
        .await
    }

    /// Records the incarnations of all members in the membership, once all members report theirs.
    /// This is needed in clusters that were founded before level 6.
    pub(crate) async fn record_members(&self, reports: &Reports) {
        let members = crate::members(&self.0.raft.metrics().borrow());
        let speaks = |member: &CoordinatorMember| {
            let report = reports.get(&member.id);
            report.is_some_and(|report| MEMBER_LEVEL <= report.level)
        };
        if !self.is_leader() || !members.iter().all(speaks) {
            return;
        }
        let unrecorded = self.0.identity.unrecorded().unwrap_or_default();
        let nodes: BTreeMap<u64, MemberNode> = members
            .into_iter()
            .filter_map(|member| {
                let incarnation = *unrecorded.get(&member.id.0)?;
                let addr = member.address;
                Some((member.id.0, MemberNode { addr, incarnation }))
            })
            .collect();
        if nodes.is_empty() {
            return;
        }
        let nodes = ChangeMembers::SetNodes(nodes);
        let by = Instant::now() + self.0.config.write_timeout;
        let change = || self.0.raft.change_membership(nodes.clone(), true);
        match self.change(by, change).await {
            Ok(()) => tracing::info!("incarnations of all coordinators recorded"),
            Err(error) => tracing::debug!(error = error.chain(), "incarnations not recorded yet"),
        }
    }

    fn members(&self) -> Vec<CoordinatorMember> {
        crate::members(&self.0.raft.metrics().borrow())
    }

    /// Calls the leader and returns its reply. Waits for a leader as a write does, because an
    /// election takes a moment. Repeats calls that certainly had no effect.
    async fn through_leader<T, F>(
        &self,
        ask: impl Fn(Leader) -> F + Send,
    ) -> Result<T, PredictError>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let by = Instant::now() + self.0.config.write_timeout;
        while Instant::now() < by {
            if let Some((_, address)) = self.leader()
                && let Ok(Some(line)) = tokio::time::timeout_at(by, self.peer(&address)).await
            {
                match ask(membership_client(line)).await {
                    Ok(reply) => return Ok(reply.into_inner()),
                    // It has stopped, or does not lead any more.
                    Err(status) if was_not_sent(&status) || was_not_proposed(&status) => {
                        self.0.peers.lock().await.remove(&address);
                    }
                    Err(status) => return Err(failed_call(&status)),
                }
            }
            self.look_again(by).await?;
        }
        Err(no_leader())
    }
}

fn unknown_member(node: NodeId) -> PredictError {
    let message = format!("the cluster has no coordinator {node}");
    PredictError::new(ErrorCode::NotFound, message)
}

fn failed_call(status: &Status) -> PredictError {
    from_status(status).unwrap_or_else(|| no_leader().with_source(status.clone()))
}
