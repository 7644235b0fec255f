//! Metrics of evicted, reloaded and failed replicas.

use std::collections::BTreeMap;

use volley_types::ModelName;

use super::{Metrics, ModelLabel};

impl Metrics {
    /// Counts the eviction of an idle replica.
    pub fn evicted(&self, model: &ModelName) {
        let model = model.to_string();
        self.0.evictions.get_or_create(&ModelLabel { model }).inc();
    }

    /// Counts a replica that was reloaded for a request.
    pub fn reloaded(&self, model: &ModelName) {
        let model = model.to_string();
        self.0.reloads.get_or_create(&ModelLabel { model }).inc();
    }

    /// Counts a model process that exited unexpectedly.
    pub fn model_process_ended(&self, model: &ModelName) {
        let model = ModelLabel {
            model: model.to_string(),
        };
        self.0.model_process_exits.get_or_create(&model).inc();
    }

    /// Sets the number of evicted replicas of each model.
    pub fn set_evicted_replicas(&self, counts: &BTreeMap<ModelName, usize>) {
        self.0.evicted_replicas.clear();
        for (model, count) in counts {
            let model = model.to_string();
            let gauge = self.0.evicted_replicas.get_or_create(&ModelLabel { model });
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }
}
