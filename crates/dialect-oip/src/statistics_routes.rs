//! The routes of statistics, an extension of Triton.

use serde_json::{Value, json};
use volley_http_edge::axum::Json;

use super::{ModelPath, ResolvedModel};
use crate::state::OipCaller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// The statistics of one model.
pub(crate) async fn model(
    caller: OipCaller,
    Path(named): Path<ModelPath>,
) -> Result<Json<Value>, ApiError> {
    let found = ResolvedModel::find(&caller, &named).await?;
    let key = (found.model.name, found.version);
    let told = caller.state.statistics().of(&key).json(&key);
    Ok(Json(json!({ "model_stats": [told] })))
}

/// The statistics of all requested models that the caller may see.
pub(crate) async fn all(caller: OipCaller) -> Json<Value> {
    let counted = caller
        .state
        .statistics()
        .all(&caller.cluster.registry.state());
    let told: Vec<_> = counted
        .iter()
        .map(|(key, counts)| counts.json(key))
        .collect();
    Json(json!({ "model_stats": told }))
}
