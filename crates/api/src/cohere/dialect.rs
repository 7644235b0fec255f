//! Cohere's dialect at the gateway's seam.

use crate::auth::PREDICT;
use crate::cohere::error::CohereErrors;
use crate::cohere::operations::OPERATIONS;
use crate::cohere::{chat, embed};
use crate::dialect::Dialect;
use crate::edge::Edge;
use crate::error::ErrorFormat;
use crate::operation::Operation;
use crate::ranking::rerank;
use crate::routes::{Routes, post, post_stream};

/// Cohere's dialect.
#[derive(Clone)]
pub(crate) struct Cohere(Edge);

impl Cohere {
    /// The dialect at `edge`.
    #[must_use]
    pub(crate) fn new(edge: &Edge) -> Self {
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
