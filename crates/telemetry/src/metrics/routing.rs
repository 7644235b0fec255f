//! Metrics of routing, migrations and autoscaling.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use volley_types::ModelName;
use volley_types::scale::ScaleSignal;

use super::{Families, Metrics, ModelLabel};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MoveLabel {
    reason: &'static str,
    result: &'static str,
}

#[derive(Default)]
pub(crate) struct Routing {
    moves: Family<MoveLabel, Counter>,
    moving: Gauge,
    decisions: Family<ReasonLabel, Counter>,
    ejections: Family<ModelLabel, Counter>,
    hedges: Family<ModelLabel, Counter>,
    continuations: Family<ResultLabel, Counter>,
    desired_workers: Gauge,
    unschedulable_replicas: Gauge,
    slot_utilization: Gauge<f64, AtomicU64>,
    queue_wait_max: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Counts the choice of a replica by its reason. The set of reasons is closed.
    pub fn routed(&self, reason: &'static str) {
        let label = ReasonLabel { reason };
        self.0.routing.decisions.get_or_create(&label).inc();
    }

    /// Counts the ejection of a failing replica.
    pub fn ejected(&self, model: &ModelName) {
        let model = model.to_string();
        let label = ModelLabel { model };
        self.0.routing.ejections.get_or_create(&label).inc();
    }

    /// Counts a stream whose worker was lost, by result. The set of results is closed.
    pub fn continued(&self, result: &'static str) {
        let label = ResultLabel { result };
        self.0.routing.continuations.get_or_create(&label).inc();
    }

    /// Counts a migration of a replica between two live workers, by its reason and its result. Both
    /// sets of labels are closed.
    pub fn moved(&self, reason: &'static str, result: &'static str) {
        let label = MoveLabel { reason, result };
        self.0.routing.moves.get_or_create(&label).inc();
    }

    /// Sets the number of migrations that this coordinator runs now.
    pub fn set_moving(&self, moves: usize) {
        let moves = i64::try_from(moves).unwrap_or(i64::MAX);
        self.0.routing.moving.set(moves);
    }

    /// Sets the signals for an external autoscaler of workers.
    pub fn set_scale(&self, scale: &ScaleSignal) {
        let routing = &self.0.routing;
        routing
            .desired_workers
            .set(i64::from(scale.desired_workers));
        let unschedulable = i64::from(scale.unschedulable_replicas);
        routing.unschedulable_replicas.set(unschedulable);
        let utilization = f64::from(scale.utilization_percent) / 100.0;
        routing.slot_utilization.set(utilization);
        let wait = Duration::from_millis(u64::from(scale.queue_wait_ms));
        routing.queue_wait_max.set(wait.as_secs_f64());
    }

    /// Counts a request that was also sent to a second replica before the first one responded.
    pub fn hedged(&self, model: &ModelName) {
        let model = model.to_string();
        let label = ModelLabel { model };
        self.0.routing.hedges.get_or_create(&label).inc();
    }
}

impl Families {
    pub(super) fn register_routing(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "routing_decisions",
            "Choices of a replica, by the deciding reason",
            self.routing.decisions.clone(),
        );
        registry.register(
            "ejections",
            "Replicas that were ejected for a while because they failed",
            self.routing.ejections.clone(),
        );
        registry.register(
            "hedges",
            "Requests that were also sent to a second replica before the first one responded",
            self.routing.hedges.clone(),
        );
        registry.register(
            "stream_continuations",
            "Streams whose worker was lost after the first row, by outcome",
            self.routing.continuations.clone(),
        );
        registry.register(
            "replica_migrations",
            "Replicas that migrated between live workers, counted by the leader",
            self.routing.moves.clone(),
        );
        registry.register(
            "migrating_replicas",
            "Replicas that migrate now; 0 on coordinators that do not lead",
            self.routing.moving.clone(),
        );
        registry.register(
            "desired_workers",
            "Workers that would hold every deployed replica",
            self.routing.desired_workers.clone(),
        );
        registry.register(
            "unschedulable_replicas",
            "Replicas that fit on no live worker",
            self.routing.unschedulable_replicas.clone(),
        );
        registry.register(
            "slot_utilization_ratio",
            "Running and queued streams over the slots of all replicas; above 1 while streams wait",
            self.routing.slot_utilization.clone(),
        );
        registry.register(
            "queue_wait_max_seconds",
            "Longest recent queue wait of any replica, in seconds",
            self.routing.queue_wait_max.clone(),
        );
    }
}
