//! Routes, operations and error format of Cohere's dialect.

use crate::error::CohereErrors;
use crate::operations::OPERATIONS;
use crate::{chat, embed};
use volley_dialect_kit::ranking::rerank;
use volley_http_edge::auth::PREDICT;
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ErrorFormat;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{Routes, post, post_stream};

/// Cohere's dialect.
#[derive(Clone)]
pub struct Cohere(Edge);

impl Cohere {
    /// Creates the dialect at `edge`.
    #[must_use]
    pub fn new(edge: &Edge) -> Self {
        Self(edge.clone())
    }
}

impl Dialect for Cohere {
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        Some(&CohereErrors)
    }

    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        Routes::new()
            .route("/v1/embed", post(PREDICT, embed::first))
            .route("/v2/chat", post_stream(PREDICT, &self.0, chat))
            .route("/v2/embed", post(PREDICT, embed::second))
            .route("/v2/rerank", post(PREDICT, rerank))
            .with_state(self.0.clone())
    }
}
