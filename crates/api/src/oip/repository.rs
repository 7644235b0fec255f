//! The repository of models: what there is, load, unload.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use http::StatusCode;
use serde_json::{Value, json};
use volley_types::control::ModelStatus;
use volley_types::registry::{DeployOptions, ModelState, RegistryCommand, ReplicaState};
use volley_types::{ErrorCode, ModelName, PredictError};

use crate::app::App;
use crate::body::{Fields, OwnJsonObject};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::{Path, State};

/// Replicas of a model that is loaded through this protocol, which knows no such number.
const REPLICAS: u32 = 1;
/// Between two looks at a model that is being loaded or unloaded.
const LOOK: Duration = Duration::from_millis(20);

/// Every model, or with `{"ready": true}` those that answer.
pub(crate) async fn index(
    State(app): State<Arc<App>>,
    OwnJsonObject(body): OwnJsonObject,
) -> Json<Value> {
    let only_ready = body.get("ready") == Some(&Value::Bool(true));
    let told = |entry: Entry| {
        json!({ "name": entry.name, "version": entry.version, "state": entry.state,
                "reason": entry.reason })
    };
    Json(entries(&app, only_ready).into_iter().map(told).collect())
}

/// A model of the index.
pub(super) struct Entry {
    pub(super) name: String,
    /// The deployed version.
    pub(super) version: Option<String>,
    pub(super) state: &'static str,
    /// Why it does not answer, where that is known.
    pub(super) reason: String,
}

/// Every model, or those that answer.
pub(super) fn entries(app: &App, only_ready: bool) -> Vec<Entry> {
    let registry = app.control.registry();
    let others = registry.aliases.keys().chain(registry.pipelines.keys());
    let models = registry.models.keys().chain(others).filter_map(|name| {
        let status = app.control.model_status(name)?;
        let state = match status.state {
            ModelState::Deployed | ModelState::PartiallyDeployed => "READY",
            ModelState::Deploying => "LOADING",
            ModelState::Registered | ModelState::Undeployed | ModelState::DeployFailed => {
                "UNAVAILABLE"
            }
        };
        let entry = Entry {
            name: name.as_str().to_owned(),
            version: status.version.map(|version| version.0.to_string()),
            state,
            reason: failure(&status).unwrap_or_default().to_owned(),
        };
        (!only_ready || state == "READY").then_some(entry)
    });
    models.collect()
}

/// Deploys a model's newest version, and answers when it is there.
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
    context: RequestContext,
    OwnJsonObject(body): OwnJsonObject,
) -> Result<StatusCode, ApiError> {
    body.only("a load", &["parameters"])?;
    let given = body
        .object("parameters")?
        .is_some_and(|given| !given.is_empty());
    context.in_time(deploy(&app, model, given)).await?;
    Ok(StatusCode::OK)
}

/// Deploys the newest version of the model of that name, and returns when it is there. `given` is
/// whether the load has parameters.
///
/// # Errors
/// `InvalidInput` for a malformed name, for parameters, or when the model cannot be loaded; the
/// registry's own.
pub(super) async fn deploy(app: &App, model: String, given: bool) -> Result<(), PredictError> {
    if given {
        return Err(PredictError::invalid(
            "a load takes no configuration and no files; register the model with its path or \
             connector, and load it by name",
        ));
    }
    let model = ModelName::new(model)?;
    let deploy = RegistryCommand::Deploy {
        model: model.clone(),
        version: None,
        replicas: REPLICAS,
        overcommit: false,
        options: DeployOptions::default(),
        workers: Vec::new(),
    };
    app.control.write(deploy).await?;
    loop {
        let status = app
            .control
            .model_status(&model)
            .ok_or_else(|| gone(&model))?;
        match status.state {
            ModelState::Deployed | ModelState::PartiallyDeployed => return Ok(()),
            ModelState::DeployFailed => return Err(failed(&model, &status)),
            ModelState::Undeployed => return Err(gone(&model)),
            ModelState::Registered | ModelState::Deploying => tokio::time::sleep(LOOK).await,
        }
    }
}

fn gone(model: &ModelName) -> PredictError {
    let message = format!("model '{model}' was undeployed while it was loaded");
    PredictError::new(ErrorCode::Conflict, message)
}

fn failed(model: &ModelName, status: &ModelStatus) -> PredictError {
    let reason = failure(status).unwrap_or("its replicas failed");
    PredictError::invalid(format!("model '{model}' could not be loaded: {reason}"))
}

/// Why a replica could not be loaded.
fn failure(status: &ModelStatus) -> Option<&str> {
    status
        .replicas
        .iter()
        .find_map(|replica| match &replica.state {
            ReplicaState::Failed(reason) => Some(reason.as_str()),
            _ => None,
        })
}

/// Undeploys a model.
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
    OwnJsonObject(body): OwnJsonObject,
) -> Result<StatusCode, ApiError> {
    body.only("an unload", &["parameters"])?;
    undeploy(&app, model).await?;
    Ok(StatusCode::OK)
}

/// Undeploys the model of that name.
///
/// # Errors
/// `InvalidInput` for a malformed name; the registry's own.
pub(super) async fn undeploy(app: &App, model: String) -> Result<(), PredictError> {
    let command = RegistryCommand::Undeploy(ModelName::new(model)?);
    app.control.write(command).await?;
    Ok(())
}
