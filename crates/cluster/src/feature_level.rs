//! Coordinators of two versions in one cluster: what each of them speaks, and what waits until
//! all speak it.
//!
//! A coordinator that cannot read an entry would come to another registry than the others. So
//! the leader asks all members before it proposes the first command of a level, and refuses it
//! while one of them speaks less; from then on the registry is at that level, and nobody who
//! speaks less is let in or goes on (see [`LEVEL`]).

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

/// Between two times that the others are asked for what they are.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The same for a node that has just started and has heard of nobody else yet.
const ASK_FIRST: Duration = Duration::from_millis(100);
/// How long it counts as such.
const YOUNG: Duration = Duration::from_secs(10);

/// What coordinators said of themselves, by id.
pub(crate) type Reports = BTreeMap<NodeId, CoordinatorReport>;

/// A level that the whole cluster has for as long as this is held: nobody comes in meanwhile.
pub(crate) type LevelLease<'a> = Option<MutexGuard<'a, ()>>;

impl Cluster {
    /// What the coordinators said of themselves when they were last asked; who could not be
    /// reached is missing.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<NodeId, CoordinatorReport> {
        self.0.reports.borrow().clone()
    }

    /// The level of the registry: from 1.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.0.registry.borrow().level.max(1)
    }

    /// Tells how many streams run here, for those who ask.
    pub fn report_streams(&self, streams: u32) {
        self.0.streams.store(streams, Ordering::Relaxed);
    }

    /// Asks everybody again and again.
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

    /// What one coordinator says of itself.
    ///
    /// # Errors
    /// `Unavailable` when it does not answer.
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

    /// Makes sure that every member takes `command`. What is returned must be held until it was
    /// proposed.
    ///
    /// # Errors
    /// `Conflict` when one speaks a lower level, `Unavailable` when one does not answer.
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

    /// Makes sure that a newcomer at `address` can read the registry. The guard that is returned
    /// must be held until it is a member; beside it is the incarnation of its directory, 0 where
    /// its version has none.
    ///
    /// # Errors
    /// `Conflict` when it cannot, `Unavailable` when it does not answer.
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

    /// Refuses to forward what the leader would not understand.
    ///
    /// # Errors
    /// `Conflict`, as [`Cluster::agree`]; `Unavailable` when the leader does not answer.
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

/// The error of a node that finds what a later version has written.
pub(crate) fn too_new(what: &str) -> PredictError {
    PredictError::new(
        ErrorCode::Conflict,
        format!(
            "{what} was written by a later version of Volley; this version supports level \
             {LEVEL}; start the later version"
        ),
    )
}

/// The error of a node that finds what it is told not to take.
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

pub(crate) fn silent() -> PredictError {
    PredictError::new(ErrorCode::Unavailable, "a coordinator does not answer")
}

fn busy() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "a coordinator is joining; try again when it is a member",
    )
    .with_retry_after(RETRY_AFTER)
}
