//! State of the administration handlers.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use volley_types::registry::PipelineSpec;
use volley_types::{ModelName, PredictError};

use volley_http_edge::edge::{Caller, DialectCaller, Edge};

/// Renders the metrics of the node in the OpenMetrics text format. Called for each scrape.
pub type EncodeMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Converts the configuration of a Triton ensemble to a pipeline.
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

/// The administration dialect of a cluster. Clones share their state.
#[derive(Clone)]
pub struct Admin {
    edge: Edge,
    pub(crate) metrics: EncodeMetrics,
    pub(crate) ensembles: ReadEnsemble,
}

impl Admin {
    /// Creates the administration dialect at `edge`.
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
