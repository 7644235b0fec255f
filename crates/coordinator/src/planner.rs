//! The leader's planner: compares deployments with live workers, and commits placements. The
//! decision is pure ([`volley_placement::planner::decide`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_placement::Plan;
use volley_placement::planner::{Failures, Rebalancer, decide, places};
use volley_types::registry::{MOVING_LEVEL, RegistryCommand, RegistryState, RolloutAction};

use crate::Coordinator;

/// Planning interval without notifications, because a write may have failed.
const PATROL: Duration = Duration::from_secs(2);
/// Notifications within this time are handled together.
const SETTLE: Duration = Duration::from_millis(20);

impl Coordinator {
    /// Runs as long as the coordinator; acts only while this node leads.
    pub(crate) async fn run_planner(self) {
        let mut registry = self.0.cluster.registry();
        let mut raft = self.0.cluster.raft();
        let mut failures = Failures::default();
        let mut mover = Rebalancer::new(self.0.config.rebalance_after);
        loop {
            if self.0.cluster.is_leader() {
                let state = registry.borrow_and_update().clone();
                let plan = self.decide(&state, &mut failures, &mut mover);
                for command in commands(plan) {
                    // The next round decides again after a rejected or lost write.
                    if let Err(error) = self.0.cluster.write(command).await {
                        tracing::warn!(error = error.chain(), "placement not committed");
                    }
                }
            } else {
                mover.forget();
                self.0.metrics.set_moving(0);
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

    fn decide(
        &self,
        state: &Arc<RegistryState>,
        failures: &mut Failures,
        mover: &mut Rebalancer,
    ) -> Plan {
        let now = Instant::now();
        let live = self.0.live.read();
        let observed = live.observed(now);
        let (plan, ended) = decide(state, &observed, failures, mover, self.may_move(), now);
        drop(observed);
        drop(live);
        for one in &plan.moves {
            self.0.metrics.moved(one.reason.as_str(), "begun");
        }
        for (one, end) in ended {
            self.0.metrics.moved(one.reason.as_str(), end.as_str());
        }
        self.0.metrics.set_moving(mover.under_way());
        plan
    }

    /// Whether every coordinator supports migrations.
    fn may_move(&self) -> bool {
        let cluster = &self.0.cluster;
        let (raft, reports) = (cluster.raft(), cluster.reports());
        let raft = raft.borrow();
        let mut levels = raft.members.iter().map(|member| reports.get(&member.id));
        MOVING_LEVEL <= cluster.level()
            || levels.all(|it| it.is_some_and(|report| MOVING_LEVEL <= report.level))
    }
}

fn commands(plan: Plan) -> impl Iterator<Item = RegistryCommand> {
    if plan.unschedulable != 0 {
        tracing::debug!(
            replicas = plan.unschedulable,
            "replicas are unschedulable: no worker fits"
        );
    }
    let stops = plan.stops.into_iter().map(|(model, reason)| {
        tracing::warn!(%model, reason, "rollout stopped");
        RegistryCommand::Rollout {
            model,
            action: RolloutAction::Stop(reason),
        }
    });
    stops.chain(places(plan.placings))
}
