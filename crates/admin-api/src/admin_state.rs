//! What administration works with.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use volley_types::registry::PipelineSpec;
use volley_types::{ModelName, PredictError};

use volley_http_edge::edge::{Caller, DialectCaller, Edge};

/// Encodes the node's metrics in the OpenMetrics text format.
pub type EncodeMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Makes a pipeline of the configuration of an ensemble.
pub type ReadEnsemble = Arc<
    dyn Fn(
            Caller,
            ModelName,
            Map<String, Value>,
        ) -> BoxFuture<'static, Result<PipelineSpec, PredictError>>
        + Send
        + Sync,
>;

/// A caller of administration.
pub(crate) type AdminCaller = DialectCaller<Admin>;

/// The administration of a cluster.
#[derive(Clone)]
pub struct Admin {
    edge: Edge,
    pub(crate) metrics: EncodeMetrics,
    pub(crate) ensembles: ReadEnsemble,
}

impl Admin {
    /// The administration at `edge`.
    #[must_use]
    pub fn new(edge: &Edge, metrics: EncodeMetrics, ensembles: ReadEnsemble) -> Self {
        Self {
            edge: edge.clone(),
            metrics,
            ensembles,
        }
    }
}

impl AsRef<Edge> for Admin {
    fn as_ref(&self) -> &Edge {
        &self.edge
    }
}
