//! The operations of Cohere's dialect, for the OpenAPI document.

use volley_http_edge::operation::{Operation, post};

pub(crate) const OPERATIONS: &[Operation] = &[
    post(
        "/v2/chat",
        "Creates a chat response, complete or as typed events.",
        "CohereChat",
        "CohereMessage",
    )
    .streamed(),
    post(
        "/v2/embed",
        "Embeds texts; the response groups the vectors by type.",
        "CohereEmbed",
        "CohereVectors",
    ),
    post(
        "/v1/embed",
        "Embeds texts in the format of Cohere's version 1.",
        "CohereEmbed",
        "CohereVectors",
    ),
    post(
        "/v1/rerank",
        "Ranks documents by their relevance to a query.",
        "RerankRequest",
        "Ranking",
    ),
    post(
        "/v2/rerank",
        "Ranks documents by their relevance to a query.",
        "RerankRequest",
        "Ranking",
    ),
];
