//! How requests find their replicas.

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
    workers_wanted: Gauge,
    homeless_replicas: Gauge,
    utilisation_percent: Gauge,
    queue_wait_ms: Gauge,
}

impl Metrics {
    /// Counts a choice of a replica, by one of a closed set of reasons.
    pub fn routed(&self, reason: &'static str) {
        let label = ReasonLabel { reason };
        self.0.routing.decisions.get_or_create(&label).inc();
    }

    /// Counts a replica that is left alone for a while because it fails.
    pub fn ejected(&self, model: &ModelName) {
        let model = model.to_string();
        let label = ModelLabel { model };
        self.0.routing.ejections.get_or_create(&label).inc();
    }

    /// Counts a stream whose worker was lost, by one of a closed set of results.
    pub fn continued(&self, result: &'static str) {
        let label = ResultLabel { result };
        self.0.routing.continuations.get_or_create(&label).inc();
    }

    /// Counts a replica that goes from one worker to another although both are there, by one of a
    /// closed set of reasons, and of what became of it.
    pub fn moved(&self, reason: &'static str, result: &'static str) {
        let label = MoveLabel { reason, result };
        self.0.routing.moves.get_or_create(&label).inc();
    }

    /// Publishes how many replicas this coordinator moves now.
    pub fn set_moving(&self, moves: usize) {
        let moves = i64::try_from(moves).unwrap_or(i64::MAX);
        self.0.routing.moving.set(moves);
    }

    /// Publishes what an external autoscaler of workers goes by.
    pub fn set_scale(&self, scale: &ScaleSignal) {
        let routing = &self.0.routing;
        routing.workers_wanted.set(i64::from(scale.workers_wanted));
        let homeless = i64::from(scale.homeless_replicas);
        routing.homeless_replicas.set(homeless);
        let percent = i64::from(scale.utilisation_percent);
        routing.utilisation_percent.set(percent);
        routing.queue_wait_ms.set(i64::from(scale.queue_wait_ms));
    }

    /// Counts a request that went to a second replica before the first had answered.
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
            "replica_moves",
            "Replicas that move between available workers, counted by the leader",
            self.routing.moves.clone(),
        );
        registry.register(
            "moving_replicas",
            "Replicas that are moving now; 0 on coordinators that do not lead",
            self.routing.moving.clone(),
        );
        registry.register(
            "workers_wanted",
            "Workers that would hold everything that is deployed",
            self.routing.workers_wanted.clone(),
        );
        registry.register(
            "homeless_replicas",
            "Replicas that no worker can take now",
            self.routing.homeless_replicas.clone(),
        );
        registry.register(
            "utilisation_percent",
            "Running and queued streams, relative to the capacity of all replicas",
            self.routing.utilisation_percent.clone(),
        );
        registry.register(
            "longest_queue_wait_ms",
            "Longest recent queue wait of any replica, in milliseconds",
            self.routing.queue_wait_ms.clone(),
        );
    }
}
