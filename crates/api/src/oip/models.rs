//! Metadata, health and the repository.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use volley_types::registry::{ModelState, RegistryCommand};
use volley_types::{ErrorCode, ModelName};

use super::{Found, Named, tensors};
use crate::app::App;
use crate::body::{Fields, JsonObject};
use crate::error::ApiError;
use crate::extract::{Path, State};

/// Replicas of a model that is loaded through this protocol, which knows no such number.
const REPLICAS: u32 = 1;

/// The server.
pub(crate) async fn server() -> Json<Value> {
    Json(json!({
        "name": "volley",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["generate", "model_repository"],
    }))
}

pub(crate) async fn live() -> Json<Value> {
    Json(json!({ "live": true }))
}

pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    readiness(app.control.ready())
}

fn readiness(ready: bool) -> Response {
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({ "ready": ready }))).into_response()
}

/// Whether a model answers.
pub(crate) async fn model_ready(
    State(app): State<Arc<App>>,
    Path(named): Path<Named>,
) -> Result<Response, ApiError> {
    match Found::find(&app, &named).await {
        Ok(found) => {
            Ok(Json(json!({ "name": found.model.name.as_str(), "ready": true })).into_response())
        }
        Err(error) if matches!(error.code, ErrorCode::Unavailable | ErrorCode::NotDeployed) => {
            Ok(readiness(false))
        }
        Err(error) => Err(error.into()),
    }
}

/// What a model takes and gives.
pub(crate) async fn metadata(
    State(app): State<Arc<App>>,
    Path(named): Path<Named>,
) -> Result<Json<Value>, ApiError> {
    let found = Found::find(&app, &named).await?;
    let columns = |schema: &arrow_schema::Schema| -> Vec<Value> {
        let described = schema.fields().iter().filter_map(|field| {
            let (datatype, _) = tensors::described(field)?;
            let shape = tensors::declared_shape(field);
            Some(json!({ "name": field.name(), "datatype": datatype, "shape": shape }))
        });
        described.collect()
    };
    Ok(Json(json!({
        "name": found.model.name.as_str(),
        "versions": [found.version],
        "platform": format!("volley_{}", found.signature.task.as_str()),
        "inputs": columns(&found.signature.input),
        "outputs": columns(&found.signature.output),
    })))
}

/// Every model, or with `{"ready": true}` those that answer.
pub(crate) async fn index(
    State(app): State<Arc<App>>,
    JsonObject(body): JsonObject,
) -> Json<Value> {
    let only_ready = body.get("ready") == Some(&Value::Bool(true));
    let registry = app.control.registry();
    let models = registry.models.keys().filter_map(|name| {
        let status = app.control.model_status(name)?;
        let state = match status.state {
            ModelState::Deployed | ModelState::PartiallyDeployed => "READY",
            ModelState::Deploying => "LOADING",
            ModelState::Registered | ModelState::Undeployed | ModelState::DeployFailed => {
                "UNAVAILABLE"
            }
        };
        let version = status.version.map(|version| version.0.to_string());
        let told =
            json!({ "name": name.as_str(), "version": version, "state": state, "reason": "" });
        (!only_ready || state == "READY").then_some(told)
    });
    Json(models.collect())
}

/// Deploys a model's newest version.
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<StatusCode, ApiError> {
    body.only("a load", &[])?;
    let command = RegistryCommand::Deploy {
        model: ModelName::new(model)?,
        version: None,
        replicas: REPLICAS,
    };
    app.control.write(command).await?;
    Ok(StatusCode::OK)
}

/// Undeploys a model.
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<StatusCode, ApiError> {
    body.only("an unload", &["parameters"])?;
    let command = RegistryCommand::Undeploy(ModelName::new(model)?);
    app.control.write(command).await?;
    Ok(StatusCode::OK)
}
