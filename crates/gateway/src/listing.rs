//! `GET /v1/models` in OpenAI's format, or in Anthropic's format for requests with
//! `anthropic-version`.

use http::HeaderMap;
use serde_json::Value;
use volley_http_edge::axum::Json;

use volley_dialect_anthropic as anthropic;
use volley_dialect_anthropic::error::is_client;
use volley_dialect_kit::catalogue::{self, ModelsQuery};
use volley_dialect_kit::requests::reference;
use volley_dialect_openai as openai;
use volley_http_edge::auth::VIEWER;
use volley_http_edge::context::RequestContext;
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::{Caller, Edge};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};
use volley_http_edge::operation::{self, Operation};
use volley_http_edge::routes::{self, Routes};

/// The routes of the list of models.
pub(crate) struct ModelList(pub(crate) Edge);

/// All operations with their summaries and the schemas of their bodies.
const OPERATIONS: &[Operation] = &[
    operation::get("/v1/models", "Lists the models that are ready.", "Models").query(&[
        ("all", "boolean"),
        ("limit", "integer"),
        ("before_id", "string"),
        ("after_id", "string"),
    ]),
    operation::get("/v1/models/{id}", "Returns one deployed model.", "Model"),
];

impl Dialect for ModelList {
    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        Routes::new()
            .route("/v1/models", routes::get(VIEWER, list))
            .route("/v1/models/{id}", routes::get(VIEWER, get))
            .with_state(self.0.clone())
    }
}

/// Lists the models by name.
async fn list(
    caller: Caller,
    context: RequestContext,
    Query(query): Query<ModelsQuery>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let all = async { Ok(catalogue::all(&caller).await) };
    let all = context.in_time(all).await?;
    Ok(Json(match is_client(&headers) {
        true => anthropic::models::page(all, &query)?,
        false => openai::models::list(&all, &query)?,
    }))
}

/// Describes one deployed model.
async fn get(
    caller: Caller,
    context: RequestContext,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let reference = reference(&name)?;
    let found = async { Ok(catalogue::deployed(&caller, &reference).await) };
    let found = context.in_time(found).await?;
    let listed = found.ok_or_else(|| catalogue::unknown(&name))?;
    Ok(Json(match is_client(&headers) {
        true => anthropic::models::model(&listed, &name),
        false => openai::models::model(&listed, &name),
    }))
}
