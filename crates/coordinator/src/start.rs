//! A coordinator that has just started: it has the registry of the time when it stopped, and has
//! heard no worker. Until it knows what the others know it says that it is not ready, and a
//! request that it cannot answer yet waits instead of being refused.
//!
//! That takes a moment where all are well. Where they are not, it begins with what it has after
//! [`PATIENCE`] times the silence of the dead: with the quorum lost, deployed models go on
//! serving through a coordinator that was restarted too.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use volley_types::control::CoordinatorReport;
use volley_types::registry::{RaftStatus, RegistryState};
use volley_types::{ModelRef, NodeId};

use crate::Coordinator;
use crate::live::LiveWorkers;

/// How many times the silence that makes a worker dead everything is waited for. Workers come
/// back to a coordinator within one.
const PATIENCE: u32 = 2;
/// Between two looks where no worker rings.
const LOOK: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Whether this coordinator knows the cluster. Once it does it stays so.
    pub(crate) fn knows_cluster(&self) -> bool {
        let shared = &self.0;
        if shared.knows_cluster.load(Ordering::Acquire) {
            return true;
        }
        let raft = shared.cluster.raft().borrow().clone();
        let registry = shared.cluster.registry().borrow().clone();
        let reports = shared.cluster.reports();
        let waited = PATIENCE * shared.config.liveness.dead_after;
        let live = shared.live.read();
        let given_up = waited <= live.listened(Instant::now()) && !raft.members.is_empty();
        let knows = given_up || knows(&raft, &registry, &reports, &live);
        if knows && !shared.knows_cluster.swap(true, Ordering::AcqRel) {
            tracing::info!(in_full = !given_up, "coordinator has the cluster state");
        }
        knows
    }

    /// Waits, for a bounded time and among a bounded number of requests, for as long as `model`
    /// cannot be answered here because this coordinator has just started. Cancel-safe.
    pub(crate) async fn started_for(&self, model: &ModelRef) {
        let answers = || {
            let registry = self.0.cluster.registry().borrow().clone();
            self.knows_cluster() || self.name_signature(&registry, model).is_ok()
        };
        if answers() {
            return;
        }
        // Who finds no place is told what is known now.
        let Ok(_waiting) = self.0.wakers.clone().try_acquire_owned() else {
            return;
        };
        let mut news = self.0.news.subscribe();
        while !answers() && !self.0.stop.is_cancelled() {
            // A bell may ring for another model, and the registry has none here.
            let _ = tokio::time::timeout(LOOK, news.changed()).await;
        }
    }
}

/// Whether the registry is as new as what the others had when they were last asked, and every
/// worker has been heard that shall hold anything. Pure.
fn knows(
    raft: &RaftStatus,
    registry: &RegistryState,
    reports: &BTreeMap<NodeId, CoordinatorReport>,
    live: &LiveWorkers,
) -> bool {
    caught_up(raft, reports)
        && registry
            .models
            .values()
            .flat_map(|model| model.holders())
            .all(|worker| live.get(worker).is_some())
}

fn caught_up(raft: &RaftStatus, reports: &BTreeMap<NodeId, CoordinatorReport>) -> bool {
    if raft.leader.is_none() {
        return false;
    }
    let alone = raft.members.iter().all(|member| member.id == raft.id);
    let others = reports.iter().filter(|(node, _)| **node != raft.id);
    // Who leads has every entry, and may not have applied the last.
    let own = if alone { raft.last_log_index } else { None };
    let theirs = others.map(|(_, report)| report.last_applied).max();
    (alone || theirs.is_some()) && own.max(theirs.flatten()) <= raft.last_applied
}

#[cfg(test)]
mod tests;
