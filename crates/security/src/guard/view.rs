//! Nodes, replicas and load with the rights of a principal.

use volley_types::control::{ClusterStatus, ModelStatus};
use volley_types::{ClusterView, ModelName};

use super::GuardedCluster;

impl ClusterView for GuardedCluster {
    fn model_status(&self, model: &ModelName) -> Option<ModelStatus> {
        if !self.sees(model) {
            return None;
        }
        self.inner.view.model_status(model)
    }

    fn status(&self) -> ClusterStatus {
        let mut status = self.inner.view.status();
        if self.is_viewer() && self.principal.models().is_all() {
            return status;
        }
        for worker in &mut status.workers {
            worker.replicas.retain(|replica| self.sees(&replica.model));
        }
        for drain in &mut status.drains {
            drain.models.retain(|model| self.sees(model));
            drain.active = 0;
        }
        for report in status.reports.values_mut() {
            report.active_streams = 0;
        }
        // The load of other tenants is private: only streams on visible replicas are counted.
        let replicas = status.workers.iter().flat_map(|worker| &worker.replicas);
        let active = replicas.map(|replica| replica.active);
        status.active_streams = active.fold(0, u32::saturating_add);
        status
    }

    fn ready(&self) -> bool {
        self.inner.view.ready()
    }
}
