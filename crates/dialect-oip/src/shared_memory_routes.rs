//! The routes of shared memory, an extension of Triton.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::{ErrorCode, PredictError};

use crate::state::OipCaller;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;
use volley_shared_memory::{self as shared_memory, Region};

/// The region in a route's path; `None` means all regions.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct NamedRegion {
    #[serde(default)]
    region: String,
}

/// Lists the regions that are registered on this node.
pub(crate) async fn status(
    caller: OipCaller,
    Path(named): Path<NamedRegion>,
) -> Result<Json<Value>, ApiError> {
    let regions = caller
        .state
        .shared_memory()
        .regions(&named.region)?
        .into_iter();
    let told = regions.map(|(name, region)| {
        json!({ "name": name, "key": region.key, "offset": region.offset,
                "byte_size": region.byte_size })
    });
    Ok(Json(told.collect()))
}

/// Registers a region.
pub(crate) async fn register(
    caller: OipCaller,
    Path(named): Path<NamedRegion>,
    JsonObject(body): JsonObject,
) -> Result<StatusCode, ApiError> {
    body.only("a region", &["key", "offset", "byte_size"])?;
    let size = body.count("byte_size")?;
    let region = Region {
        key: body.required("key")?.to_owned(),
        offset: body.count("offset")?.unwrap_or(0),
        byte_size: size.ok_or_else(|| PredictError::invalid("field 'byte_size' is missing"))?,
    };
    caller
        .state
        .shared_memory()
        .register(named.region, region)?;
    Ok(StatusCode::OK)
}

/// Removes a region, or all regions.
pub(crate) async fn unregister(
    caller: OipCaller,
    Path(named): Path<NamedRegion>,
    JsonObject(_): JsonObject,
) -> StatusCode {
    caller.state.shared_memory().unregister(&named.region);
    StatusCode::OK
}

/// Lists CUDA regions, of which there are none.
pub(crate) async fn no_cuda_regions(
    Path(named): Path<NamedRegion>,
) -> Result<Json<Value>, ApiError> {
    if named.region.is_empty() {
        return Ok(Json(json!([])));
    }
    let message = "this CUDA shared memory region does not exist";
    Err(PredictError::new(ErrorCode::NotFound, message).into())
}

/// Rejects the registration of a CUDA region.
pub(crate) async fn register_cuda() -> Result<StatusCode, ApiError> {
    Err(shared_memory::no_cuda().into())
}

/// Removes CUDA regions, of which there are none.
pub(crate) async fn unregister_cuda(JsonObject(_): JsonObject) -> StatusCode {
    StatusCode::OK
}
