//! The operations of Anthropic's dialect, for the OpenAPI document.

use volley_http_edge::operation::{Operation, post};

/// All operations with their summaries and the schemas of their bodies.
pub(crate) const OPERATIONS: &[Operation] = &[
    post(
        "/v1/messages",
        "Creates a message, complete or streamed.",
        "MessageRequest",
        "Message",
    )
    .streamed(),
    post(
        "/v1/messages/count_tokens",
        "Counts the tokens of a message's prompt.",
        "CountRequest",
        "TokenCount",
    ),
];
