//! What each operation does, takes and gives.

mod cohere;
mod ollama;
mod opensearch;

/// One method of one route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    /// The schema of its body; empty where it takes none.
    pub(super) takes: &'static str,
    pub(super) needs_body: bool,
    /// The schema of its answer, or the media type of one that is no JSON; empty for no body.
    pub(super) gives: &'static str,
    /// Whether the answer may be a stream of events.
    pub(super) streams: bool,
    /// Whether the answer may be lines of JSON.
    pub(super) lines: bool,
    /// The status of a success.
    pub(super) status: u16,
    /// Names and types of what may stand in the query.
    pub(super) query: &'static [(&'static str, &'static str)],
}

const fn get(path: &'static str, summary: &'static str, gives: &'static str) -> Operation {
    Operation {
        method: "GET",
        path,
        summary,
        takes: "",
        needs_body: false,
        gives,
        streams: false,
        lines: false,
        status: 200,
        query: &[],
    }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    takes: &'static str,
    gives: &'static str,
) -> Operation {
    Operation {
        method: "POST",
        takes,
        needs_body: true,
        ..get(path, summary, gives)
    }
}

const fn delete(path: &'static str, summary: &'static str, gives: &'static str) -> Operation {
    Operation {
        method: "DELETE",
        ..get(path, summary, gives)
    }
}

const fn put(
    path: &'static str,
    summary: &'static str,
    takes: &'static str,
    gives: &'static str,
) -> Operation {
    Operation {
        method: "PUT",
        ..post(path, summary, takes, gives)
    }
}

impl Operation {
    const fn streamed(self) -> Self {
        Self {
            streams: true,
            ..self
        }
    }

    const fn lines(self) -> Self {
        Self {
            lines: true,
            ..self
        }
    }

    const fn body_if_any(self) -> Self {
        Self {
            needs_body: false,
            ..self
        }
    }

    const fn query(self, query: &'static [(&'static str, &'static str)]) -> Self {
        Self { query, ..self }
    }

    const fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// A route that nobody has described yet.
    pub(super) const UNKNOWN: Self = get("", "", "Anything");
}

/// The state that a write is made for.
const REVISION: &[(&str, &str)] = &[("revision", "integer")];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Operation> {
    let dialects = [
        opensearch::OPERATIONS,
        ollama::OPERATIONS,
        cohere::OPERATIONS,
        OPERATIONS,
    ];
    dialects.into_iter().flatten()
}

/// Those that have no file of their own.
const OPERATIONS: &[Operation] = &[
    post(
        "/v1/chat/completions",
        "A chat completion, whole or streamed.",
        "ChatRequest",
        "ChatCompletion",
    )
    .streamed(),
    post(
        "/v1/responses",
        "A response, whole or as typed events. Nothing is stored.",
        "ResponseRequest",
        "Response",
    )
    .streamed(),
    post(
        "/v1/responses/input_tokens",
        "How many tokens a response's input has.",
        "ResponseRequest",
        "InputTokens",
    ),
    post(
        "/v1/completions",
        "A plain completion, whole or streamed.",
        "CompletionRequest",
        "Completion",
    )
    .streamed(),
    post(
        "/v1/embeddings",
        "A vector for each text.",
        "EmbeddingRequest",
        "Embeddings",
    ),
    post(
        "/v1/messages",
        "A message, whole or streamed.",
        "MessageRequest",
        "Message",
    )
    .streamed(),
    post(
        "/v1/messages/count_tokens",
        "How many tokens a message's prompt has.",
        "CountRequest",
        "TokenCount",
    ),
    get("/v1/models", "What is deployed.", "Models"),
    get("/v1/models/{id}", "One deployed model.", "Model"),
    get("/v1/streams/{id}", "The rest of a stream.", "").streamed(),
    delete(
        "/v1/streams/{id}",
        "Ends a stream that is held.",
        "Anything",
    ),
    get("/v2", "The server.", "Anything"),
    get("/v2/health/live", "Whether the process runs.", "Live"),
    get(
        "/v2/health/ready",
        "Whether the node takes requests.",
        "Ready",
    ),
    post(
        "/v2/repository/index",
        "All models and their states.",
        "IndexRequest",
        "Index",
    )
    .body_if_any(),
    post(
        "/v2/repository/models/{model}/load",
        "Deploys a model's newest version.",
        "Nothing",
        "",
    )
    .body_if_any(),
    post(
        "/v2/repository/models/{model}/unload",
        "Undeploys a model.",
        "Unload",
        "",
    )
    .body_if_any(),
    get(
        "/v2/models/{model}",
        "What a model takes and gives.",
        "Metadata",
    ),
    get(
        "/v2/models/{model}/versions/{version}",
        "What a version takes and gives.",
        "Metadata",
    ),
    get(
        "/v2/models/{model}/ready",
        "Whether a model answers.",
        "Ready",
    ),
    get(
        "/v2/models/{model}/versions/{version}/ready",
        "Whether a version answers.",
        "Ready",
    ),
    post(
        "/v2/models/{model}/infer",
        "Tensors in, tensors out.",
        "InferRequest",
        "InferResult",
    ),
    post(
        "/v2/models/{model}/versions/{version}/infer",
        "Tensors in, tensors out.",
        "InferRequest",
        "InferResult",
    ),
    post(
        "/v2/models/{model}/generate",
        "A text for a text.",
        "GenerateRequest",
        "Generated",
    ),
    post(
        "/v2/models/{model}/versions/{version}/generate",
        "A text for a text.",
        "GenerateRequest",
        "Generated",
    ),
    post(
        "/v2/models/{model}/generate_stream",
        "A text for a text, as a stream.",
        "GenerateRequest",
        "",
    )
    .streamed(),
    post(
        "/v2/models/{model}/versions/{version}/generate_stream",
        "A text for a text, as a stream.",
        "GenerateRequest",
        "",
    )
    .streamed(),
    post(
        "/v2/models/{model}/infer_stream",
        "Tensors for tensors, as a stream.",
        "InferRequest",
        "",
    )
    .streamed(),
    post(
        "/v2/models/{model}/versions/{version}/infer_stream",
        "Tensors for tensors, as a stream.",
        "InferRequest",
        "",
    )
    .streamed(),
    get(
        "/_plugins/_ml/models/{id}/_predict/ws",
        "A WebSocket to a model.",
        "",
    ),
    get(
        "/v2/models/stats",
        "Counts and times of all models.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/config",
        "A model's configuration.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/versions/{version}/config",
        "A version's configuration.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/stats",
        "Counts and times of a model.",
        "Anything",
    ),
    get(
        "/v2/models/{model}/versions/{version}/stats",
        "Counts and times of a version.",
        "Anything",
    ),
    get(
        "/_volley/metrics",
        "Metrics of the models that the caller sees.",
        "application/openmetrics-text",
    ),
    get(
        "/_volley/scale",
        "How many workers the cluster could use.",
        "Anything",
    ),
    get(
        "/_volley/status",
        "Nodes, roles, leader, replicas, load.",
        "Anything",
    ),
    get("/_volley/health/live", "Whether the process runs.", "Live"),
    get(
        "/_volley/health/ready",
        "Whether the node takes requests.",
        "Ready",
    ),
    post(
        "/_volley/nodes/join",
        "Adds a coordinator.",
        "Join",
        "Coordinators",
    ),
    post(
        "/_volley/nodes/{id}/leave",
        "Removes a coordinator.",
        "Anything",
        "Coordinators",
    )
    .body_if_any(),
    post(
        "/_volley/nodes/{id}/replace",
        "Puts a new coordinator in the place of another.",
        "Join",
        "Coordinators",
    ),
    post(
        "/_volley/nodes/{id}/drain",
        "Takes a worker or a coordinator out of work.",
        "Drain",
        "Drained",
    )
    .body_if_any(),
    post(
        "/_volley/nodes/{id}/undrain",
        "Puts a node to work again.",
        "Drain",
        "Drained",
    )
    .body_if_any(),
    post(
        "/_volley/leader/hand_over",
        "Makes another coordinator the leader.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    get(
        "/_volley/backup",
        "The registry as a file that a new cluster can be made of.",
        "application/octet-stream",
    ),
    get(
        "/_volley/whoami",
        "What the caller's key allows.",
        "Anything",
    ),
    get("/_volley/keys", "All keys, without their secrets.", "Keys"),
    post(
        "/_volley/keys",
        "Makes a key, which is shown this once.",
        "KeyRequest",
        "Key",
    )
    .status(201),
    get("/_volley/keys/{id}", "One key, without its secret.", "Key"),
    delete("/_volley/keys/{id}", "Revokes a key.", "Key"),
    post(
        "/_volley/keys/{id}/_rotate",
        "Gives a key a new secret.",
        "Rotation",
        "Key",
    )
    .body_if_any(),
    get("/_volley/secrets", "Secrets, by their names.", "Secrets"),
    post(
        "/_volley/secrets/{name}",
        "Stores a secret, sealed, in place of one of the same name.",
        "SecretRequest",
        "Secret",
    ),
    delete("/_volley/secrets/{name}", "Deletes a secret.", "Anything"),
    post(
        "/_volley/secrets/_rewrap",
        "Puts all secrets under the newest master key.",
        "Nothing",
        "Rewrapped",
    )
    .body_if_any(),
    post(
        "/_volley/keys/{id}/_limit",
        "Sets what a key may use.",
        "KeyLimits",
        "Key",
    ),
    get(
        "/_volley/aliases",
        "All aliases: names that split requests over models.",
        "Aliases",
    ),
    post(
        "/_volley/aliases",
        "Creates an alias.",
        "AliasRequest",
        "Alias",
    )
    .status(201),
    get("/_volley/aliases/{name}", "One alias.", "Alias"),
    put(
        "/_volley/aliases/{name}",
        "Creates or switches an alias, in one write.",
        "AliasRequest",
        "Alias",
    )
    .query(REVISION),
    delete("/_volley/aliases/{name}", "Deletes an alias.", "Deleted").query(REVISION),
    get(
        "/_volley/pipelines",
        "All pipelines: graphs of models behind one name.",
        "Pipelines",
    ),
    post(
        "/_volley/pipelines",
        "Creates a pipeline.",
        "PipelineRequest",
        "Pipeline",
    )
    .status(201),
    get("/_volley/pipelines/{name}", "One pipeline.", "Pipeline"),
    put(
        "/_volley/pipelines/{name}",
        "Creates or replaces a pipeline, in one write.",
        "PipelineRequest",
        "Pipeline",
    )
    .query(REVISION),
    delete(
        "/_volley/pipelines/{name}",
        "Deletes a pipeline.",
        "Deleted",
    )
    .query(REVISION),
    get(
        "/metrics",
        "Metrics of this node.",
        "application/openmetrics-text",
    ),
    get("/", "The node, and where to go on.", "Anything"),
    get("/openapi.json", "This document.", "Anything"),
    get("/docs", "This document, to be read.", "text/html"),
];
