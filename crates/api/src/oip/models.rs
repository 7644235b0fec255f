//! Metadata and health.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use volley_types::ErrorCode;

use super::describe::{self, TensorForm};
use super::{Found, Named};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Path, State};

/// The server.
pub(crate) async fn server() -> Json<Value> {
    Json(json!({
        "name": describe::SERVER,
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": [
            "binary_tensor_data",
            "classification",
            "generate",
            "model_configuration",
            "model_repository",
            "parameters",
            "statistics",
        ],
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
    let tensors = |forms: Vec<TensorForm>| -> Vec<Value> {
        let told = forms.into_iter().map(
            |form| json!({ "name": form.name, "datatype": form.datatype, "shape": form.shape }),
        );
        told.collect()
    };
    Ok(Json(json!({
        "name": found.model.name.as_str(),
        "versions": [found.version],
        "platform": describe::platform(&found.signature),
        "inputs": tensors(describe::inputs(&found.signature)),
        "outputs": tensors(describe::outputs(&found.signature)),
    })))
}
