//! Leadership transfer: the leader chooses its successor before it stops.
//!
//! Without a transfer, the others wait for the leader lease and a random time before one of them
//! stands for election, and writes wait with them. In a transfer the leader rejects writes, lets
//! one voter catch up with its whole log, lets its own lease expire, and asks that voter to stand.
//! The pause is the lease alone, which is shorter than the write timeout. Compare section 3.10 of
//! the Raft dissertation.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;
use volley_proto::raft::v1 as wire;
use volley_types::{ErrorCode, NodeId, PredictError};

use super::Leader;
use crate::lines::membership_client;
use crate::{Cluster, RETRY_AFTER, no_leader};

/// Added to the lease, for messages that were in flight when the heartbeats stopped.
const MARGIN: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(10);

impl Cluster {
    /// Makes `to` the leader; `None` chooses the voter with the longest log. Returns the new
    /// leader. Does nothing if `to` leads already. Writes wait for about a second meanwhile; none
    /// is lost.
    ///
    /// Cancel safe on the leader: it accepts writes again, and the transfer may still take place.
    ///
    /// # Errors
    /// `NotFound` if `to` is not a voter, `Conflict` if there is no other voter or `to` is drained,
    /// `Unavailable` without a leader or if no voter accepts the leadership. The old leader then
    /// continues.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, PredictError> {
        if self.is_leader() {
            return self.transfer_leadership_here(to).await;
        }
        let request = wire::TransferLeadershipRequest {
            node_id: to.map_or(0, |node| node.0),
            forwarded: true,
        };
        let ask = |mut leader: Leader| async move { leader.transfer_leadership(request).await };
        let reply = self.through_leader(ask).await?;
        Ok(NodeId(reply.node_id))
    }

    /// Prepares this node for a stop: transfers the leadership if another voter can lead, and
    /// accepts it from no other node afterwards. A failed transfer is logged.
    ///
    /// Cancel safe: dropping the future abandons the transfer. The node still accepts no
    /// leadership.
    pub fn retire(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.stop_leading())
    }

    async fn stop_leading(&self) {
        self.0.retiring.store(true, Ordering::Release);
        if !self.is_leader() || self.other_voters().is_empty() {
            return;
        }
        match self.transfer_leadership_here(None).await {
            Ok(leader) => tracing::info!(leader = %leader, "leadership transferred"),
            Err(error) => tracing::warn!(
                error = error.chain(),
                "leadership transfer failed; the other members elect a leader after this one stops"
            ),
        }
    }

    pub(crate) async fn transfer_leadership_here(
        &self,
        to: Option<NodeId>,
    ) -> Result<NodeId, PredictError> {
        if !self.is_leader() {
            return Err(no_leader());
        }
        let own = self.0.config.node_id;
        if to == Some(own) {
            return Ok(own);
        }
        let voters = self.other_voters();
        if let Some(to) = to
            && !voters.contains_key(&to)
        {
            let message = format!("the cluster has no voter {to}");
            return Err(PredictError::new(ErrorCode::NotFound, message));
        }
        if voters.is_empty() {
            let message = "there is no other voter to lead; add another coordinator first";
            return Err(PredictError::new(ErrorCode::Conflict, message));
        }
        // A drained coordinator leads only if no other can.
        let registry = self.0.registry.borrow().clone();
        let working = |node: &NodeId| !registry.drains_coordinator(*node);
        if let Some(to) = to
            && !working(&to)
        {
            let message = format!("coordinator {to} is drained; undrain it first");
            return Err(PredictError::new(ErrorCode::Conflict, message));
        }
        let _one = self.0.transfer.lock().await;
        // Dropping the pause lets this node lead as before, unless another one was elected.
        let _pause = Pause::begin(self);
        let matched = self.matched();
        let mut chosen: Vec<_> = match to {
            Some(to) => vec![to],
            None => voters.into_keys().filter(working).collect(),
        };
        chosen.sort_by_key(|node| std::cmp::Reverse(matched.get(node).copied().flatten()));
        for node in chosen {
            if self.catch_up(node).await && self.ask_to_lead(node).await {
                return Ok(node);
            }
        }
        Err(PredictError::new(
            ErrorCode::Unavailable,
            "no other coordinator accepted the leadership; check that they run and can be reached",
        )
        .with_retry_after(RETRY_AFTER))
    }

    /// Stands for election at the request of the leader of `term`.
    pub(crate) async fn lead_now(&self, term: u64) -> Result<(), PredictError> {
        let current = self.0.raft.metrics().borrow().current_term;
        let own = self.0.config.node_id;
        let drained = self.0.registry.borrow().drains_coordinator(own);
        if drained || self.0.retiring.load(Ordering::Acquire) || current != term {
            return Err(PredictError::new(
                ErrorCode::Conflict,
                "this coordinator does not accept the leadership now",
            ));
        }
        let asked = self.0.raft.trigger().elect().await;
        asked.map_err(|error| PredictError::internal("the election was not started", error))
    }

    /// Waits until `node` has the whole log. The log does not grow meanwhile.
    async fn catch_up(&self, node: NodeId) -> bool {
        let by = Instant::now() + self.0.config.timing.leadership_transfer();
        loop {
            let last = self.0.raft.metrics().borrow().last_log_index;
            if self.matched().get(&node).copied().flatten() == last {
                return true;
            }
            if by <= Instant::now() || !self.is_leader() {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn ask_to_lead(&self, node: NodeId) -> bool {
        let Some(address) = self.other_voters().remove(&node) else {
            return false;
        };
        let by = Instant::now() + self.0.config.timing.leadership_transfer();
        let peer = tokio::time::timeout_at(by, self.peer(&address)).await;
        let Ok(Some(channel)) = peer else {
            return false;
        };
        // The others vote for no candidate while they believe in this leader.
        self.0.raft.runtime_config().heartbeat(false);
        tokio::time::sleep(self.lease() + MARGIN).await;
        let term = self.0.raft.metrics().borrow().current_term;
        let request = wire::TimeoutNowRequest { term };
        let mut client = membership_client(channel);
        let asked = client.timeout_now(request);
        let by = Instant::now() + self.0.config.timing.leadership_transfer();
        if !matches!(tokio::time::timeout_at(by, asked).await, Ok(Ok(_))) {
            self.0.raft.runtime_config().heartbeat(true);
            return false;
        }
        let mut status = self.raft();
        let own = self.0.config.node_id;
        let elected = status.wait_for(|status| status.leader.is_some_and(|leader| leader != own));
        let elected = matches!(tokio::time::timeout_at(by, elected).await, Ok(Ok(_)));
        self.0.raft.runtime_config().heartbeat(true);
        elected
    }

    /// Returns the last log index of each other coordinator, as far as this leader knows.
    fn matched(&self) -> BTreeMap<NodeId, Option<u64>> {
        let metrics = self.0.raft.metrics();
        let metrics = metrics.borrow();
        let replication = metrics.replication.iter().flatten();
        replication
            .map(|(node, matched)| (NodeId(*node), matched.map(|log| log.index)))
            .collect()
    }

    fn other_voters(&self) -> BTreeMap<NodeId, String> {
        let own = self.0.config.node_id;
        let members = self.members().into_iter();
        members
            .filter(|member| member.voter && member.id != own)
            .map(|member| (member.id, member.address))
            .collect()
    }
}

/// While it exists, this node proposes nothing and does not stand for election.
struct Pause<'a>(&'a Cluster);

impl<'a> Pause<'a> {
    fn begin(cluster: &'a Cluster) -> Self {
        cluster.0.handing_over.store(true, Ordering::Release);
        cluster.0.raft.runtime_config().elect(false);
        Self(cluster)
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let settings = self.0.0.raft.runtime_config();
        settings.heartbeat(true);
        settings.elect(true);
        self.0.0.handing_over.store(false, Ordering::Release);
    }
}
