//! `/_volley/nodes/{id}/drain`: takes nodes out of service and returns them to service.

use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::control::DrainStatus;
use volley_types::registry::{Drain, RegistryCommand};
use volley_types::{ErrorCode, NodeId, NodeIdentity, PredictError, WorkerId};

use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

pub(crate) async fn drain(
    caller: Caller,
    Path(id): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let force = match body.get("force") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(force)) => *force,
        Some(_) => Err(PredictError::invalid("field 'force' must be true or false"))?,
    };
    let node = find(&caller, &id, body.text("kind")?)?;
    let command = RegistryCommand::Drain(node.clone(), Drain { force });
    caller.cluster.registry.write(command).await?;
    Ok(Json(answer(&caller, &node)))
}

pub(crate) async fn undrain(
    caller: Caller,
    Path(id): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let node = find(&caller, &id, body.text("kind")?)?;
    let command = RegistryCommand::Undrain(node.clone());
    caller.cluster.registry.write(command).await?;
    Ok(Json(answer(&caller, &node)))
}

fn answer(caller: &Caller, node: &NodeIdentity) -> Value {
    let status = caller.cluster.view.status();
    let drain = status.drains.iter().find(|drain| drain.node == *node);
    let (kind, id) = names(node);
    drain.map_or_else(
        || json!({ "node": id, "kind": kind, "state": "working" }),
        described,
    )
}

/// One drained node, in the form of the status.
pub(crate) fn described(drain: &DrainStatus) -> Value {
    let (kind, id) = names(&drain.node);
    json!({
        "node": id,
        "kind": kind,
        "state": drain.state(),
        "force": drain.force,
        "models": drain.models.iter().map(|model| model.as_str()).collect::<Vec<_>>(),
        "blocked": drain.blocked.iter().map(|(model, reason)| json!({
            "model": model.as_str(), "reason": reason,
        })).collect::<Vec<_>>(),
        "active": drain.active,
    })
}

fn names(node: &NodeIdentity) -> (&'static str, String) {
    match node {
        NodeIdentity::Coordinator(id) => ("coordinator", id.to_string()),
        NodeIdentity::Worker(id) => ("worker", id.to_string()),
    }
}

/// The node with the id `id`: a worker by its name, a coordinator by its number.
fn find(caller: &Caller, id: &str, kind: Option<&str>) -> Result<NodeIdentity, PredictError> {
    let known = |node: &NodeIdentity| is_known(caller, node);
    let worker = || WorkerId::new(id).ok().map(NodeIdentity::Worker);
    let coordinator = || Some(NodeIdentity::Coordinator(NodeId(id.parse().ok()?)));
    let (worker, coordinator) = match kind {
        None => (worker(), coordinator()),
        Some("worker") => (worker(), None),
        Some("coordinator") => (None, coordinator()),
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'kind' must be 'worker' or 'coordinator'",
            ));
        }
    };
    match (worker.filter(known), coordinator.filter(known)) {
        (Some(_), Some(_)) => Err(PredictError::new(
            ErrorCode::Conflict,
            format!(
                "a worker and a coordinator have the id '{id}'; set field 'kind' to 'worker' or \
                 'coordinator'"
            ),
        )),
        (Some(node), None) | (None, Some(node)) => Ok(node),
        (None, None) => Err(PredictError::new(
            ErrorCode::NotFound,
            format!("this cluster has no worker and no coordinator with the id '{id}'"),
        )),
    }
}

fn is_known(caller: &Caller, node: &NodeIdentity) -> bool {
    let registry = caller.cluster.registry.state();
    if registry.drains.contains_key(node) {
        return true;
    }
    let status = caller.cluster.view.status();
    match node {
        NodeIdentity::Coordinator(id) => {
            let mut members = status.raft.members.iter();
            members.any(|member| member.id == *id)
        }
        NodeIdentity::Worker(id) => {
            status.workers.iter().any(|worker| worker.id == *id)
                || registry.placed_on(id).next().is_some()
        }
    }
}
