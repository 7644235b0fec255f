//! OpenSearch's interface.

use super::{Operation, delete, get, post, put};

const PAGE: &[(&str, &str)] = &[("from", "integer"), ("size", "integer")];
const DEPLOY: &[(&str, &str)] = &[("replicas", "integer"), ("overcommit", "boolean")];
const SETTINGS: &[(&str, &str)] = &[
    ("flat_settings", "boolean"),
    ("include_defaults", "boolean"),
];

macro_rules! ml {
    ($path:literal) => {
        concat!("/_plugins/_ml", $path)
    };
}

pub(super) const OPERATIONS: &[Operation] = &[
    post(
        ml!("/connectors/_create"),
        "Creates a connector.",
        "ConnectorRequest",
        "ConnectorId",
    ),
    get(
        ml!("/connectors/_search"),
        "Connectors that fit a query.",
        "Hits",
    )
    .query(PAGE),
    post(
        ml!("/connectors/_search"),
        "Connectors that fit a query.",
        "Search",
        "Hits",
    )
    .body_if_any()
    .query(PAGE),
    get(ml!("/connectors/{id}"), "One connector.", "Connector"),
    put(
        ml!("/connectors/{id}"),
        "Changes fields of a connector that no deployed model uses.",
        "ConnectorRequest",
        "Changed",
    ),
    delete(ml!("/connectors/{id}"), "Deletes a connector.", "Changed"),
    post(
        ml!("/model_groups/_register"),
        "Makes a model group.",
        "ModelGroupRequest",
        "ModelGroupId",
    ),
    get(
        ml!("/model_groups/_search"),
        "Model groups that fit a query.",
        "Hits",
    )
    .query(PAGE),
    post(
        ml!("/model_groups/_search"),
        "Model groups that fit a query.",
        "Search",
        "Hits",
    )
    .body_if_any()
    .query(PAGE),
    get(ml!("/model_groups/{id}"), "One model group.", "ModelGroup"),
    put(
        ml!("/model_groups/{id}"),
        "Changes a model group.",
        "ModelGroupChange",
        "Anything",
    ),
    delete(
        ml!("/model_groups/{id}"),
        "Deletes a model group that no model is in.",
        "Changed",
    ),
    post(
        ml!("/models/_register"),
        "Registers a model, or its next version.",
        "ModelRequest",
        "Registered",
    )
    .query(&[("deploy", "boolean")]),
    get(ml!("/models/_search"), "Models that fit a query.", "Hits").query(PAGE),
    post(
        ml!("/models/_search"),
        "Models that fit a query.",
        "Search",
        "Hits",
    )
    .body_if_any()
    .query(PAGE),
    get(
        ml!("/models/{id}"),
        "One model, its state and where it runs.",
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
        "The old name of _deploy.",
        "Deployment",
        "Deploying",
    )
    .body_if_any()
    .query(DEPLOY),
    post(
        ml!("/models/{id}/_undeploy"),
        "Takes a model from all workers, or from some.",
        "Undeployment",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_unload"),
        "The old name of _undeploy.",
        "Undeployment",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/_undeploy"),
        "Takes models from all workers, or from some.",
        "Undeployments",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_pause"),
        "Halts the roll to a new version.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_resume"),
        "Goes on with a roll that was paused.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_rollback"),
        "Rolls back to the version before.",
        "Anything",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_predict"),
        "Predicts: tensors, texts or a generation.",
        "Prediction",
        "PredictionResult",
    ),
    post(
        ml!("/models/{id}/_batch_predict"),
        "Predicts while nobody waits; the task holds the answer.",
        "Prediction",
        "BatchTask",
    ),
    post(
        ml!("/tasks/{id}/_cancel"),
        "Ends a batch that runs.",
        "Nothing",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/tasks/{id}/_cancel_batch"),
        "Ends a batch that runs.",
        "Nothing",
        "Anything",
    )
    .body_if_any(),
    post(
        ml!("/models/{id}/_predict/stream"),
        "Generates as a stream.",
        "Prediction",
        "",
    )
    .streamed(),
    post(
        ml!("/_predict/{algorithm}/{id}"),
        "The old name of _predict.",
        "Prediction",
        "PredictionResult",
    ),
    get(
        ml!("/tasks/{id}"),
        "How far a registration or a deployment is.",
        "Task",
    ),
    delete(
        ml!("/tasks/{id}"),
        "Forgets a task that does not run.",
        "Changed",
    ),
    get(ml!("/tasks/_search"), "Tasks that fit a query.", "Hits").query(PAGE),
    post(
        ml!("/tasks/_search"),
        "Tasks that fit a query.",
        "Search",
        "Hits",
    )
    .body_if_any()
    .query(PAGE),
    get(
        ml!("/stats"),
        "Figures of the cluster and its nodes.",
        "Anything",
    ),
    get(
        ml!("/stats/{stat}"),
        "Some figures of the cluster and its nodes.",
        "Anything",
    ),
    get(ml!("/{node}/stats"), "Figures of some nodes.", "Anything"),
    get(
        ml!("/{node}/stats/{stat}"),
        "Some figures of some nodes.",
        "Anything",
    ),
    get(
        ml!("/profile"),
        "Where models are, how they do, and which tasks run.",
        "Profile",
    ),
    get(
        ml!("/profile/models"),
        "Where models are and how they do.",
        "Profile",
    ),
    get(
        ml!("/profile/models/{id}"),
        "Where some models are and how they do.",
        "Profile",
    ),
    get(ml!("/profile/tasks"), "Which tasks run.", "Profile"),
    get(
        ml!("/profile/tasks/{id}"),
        "Some tasks, by node.",
        "Profile",
    ),
    get(ml!("/streams/{id}"), "The rest of a stream.", "").streamed(),
    delete(
        ml!("/streams/{id}"),
        "Ends a stream that is held.",
        "Anything",
    ),
    get(
        "/_cluster/settings",
        "The cluster settings that somebody has set.",
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
