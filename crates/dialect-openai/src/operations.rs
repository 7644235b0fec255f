//! The operations of OpenAI's dialect, for the OpenAPI document.

use volley_http_edge::operation::{Operation, delete, get, post};

/// All operations with their summaries and the schemas of their bodies.
pub(crate) const OPERATIONS: &[Operation] = &[
    post(
        "/v1/chat/completions",
        "Creates a chat completion, complete or streamed.",
        "ChatRequest",
        "ChatCompletion",
    )
    .streamed(),
    post(
        "/v1/responses",
        "Creates a response, complete or as typed events.",
        "ResponseRequest",
        "Response",
    )
    .streamed(),
    post(
        "/v1/responses/input_tokens",
        "Counts the tokens of a response's input.",
        "ResponseRequest",
        "InputTokens",
    ),
    get(
        "/v1/responses/{id}",
        "Returns a stored response.",
        "Response",
    )
    .query(&[("stream", "boolean")]),
    delete(
        "/v1/responses/{id}",
        "Deletes a stored response.",
        "Anything",
    ),
    get(
        "/v1/responses/{id}/input_items",
        "Lists the input items of a stored response.",
        "Anything",
    )
    .query(&[
        ("limit", "integer"),
        ("order", "string"),
        ("after", "string"),
    ]),
    post(
        "/v1/completions",
        "Creates a text completion, complete or streamed.",
        "CompletionRequest",
        "Completion",
    )
    .streamed(),
    post(
        "/v1/embeddings",
        "Embeds texts.",
        "EmbeddingRequest",
        "Embeddings",
    ),
];
