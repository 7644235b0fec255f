//! The operations of OpenSearch's dialect, for the OpenAPI document.

use volley_http_edge::operation::{Operation, delete, get, post, put};

const PAGE: &[(&str, &str)] = &[("from", "integer"), ("size", "integer")];
const DEPLOY: &[(&str, &str)] = &[("replicas", "integer"), ("overcommit", "boolean")];
const TEST: &[(&str, &str)] = &[("test", "boolean")];
const SETTINGS: &[(&str, &str)] = &[
    ("flat_settings", "boolean"),
    ("include_defaults", "boolean"),
];

macro_rules! ml {
    ($path:literal) => {
        concat!("/_plugins/_ml", $path)
    };
}

pub(crate) const OPERATIONS: &[Operation] = &[
    post(
        ml!("/connectors/_create"),
        "Creates a connector.",
        "ConnectorRequest",
        "ConnectorId",
    )
    .query(TEST),
    get(ml!("/connectors/_search"), "Searches connectors.", "Hits").query(PAGE),
    post(
        ml!("/connectors/_search"),
        "Searches connectors.",
        "Search",
        "Hits",
    )
    .body_if_any()
    .query(PAGE),
    get(
        ml!("/connectors/{id}"),
        "Returns one connector.",
        "Connector",
    ),
    put(
        ml!("/connectors/{id}"),
        "Changes fields of a connector that no deployed model uses.",
        "ConnectorRequest",
        "Changed",
    )
    .query(TEST),
    delete(ml!("/connectors/{id}"), "Deletes a connector.", "Changed"),
    post(
        ml!("/model_groups/_register"),
        "Creates a model group.",
        "ModelGroupRequest",
        "ModelGroupId",
    ),
    get(
        ml!("/model_groups/_search"),
        "Searches model groups.",
        "Hits",
    )
    .query(PAGE),
    post(
        ml!("/model_groups/_search"),
        "Searches model groups.",
        "Search",
        "Hits",
    )
    .body_if_any()
    .query(PAGE),
    get(
        ml!("/model_groups/{id}"),
        "Returns one model group.",
        "ModelGroup",
    ),
    put(
        ml!("/model_groups/{id}"),
        "Changes a model group.",
        "ModelGroupChange",
        "Anything",
    ),
    delete(
        ml!("/model_groups/{id}"),
        "Deletes an empty model group.",
        "Changed",
    ),
    post(
        ml!("/models/_register"),
        "Registers a model, or its next version.",
        "ModelRequest",
        "Registered",
    )
    .query(&[("deploy", "boolean")]),
    get(ml!("/models/_search"), "Searches models.", "Hits").query(PAGE),
    post(ml!("/models/_search"), "Searches models.", "Search", "Hits")
        .body_if_any()
        .query(PAGE),
    get(
        ml!("/models/{id}"),
        "Returns a model, its state and its workers.",
        "RegisteredModel",
    ),
    put(
        ml!("/models/{id}"),
        "Changes a model's description or group.",
        "ModelChange",
        "Changed",
    ),
    delete(
        ml!("/models/{id}"),
        "Deletes a model and all its versions.",
        "Changed",
    ),
    post(
        ml!("/models/{id}/_deploy"),
        "Deploys a version.",
        "Deployment",
        "Deploying",
    )
    .body_if_any()
    .query(DEPLOY),
    post(
        ml!("/models/{id}/_load"),
        "Alias of `_deploy`.",
        "Deployment",
        "Deploying",
    )
    .body_if_any()
    .query(DEPLOY),
    post(
        ml!("/models/{id}/_undeploy"),
        "Undeploys a model from all workers or from some.",
        "Undeployment",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_unload"),
        "Alias of `_undeploy`.",
        "Undeployment",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/_undeploy"),
        "Undeploys models from all workers or from some.",
        "Undeployments",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_pause"),
        "Pauses a rollout.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_resume"),
        "Resumes a paused rollout.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_rollback"),
        "Rolls back to the previous version.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_predict"),
        "Runs a prediction: tensors, texts or a generation.",
        "Prediction",
        "PredictionResult",
    ),
    post(
        ml!("/models/{id}/_batch_predict"),
        "Starts a prediction in the background. The task holds the response.",
        "Prediction",
        "BatchTask",
    ),
    post(
        ml!("/tasks/{id}/_cancel"),
        "Cancels a running batch.",
        "Nothing",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/tasks/{id}/_cancel_batch"),
        "Cancels a running batch.",
        "Nothing",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_predict/stream"),
        "Generates text as a stream.",
        "Prediction",
        "",
    )
    .streamed(),
    post(
        ml!("/_predict/{algorithm}/{id}"),
        "Alias of `_predict`.",
        "Prediction",
        "PredictionResult",
    ),
    get(
        ml!("/tasks/{id}"),
        "Returns the state of a registration, deployment or batch.",
        "Task",
    ),
    delete(
        ml!("/tasks/{id}"),
        "Deletes a task that is not running.",
        "Changed",
    ),
    get(ml!("/tasks/_search"), "Searches tasks.", "Hits").query(PAGE),
    post(ml!("/tasks/_search"), "Searches tasks.", "Search", "Hits")
        .body_if_any()
        .query(PAGE),
    get(
        ml!("/stats"),
        "Returns statistics of the cluster and its nodes.",
        "Anything",
    ),
    get(
        ml!("/stats/{stat}"),
        "Returns selected statistics of the cluster and its nodes.",
        "Anything",
    ),
    get(
        ml!("/{node}/stats"),
        "Returns statistics of selected nodes.",
        "Anything",
    ),
    get(
        ml!("/{node}/stats/{stat}"),
        "Returns selected statistics of selected nodes.",
        "Anything",
    ),
    get(
        ml!("/profile"),
        "Returns the placement and latency of models, and the running tasks.",
        "Profile",
    ),
    get(
        ml!("/profile/models"),
        "Returns the placement and latency of models.",
        "Profile",
    ),
    get(
        ml!("/profile/models/{id}"),
        "Returns the placement and latency of selected models.",
        "Profile",
    ),
    get(
        ml!("/profile/tasks"),
        "Returns the running tasks.",
        "Profile",
    ),
    get(
        ml!("/profile/tasks/{id}"),
        "Returns selected tasks by node.",
        "Profile",
    ),
    get(ml!("/streams/{id}"), "Resumes a stream.", "").streamed(),
    delete(ml!("/streams/{id}"), "Ends a resumable stream.", "Anything"),
    get(
        "/_cluster/settings",
        "Returns the cluster settings.",
        "ClusterSettings",
    )
    .query(SETTINGS),
    put(
        "/_cluster/settings",
        "Sets cluster settings.",
        "ClusterSettingsChange",
        "ClusterSettings",
    )
    .query(SETTINGS),
];
