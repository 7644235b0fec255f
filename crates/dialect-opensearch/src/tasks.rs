//! Tasks. Their ids are derived from their subject, and their state is computed from the registry
//! and the replicas. Any coordinator can therefore report any task, and no task can get stuck.

use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::registry::{
    ModelEntry, ModelState, RegistryCommand, RegistryState, ReplicaState,
};
use volley_types::{ErrorCode, ModelName, ModelVersion, PredictError, Revision};

use crate::batch;
use crate::search::{Search, SearchQuery};
use crate::state::OpenSearchCaller;
use volley_http_edge::body::JsonObject;
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};

const INDEX: &str = ".plugins-ml-task";

/// Id of the task that registers a version. It is complete as soon as the version exists.
pub(crate) fn register_id(model: &ModelName, version: ModelVersion) -> String {
    format!("register-{model}-{version}")
}

/// Id of the task of a deployment.
pub(crate) fn deploy_id(model: &ModelName, revision: Revision) -> String {
    format!("deploy-{model}-{revision}")
}

pub(crate) async fn get(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    context: RequestContext,
) -> Result<Json<Value>, ApiError> {
    if batch::is_batch(&id) {
        return Ok(Json(context.in_time(batch::get(&caller, &id)).await?));
    }
    let task = show(&caller, &caller.cluster.registry.state(), &id);
    Ok(Json(task.ok_or_else(missing)?))
}

/// Searches registrations, current deployments, and the batches of all coordinators.
pub(crate) async fn search(
    caller: OpenSearchCaller,
    Query(query): Query<SearchQuery>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let search = Search::read(&body, &query)?;
    let batches = context
        .in_time(async { Ok(batch::all(&caller).await) })
        .await?;
    let registry = caller.cluster.registry.state();
    let ids = ids(&registry).filter(|id| find(&registry, id).is_some());
    let ids = ids.chain(batches.keys().cloned());
    let show = |id: &str| match batches.get(id) {
        Some(batch) => Some(batch.clone()),
        None => show(&caller, &registry, id),
    };
    Ok(Json(search.run(INDEX, ids, show)))
}

/// Deletes a task. Its effects remain.
pub(crate) async fn delete(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    context: RequestContext,
) -> Result<Json<Value>, ApiError> {
    if batch::is_batch(&id) {
        context.in_time(batch::delete(&caller, &id)).await?;
        return Ok(Json(deleted(&id)));
    }
    let registry = caller.cluster.registry.state();
    let task = show(&caller, &registry, &id).ok_or_else(missing)?;
    if task["state"] == "RUNNING" {
        return Err(batch::still_running().into());
    }
    let (_, entry, _) = find(&registry, &id).ok_or_else(missing)?;
    let delete = RegistryCommand::DeleteTask {
        model: entry.name.clone(),
        task: id.clone(),
    };
    caller.cluster.registry.write(delete).await?;
    Ok(Json(deleted(&id)))
}

fn deleted(id: &str) -> Value {
    json!({ "_index": INDEX, "_id": id, "result": "deleted" })
}

fn missing() -> PredictError {
    let message = "this task does not exist; it or its model may have been deleted";
    PredictError::new(ErrorCode::NotFound, message)
}

/// The ids of all registrations and deployments.
pub(crate) fn ids(registry: &RegistryState) -> impl Iterator<Item = String> + '_ {
    registry.models.values().flat_map(|entry| {
        let versions = entry.versions.keys();
        let registered = versions.map(|version| register_id(&entry.name, *version));
        let deployed = entry.deployment.iter();
        registered.chain(deployed.map(|it| deploy_id(&entry.name, it.revision)))
    })
}

/// Formats a task other than a batch; `None` if the id is unknown.
pub(crate) fn show(caller: &OpenSearchCaller, registry: &RegistryState, id: &str) -> Option<Value> {
    let (kind, entry, number) = find(registry, id)?;
    let (task_type, state, error) = match kind {
        Kind::Register => ("REGISTER_MODEL", "COMPLETED", None),
        Kind::Deploy => {
            let (state, error) = deploy_state(caller, entry, number);
            ("DEPLOY_MODEL", state, error)
        }
    };
    let version = match (kind, &entry.deployment) {
        (Kind::Register, _) => entry
            .versions
            .get(&ModelVersion(u32::try_from(number).ok()?)),
        (Kind::Deploy, Some(deployment)) => entry.versions.get(&deployment.version),
        (Kind::Deploy, None) => None,
    };
    let workers: Vec<_> = entry.placement.iter().map(ToString::to_string).collect();
    let mut task = json!({
        "task_id": id,
        "task_type": task_type,
        "model_id": entry.name.as_str(),
        "function_name": version.map(|spec| spec.backend.as_str().to_ascii_uppercase()),
        "state": state,
        "worker_node": workers,
        "is_async": true,
    });
    if let (Kind::Register, Some(spec)) = (kind, version) {
        task["create_time"] = spec.created_ms.into();
        task["last_update_time"] = spec.created_ms.into();
    }
    if let Some(error) = error {
        task["error"] = error.into();
    }
    if let (Kind::Deploy, "RUNNING" | "COMPLETED_WITH_ERROR") = (kind, state) {
        task["progress"] = progress(caller, entry);
    }
    Some(task)
}

/// Download progress on each worker that fetches the model.
fn progress(caller: &OpenSearchCaller, entry: &ModelEntry) -> Value {
    let status = caller.cluster.view.model_status(&entry.name);
    let replicas = status.iter().flat_map(|status| &status.replicas);
    let fetches = replicas.filter_map(|replica| {
        let fetch = replica.fetch?;
        Some(json!({
            "worker": replica.worker.as_str(),
            "bytes": fetch.bytes,
            "total_bytes": fetch.total_bytes,
        }))
    });
    fetches.collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Register,
    Deploy,
}

fn find<'a>(registry: &'a RegistryState, id: &str) -> Option<(Kind, &'a ModelEntry, u64)> {
    let (kind, rest) = id.split_once('-')?;
    let (model, number) = rest.rsplit_once('-')?;
    let number: u64 = number.parse().ok()?;
    let entry = registry.models.get(&ModelName::new(model).ok()?)?;
    if entry.deleted_tasks.contains(id) {
        return None;
    }
    match kind {
        "register" => {
            let version = ModelVersion(u32::try_from(number).ok()?);
            entry
                .versions
                .contains_key(&version)
                .then_some((Kind::Register, entry, number))
        }
        "deploy" if number <= registry.revision.0 => Some((Kind::Deploy, entry, number)),
        _ => None,
    }
}

fn deploy_state(
    caller: &OpenSearchCaller,
    entry: &ModelEntry,
    revision: u64,
) -> (&'static str, Option<String>) {
    let current = entry
        .deployment
        .as_ref()
        .map(|deployment| deployment.revision.0);
    if current != Some(revision) {
        return (
            "CANCELLED",
            Some("a later deployment or undeployment replaced it".to_owned()),
        );
    }
    let Some(status) = caller.cluster.view.model_status(&entry.name) else {
        return ("CANCELLED", None);
    };
    let failures: Vec<_> = status
        .replicas
        .iter()
        .filter_map(|replica| match &replica.state {
            ReplicaState::Failed(reason) => Some(format!("{}: {reason}", replica.worker)),
            ReplicaState::Loading | ReplicaState::Ready | ReplicaState::Draining => None,
        })
        .collect();
    let error = (!failures.is_empty()).then(|| failures.join("; "));
    let state = match status.state {
        ModelState::Deployed => "COMPLETED",
        ModelState::DeployFailed => "FAILED",
        ModelState::PartiallyDeployed if error.is_some() => "COMPLETED_WITH_ERROR",
        ModelState::PartiallyDeployed | ModelState::Deploying => "RUNNING",
        ModelState::Registered | ModelState::Undeployed => "CANCELLED",
    };
    (state, error)
}
