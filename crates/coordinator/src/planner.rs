//! The leader's planner: looks at what should run and who is there, and commits where replicas
//! go. The decision itself is pure ([`volley_cluster::placement::plan`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use volley_cluster::placement::{self, PlacementWorker};
use volley_types::control::Liveness;
use volley_types::registry::{ModelEntry, RegistryCommand, RegistryState, ReplicaState};
use volley_types::{ModelName, Revision, WorkerId};

use crate::Coordinator;
use crate::live::LiveWorkers;

/// The planner looks again after this long even if nothing rang: a write may have failed.
const PATROL: Duration = Duration::from_secs(2);

impl Coordinator {
    /// Runs for as long as the coordinator does; acts only while this node leads.
    pub(crate) async fn run_planner(self) {
        let mut registry = self.0.cluster.registry();
        let mut raft = self.0.cluster.raft();
        let started = Instant::now();
        let mut failures = Failures::default();
        loop {
            if self.0.cluster.is_leader() {
                let state = registry.borrow_and_update().clone();
                for command in self.decide(&state, &mut failures, started) {
                    // A refused or lost write is decided anew on the next round.
                    if let Err(error) = self.0.cluster.write(command).await {
                        tracing::warn!(error = error.chain(), "placement not committed");
                    }
                }
            }
            tokio::select! {
                changed = registry.changed() => if changed.is_err() { return },
                changed = raft.changed() => if changed.is_err() { return },
                () = self.0.workers_changed.notified() => {}
                () = tokio::time::sleep(PATROL) => {}
            }
        }
    }

    fn decide(
        &self,
        state: &RegistryState,
        failures: &mut Failures,
        started: Instant,
    ) -> Vec<RegistryCommand> {
        let now = Instant::now();
        let config = self.0.config.liveness;
        let live = self.0.live.read();
        failures.learn(state, &live);
        // Workers find a new leader within moments; until then, who is not heard is not gone.
        let settling = now.saturating_duration_since(started) < config.replace_after;
        let deployed = state
            .models
            .values()
            .filter(|entry| entry.deployment.is_some());
        let mut load = placed_replicas(state);
        let most = state.max_models_on_worker();
        deployed
            .filter_map(|entry| {
                let mut workers = placement_workers(entry, &live, &load, failures, settling, now);
                for worker in &mut workers {
                    worker.placeable &= most.is_none_or(|most| worker.replicas < most);
                }
                let placed = placement::plan(entry, &workers);
                if placed == entry.placement {
                    return None;
                }
                for worker in placed
                    .iter()
                    .filter(|worker| !entry.placement.contains(worker))
                {
                    *load.entry(worker.clone()).or_default() += 1;
                }
                let deployment = entry.deployment.as_ref()?.revision;
                Some(RegistryCommand::Place {
                    model: entry.name.clone(),
                    deployment,
                    workers: placed,
                })
            })
            .collect()
    }
}

type Load = BTreeMap<WorkerId, usize>;

fn placed_replicas(state: &RegistryState) -> Load {
    let mut load = Load::new();
    for worker in state.models.values().flat_map(|entry| &entry.placement) {
        *load.entry(worker.clone()).or_default() += 1;
    }
    load
}

/// Everybody whom placement may use or keep.
fn placement_workers(
    entry: &ModelEntry,
    live: &LiveWorkers,
    load: &Load,
    failures: &Failures,
    settling: bool,
    now: Instant,
) -> Vec<PlacementWorker> {
    let known = live.iter().map(|(id, worker)| PlacementWorker {
        id: id.clone(),
        placeable: worker.liveness == Liveness::Alive,
        keep: live.keeps_replicas(worker, now),
        replicas: load.get(id).copied().unwrap_or_default(),
        failed: failures.contains(entry, id),
    });
    let mut workers: Vec<_> = known.collect();
    if settling {
        let unheard: Vec<_> = entry
            .placement
            .iter()
            .filter(|id| workers.iter().all(|worker| worker.id != **id))
            .map(|id| PlacementWorker {
                id: id.clone(),
                placeable: false,
                keep: true,
                replicas: 0,
                failed: false,
            })
            .collect();
        workers.extend(unheard);
    }
    workers
}

/// On which workers which deployments failed to load. Remembered for as long as a deployment
/// stands: a replica that has moved away is not reported any more, and moving it back and forth
/// would help nobody.
#[derive(Default)]
struct Failures(BTreeSet<(ModelName, Revision, WorkerId)>);

impl Failures {
    fn learn(&mut self, state: &RegistryState, live: &LiveWorkers) {
        let deployment = |model: &ModelName| state.models.get(model)?.deployment.as_ref();
        self.0.retain(|(model, revision, _)| {
            deployment(model).is_some_and(|current| current.revision == *revision)
        });
        for (id, worker) in live.iter() {
            for replica in &worker.report.replicas {
                let Some(current) = deployment(&replica.model) else {
                    continue;
                };
                let failed = matches!(replica.state, ReplicaState::Failed(_));
                let key = (replica.model.clone(), current.revision, id.clone());
                if current.version != replica.version {
                    continue;
                }
                if failed {
                    self.0.insert(key);
                } else if replica.state == ReplicaState::Ready {
                    self.0.remove(&key);
                }
            }
        }
    }

    fn contains(&self, entry: &ModelEntry, worker: &WorkerId) -> bool {
        entry.deployment.as_ref().is_some_and(|deployment| {
            self.0
                .contains(&(entry.name.clone(), deployment.revision, worker.clone()))
        })
    }
}
