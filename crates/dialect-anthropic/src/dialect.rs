//! Routes, operations and error format of Anthropic's dialect.

use crate::error::AnthropicErrors;
use crate::operations::OPERATIONS;
use crate::{count_tokens, create};
use volley_http_edge::auth::PREDICT;
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ErrorFormat;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{Routes, post, post_stream};

/// Anthropic's dialect.
#[derive(Clone)]
pub struct Anthropic(Edge);

impl Anthropic {
    /// Creates the dialect at `edge`.
    #[must_use]
    pub fn new(edge: &Edge) -> Self {
        Self(edge.clone())
    }
}

impl Dialect for Anthropic {
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        Some(&AnthropicErrors)
    }

    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        Routes::new()
            .route("/v1/messages", post_stream(PREDICT, &self.0, create))
            .route("/v1/messages/count_tokens", post(PREDICT, count_tokens))
            .with_state(self.0.clone())
    }
}
