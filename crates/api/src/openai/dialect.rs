//! OpenAI's dialect at the gateway's seam.

use crate::auth::PREDICT;
use crate::dialect::Dialect;
use crate::error::ErrorFormat;
use crate::openai::operations::OPERATIONS;
use crate::openai::responses::stored;
use crate::openai::state::OpenAi;
use crate::openai::{chat, completions, embeddings, responses};
use crate::openai_error::OpenAiErrors;
use crate::operation::Operation;
use crate::ranking::rerank;
use crate::routes::{Routes, delete, get, post, post_stream};

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
