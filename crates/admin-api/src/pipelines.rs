//! `/_volley/pipelines`: directed graphs of models under one name.

mod read;
mod render;

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::registry::{PipelineSpec, RegistryCommand};
use volley_types::{ErrorCode, ModelName, PredictError, Revision};

use crate::admin_state::AdminCaller as Caller;
use crate::aliases::ExpectedRevision;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};

pub(crate) async fn list(caller: Caller) -> Json<Value> {
    let registry = caller.cluster.registry.state();
    let pipelines = registry.pipelines.values();
    let pipelines: Vec<_> = pipelines
        .map(|entry| {
            let status = caller.cluster.view.model_status(&entry.spec.name);
            render::entry(entry, status.as_ref())
        })
        .collect();
    Json(json!({ "pipelines": pipelines }))
}

pub(crate) async fn get(caller: Caller, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    Ok(Json(find(&caller, &name)?))
}

/// Creates a pipeline. `Conflict` if the name is in use.
pub(crate) async fn create(
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let name = ModelName::new(body.required("name")?)?;
    let pipeline = read(&caller, &body, name).await?;
    let written = put(&caller, pipeline, Some(Revision(0))).await?;
    Ok((StatusCode::CREATED, Json(written)))
}

/// Creates or replaces a pipeline.
pub(crate) async fn replace(
    caller: Caller,
    Path(name): Path<String>,
    Query(at): Query<ExpectedRevision>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    body.same_name(name.as_str())?;
    let pipeline = read(&caller, &body, name).await?;
    Ok(Json(put(&caller, pipeline, at.expected()).await?))
}

pub(crate) async fn delete(
    caller: Caller,
    Path(name): Path<String>,
    Query(at): Query<ExpectedRevision>,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    let delete = RegistryCommand::DeletePipeline {
        name: name.clone(),
        expected: at.expected(),
    };
    caller.cluster.registry.write(delete).await?;
    Ok(Json(json!({ "_id": name.as_str(), "result": "deleted" })))
}

/// Reads a pipeline from its steps, or from the configuration of an ensemble.
async fn read(
    caller: &Caller,
    body: &Map<String, Value>,
    name: ModelName,
) -> Result<PipelineSpec, PredictError> {
    let Some(config) = body.object("ensemble")? else {
        return read::pipeline(body, name);
    };
    body.only(
        "a pipeline of an ensemble",
        &["name", "ensemble", "description"],
    )?;
    let pipeline = (caller.state.ensembles)(caller.caller.clone(), name, config.clone()).await?;
    Ok(PipelineSpec {
        description: body.text("description")?.unwrap_or_default().to_owned(),
        ..pipeline
    })
}

async fn put(
    caller: &Caller,
    pipeline: PipelineSpec,
    expected: Option<Revision>,
) -> Result<Value, PredictError> {
    let name = pipeline.name.clone();
    let pipeline = Arc::new(pipeline);
    let write = RegistryCommand::PutPipeline { pipeline, expected };
    caller.cluster.registry.write(write).await?;
    find(caller, &name)
}

fn find(caller: &Caller, name: &ModelName) -> Result<Value, PredictError> {
    let registry = caller.cluster.registry.state();
    let entry = registry.pipelines.get(name);
    let entry = entry.ok_or_else(|| {
        PredictError::new(ErrorCode::NotFound, format!("no pipeline '{name}' exists"))
    })?;
    let status = caller.cluster.view.model_status(name);
    Ok(render::entry(entry, status.as_ref()))
}

#[cfg(test)]
mod tests;
