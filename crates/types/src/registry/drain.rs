//! Nodes that are taken out of work.

use crate::access::NodeIdentity;
use crate::ids::{ModelName, NodeId, WorkerId};
use crate::registry::{ModelEntry, RegistryState};

/// How a node is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Drain {
    /// A worker's replicas go even where no other worker can take them.
    pub force: bool,
}

impl RegistryState {
    /// How `worker` is drained, where it is.
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

    /// The workers that are drained, by id.
    pub fn drained_workers(&self) -> impl Iterator<Item = &WorkerId> {
        self.drains.keys().filter_map(|node| match node {
            NodeIdentity::Worker(id) => Some(id),
            NodeIdentity::Coordinator(_) => None,
        })
    }

    /// The models of which `worker` shall hold a replica, by name.
    pub fn placed_on<'a>(&'a self, worker: &'a WorkerId) -> impl Iterator<Item = &'a ModelName> {
        let placed = |model: &&ModelEntry| model.placed(worker).next().is_some();
        let models = self.models.values().map(|model| &**model);
        models.filter(placed).map(|model| &model.name)
    }
}
