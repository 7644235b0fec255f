//! The operations of servers that serve one model, for the OpenAPI document.

use volley_http_edge::operation::{Operation, get, post};

/// Query parameter with the name of the model, for bodies without one.
const MODEL: &[(&str, &str)] = &[("model", "string")];

const fn asked(path: &'static str, summary: &'static str) -> Operation {
    post(path, summary, "Anything", "Anything").query(MODEL)
}

const fn told(path: &'static str, summary: &'static str) -> Operation {
    get(path, summary, "Anything").query(MODEL)
}

pub(crate) const OPERATIONS: &[Operation] = &[
    get(
        "/health",
        "Reports whether the node accepts requests.",
        "Anything",
    ),
    get(
        "/ping",
        "Reports whether the node accepts requests.",
        "Anything",
    ),
    post(
        "/ping",
        "Reports whether the node accepts requests.",
        "",
        "Anything",
    ),
    get(
        "/version",
        "Returns the version of this server.",
        "Anything",
    ),
    asked("/tokenize", "Tokenizes a text or a conversation."),
    asked("/detokenize", "Converts tokens to text."),
    asked("/rerank", "Ranks texts by their relevance to a query."),
    asked("/", "Runs the model's task.").streamed(),
    asked("/embed", "Embeds texts."),
    asked("/embed_all", "Embeds each token of texts."),
    asked("/embed_sparse", "Returns weighted tokens of each text."),
    asked("/predict", "Classifies texts."),
    asked(
        "/similarity",
        "Returns the similarity of sentences to a source sentence.",
    ),
    asked("/decode", "Converts lists of tokens to texts."),
    told("/info", "Describes the model."),
    asked("/generate", "Generates text."),
    asked("/generate_stream", "Generates text and streams the tokens.").streamed(),
    asked("/chat_tokenize", "Tokenizes a conversation."),
    asked("/tei/{model}", "Runs the model's task."),
    asked("/tei/{model}/embed", "Embeds texts."),
    asked("/tei/{model}/embed_all", "Embeds each token of texts."),
    asked(
        "/tei/{model}/embed_sparse",
        "Returns weighted tokens of each text.",
    ),
    asked(
        "/tei/{model}/rerank",
        "Ranks texts by their relevance to a query.",
    ),
    asked("/tei/{model}/predict", "Classifies texts."),
    asked(
        "/tei/{model}/similarity",
        "Returns the similarity of sentences to a source sentence.",
    ),
    asked("/tei/{model}/tokenize", "Tokenizes texts."),
    asked("/tei/{model}/decode", "Converts lists of tokens to texts."),
    told("/tei/{model}/info", "Describes the model."),
    get(
        "/tei/{model}/health",
        "Reports whether the node accepts requests.",
        "Anything",
    ),
    asked("/tgi/{model}", "Runs the model's task.").streamed(),
    asked("/tgi/{model}/generate", "Generates text."),
    asked(
        "/tgi/{model}/generate_stream",
        "Generates text and streams the tokens.",
    )
    .streamed(),
    asked("/tgi/{model}/tokenize", "Tokenizes a text."),
    asked("/tgi/{model}/chat_tokenize", "Tokenizes a conversation."),
    told("/tgi/{model}/info", "Describes the model."),
    get(
        "/tgi/{model}/health",
        "Reports whether the node accepts requests.",
        "Anything",
    ),
];
