//! Feature levels, for clusters with coordinators of two versions.
//!
//! A coordinator that cannot read a log entry would compute another registry than the others. So
//! before the leader proposes the first command of a level, it asks all members for theirs, and
//! rejects the command while one of them supports less. Afterwards the registry is at that level.
//! From then on, a coordinator with a lower level can neither join nor continue (see [`LEVEL`]).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{MutexGuard, watch};
use tokio::time::Instant;
use volley_types::control::CoordinatorReport;
use volley_types::registry::{CoordinatorMember, LEVEL, RegistryCommand};
use volley_types::{ErrorCode, NodeId, PredictError};

use crate::{Cluster, RETRY_AFTER, no_leader};

/// Interval of the requests for the reports of other coordinators.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The interval for a new node that has heard from no other coordinator yet.
const ASK_FIRST: Duration = Duration::from_millis(100);
/// Time after the start for which a node counts as new.
const YOUNG: Duration = Duration::from_secs(10);

/// Latest reports of the coordinators, by id.
pub(crate) type Reports = BTreeMap<NodeId, CoordinatorReport>;

/// Keeps the feature level of the cluster while it is held: no member is added meanwhile.
pub(crate) type LevelLease<'a> = Option<MutexGuard<'a, ()>>;

impl Cluster {
    /// Returns the latest reports of the coordinators, by id. They are refreshed every second.
    /// Coordinators that did not answer are missing.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<NodeId, CoordinatorReport> {
        self.0.reports.borrow().clone()
    }

    /// Returns the feature level of the registry, at least 1.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.0.registry.borrow().level.max(1)
    }

    /// Sets the number of streams on this node, which its reports contain.
    pub fn report_streams(&self, streams: u32) {
        self.0.streams.store(streams, Ordering::Relaxed);
    }

    /// Requests the reports of all coordinators, periodically, and publishes them.
    pub(crate) async fn poll_peers(self, publish: watch::Sender<Reports>) {
        let started = Instant::now();
        loop {
            let reports = tokio::select! {
                () = self.0.stop.cancelled() => return,
                reports = self.ask_all() => reports,
            };
            self.record_members(&reports).await;
            let is_alone = reports.keys().all(|node| *node == self.0.config.node_id);
            publish.send_replace(reports);
            let wait = match is_alone && started.elapsed() < YOUNG {
                true => ASK_FIRST,
                false => ASK_EVERY,
            };
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn ask_all(&self) -> Reports {
        let members = crate::members(&self.0.raft.metrics().borrow());
        let asked = members.into_iter().map(|member| async move {
            let report = self.ask(&member).await.ok();
            report.map(|report| (member.id, report))
        });
        let asked: FuturesUnordered<_> = asked.collect();
        asked.filter_map(std::future::ready).collect().await
    }

    /// Requests the report of one coordinator.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer.
    async fn ask(&self, member: &CoordinatorMember) -> Result<CoordinatorReport, PredictError> {
        if member.id == self.0.config.node_id {
            return Ok(self.describe_here());
        }
        let described = self.ask_at(&member.address, Some(member.id)).await?;
        if let Some((vote, committed)) = described.reach {
            self.0.identity.raise(member.id.0, vote, committed);
        }
        Ok(described.report)
    }

    /// Checks that every member supports `command`. The caller holds the lease until the command
    /// has been proposed. `None` means that the registry already has the level.
    ///
    /// # Errors
    /// `Conflict` if a member supports a lower level only, `Unavailable` if one does not answer.
    pub(crate) async fn agree(
        &self,
        command: &RegistryCommand,
        by: Instant,
    ) -> Result<LevelLease<'_>, PredictError> {
        let level = command.level();
        if level <= self.level() {
            return Ok(None);
        }
        let alone = tokio::time::timeout_at(by, self.0.admission.lock()).await;
        let alone = alone.map_err(|_| busy())?;
        let members = crate::members(&self.0.raft.metrics().borrow());
        let asked = members.iter().map(|member| async move {
            let report = self.ask(member).await;
            (member.id, report)
        });
        let asked: FuturesUnordered<_> = asked.collect();
        let mut reports: Vec<_> = asked.collect().await;
        reports.sort_by_key(|(node, _)| *node);
        for (node, report) in reports {
            match report {
                Ok(report) if level <= report.level => {}
                Ok(report) => return Err(unfinished(node, report.level, level)),
                Err(error) => return Err(unreached(node).with_source(error)),
            }
        }
        Ok(Some(alone))
    }

    /// Checks that a new coordinator at `address` can read the registry. The caller holds the guard
    /// until the node is a member. The number is the incarnation of its directory, 0 if its version
    /// has none.
    ///
    /// # Errors
    /// `Conflict` if the node cannot read the registry or has another id, `Unavailable` if it does
    /// not answer.
    pub(crate) async fn agree_to_admit(
        &self,
        node: NodeId,
        address: &str,
        by: Instant,
    ) -> Result<(MutexGuard<'_, ()>, u64), PredictError> {
        let alone = tokio::time::timeout_at(by, self.0.admission.lock()).await;
        let alone = alone.map_err(|_| busy())?;
        let level = self.level();
        let described = loop {
            match self.ask_at(address, None).await {
                Ok(described) => break described,
                Err(error) if by <= Instant::now() => return Err(error),
                Err(_) => tokio::time::sleep(ASK_EVERY / 4).await,
            }
        };
        if described.node.is_some_and(|found| found != node) {
            let message = format!("the coordinator at {address} is not coordinator {node}");
            return Err(PredictError::new(ErrorCode::Conflict, message));
        }
        if described.report.level < level {
            let theirs = described.report.level;
            return Err(PredictError::new(
                ErrorCode::Conflict,
                format!(
                    "coordinator {node} runs at level {theirs}, and the registry is at level \
                     {level}; upgrade it, or remove its 'cluster.feature_level'"
                ),
            ));
        }
        Ok((alone, described.incarnation))
    }

    /// Checks that the leader supports a command, before it is forwarded.
    ///
    /// # Errors
    /// `Conflict` as in [`Cluster::agree`], `Unavailable` if the leader does not answer.
    pub(crate) async fn leader_takes(
        &self,
        leader: NodeId,
        address: &str,
        command: &RegistryCommand,
    ) -> Result<(), PredictError> {
        let level = command.level();
        if level <= self.level() {
            return Ok(());
        }
        let described = self.ask_at(address, Some(leader)).await;
        let described = described.map_err(|error| no_leader().with_source(error))?;
        let theirs = described.report.level;
        if level <= theirs {
            return Ok(());
        }
        Err(unfinished(leader, theirs, level))
    }
}

/// The error of a node that reads data of a later version.
pub(crate) fn too_new(what: &str) -> PredictError {
    PredictError::new(
        ErrorCode::Conflict,
        format!(
            "{what} was written by a later version of Volley; this version supports level \
             {LEVEL}; start the later version"
        ),
    )
}

/// The error of a node whose data need a higher level than it is configured for.
pub(crate) fn needs(what: &str, needed: u32, own: u32) -> PredictError {
    PredictError::new(
        ErrorCode::Conflict,
        format!(
            "{what} needs level {needed}, and this coordinator runs at level {own}; remove its \
             'cluster.feature_level', or start a later version of Volley"
        ),
    )
}

fn unfinished(node: NodeId, theirs: u32, needed: u32) -> PredictError {
    PredictError::new(
        ErrorCode::Conflict,
        format!(
            "finish the upgrade first: coordinator {node} runs at level {theirs}, and this needs \
             level {needed} of all of them"
        ),
    )
}

fn unreached(node: NodeId) -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        format!(
            "coordinator {node} does not answer, and the first write of a new level needs every \
             coordinator; start it, or remove it with `volley cluster remove {node}`"
        ),
    )
    .with_retry_after(RETRY_AFTER)
}

pub(crate) fn silent(address: &str) -> PredictError {
    let message = format!("coordinator {address} does not answer");
    PredictError::new(ErrorCode::Unavailable, message)
}

fn busy() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "a coordinator is joining; try again when it is a member",
    )
    .with_retry_after(RETRY_AFTER)
}
