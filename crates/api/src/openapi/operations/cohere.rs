//! Cohere's interface.

use super::{Operation, post};

pub(super) const OPERATIONS: &[Operation] = &[
    post(
        "/v2/chat",
        "A chat, whole or as typed events.",
        "CohereChat",
        "CohereMessage",
    )
    .streamed(),
    post(
        "/v2/embed",
        "A vector for each text, by type.",
        "CohereEmbed",
        "CohereVectors",
    ),
    post(
        "/v1/embed",
        "A vector for each text, as Cohere's first version has it.",
        "CohereEmbed",
        "CohereVectors",
    ),
    post(
        "/v1/rerank",
        "Documents by how well they fit a query.",
        "RerankRequest",
        "Ranking",
    ),
    post(
        "/v2/rerank",
        "Documents by how well they fit a query.",
        "RerankRequest",
        "Ranking",
    ),
];
