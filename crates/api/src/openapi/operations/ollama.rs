//! Ollama's interface.

use super::{Operation, get, post};

pub(super) const OPERATIONS: &[Operation] = &[
    post(
        "/api/chat",
        "A chat, as lines of JSON or whole.",
        "OllamaChat",
        "OllamaAnswer",
    )
    .lines(),
    post(
        "/api/generate",
        "A generation, as lines of JSON or whole.",
        "OllamaGenerate",
        "OllamaAnswer",
    )
    .lines(),
    post(
        "/api/embed",
        "A vector for each text.",
        "OllamaEmbed",
        "OllamaVectors",
    ),
    post(
        "/api/embeddings",
        "A vector for one text.",
        "OllamaEmbedding",
        "Anything",
    ),
    get("/api/tags", "What is deployed.", "OllamaModels"),
    get("/api/ps", "What is loaded.", "OllamaModels"),
    post("/api/show", "One deployed model.", "OllamaName", "Anything"),
    post(
        "/api/pull",
        "Tells that a deployed model is there.",
        "OllamaPull",
        "Anything",
    )
    .lines(),
    get("/api/version", "The version of this server.", "Anything"),
];
