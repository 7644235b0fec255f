//! The leader's planner: looks at what should run and who is there, and commits where replicas
//! go. The decision itself is pure ([`volley_cluster::placement::plan`]).

mod failures;
mod situation;

use std::time::{Duration, Instant};

use volley_cluster::placement::{self, Plan};
use volley_types::registry::{RegistryCommand, RegistryState, RolloutAction};

pub use self::failures::Failures;
pub use self::situation::situation;
use crate::Coordinator;

/// The planner looks again after this long even if nothing rang: a write may have failed.
const PATROL: Duration = Duration::from_secs(2);
/// What rings within this time is looked at together.
const SETTLE: Duration = Duration::from_millis(20);
/// Placements in one write.
const BATCH: usize = 256;

impl Coordinator {
    /// Runs for as long as the coordinator does; acts only while this node leads.
    pub(crate) async fn run_planner(self) {
        let mut registry = self.0.cluster.registry();
        let mut raft = self.0.cluster.raft();
        let mut failures = Failures::default();
        loop {
            if self.0.cluster.is_leader() {
                let state = registry.borrow_and_update().clone();
                let plan = self.decide(&state, &mut failures);
                for command in commands(plan) {
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
            tokio::time::sleep(SETTLE).await;
        }
    }

    fn decide(&self, state: &RegistryState, failures: &mut Failures) -> Plan {
        let now = Instant::now();
        let live = self.0.live.read();
        failures.learn(state, &live);
        // Workers find a new leader within moments; until then, who is not heard is not gone.
        let settling = live.is_settling(now);
        let situation = situation(state, &live, failures, settling, now);
        placement::plan(state, &situation)
    }
}

fn commands(plan: Plan) -> impl Iterator<Item = RegistryCommand> {
    if plan.homeless != 0 {
        tracing::debug!(replicas = plan.homeless, "no worker can take these");
    }
    let stops = plan.stops.into_iter().map(|(model, reason)| {
        tracing::warn!(%model, reason, "rollout stopped");
        RegistryCommand::Rollout {
            model,
            action: RolloutAction::Stop(reason),
        }
    });
    let batches = plan.placings.chunks(BATCH).map(<[_]>::to_vec);
    let places: Vec<_> = batches.map(RegistryCommand::Place).collect();
    stops.chain(places)
}
