//! The operations of administration, for the OpenAPI document.

use volley_http_edge::operation::{Operation, REVISION, delete, get, post, put};

/// All operations, with their parameters and responses.
pub(crate) const OPERATIONS: &[Operation] = &[
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
        "/_volley/leader/transfer",
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
