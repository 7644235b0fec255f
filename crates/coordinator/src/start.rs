//! Start of a coordinator. It has an old registry and no heartbeats of workers. Until it has the
//! cluster's state, it reports that it is not ready, and requests that it cannot answer yet wait
//! instead of being rejected.
//!
//! That takes a moment in a healthy cluster. Otherwise it starts with its own state after
//! [`PATIENCE`] times the dead timeout: without a quorum, deployed models also continue to serve
//! through a restarted coordinator.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use volley_types::control::CoordinatorReport;
use volley_types::registry::{RaftStatus, RegistryState};
use volley_types::{ModelRef, NodeId};

use crate::Coordinator;
use crate::live::LiveWorkers;

/// Maximum wait as a multiple of the dead timeout. Workers reconnect within one dead timeout.
const PATIENCE: u32 = 2;
/// Polling interval without notifications.
const LOOK: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Whether this coordinator has the cluster's state. Once true, it stays true.
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

    /// Waits while `model` cannot be answered because this coordinator has just started, with
    /// limits on time and waiting requests. Cancel safe: it only waits.
    pub(crate) async fn started_for(&self, model: &ModelRef) {
        let answers = || {
            let registry = self.0.cluster.registry().borrow().clone();
            self.knows_cluster() || self.name_signature(&registry, model).is_ok()
        };
        if answers() {
            return;
        }
        // Without a free permit, the request continues with the current state.
        let Ok(_waiting) = self.0.pending_activations.clone().try_acquire_owned() else {
            return;
        };
        let mut news = self.0.news.subscribe();
        while !answers() && !self.0.stop.is_cancelled() {
            // A notification may concern another model, and changes of the registry send none here.
            let _ = tokio::time::timeout(LOOK, news.changed()).await;
        }
    }
}

/// Whether the registry is as new as the last reports of the others, and every worker with
/// assignments has sent a heartbeat. Pure.
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
    // A leader has all entries, but may not have applied the last ones.
    let own = if alone { raft.last_log_index } else { None };
    let theirs = others.map(|(_, report)| report.last_applied).max();
    (alone || theirs.is_some()) && own.max(theirs.flatten()) <= raft.last_applied
}

#[cfg(test)]
mod tests;
