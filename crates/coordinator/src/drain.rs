//! Drained nodes: a worker only gets requests that no other worker can handle, and a coordinator
//! leaves service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use volley_types::control::{CoordinatorReport, DrainStatus, Liveness};
use volley_types::registry::{CoordinatorMember, RegistryCommand, RegistryState};
use volley_types::{ErrorCode, ModelName, NodeId, NodeIdentity, PredictError, WorkerId};

use crate::live::LiveWorkers;
use crate::{Coordinator, unplaced};

/// Time for which a drained coordinator accepts requests while it reports that it is not ready:
/// load balancers check every few seconds.
const LEAVE: Duration = Duration::from_secs(5);
/// Polling interval without notifications.
const LOOK: Duration = Duration::from_millis(500);

impl Coordinator {
    /// Applies the drains of the registry while the coordinator runs.
    pub(crate) async fn run_drains(self) {
        let mut registry = self.0.cluster.registry();
        let mut raft = self.0.cluster.raft();
        let mut since: Option<Instant> = None;
        loop {
            let state = registry.borrow_and_update().clone();
            let own = raft.borrow_and_update().id;
            let workers: BTreeSet<_> = state.drained_workers().cloned().collect();
            if self.0.live.write().set_leaving(workers) {
                self.notify_change();
            }
            let drained = state.drains_coordinator(own);
            since = drained.then(|| since.unwrap_or_else(Instant::now));
            self.follow(since);
            if drained && self.0.cluster.is_leader() {
                // It continues to lead if no other node can, and tries again.
                match self.0.cluster.transfer_leadership(None).await {
                    Ok(leader) => {
                        tracing::info!(
                            leader = %leader,
                            "drained coordinator transferred leadership"
                        )
                    }
                    Err(error) => tracing::warn!(
                        error = error.chain(),
                        "drained coordinator still leads: leadership transfer failed"
                    ),
                }
            }
            tokio::select! {
                changed = registry.changed() => if changed.is_err() { return },
                changed = raft.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn follow(&self, since: Option<Instant>) {
        let shared = &self.0;
        let was = shared.leaving.swap(since.is_some(), Ordering::AcqRel);
        if was != since.is_some() {
            tracing::info!(drained = since.is_some(), "drain state changed");
        }
        let left = since.is_some_and(|since| LEAVE <= since.elapsed());
        shared.left.store(left, Ordering::Release);
        let streams = u32::try_from(self.active_streams()).unwrap_or(u32::MAX);
        shared.cluster.report_streams(streams);
    }

    /// Checks whether a drain is allowed now.
    ///
    /// # Errors
    /// `Conflict` when no coordinator would remain.
    pub(crate) fn check_drain(&self, command: &RegistryCommand) -> Result<(), PredictError> {
        let RegistryCommand::Drain(NodeIdentity::Coordinator(node), _) = command else {
            return Ok(());
        };
        let state = self.0.cluster.registry().borrow().clone();
        let raft = self.0.cluster.raft();
        let works = |member: &CoordinatorMember| {
            member.voter && member.id != *node && !state.drains_coordinator(member.id)
        };
        if raft.borrow().members.iter().any(works) {
            return Ok(());
        }
        Err(PredictError::new(
            ErrorCode::Conflict,
            "no other coordinator would remain to lead; add or undrain one first",
        ))
    }
}

/// State of the coordinators besides the registry.
pub(crate) struct Coordinators<'a> {
    pub(crate) leader: Option<NodeId>,
    pub(crate) reports: &'a BTreeMap<NodeId, CoordinatorReport>,
}

/// Progress of every drained node. Pure.
pub(crate) fn statuses(
    state: &RegistryState,
    live: &LiveWorkers,
    coordinators: &Coordinators<'_>,
) -> Vec<DrainStatus> {
    let drains = state.drains.iter();
    drains
        .map(|(node, drain)| match node {
            NodeIdentity::Worker(id) => worker(id, drain.force, state, live),
            NodeIdentity::Coordinator(id) => coordinator(*id, coordinators),
        })
        .collect()
}

fn worker(id: &WorkerId, force: bool, state: &RegistryState, live: &LiveWorkers) -> DrainStatus {
    let mut models: BTreeSet<_> = state.placed_on(id).cloned().collect();
    let heard = live
        .get(id)
        .filter(|worker| worker.liveness != Liveness::Dead);
    let (mut held, mut active) = (0, 0);
    if let Some(worker) = heard {
        held = worker.report.replicas.len();
        let replicas = &worker.report.replicas;
        models.extend(replicas.iter().map(|replica| replica.model.clone()));
        active = worker.report.active.saturating_add(worker.report.queued);
    }
    DrainStatus {
        node: NodeIdentity::Worker(id.clone()),
        force,
        done: models.is_empty() && held == 0 && active == 0,
        blocked: match force {
            true => BTreeMap::new(),
            false => models
                .iter()
                .filter_map(|model| Some((model.clone(), blocker(id, model, state, live)?)))
                .collect(),
        },
        models: models.into_iter().collect(),
        active,
    }
}

/// The reason why no other worker can hold a drained worker's replica; `None` if one can, or if
/// enough replicas run elsewhere. Memory is not considered, because other replicas may move.
fn blocker(
    id: &WorkerId,
    model: &ModelName,
    state: &RegistryState,
    live: &LiveWorkers,
) -> Option<String> {
    let entry = state.models.get(model)?;
    let deployment = entry.deployment.as_ref()?;
    let others = match unplaced::allowed(deployment, state, live, Some(id)) {
        Ok(others) => others,
        Err(reason) => return Some(reason),
    };
    // A worker without a replica can hold one. If every worker has one, the model has too many
    // replicas.
    let all_hold_it = others.iter().all(|(id, _)| entry.placement.contains(id));
    (all_hold_it && others.len() < deployment.replicas as usize).then(|| {
        format!(
            "its {} replicas need a worker each, and only {} other workers can hold one",
            deployment.replicas,
            others.len()
        )
    })
}

fn coordinator(id: NodeId, all: &Coordinators<'_>) -> DrainStatus {
    let active = all
        .reports
        .get(&id)
        .map_or(0, |report| report.active_streams);
    DrainStatus {
        node: NodeIdentity::Coordinator(id),
        force: false,
        done: active == 0 && all.leader.is_some_and(|leader| leader != id),
        models: Vec::new(),
        blocked: BTreeMap::new(),
        active,
    }
}
