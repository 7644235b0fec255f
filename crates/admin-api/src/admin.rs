//! Operations on the cluster: membership, leadership and backup.

use http::header;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{NodeId, PredictError};

use crate::ops::members;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

pub(crate) async fn join(
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let (node, address) = newcomer(&body)?;
    let joined = caller.cluster.membership.join(node, address).await?;
    Ok(Json(json!({ "coordinators": members(&joined) })))
}

pub(crate) async fn leave(caller: Caller, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let left = caller.cluster.membership.leave(node_id(&id)?).await?;
    Ok(Json(json!({ "coordinators": members(&left) })))
}

pub(crate) async fn replace(
    caller: Caller,
    Path(old): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let (node, address) = newcomer(&body)?;
    let replaced = caller
        .cluster
        .membership
        .replace(node_id(&old)?, node, address)
        .await?;
    Ok(Json(json!({ "coordinators": members(&replaced) })))
}

pub(crate) async fn transfer_leadership(
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let to = body.count("to")?.map(NodeId);
    let leader = caller.cluster.membership.transfer_leadership(to).await?;
    Ok(Json(json!({ "leader": leader.0 })))
}

pub(crate) async fn backup(caller: Caller) -> Result<Response, ApiError> {
    let backup = caller.cluster.membership.backup().await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, backup).into_response())
}

fn node_id(text: &str) -> Result<NodeId, PredictError> {
    let id = text.parse().map(NodeId);
    id.map_err(|_| PredictError::invalid("a node id must be a whole number"))
}

/// The node id and the address in a body.
fn newcomer(body: &impl Fields) -> Result<(NodeId, String), PredictError> {
    let id = body
        .count("id")?
        .ok_or_else(|| PredictError::invalid("field 'id' is missing"))?;
    Ok((NodeId(id), body.required("address")?.to_owned()))
}
