//! Load failures of models by worker.

use std::collections::BTreeMap;

use volley_types::registry::{RegistryState, ReplicaState};
use volley_types::{ModelName, Revision, WorkerId};

use super::observed::ObservedWorkers;

/// Load failures of deployments by worker, with the reason. They are kept for the lifetime of a
/// deployment: a moved replica is not reported any more, and must not move back to the failed
/// worker.
#[derive(Debug, Default)]
pub struct Failures(BTreeMap<(ModelName, Revision, WorkerId), String>);

impl Failures {
    /// Applies the workers' reports, and removes replaced deployments.
    pub fn learn(&mut self, state: &RegistryState, observed: &ObservedWorkers<'_>) {
        let deployment = |model: &ModelName| state.models.get(model)?.deployment.as_ref();
        self.0.retain(|(model, revision, _), _| {
            deployment(model).is_some_and(|current| current.revision == *revision)
        });
        for (id, worker) in &observed.workers {
            for replica in &worker.report.replicas {
                let reason = match &replica.state {
                    ReplicaState::Failed(reason) => Some(reason),
                    ReplicaState::Ready if !self.0.is_empty() => None,
                    _ => continue,
                };
                let Some(current) = deployment(&replica.model) else {
                    continue;
                };
                if current.version != replica.version {
                    continue;
                }
                let key = (replica.model.clone(), current.revision, (*id).clone());
                match reason {
                    Some(reason) => drop(self.0.insert(key, reason.clone())),
                    None => drop(self.0.remove(&key)),
                }
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ModelName, &WorkerId, &str)> {
        let failures = self.0.iter();
        failures.map(|((model, _, worker), reason)| (model, worker, reason.as_str()))
    }
}
