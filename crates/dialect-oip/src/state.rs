//! What the protocol keeps on a node.

use std::sync::Arc;

use crate::model_files::ModelStore;
use crate::statistics::Statistics;
use volley_http_edge::edge::{DialectCaller, Edge};
use volley_shared_memory::SharedMemory;

/// A caller of the protocol.
pub(crate) type OipCaller = DialectCaller<Oip>;

/// What the routes and the gRPC listeners of a node share.
#[derive(Clone)]
pub struct OipNode {
    statistics: Arc<Statistics>,
    shared_memory: Arc<SharedMemory>,
    models: Option<Arc<dyn ModelStore>>,
}

impl OipNode {
    /// `shared_memory`: whether clients on this machine may register regions of system shared
    /// memory; `max_tensor_bytes` bounds what one request reads of them.
    #[must_use]
    pub fn new(shared_memory: bool, max_tensor_bytes: usize) -> Self {
        Self {
            statistics: Arc::default(),
            shared_memory: Arc::new(SharedMemory::new(shared_memory, max_tensor_bytes)),
            models: None,
        }
    }

    /// The same, with a store for the files of models that come with a request. Without, such
    /// requests are refused.
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
    /// The protocol at `edge`.
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
