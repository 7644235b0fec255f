//! `/_volley/pipelines`: graphs of models behind one name.

mod read;
mod render;

use std::sync::Arc;

use axum::Json;
use http::StatusCode;
use serde_json::{Map, Value, json};
use volley_types::registry::{PipelineSpec, RegistryCommand};
use volley_types::{ErrorCode, ModelName, PredictError, Revision};

use crate::aliases::At;
use crate::app::App;
use crate::body::{Fields, JsonObject};
use crate::error::ApiError;
use crate::extract::{Path, Query, State};
use crate::oip::ensemble;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let registry = app.control.registry();
    let pipelines = registry.pipelines.values();
    let pipelines: Vec<_> = pipelines
        .map(|entry| {
            let status = app.control.model_status(&entry.spec.name);
            render::entry(entry, status.as_ref())
        })
        .collect();
    Json(json!({ "pipelines": pipelines }))
}

pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    Ok(Json(find(&app, &name)?))
}

/// Creates a pipeline; there must be none of its name.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    JsonObject(body): JsonObject,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let name = ModelName::new(body.required("name")?)?;
    let pipeline = read(&app, &body, name).await?;
    let written = put(&app, pipeline, Some(Revision(0))).await?;
    Ok((StatusCode::CREATED, Json(written)))
}

/// Creates or replaces a pipeline.
pub(crate) async fn replace(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Query(at): Query<At>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    body.same_name(name.as_str())?;
    let pipeline = read(&app, &body, name).await?;
    Ok(Json(put(&app, pipeline, at.expected()).await?))
}

pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Query(at): Query<At>,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    let delete = RegistryCommand::DeletePipeline {
        name: name.clone(),
        expected: at.expected(),
    };
    app.control.write(delete).await?;
    Ok(Json(json!({ "_id": name.as_str(), "result": "deleted" })))
}

/// A pipeline of steps, or what an ensemble's configuration stands for.
async fn read(
    app: &App,
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
    let pipeline = ensemble::pipeline(app, name, config).await?;
    Ok(PipelineSpec {
        description: body.text("description")?.unwrap_or_default().to_owned(),
        ..pipeline
    })
}

async fn put(
    app: &App,
    pipeline: PipelineSpec,
    expected: Option<Revision>,
) -> Result<Value, PredictError> {
    let name = pipeline.name.clone();
    let pipeline = Arc::new(pipeline);
    let write = RegistryCommand::PutPipeline { pipeline, expected };
    app.control.write(write).await?;
    find(app, &name)
}

fn find(app: &App, name: &ModelName) -> Result<Value, PredictError> {
    let registry = app.control.registry();
    let entry = registry.pipelines.get(name);
    let entry = entry.ok_or_else(|| {
        PredictError::new(ErrorCode::NotFound, format!("no pipeline '{name}' exists"))
    })?;
    let status = app.control.model_status(name);
    Ok(render::entry(entry, status.as_ref()))
}

#[cfg(test)]
mod tests;
