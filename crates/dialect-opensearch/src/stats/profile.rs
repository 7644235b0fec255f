//! `profile`: location and state of models, and running tasks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::control::{ClusterStatus, ReplicaStatus};
use volley_types::registry::{ModelEntry, ReplicaState};
use volley_types::{ErrorCode, PredictError};

use super::{coordinator, counted};
use crate::state::OpenSearchCaller;
use crate::{batch, tasks};
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

const FIELDS: [&str; 5] = [
    "node_ids",
    "model_ids",
    "task_ids",
    "return_all_models",
    "return_all_tasks",
];

/// Batches by id, formatted for users.
type Batches = BTreeMap<String, Value>;

/// The selected nodes, models and tasks. An empty list selects all.
#[derive(Debug, Default)]
struct ProfileQuery {
    nodes: BTreeSet<String>,
    models: BTreeSet<String>,
    tasks: BTreeSet<String>,
}

impl ProfileQuery {
    fn read(body: &Map<String, Value>) -> Result<Self, PredictError> {
        body.only("a profile", &FIELDS)?;
        let texts = |name: &str| {
            let wrong = || PredictError::invalid(format!("field '{name}' must be a list of ids"));
            let list = match body.get(name) {
                None | Some(Value::Null) => return Ok(BTreeSet::new()),
                Some(list) => list.as_array().ok_or_else(wrong)?,
            };
            let texts = list.iter().map(|it| it.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or_else(wrong)
        };
        Ok(Self {
            nodes: texts("node_ids")?,
            models: texts("model_ids")?,
            tasks: texts("task_ids")?,
        })
    }

    fn node(&self, id: &str) -> bool {
        self.nodes.is_empty() || self.nodes.contains(id)
    }

    fn model(&self, id: &str) -> bool {
        self.models.is_empty() || self.models.contains(id)
    }
}

/// Profiles models and tasks.
pub(crate) async fn profile(
    caller: OpenSearchCaller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let asked = ProfileQuery::read(&body)?;
    let mut told = of_models(&caller, &asked);
    let batches = batch::all(&caller).await;
    for (id, tasks) in of_tasks(&caller, &asked, &batches) {
        let node = told["nodes"]
            .as_object_mut()
            .map(|nodes| nodes.entry(id).or_insert_with(|| json!({})));
        if let Some(node) = node {
            node["tasks"] = tasks;
        }
    }
    Ok(Json(told))
}

/// Profiles models: those in the body, or all.
pub(crate) async fn models(
    caller: OpenSearchCaller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(of_models(&caller, &ProfileQuery::read(&body)?)))
}

/// Profiles the models in the path.
pub(crate) async fn model(
    caller: OpenSearchCaller,
    Path(ids): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let asked = ProfileQuery {
        models: ids.split(',').map(str::to_owned).collect(),
        ..ProfileQuery::default()
    };
    let registry = caller.cluster.registry.state();
    if !registry
        .models
        .keys()
        .any(|name| asked.models.contains(name.as_str()))
    {
        let message = format!("Failed to find model '{ids}'");
        return Err(PredictError::new(ErrorCode::NotFound, message).into());
    }
    Ok(Json(of_models(&caller, &asked)))
}

/// Profiles tasks: those in the body, or all running ones.
pub(crate) async fn tasks(
    caller: OpenSearchCaller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let asked = ProfileQuery::read(&body)?;
    Ok(Json(tasks_alone(
        &caller,
        &asked,
        &batch::all(&caller).await,
    )))
}

/// Profiles the tasks in the path.
pub(crate) async fn task(
    caller: OpenSearchCaller,
    Path(ids): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let asked = ProfileQuery {
        tasks: ids.split(',').map(str::to_owned).collect(),
        ..ProfileQuery::default()
    };
    Ok(Json(tasks_alone(
        &caller,
        &asked,
        &batch::all(&caller).await,
    )))
}

fn tasks_alone(caller: &OpenSearchCaller, asked: &ProfileQuery, batches: &Batches) -> Value {
    let nodes = of_tasks(caller, asked, batches).into_iter();
    let nodes = nodes.map(|(id, tasks)| (id, json!({ "tasks": tasks })));
    json!({ "nodes": nodes.collect::<Map<_, _>>() })
}

fn of_models(caller: &OpenSearchCaller, asked: &ProfileQuery) -> Value {
    let status = caller.cluster.view.status();
    let registry = caller.cluster.registry.state();
    let counted = counted(caller);
    let own = coordinator(&status);
    let (mut nodes, mut models) = (Map::new(), Map::new());
    for worker in status
        .workers
        .iter()
        .filter(|it| asked.node(it.id.as_str()))
    {
        let replicas = worker.replicas.iter();
        let replicas = replicas.filter(|it| asked.model(it.model.as_str()));
        let replicas = replicas.map(|it| (it.model.to_string(), replica(it)));
        let replicas: Map<_, _> = replicas.collect();
        if !replicas.is_empty() {
            nodes.insert(worker.id.to_string(), json!({ "models": replicas }));
        }
    }
    let mut measured = Map::new();
    for entry in registry.models.values() {
        let id = entry.name.as_str();
        if !asked.model(id) {
            continue;
        }
        models.insert(id.to_owned(), of_model(caller, &status, entry));
        let latency = counted.get(id).and_then(super::Figures::latency);
        if let Some(latency) = latency {
            measured.insert(id.to_owned(), json!({ "predict_request_stats": latency }));
        }
    }
    if asked.node(&own) && !measured.is_empty() {
        nodes.insert(own, json!({ "models": measured }));
    }
    json!({ "nodes": nodes, "models": models })
}

fn of_model(caller: &OpenSearchCaller, status: &ClusterStatus, entry: &ModelEntry) -> Value {
    let told = caller.cluster.view.model_status(&entry.name);
    let workers = status.workers.iter().filter(|worker| {
        let mut replicas = worker.replicas.iter();
        replicas.any(|it| it.model == entry.name && it.state == ReplicaState::Ready)
    });
    json!({
        "model_state": told.map(|it| it.state.as_str()),
        "worker_nodes": workers.map(|it| it.id.to_string()).collect::<Vec<_>>(),
        "target_worker_nodes": entry.placement.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn replica(replica: &ReplicaStatus) -> Value {
    let state = match replica.state {
        ReplicaState::Loading => "DEPLOYING",
        ReplicaState::Ready => "DEPLOYED",
        ReplicaState::Draining => "UNDEPLOYED",
        ReplicaState::Failed(_) => "DEPLOY_FAILED",
    };
    json!({
        "model_state": state,
        "model_version": replica.version.to_string(),
        "active_requests": replica.active,
        "queued_requests": replica.queued,
        "capacity": replica.capacity,
        "memory_bytes": replica.memory_bytes,
    })
}

/// The tasks of each node: the selected ones, or all running ones.
fn of_tasks(
    caller: &OpenSearchCaller,
    asked: &ProfileQuery,
    batches: &Batches,
) -> Map<String, Value> {
    let registry = caller.cluster.registry.state();
    let mut nodes: Map<String, Value> = Map::new();
    for id in tasks::ids(&registry).chain(batches.keys().cloned()) {
        let batch = batches.get(&id).cloned();
        let Some(task) = batch.or_else(|| tasks::show(caller, &registry, &id)) else {
            continue;
        };
        let wanted = match asked.tasks.is_empty() {
            true => task["state"] == "RUNNING",
            false => asked.tasks.contains(&id),
        };
        let about = task["model_id"].as_str().unwrap_or_default();
        if !wanted || !asked.model(about) {
            continue;
        }
        let workers = task["worker_node"].as_array().into_iter().flatten();
        for worker in workers
            .filter_map(Value::as_str)
            .filter(|id| asked.node(id))
        {
            let node = nodes.entry(worker).or_insert_with(|| json!({}));
            node[id.as_str()] = task.clone();
        }
    }
    nodes
}
