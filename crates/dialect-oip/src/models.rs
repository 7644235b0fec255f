//! Metadata and health of the server and its models.

use http::StatusCode;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::ErrorCode;

use super::describe::{self, TensorForm};
use super::{ModelPath, ResolvedModel};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// Describes the server.
pub(crate) async fn server() -> Json<Value> {
    Json(json!({
        "name": describe::SERVER,
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": [
            "classification",
            "sequence",
            "model_repository",
            "model_repository(unload_dependents)",
            "schedule_policy",
            "model_configuration",
            "system_shared_memory",
            "binary_tensor_data",
            "parameters",
            "statistics",
            "generate",
        ],
    }))
}

pub(crate) async fn live() -> Json<Value> {
    Json(json!({ "live": true }))
}

pub(crate) async fn ready(caller: Caller) -> Response {
    readiness(caller.cluster.view.ready())
}

fn readiness(ready: bool) -> Response {
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({ "ready": ready }))).into_response()
}

/// Reports whether a model is ready.
pub(crate) async fn model_ready(
    caller: Caller,
    Path(named): Path<ModelPath>,
) -> Result<Response, ApiError> {
    match ResolvedModel::find(&caller, &named).await {
        Ok(found) => {
            Ok(Json(json!({ "name": found.model.name.as_str(), "ready": true })).into_response())
        }
        Err(error) if error.code == ErrorCode::Unavailable => Ok(readiness(false)),
        Err(error) => Err(error.into()),
    }
}

/// Describes the inputs and outputs of a model.
pub(crate) async fn metadata(
    caller: Caller,
    Path(named): Path<ModelPath>,
) -> Result<Json<Value>, ApiError> {
    let found = ResolvedModel::find(&caller, &named).await?;
    let inputs = describe::inputs(&found.signature);
    let outputs = describe::outputs(&found.signature);
    let tensors = |forms: Vec<TensorForm>| -> Vec<Value> {
        let told = forms.into_iter().map(
            |form| json!({ "name": form.name, "datatype": form.datatype, "shape": form.shape }),
        );
        told.collect()
    };
    Ok(Json(json!({
        "name": found.model.name.as_str(),
        "versions": found.versions(),
        "platform": describe::platform(&found),
        "inputs": tensors(describe::declared(&found, "input", inputs)),
        "outputs": tensors(describe::declared(&found, "output", outputs)),
    })))
}
