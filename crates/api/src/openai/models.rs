//! `GET /v1/models`: what is deployed.

use std::sync::Arc;

use axum::Json;
use serde_json::{Value, json};
use volley_types::registry::ModelEntry;
use volley_types::{ErrorCode, ModelName, ModelRef, PredictError};

use crate::aliases;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Path, State};

/// All deployed models, by name.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let registry = app.control.registry();
    let models = registry.models.values().filter_map(|entry| model(entry));
    let aliases = aliases::listed(&app, &registry);
    let aliases = aliases.iter().map(|(name, ms)| listed(name, *ms));
    let models: Vec<_> = models.chain(aliases).collect();
    Json(json!({ "object": "list", "data": models }))
}

/// One deployed model.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let reference: ModelRef = name.parse()?;
    let registry = app.control.registry();
    let found = registry
        .models
        .get(&reference.name)
        .and_then(|entry| model(entry));
    let found = found.or_else(|| {
        let aliases = aliases::listed(&app, &registry);
        let alias = aliases.iter().find(|(name, _)| *name == reference.name);
        alias.map(|(name, ms)| listed(name, *ms))
    });
    found.map(Json).ok_or_else(|| {
        let message = format!("no model '{}' is deployed", reference.name);
        ApiError(PredictError::new(ErrorCode::NotFound, message))
    })
}

fn model(entry: &ModelEntry) -> Option<Value> {
    let deployed = entry.versions.get(&entry.deployment.as_ref()?.version)?;
    Some(listed(&entry.name, deployed.created_ms))
}

fn listed(name: &ModelName, created_ms: u64) -> Value {
    json!({
        "id": name.as_str(),
        "object": "model",
        "created": created_ms / 1_000,
        "owned_by": "volley",
    })
}
