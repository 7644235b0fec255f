//! One change of the membership: its task, its two steps, and its repetition.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use openraft::ChangeMembers;
use openraft::error::{ClientWriteError, RaftError};
use tokio::time::Instant;
use volley_types::registry::CoordinatorMember;
use volley_types::{ErrorCode, PredictError};

use crate::raft_types::MemberNode;
use crate::{Cluster, no_leader};

/// Delay between attempts while another change is in progress.
const RETRY: Duration = Duration::from_millis(200);

/// A change of the members, which runs whether it is awaited or not.
pub(crate) type MembershipChange = BoxFuture<'static, Result<Vec<CoordinatorMember>, PredictError>>;

type ChangeError = RaftError<u64, ClientWriteError<u64, MemberNode>>;

impl Cluster {
    /// Runs a change in a task, which ends when this node stops.
    pub(super) fn in_task(
        &self,
        change: impl Future<Output = Result<Vec<CoordinatorMember>, PredictError>> + Send + 'static,
    ) -> MembershipChange {
        let stop = self.0.stop.clone();
        let work = async move { stop.run_until_cancelled(change).await };
        let task = self.0.tasks.spawn(work);
        Box::pin(async move {
            match task.await {
                Ok(done) => done.unwrap_or_else(|| Err(not_changed())),
                Err(error) => Err(PredictError::internal(
                    "the membership change failed",
                    error,
                )),
            }
        })
    }

    /// The voters that a half-done change leads to; `None` if no change is half done. A change has
    /// two steps: a joint membership of the voters before and after, and then those after alone. A
    /// leader that stops in between leaves the membership joint.
    fn unfinished(&self) -> Option<BTreeSet<u64>> {
        let metrics = self.0.raft.metrics();
        let metrics = metrics.borrow();
        let steps = metrics.membership_config.membership().get_joint_config();
        steps.last().filter(|_| 1 < steps.len()).cloned()
    }

    /// Finishes a half-done change.
    pub(super) async fn finish_change(&self, by: Instant) -> Result<(), PredictError> {
        if self.unfinished().is_none() {
            return Ok(());
        }
        let nothing_more = || std::future::ready(Ok::<(), ChangeError>(()));
        self.change(by, nothing_more).await
    }

    /// Makes one membership change, and waits while another is in progress. First finishes a
    /// half-done change of a leader that has stopped. A leader that removed itself must not make
    /// another change: it leads for a moment longer, but openraft assumes that the node that
    /// changes the members is one of them.
    pub(super) async fn change<T, F>(
        &self,
        by: Instant,
        mut make: impl FnMut() -> F,
    ) -> Result<(), PredictError>
    where
        F: Future<Output = Result<T, ChangeError>>,
    {
        let changing = tokio::time::timeout_at(by, self.0.changing.lock()).await;
        let _changing = changing.map_err(|_| not_changed())?;
        let own = self.0.config.node_id;
        loop {
            if self.members().iter().all(|member| member.id != own) {
                return Err(no_leader());
            }
            let step = match self.unfinished() {
                Some(voters) => {
                    let voters = ChangeMembers::ReplaceAllVoters(voters);
                    let finish = self.0.raft.change_membership(voters, false);
                    let finished = tokio::time::timeout_at(by, finish).await;
                    match finished {
                        Ok(Ok(_)) => Ok(Ok(false)),
                        Ok(Err(error)) => Ok(Err(error)),
                        Err(late) => Err(late),
                    }
                }
                None => {
                    let made = tokio::time::timeout_at(by, make()).await;
                    match made {
                        Ok(Ok(_)) => Ok(Ok(true)),
                        Ok(Err(error)) => Ok(Err(error)),
                        Err(late) => Err(late),
                    }
                }
            };
            match step {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => tracing::info!("half-done membership change finished"),
                Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                    return Err(no_leader());
                }
                Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))))
                    if Instant::now() + RETRY < by =>
                {
                    tracing::debug!(error = %error, "another membership change is in progress");
                    tokio::time::sleep(RETRY).await;
                }
                Ok(Err(error)) => return Err(not_changed().with_source(error)),
                Err(_) => return Err(not_changed()),
            }
        }
    }
}

fn not_changed() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the membership was not changed in time; check that the coordinator runs and can be \
         reached at its address",
    )
}
