//! What each operation does, takes and gives.

mod cohere;
mod oip;
mod ollama;
mod opensearch;
mod single;

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
        single::OPERATIONS,
        oip::OPERATIONS,
        OPERATIONS,
    ];
    dialects.into_iter().flatten()
}

/// Those that have no file of their own.
const OPERATIONS: &[Operation] = &[
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
    get("/v1/models", "Lists the models that are ready.", "Models").query(&[
        ("all", "boolean"),
        ("limit", "integer"),
        ("before_id", "string"),
        ("after_id", "string"),
    ]),
    get("/v1/models/{id}", "Returns one deployed model.", "Model"),
    get("/v1/streams/{id}", "Resumes a stream.", "").streamed(),
    delete("/v1/streams/{id}", "Ends a resumable stream.", "Anything"),
    get(
        "/_plugins/_ml/models/{id}/_predict/ws",
        "Opens a WebSocket to a model.",
        "",
    ),
    get(
        "/_volley/metrics",
        "Returns the metrics of the models that the caller may see.",
        "application/openmetrics-text",
    ),
    get(
        "/_volley/scale",
        "Returns the number of workers that the cluster could use.",
        "Anything",
    ),
    get(
        "/_volley/status",
        "Returns nodes, roles, the leader, replicas and load.",
        "Anything",
    ),
    get(
        "/_volley/health/live",
        "Reports whether the process runs.",
        "Live",
    ),
    get(
        "/_volley/health/ready",
        "Reports whether the node accepts requests.",
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
        "Replaces a coordinator by a new one.",
        "Join",
        "Coordinators",
    ),
    post(
        "/_volley/nodes/{id}/drain",
        "Drains a worker or a coordinator.",
        "Drain",
        "Drained",
    )
    .body_if_any(),
    post(
        "/_volley/nodes/{id}/undrain",
        "Returns a drained node to service.",
        "Drain",
        "Drained",
    )
    .body_if_any(),
    post(
        "/_volley/leader/hand_over",
        "Transfers leadership to another coordinator.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    get(
        "/_volley/backup",
        "Returns a backup of the registry.",
        "application/octet-stream",
    ),
    get(
        "/_volley/whoami",
        "Returns the caller's identity, role and limits.",
        "Anything",
    ),
    get(
        "/_volley/keys",
        "Lists all keys without their secrets.",
        "Keys",
    ),
    post(
        "/_volley/keys",
        "Creates a key. Its secret is returned only here.",
        "KeyRequest",
        "Key",
    )
    .status(201),
    get(
        "/_volley/keys/{id}",
        "Returns one key without its secret.",
        "Key",
    ),
    delete("/_volley/keys/{id}", "Revokes a key.", "Key"),
    post(
        "/_volley/keys/{id}/_rotate",
        "Gives a key a new secret.",
        "Rotation",
        "Key",
    )
    .body_if_any(),
    get("/_volley/secrets", "Lists the names of secrets.", "Secrets"),
    post(
        "/_volley/secrets/{name}",
        "Encrypts and stores a secret; replaces one with the same name.",
        "SecretRequest",
        "Secret",
    ),
    delete("/_volley/secrets/{name}", "Deletes a secret.", "Anything"),
    post(
        "/_volley/secrets/_rewrap",
        "Encrypts all secrets with the newest master key.",
        "Nothing",
        "Rewrapped",
    )
    .body_if_any(),
    post(
        "/_volley/keys/{id}/_limit",
        "Sets the limits of a key.",
        "KeyLimits",
        "Key",
    ),
    get("/_volley/aliases", "Lists all aliases.", "Aliases"),
    post(
        "/_volley/aliases",
        "Creates an alias.",
        "AliasRequest",
        "Alias",
    )
    .status(201),
    get("/_volley/aliases/{name}", "Returns one alias.", "Alias"),
    put(
        "/_volley/aliases/{name}",
        "Creates or replaces an alias in one write.",
        "AliasRequest",
        "Alias",
    )
    .query(REVISION),
    delete("/_volley/aliases/{name}", "Deletes an alias.", "Deleted").query(REVISION),
    get("/_volley/pipelines", "Lists all pipelines.", "Pipelines"),
    post(
        "/_volley/pipelines",
        "Creates a pipeline.",
        "PipelineRequest",
        "Pipeline",
    )
    .status(201),
    get(
        "/_volley/pipelines/{name}",
        "Returns one pipeline.",
        "Pipeline",
    ),
    put(
        "/_volley/pipelines/{name}",
        "Creates or replaces a pipeline in one write.",
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
        "Returns the metrics of this node.",
        "application/openmetrics-text",
    ),
    get(
        "/",
        "Returns the name and version of the node, and links.",
        "Anything",
    ),
    get("/openapi.json", "Returns this document.", "Anything"),
    get("/docs", "Renders this document as a page.", "text/html"),
];
