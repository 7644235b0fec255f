//! State of the dialect on a node.

use std::sync::Arc;

use volley_types::arrow_messages::OpenArrow;

use crate::batch::table::ClusterBatches;
use volley_http_edge::edge::{DialectCaller, Edge};

/// Encodes the node's metrics in the OpenMetrics text format.
pub type EncodeMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The caller of a route of this dialect.
pub(crate) type OpenSearchCaller = DialectCaller<OpenSearch>;

/// OpenSearch's dialect: `_plugins/_ml`.
#[derive(Clone)]
pub struct OpenSearch {
    edge: Edge,
    pub(crate) metrics: EncodeMetrics,
    pub(crate) batches: ClusterBatches,
    pub(crate) arrow: Option<OpenArrow>,
}

impl OpenSearch {
    /// Creates the dialect at `edge`. `arrow` opens readers for bodies that are Arrow streams;
    /// without it such bodies are rejected.
    #[must_use]
    pub fn new(
        edge: &Edge,
        metrics: EncodeMetrics,
        batches: ClusterBatches,
        arrow: Option<OpenArrow>,
    ) -> Self {
        Self {
            edge: edge.clone(),
            metrics,
            batches,
            arrow,
        }
    }
}

impl AsRef<Edge> for OpenSearch {
    fn as_ref(&self) -> &Edge {
        &self.edge
    }
}
