//! `GET /api/tags`, `GET /api/ps`, `POST /api/show`, `POST /api/pull` and `GET /api/version`.

use http::{HeaderValue, header};
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::registry::{ModelEntry, ModelVersionSpec, ReplicaState};
use volley_types::{ErrorCode, PredictError, Task};

use super::{named, time};
use volley_dialect_kit::parameters;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// Lists the deployed models.
pub(crate) async fn tags(caller: Caller) -> Json<Value> {
    let registry = caller.cluster.registry.state();
    let deployed = registry.models.values().filter_map(|entry| {
        let spec = deployed(entry)?;
        Some(json!({
            "name": entry.name.as_str(),
            "model": entry.name.as_str(),
            "modified_at": time(spec.created_ms),
            "size": size(&caller, entry),
            "digest": digest(entry, spec),
            "details": details(spec),
        }))
    });
    Json(json!({ "models": deployed.collect::<Vec<_>>() }))
}

/// Lists the models that a worker has loaded.
pub(crate) async fn running(caller: Caller) -> Json<Value> {
    let registry = caller.cluster.registry.state();
    let loaded = registry.models.values().filter_map(|entry| {
        let status = caller.cluster.view.model_status(&entry.name)?;
        let spec = entry.versions.get(&status.listed_version()?)?;
        let ready = |it: &volley_types::control::ReplicaStatus| it.state == ReplicaState::Ready;
        let loaded = status.serves_another() || status.replicas.iter().any(ready);
        loaded.then(|| {
            json!({
                "name": entry.name.as_str(),
                "model": entry.name.as_str(),
                "size": size(&caller, entry),
                "size_vram": 0,
                "digest": digest(entry, spec),
                "details": details(spec),
                // Models are not unloaded after a fixed time.
                "expires_at": "9999-12-31T23:59:59Z",
            })
        })
    });
    Json(json!({ "models": loaded.collect::<Vec<_>>() }))
}

/// Describes one deployed model.
pub(crate) async fn show(
    caller: Caller,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only(
        "a question for a model",
        &["model", "name", "verbose", "system", "template", "options"],
    )?;
    let (name, model) = named(&body)?;
    let registry = caller.cluster.registry.state();
    let entry = registry
        .models
        .get(&model.name)
        .ok_or_else(|| unknown(&name))?;
    let spec = deployed(entry).ok_or_else(|| unknown(&name))?;
    let signature = context
        .in_time(caller.cluster.inference.signature(&model))
        .await?;
    let capabilities: &[&str] = match signature.task {
        Task::Generate => &["completion", "tools"],
        Task::Embed => &["embedding"],
        _ => &[],
    };
    let defaults = parameters::to_json(&spec.parameters);
    let defaults = defaults.as_object().into_iter().flatten();
    let defaults: Vec<_> = defaults
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    Ok(Json(json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": defaults.join("\n"),
        "template": "",
        "details": details(spec),
        "model_info": { "general.architecture": spec.backend.as_str(),
                        "general.basename": entry.name.as_str() },
        "capabilities": capabilities,
        "modified_at": time(spec.created_ms),
    })))
}

/// Reports success for a deployed model, and `NotFound` for any other: this server pulls no models.
pub(crate) async fn pull(
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Response, ApiError> {
    body.only("a pull", &["model", "name", "stream", "insecure"])?;
    let (name, model) = named(&body)?;
    let registry = caller.cluster.registry.state();
    registry
        .models
        .get(&model.name)
        .and_then(|entry| deployed(entry))
        .ok_or_else(|| unknown(&name))?;
    let done = json!({ "status": "success" });
    if body.get("stream") == Some(&Value::Bool(false)) {
        return Ok(Json(done).into_response());
    }
    let lines = HeaderValue::from_static("application/x-ndjson");
    Ok(([(header::CONTENT_TYPE, lines)], format!("{done}\n")).into_response())
}

fn unknown(name: &str) -> PredictError {
    let message = format!("model '{name}' not found");
    PredictError::new(ErrorCode::NotFound, message)
}

fn deployed(entry: &ModelEntry) -> Option<&ModelVersionSpec> {
    entry.versions.get(&entry.deployment.as_ref()?.version)
}

/// Memory of one replica in bytes; 0 if unknown.
fn size(caller: &Caller, entry: &ModelEntry) -> u64 {
    let status = caller.cluster.view.model_status(&entry.name);
    let replicas = status.iter().flat_map(|status| &status.replicas);
    replicas
        .map(|replica| replica.memory_bytes)
        .max()
        .unwrap_or(0)
}

/// The name and version identify the content, because versions are immutable.
fn digest(entry: &ModelEntry, spec: &ModelVersionSpec) -> String {
    format!("{}-{}", entry.name, spec.version)
}

fn details(spec: &ModelVersionSpec) -> Value {
    let kind = spec.backend.as_str();
    json!({
        "parent_model": "", "format": kind, "family": kind, "families": [kind],
        "parameter_size": "", "quantization_level": "",
    })
}
