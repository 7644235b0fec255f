//! How requests find their replicas.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use volley_types::ModelName;

use super::{Families, Metrics, ModelLabel};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Default)]
pub(crate) struct Routing {
    decisions: Family<ReasonLabel, Counter>,
    ejections: Family<ModelLabel, Counter>,
    hedges: Family<ModelLabel, Counter>,
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
            "Choices of a replica, by what decided",
            self.routing.decisions.clone(),
        );
        registry.register(
            "ejections",
            "Replicas that were left alone for a while because they failed",
            self.routing.ejections.clone(),
        );
        registry.register(
            "hedges",
            "Requests that went to a second replica before the first had answered",
            self.routing.hedges.clone(),
        );
    }
}
