//! Anthropic's dialect at the gateway's seam.

use crate::anthropic::error::AnthropicErrors;
use crate::anthropic::operations::OPERATIONS;
use crate::anthropic::{count_tokens, create};
use crate::auth::PREDICT;
use crate::dialect::Dialect;
use crate::edge::Edge;
use crate::error::ErrorFormat;
use crate::operation::Operation;
use crate::routes::{Routes, post, post_stream};

/// Anthropic's dialect.
#[derive(Clone)]
pub(crate) struct Anthropic(Edge);

impl Anthropic {
    /// The dialect at `edge`.
    #[must_use]
    pub(crate) fn new(edge: &Edge) -> Self {
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
