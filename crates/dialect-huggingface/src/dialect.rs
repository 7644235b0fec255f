//! Routes, operations and error format of servers that serve one model: vLLM, llama.cpp, Text
//! Embeddings Inference and Text Generation Inference.

use crate::error::HuggingFaceErrors;
use crate::operations::OPERATIONS;
use crate::tokens;
use crate::{
    at_root, chat_tokenize, decode, embed, embed_all, embed_sparse, generate, generate_stream,
    info, predict, rerank, similarity,
};
use volley_dialect_kit::health::{health, version};
use volley_http_edge::auth::{PREDICT, PUBLIC, VIEWER};
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ErrorFormat;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{Routes, get, post, post_stream};

/// The dialects of servers that serve one model.
#[derive(Clone)]
pub struct HuggingFace(Edge);

impl HuggingFace {
    /// Creates the dialect at `edge`.
    #[must_use]
    pub fn new(edge: &Edge) -> Self {
        Self(edge.clone())
    }
}

impl Dialect for HuggingFace {
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        Some(&HuggingFaceErrors)
    }

    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        Routes::new()
            .merge(at_root_of_the_node(&self.0))
            .nest("/tei/{model}", tei_routes())
            .nest("/tgi/{model}", tgi_routes(&self.0))
            .with_state(self.0.clone())
    }
}

/// The routes at the root of the node.
fn at_root_of_the_node(edge: &Edge) -> Routes<Edge> {
    Routes::new()
        .route("/", post_stream(PREDICT, edge, at_root))
        .route("/health", get(PUBLIC, health))
        .route("/ping", get(PUBLIC, health).and(post(PUBLIC, health)))
        .route("/version", get(VIEWER, version))
        .route("/tokenize", post(PREDICT, tokens::tokenize))
        .route("/detokenize", post(PREDICT, tokens::detokenize))
        .route("/rerank", post(PREDICT, rerank))
        .route("/embed", post(PREDICT, embed))
        .route("/embed_all", post(PREDICT, embed_all))
        .route("/embed_sparse", post(PREDICT, embed_sparse))
        .route("/predict", post(PREDICT, predict))
        .route("/similarity", post(PREDICT, similarity))
        .route("/decode", post(PREDICT, decode))
        .route("/info", get(VIEWER, info))
        .route("/generate", post(PREDICT, generate))
        .route(
            "/generate_stream",
            post_stream(PREDICT, edge, generate_stream),
        )
        .route("/chat_tokenize", post(PREDICT, chat_tokenize))
}

/// The routes below `/tei/{model}`.
fn tei_routes() -> Routes<Edge> {
    Routes::new()
        .route("/", post(PREDICT, at_root))
        .route("/embed", post(PREDICT, embed))
        .route("/embed_all", post(PREDICT, embed_all))
        .route("/embed_sparse", post(PREDICT, embed_sparse))
        .route("/rerank", post(PREDICT, rerank))
        .route("/predict", post(PREDICT, predict))
        .route("/similarity", post(PREDICT, similarity))
        .route("/tokenize", post(PREDICT, tokens::tokenize))
        .route("/decode", post(PREDICT, decode))
        .route("/info", get(VIEWER, info))
        .route("/health", get(PUBLIC, health))
}

/// The routes below `/tgi/{model}`.
fn tgi_routes(edge: &Edge) -> Routes<Edge> {
    Routes::new()
        .route("/", post_stream(PREDICT, edge, at_root))
        .route("/generate", post(PREDICT, generate))
        .route(
            "/generate_stream",
            post_stream(PREDICT, edge, generate_stream),
        )
        .route("/tokenize", post(PREDICT, tokens::tokenize))
        .route("/chat_tokenize", post(PREDICT, chat_tokenize))
        .route("/info", get(VIEWER, info))
        .route("/health", get(PUBLIC, health))
}
