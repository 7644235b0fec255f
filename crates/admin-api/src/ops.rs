//! Health, metrics and status.

use http::{StatusCode, header};
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::control::{ClusterStatus, ReplicaStatus, WorkerStatus};
use volley_types::registry::{CoordinatorMember, ReplicaState};
use volley_types::{GpuReport, NodeIdentity};

use crate::admin_state::AdminCaller as Caller;
use crate::drains::described;
use crate::metrics;
use volley_dialect_kit::rollout::failure;
use volley_http_edge::error::ApiError;

pub(crate) async fn about(caller: Caller) -> Json<Value> {
    Json(json!({
        "name": "volley",
        "version": env!("CARGO_PKG_VERSION"),
        "node": caller.cluster.view.status().raft.id.0,
        "links": {
            "status": "/_volley/status",
            "models": "/_plugins/_ml/models/_search",
            "metrics": "/metrics",
        },
    }))
}

/// Liveness: 200 whenever the process responds.
pub async fn live() -> Json<Value> {
    Json(json!({ "live": true }))
}

pub(crate) async fn ready(caller: Caller) -> Response {
    readiness(caller.cluster.view.ready())
}

/// Renders the readiness: status 200 if `ready`, otherwise 503.
pub fn readiness(ready: bool) -> Response {
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({ "ready": ready }))).into_response()
}

pub(crate) async fn metrics(caller: Caller) -> Result<Response, ApiError> {
    // This route lists all models. `/_volley/metrics` is limited to the caller's models.
    caller.principal.reach_all()?;
    Ok(open_metrics((caller.state.metrics)()))
}

/// The metrics of the models that the caller may see; all metrics for a caller without limits.
pub(crate) async fn own_metrics(caller: Caller) -> Response {
    open_metrics(metrics::filter_metrics(
        (caller.state.metrics)(),
        caller.principal.models(),
    ))
}

/// A response with `text` in the OpenMetrics text format.
pub fn open_metrics(text: String) -> Response {
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, media)], text).into_response()
}

/// Scaling signals for an external autoscaler of workers.
pub(crate) async fn scale(caller: Caller) -> Json<Value> {
    let scale = caller.cluster.view.status().scale;
    Json(json!({
        "workers": scale.workers,
        "desired_workers": scale.desired_workers,
        "unschedulable_replicas": scale.unschedulable_replicas,
        "utilization_percent": scale.utilization_percent,
        "queue_wait_ms": scale.queue_wait_ms,
    }))
}

pub(crate) async fn status(caller: Caller) -> Json<Value> {
    let status = caller.cluster.view.status();
    let registry = caller.cluster.registry.state();
    let models = registry.models.keys().filter_map(|name| {
        let model = caller.cluster.view.model_status(name)?;
        let ready = model
            .replicas
            .iter()
            .filter(|replica| replica.state == ReplicaState::Ready);
        Some(json!({
            "id": name.as_str(),
            "version": model.version.map(|version| version.0),
            "state": model.state.as_str(),
            "desired_replicas": model.desired_replicas,
            "ready_replicas": ready.count(),
            "failure": registry.models.get(name).map(|entry| failure(entry, &model)),
            "unplaced": model.unplaced.as_ref().map(|unplaced| {
                json!({ "reason": unplaced.reason, "permanent": unplaced.permanent })
            }),
        }))
    });
    Json(json!({
        "node": {
            "id": status.raft.id.0,
            "role": status.raft.role,
            "leader": status.raft.leader.map(|leader| leader.0),
            "term": status.raft.term,
        },
        "registry_revision": registry.revision.0,
        "level": status.level,
        "coordinators": coordinators(&status),
        "workers": workers(&status),
        "drains": status.drains.iter().map(described).collect::<Vec<_>>(),
        "models": models.collect::<Vec<_>>(),
        "placement": {
            "strategy": registry.placement_strategy().as_str(),
            "rebalance": registry.rebalances(),
            "migrating_replicas": registry.migrating_replicas(),
            "unschedulable_replicas": status.scale.unschedulable_replicas,
        },
        "active_streams": status.active_streams,
    }))
}

/// The coordinators with their reported state; `null` for values of an unreachable coordinator.
fn coordinators(status: &ClusterStatus) -> Vec<Value> {
    let all = status.raft.members.iter().map(|member| {
        let report = status.reports.get(&member.id);
        json!({
            "id": member.id.0,
            "address": member.address,
            "voter": member.voter,
            "level": report.map(|report| report.level),
            "version": report.map(|report| &report.version),
            "active_streams": report.map(|report| report.active_streams),
            "drain": drain_of(status, &NodeIdentity::Coordinator(member.id)),
        })
    });
    all.collect()
}

fn workers(status: &ClusterStatus) -> Vec<Value> {
    let all = status.workers.iter().map(|one| {
        let mut value = worker(one);
        value["drain"] = drain_of(status, &NodeIdentity::Worker(one.id.clone())).into();
        value
    });
    all.collect()
}

/// `draining` or `drained` if an operator has drained the node.
fn drain_of(status: &ClusterStatus, node: &NodeIdentity) -> Option<&'static str> {
    let drain = status.drains.iter().find(|drain| drain.node == *node)?;
    Some(drain.state())
}

fn worker(worker: &WorkerStatus) -> Value {
    json!({
        "id": worker.id.as_str(),
        "address": worker.address,
        "liveness": worker.liveness.as_str(),
        "last_heard_ms": u64::try_from(worker.last_heard.as_millis()).unwrap_or(u64::MAX),
        "memory_bytes": worker.memory_bytes,
        "memory_budget_bytes": worker.memory_budget_bytes,
        "gpus": worker.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "replicas": worker.replicas.iter().map(replica).collect::<Vec<_>>(),
    })
}

fn gpu(gpu: &GpuReport) -> Value {
    json!({
        "index": gpu.index,
        "name": gpu.name,
        "used_bytes": gpu.used_bytes,
        "total_bytes": gpu.total_bytes,
        "utilization_percent": gpu.utilization_percent,
    })
}

fn replica(replica: &ReplicaStatus) -> Value {
    let (state, reason) = match &replica.state {
        ReplicaState::Loading => ("loading", None),
        ReplicaState::Ready => ("ready", None),
        ReplicaState::Draining => ("draining", None),
        ReplicaState::Failed(reason) => ("failed", Some(reason)),
    };
    json!({
        "model": replica.model.as_str(),
        "version": replica.version.0,
        "state": state,
        "reason": reason,
        "active": replica.active,
        "queued": replica.queued,
        "capacity": replica.capacity,
        "evicted": replica.evicted,
        "memory_bytes": replica.memory_bytes,
        "fetch": replica.fetch.map(|fetch| json!({
            "bytes": fetch.bytes,
            "total_bytes": fetch.total_bytes,
        })),
    })
}

pub(crate) fn members(members: &[CoordinatorMember]) -> Vec<Value> {
    let members = members.iter();
    members
        .map(
            |member| json!({ "id": member.id.0, "address": member.address, "voter": member.voter }),
        )
        .collect()
}
