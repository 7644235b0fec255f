//! The operations of Ollama's dialect, for the OpenAPI document.

use volley_http_edge::operation::{Operation, get, post};

pub(crate) const OPERATIONS: &[Operation] = &[
    post(
        "/api/chat",
        "Creates a chat response, as lines of JSON or complete.",
        "OllamaChat",
        "OllamaAnswer",
    )
    .lines(),
    post(
        "/api/generate",
        "Generates text, as lines of JSON or complete.",
        "OllamaGenerate",
        "OllamaAnswer",
    )
    .lines(),
    post(
        "/api/embed",
        "Embeds texts.",
        "OllamaEmbed",
        "OllamaVectors",
    ),
    post(
        "/api/embeddings",
        "Embeds one text.",
        "OllamaEmbedding",
        "Anything",
    ),
    get("/api/tags", "Lists the deployed models.", "OllamaModels"),
    get("/api/ps", "Lists the loaded models.", "OllamaModels"),
    post(
        "/api/show",
        "Returns one deployed model.",
        "OllamaName",
        "Anything",
    ),
    post(
        "/api/pull",
        "Reports success for a deployed model; pulls nothing.",
        "OllamaPull",
        "Anything",
    )
    .lines(),
    get(
        "/api/version",
        "Returns the version of this server.",
        "Anything",
    ),
];
