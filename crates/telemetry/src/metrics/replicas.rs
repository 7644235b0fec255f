//! Replicas that make room, come back, and are lost.

use std::collections::BTreeMap;

use volley_types::ModelName;

use super::{Metrics, ModelLabel};

impl Metrics {
    /// Counts an idle replica that was unloaded to make room.
    pub fn evicted(&self, model: &ModelName) {
        let model = model.to_string();
        self.0.evictions.get_or_create(&ModelLabel { model }).inc();
    }

    /// Counts a replica that was loaded again for a request.
    pub fn reloaded(&self, model: &ModelName) {
        let model = model.to_string();
        self.0.reloads.get_or_create(&ModelLabel { model }).inc();
    }

    /// Counts a model's process that ended by itself.
    pub fn model_process_ended(&self, model: &ModelName) {
        let model = ModelLabel {
            model: model.to_string(),
        };
        self.0.model_process_exits.get_or_create(&model).inc();
    }

    /// Publishes how many replicas of each model are unloaded for now.
    pub fn set_evicted_replicas(&self, counts: &BTreeMap<ModelName, usize>) {
        self.0.evicted_replicas.clear();
        for (model, count) in counts {
            let model = model.to_string();
            let gauge = self.0.evicted_replicas.get_or_create(&ModelLabel { model });
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }
}
