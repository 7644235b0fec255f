//! Routes, operations and error format of Ollama's dialect.

use crate::error::OllamaErrors;
use crate::operations::OPERATIONS;
use crate::{embed, generate, models};
use volley_http_edge::auth::{PREDICT, VIEWER};
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ErrorFormat;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{Routes, get, post};

/// Ollama's dialect.
#[derive(Clone)]
pub struct Ollama(Edge);

impl Ollama {
    /// Creates the dialect at `edge`.
    #[must_use]
    pub fn new(edge: &Edge) -> Self {
        Self(edge.clone())
    }
}

impl Dialect for Ollama {
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        Some(&OllamaErrors)
    }

    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        Routes::new()
            .nest("/api", routes())
            .with_state(self.0.clone())
    }
}

fn routes() -> Routes<Edge> {
    Routes::new()
        .route("/chat", post(PREDICT, generate::chat).streamed())
        .route("/generate", post(PREDICT, generate::generate).streamed())
        .route("/embed", post(PREDICT, embed::embed))
        .route("/embeddings", post(PREDICT, embed::embeddings))
        .route("/tags", get(VIEWER, models::tags))
        .route("/ps", get(VIEWER, models::running))
        .route("/show", post(VIEWER, models::show))
        .route("/pull", post(VIEWER, models::pull))
        .route("/version", get(VIEWER, models::version))
}
