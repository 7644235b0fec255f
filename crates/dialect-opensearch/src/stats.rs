//! `stats` and `profile`: statistics of nodes and models, from this coordinator's view of the
//! cluster and its own metrics.

mod figures;
mod profile;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::control::{ClusterStatus, WorkerStatus};
use volley_types::registry::ReplicaState;
use volley_types::{ErrorCode, PredictError};

use self::figures::Figures;
pub(crate) use self::profile::{
    model as profile_model, models as profile_models, profile, task as profile_task,
    tasks as profile_tasks,
};
use crate::state::OpenSearchCaller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

const NODE_STATS: [&str; 4] = [
    "ml_executing_task_count",
    "ml_request_count",
    "ml_failure_count",
    "ml_deployed_model_count",
];
const CLUSTER_STATS: [&str; 5] = [
    "ml_model_count",
    "ml_connector_count",
    "ml_model_index_status",
    "ml_connector_index_status",
    "ml_task_index_status",
];

/// Selected nodes and statistics: each a name, or several names separated by commas.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct StatsFilter {
    node: Option<String>,
    stat: Option<String>,
}

pub(crate) async fn all(caller: OpenSearchCaller) -> Result<Json<Value>, ApiError> {
    stats(&caller, &StatsFilter::default())
}

pub(crate) async fn some(
    caller: OpenSearchCaller,
    Path(wanted): Path<StatsFilter>,
) -> Result<Json<Value>, ApiError> {
    stats(&caller, &wanted)
}

fn stats(caller: &OpenSearchCaller, wanted: &StatsFilter) -> Result<Json<Value>, ApiError> {
    let chosen = chosen(wanted.stat.as_deref())?;
    let status = caller.cluster.view.status();
    let mut told = Map::new();
    if wanted.node.is_none() {
        cluster(caller, &mut told);
    }
    let mut nodes = nodes(caller, &status);
    if let Some(ids) = &wanted.node {
        let ids: Vec<_> = ids.split(',').collect();
        nodes.retain(|id, _| ids.contains(&id.as_str()) || ids.contains(&"_all"));
        if nodes.is_empty() {
            return Err(PredictError::new(ErrorCode::NotFound, "this node does not exist").into());
        }
    }
    if let Some(chosen) = &chosen {
        told.retain(|name, _| chosen.contains(name));
        for figures in nodes.values_mut().filter_map(Value::as_object_mut) {
            figures.retain(|name, _| chosen.contains(name));
        }
        nodes.retain(|_, figures| figures.as_object().is_some_and(|it| !it.is_empty()));
    }
    if !nodes.is_empty() {
        told.insert("nodes".to_owned(), Value::Object(nodes));
    }
    Ok(Json(Value::Object(told)))
}

fn chosen(given: Option<&str>) -> Result<Option<Vec<String>>, PredictError> {
    let Some(given) = given else {
        return Ok(None);
    };
    let names: Vec<_> = given.split(',').map(str::to_ascii_lowercase).collect();
    let known = |name: &str| NODE_STATS.contains(&name) || CLUSTER_STATS.contains(&name);
    match names.iter().all(|name| known(name)) {
        true => Ok(Some(names)),
        false => Err(PredictError::invalid(format!(
            "the statistics are {} and {}",
            NODE_STATS.join(", "),
            CLUSTER_STATS.join(", ")
        ))),
    }
}

fn cluster(caller: &OpenSearchCaller, told: &mut Map<String, Value>) {
    let registry = caller.cluster.registry.state();
    told.insert("ml_model_count".to_owned(), registry.models.len().into());
    told.insert(
        "ml_connector_count".to_owned(),
        registry.connectors.len().into(),
    );
    // OpenSearch reports the health of its indices. Here it is that of the registry: green while it
    // accepts writes.
    let health = match caller.cluster.view.status().raft.leader {
        Some(_) => "green",
        None => "red",
    };
    for name in &CLUSTER_STATS[2..] {
        told.insert((*name).to_owned(), health.into());
    }
}

/// The name of this coordinator among the nodes.
fn coordinator(status: &ClusterStatus) -> String {
    format!("coordinator-{}", status.raft.id)
}

/// The statistics of the models that the caller may see.
fn counted(caller: &OpenSearchCaller) -> BTreeMap<String, Figures> {
    let registry = caller.cluster.registry.state();
    let mut counted = figures::read(&(caller.state.metrics)());
    let visible: std::collections::BTreeSet<_> =
        registry.models.keys().map(ToString::to_string).collect();
    counted.retain(|model, _| visible.contains(model));
    counted
}

fn nodes(caller: &OpenSearchCaller, status: &ClusterStatus) -> Map<String, Value> {
    let mut nodes = Map::new();
    for worker in &status.workers {
        nodes.insert(worker.id.to_string(), worker_stats(worker));
    }
    let counted = counted(caller);
    let sum = |of: fn(&Figures) -> u64| counted.values().map(of).sum::<u64>();
    let models: Map<_, _> = counted
        .iter()
        .map(|(model, figures)| {
            let told = json!({ "predict": {
                "ml_action_request_count": figures.requests,
                "ml_action_failure_count": figures.failures,
            } });
            (model.clone(), told)
        })
        .collect();
    let own = json!({
        "ml_executing_task_count": status.active_streams,
        "ml_request_count": sum(|it| it.requests),
        "ml_failure_count": sum(|it| it.failures),
        "models": models,
    });
    nodes.insert(coordinator(status), own);
    nodes
}

fn worker_stats(worker: &WorkerStatus) -> Value {
    let ready = worker.replicas.iter();
    let ready = ready.filter(|replica| replica.state == ReplicaState::Ready);
    let active = worker
        .replicas
        .iter()
        .map(|replica| u64::from(replica.active));
    json!({
        "ml_executing_task_count": active.sum::<u64>(),
        "ml_deployed_model_count": ready.count(),
    })
}
