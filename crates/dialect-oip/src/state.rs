//! State of the protocol on a node.

use std::sync::Arc;

use crate::model_files::ModelStore;
use crate::statistics::Statistics;
use volley_http_edge::edge::{DialectCaller, Edge};
use volley_shared_memory::SharedMemory;

/// The caller of a route of this protocol.
pub(crate) type OipCaller = DialectCaller<Oip>;

/// State that the routes and the gRPC listeners of a node share.
#[derive(Clone)]
pub struct OipNode {
    statistics: Arc<Statistics>,
    shared_memory: Arc<SharedMemory>,
    models: Option<Arc<dyn ModelStore>>,
}

impl OipNode {
    /// Creates the state. With `shared_memory`, clients on this machine may register regions of
    /// system shared memory, of which one request may read `max_tensor_bytes`.
    #[must_use]
    pub fn new(shared_memory: bool, max_tensor_bytes: usize) -> Self {
        Self {
            statistics: Arc::default(),
            shared_memory: Arc::new(SharedMemory::new(shared_memory, max_tensor_bytes)),
            models: None,
        }
    }

    /// Sets a store for the files of models in loads. Without a store, such loads are rejected.
    #[must_use]
    pub fn with_models(mut self, models: Option<Arc<dyn ModelStore>>) -> Self {
        self.models = models;
        self
    }
}

/// The Open Inference Protocol over REST and gRPC.
#[derive(Clone)]
pub struct Oip {
    edge: Edge,
    node: OipNode,
}

impl Oip {
    /// Creates the protocol at `edge`.
    #[must_use]
    pub fn new(edge: &Edge, node: OipNode) -> Self {
        let edge = edge.clone();
        Self { edge, node }
    }

    pub(crate) fn edge(&self) -> &Edge {
        &self.edge
    }

    pub(crate) fn statistics(&self) -> &Arc<Statistics> {
        &self.node.statistics
    }

    pub(crate) fn shared_memory(&self) -> &Arc<SharedMemory> {
        &self.node.shared_memory
    }

    pub(crate) fn models(&self) -> Option<&Arc<dyn ModelStore>> {
        self.node.models.as_ref()
    }
}

impl AsRef<Edge> for Oip {
    fn as_ref(&self) -> &Edge {
        &self.edge
    }
}
