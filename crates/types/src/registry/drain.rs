//! Drained nodes.

use crate::access::NodeIdentity;
use crate::ids::{ModelName, NodeId, WorkerId};
use crate::registry::{ModelEntry, RegistryState};

/// Options of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Drain {
    /// Unload replicas even if no other worker can hold them.
    pub force: bool,
}

impl RegistryState {
    /// The drain of `worker`, if it is drained.
    #[must_use]
    pub fn worker_drain(&self, worker: &WorkerId) -> Option<Drain> {
        if self.drains.is_empty() {
            return None;
        }
        let node = NodeIdentity::Worker(worker.clone());
        self.drains.get(&node).copied()
    }

    /// Whether the coordinator `node` is drained.
    #[must_use]
    pub fn drains_coordinator(&self, node: NodeId) -> bool {
        self.drains.contains_key(&NodeIdentity::Coordinator(node))
    }

    /// The drained workers, by id.
    pub fn drained_workers(&self) -> impl Iterator<Item = &WorkerId> {
        self.drains.keys().filter_map(|node| match node {
            NodeIdentity::Worker(id) => Some(id),
            NodeIdentity::Coordinator(_) => None,
        })
    }

    /// The models assigned to `worker`, by name.
    pub fn placed_on<'a>(&'a self, worker: &'a WorkerId) -> impl Iterator<Item = &'a ModelName> {
        let placed = |model: &&ModelEntry| model.placed(worker).next().is_some();
        let models = self.models.values().map(|model| &**model);
        models.filter(placed).map(|model| &model.name)
    }
}
