//! Visibility of writes: an acknowledged write is applied by all coordinators that answer.
//!
//! Raft acknowledges a write when a majority has stored it, and the others apply it a moment later.
//! A client that spreads its calls over the coordinators would find a model that it has just
//! registered on one and not on the next, and a revoked key would be valid there. So the
//! coordinator that took the write asks the others to reply as soon as they have applied it. The
//! wait is bounded: a coordinator that is down or cut off delays a write, and never fails it.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code, Request};
use volley_proto::raft::v1 as wire;
use volley_types::registry::{CoordinatorMember, RegistryCommand, RegistryReply};
use volley_types::{PredictError, Revision};

use crate::Cluster;
use crate::lines::membership_client;

/// How long a write waits for coordinators that answered the last request for their report.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits for the others, which are new or cannot be reached.
const PATIENCE_WITH_SILENT: Duration = Duration::from_millis(100);
/// Maximum time that a coordinator holds the request of another.
const HELD: Duration = Duration::from_secs(2);

impl Cluster {
    /// Like [`Cluster::write`], and waits until the other coordinators have applied the command: 1 s
    /// for those that answered within the last second, 0.1 s for the rest. A coordinator that does
    /// not answer in time serves the former registry until it has caught up.
    ///
    /// Runs to completion even if the future is dropped; only the reply is lost.
    ///
    /// # Errors
    /// As for [`Cluster::write`].
    pub async fn write_visibly(
        &self,
        command: RegistryCommand,
    ) -> Result<RegistryReply, PredictError> {
        let reply = self.write(command).await?;
        self.await_peers(reply.revision).await;
        Ok(reply)
    }

    async fn await_peers(&self, revision: Revision) {
        let mut members = crate::members(&self.0.raft.metrics().borrow());
        members.retain(|member| member.id != self.0.config.node_id);
        let start = Instant::now();
        let peers = members.iter().map(|member| {
            let answers = self.0.reports.borrow().contains_key(&member.id);
            let patience = match answers {
                true => PATIENCE,
                false => PATIENCE_WITH_SILENT,
            };
            timeout_at(start + patience, self.await_peer(member, revision))
        });
        let mut peers: FuturesUnordered<_> = peers.collect();
        while peers.next().await.is_some() {}
    }

    async fn await_peer(&self, member: &CoordinatorMember, revision: Revision) {
        let Some(line) = self.peer(&member.address).await else {
            return;
        };
        let mut request = Request::new(wire::AwaitRevisionRequest {
            revision: revision.0,
        });
        request.set_timeout(PATIENCE);
        match membership_client(line).await_revision(request).await {
            Ok(_) => {}
            // The version of the coordinator does not have this call.
            Err(status) if status.code() == Code::Unimplemented => {}
            Err(status) => {
                tracing::debug!(node = %member.id, error = %status, "visibility of a write unknown");
                self.0.peers.lock().await.remove(&member.address);
            }
        }
    }

    /// Waits until this node has applied a revision, at most 2 s; returns the applied revision.
    pub(crate) async fn await_revision(&self, revision: Revision) -> Revision {
        let mut registry = self.registry();
        // At the timeout, the caller sees that the revision is lower.
        let _ = timeout(HELD, registry.wait_for(|state| revision <= state.revision)).await;
        registry.borrow().revision
    }
}
