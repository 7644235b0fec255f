//! Routes, operations and error format of OpenAI's dialect.

use crate::operations::OPERATIONS;
use crate::responses::stored;
use crate::state::OpenAi;
use crate::{chat, completions, embeddings, responses};
use volley_dialect_kit::openai_error::OpenAiErrors;
use volley_dialect_kit::ranking::rerank;
use volley_http_edge::auth::PREDICT;
use volley_http_edge::dialect::Dialect;
use volley_http_edge::error::ErrorFormat;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{Routes, delete, get, post, post_stream};

impl Dialect for OpenAi {
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        Some(&OpenAiErrors)
    }

    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        let edge = self.as_ref();
        Routes::new()
            .route(
                "/v1/chat/completions",
                post_stream(PREDICT, edge, chat::complete),
            )
            .route(
                "/v1/responses",
                post_stream(PREDICT, edge, responses::create),
            )
            .route(
                "/v1/responses/input_tokens",
                post(PREDICT, responses::count),
            )
            .route(
                "/v1/responses/{id}",
                get(PREDICT, stored::get).and(delete(PREDICT, stored::delete)),
            )
            .route(
                "/v1/responses/{id}/input_items",
                get(PREDICT, stored::input_items),
            )
            .route(
                "/v1/completions",
                post_stream(PREDICT, edge, completions::complete),
            )
            .route("/v1/embeddings", post(PREDICT, embeddings::embed))
            .route("/v1/rerank", post(PREDICT, rerank))
            .with_state(self.clone())
    }
}
