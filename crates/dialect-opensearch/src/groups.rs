//! Model groups: register, get, update, delete, search.

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::registry::{ModelGroup, RegistryCommand, RegistryState};
use volley_types::{ErrorCode, ModelGroupId, PredictError};

use crate::search::{Search, SearchQuery};
use crate::state::OpenSearchCaller;
use volley_dialect_kit::clock::now_ms;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};

const INDEX: &str = ".plugins-ml-model-group";
const FIELDS: [&str; 5] = [
    "name",
    "description",
    "access_mode",
    "backend_roles",
    "add_all_backend_roles",
];

pub(crate) async fn register(
    caller: OpenSearchCaller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    check(&body)?;
    let now = now_ms();
    let group = ModelGroup {
        id: ModelGroupId::new(uuid::Uuid::new_v4().simple().to_string())?,
        name: body.required("name")?.to_owned(),
        description: body.text("description")?.unwrap_or_default().to_owned(),
        created_ms: now,
        updated_ms: now,
    };
    let id = group.id.to_string();
    caller
        .cluster
        .registry
        .write(RegistryCommand::CreateGroup(group))
        .await?;
    Ok(Json(json!({ "model_group_id": id, "status": "CREATED" })))
}

pub(crate) async fn get(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let registry = caller.cluster.registry.state();
    Ok(Json(render(&registry, find(&registry, id)?)))
}

pub(crate) async fn update(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    check(&body)?;
    let mut group = find(&caller.cluster.registry.state(), id)?.clone();
    if body.contains_key("name") {
        body.required("name")?.clone_into(&mut group.name);
    }
    if let Some(description) = body.text("description")? {
        description.clone_into(&mut group.description);
    }
    group.updated_ms = now_ms();
    caller
        .cluster
        .registry
        .write(RegistryCommand::UpdateGroup(group))
        .await?;
    Ok(Json(json!({ "status": "Updated" })))
}

pub(crate) async fn delete(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = ModelGroupId::new(id)?;
    caller
        .cluster
        .registry
        .write(RegistryCommand::DeleteGroup(id.clone()))
        .await?;
    Ok(Json(
        json!({ "_index": INDEX, "_id": id.as_str(), "result": "deleted" }),
    ))
}

pub(crate) async fn search(
    caller: OpenSearchCaller,
    Query(query): Query<SearchQuery>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let search = Search::read(&body, &query)?;
    let registry = caller.cluster.registry.state();
    let ids = registry.groups.keys().map(ToString::to_string);
    let show = |id: &str| {
        let group = registry.groups.get(&ModelGroupId::new(id).ok()?)?;
        Some(render(&registry, group))
    };
    Ok(Json(search.run(INDEX, ids, show)))
}

/// Rejects access modes, because the keys define who may use a group's models.
fn check(body: &Map<String, Value>) -> Result<(), PredictError> {
    body.only("a model group", &FIELDS)?;
    let public = body.text("access_mode")?.unwrap_or("public") == "public";
    let roles = body.get("backend_roles").and_then(Value::as_array);
    let no_roles = roles.is_none_or(Vec::is_empty);
    let not_all = body.get("add_all_backend_roles") != Some(&Value::Bool(true));
    if public && no_roles && not_all {
        return Ok(());
    }
    Err(PredictError::invalid(
        "a model group is always public; access to models is controlled by keys",
    ))
}

fn find(registry: &RegistryState, id: String) -> Result<&ModelGroup, PredictError> {
    let id = ModelGroupId::new(id)?;
    registry.groups.get(&id).ok_or_else(|| {
        let message = format!("Failed to find model group with the provided model group id: {id}");
        PredictError::new(ErrorCode::NotFound, message)
    })
}

fn render(registry: &RegistryState, group: &ModelGroup) -> Value {
    let models = registry.models.values();
    let inside = models.filter(|model| model.group.as_ref() == Some(&group.id));
    json!({
        "name": group.name,
        "model_group_id": group.id.as_str(),
        "description": group.description,
        "latest_version": inside.count(),
        "access": "public",
        "created_time": group.created_ms,
        "last_updated_time": group.updated_ms,
    })
}
