//! Options of a deployment, and the rollout from one version to the next.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::registry::{DeployOptions, Deployment, RegistryCommand, RolloutAction, Scaling};
use volley_types::{ModelName, PredictError};

use crate::state::OpenSearchCaller;
use volley_http_edge::body::Fields;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// Fields of a deployment.
pub(super) const FIELDS: [&str; 14] = [
    "node_ids",
    "replicas",
    "overcommit",
    "labels",
    "spread",
    "memory_bytes",
    "max_surge",
    "max_unavailable",
    "keep_previous",
    "min_replicas",
    "max_replicas",
    "target_percent",
    "queue_wait_ms",
    "idle_ms",
];

/// Parses the options of a deployment. Absent fields keep the value in `current`; a null resets a
/// field to its default.
pub(super) fn options(
    body: &Map<String, Value>,
    current: DeployOptions,
) -> Result<DeployOptions, PredictError> {
    let defaults = DeployOptions::default();
    let named = |name: &str| body.contains_key(name);
    let numbered = |name: &str, current: u32, default: u32| match named(name) {
        true => Ok(number(body, name)?.unwrap_or(default)),
        false => Ok(current),
    };
    Ok(DeployOptions {
        labels: match named("labels") {
            true => labels(body)?,
            false => current.labels,
        },
        spread: match named("spread") {
            true => body.text("spread")?.map(ToOwned::to_owned),
            false => current.spread,
        },
        memory_bytes: match named("memory_bytes") {
            true => body.count("memory_bytes")?.unwrap_or(0),
            false => current.memory_bytes,
        },
        scaling: scaling(body, current.scaling)?,
        max_surge: numbered("max_surge", current.max_surge, defaults.max_surge)?,
        max_unavailable: numbered(
            "max_unavailable",
            current.max_unavailable,
            defaults.max_unavailable,
        )?,
        keep_previous: numbered(
            "keep_previous",
            current.keep_previous,
            defaults.keep_previous,
        )?,
    })
}

fn labels(body: &Map<String, Value>) -> Result<BTreeMap<String, String>, PredictError> {
    let Some(labels) = body.object("labels")? else {
        return Ok(BTreeMap::new());
    };
    let label = |(name, value): (&String, &Value)| {
        let value = value.as_str().ok_or_else(|| {
            PredictError::invalid(format!("label '{name}' in field 'labels' must be text"))
        })?;
        Ok((name.clone(), value.to_owned()))
    };
    labels.iter().map(label).collect()
}

/// Parses scaling, which requires a maximum. A fixed number of replicas, or a null maximum,
/// disables the current scaling.
fn scaling(
    body: &Map<String, Value>,
    current: Option<Scaling>,
) -> Result<Option<Scaling>, PredictError> {
    let given = [
        number(body, "min_replicas")?,
        number(body, "target_percent")?,
        number(body, "queue_wait_ms")?,
        number(body, "idle_ms")?,
    ];
    let any = given.iter().any(Option::is_some);
    let fixed = body.contains_key("max_replicas") || (body.contains_key("replicas") && !any);
    let base = current.filter(|_| !fixed);
    let max_replicas = number(body, "max_replicas")?.or(base.map(|base| base.max_replicas));
    let Some(max_replicas) = max_replicas else {
        if any {
            return Err(PredictError::invalid(
                "field 'max_replicas' is missing; scaling needs it",
            ));
        }
        return Ok(None);
    };
    let base = current.unwrap_or_default();
    let [min_replicas, target_percent, queue_wait_ms, idle_ms] = given;
    Ok(Some(Scaling {
        min_replicas: min_replicas.unwrap_or(base.min_replicas),
        max_replicas,
        target_percent: target_percent.unwrap_or(base.target_percent),
        queue_wait_ms: queue_wait_ms.unwrap_or(base.queue_wait_ms),
        idle_ms: idle_ms.unwrap_or(base.idle_ms),
    }))
}

fn number(body: &Map<String, Value>, name: &str) -> Result<Option<u32>, PredictError> {
    let large = |_| PredictError::invalid(format!("field '{name}' is too large"));
    let number = body.count(name)?.map(u32::try_from);
    number.transpose().map_err(large)
}

/// Formats a deployment for the response with its model.
pub(super) fn shown(deployment: Option<&Deployment>) -> Value {
    let Some(deployment) = deployment else {
        return Value::Null;
    };
    let options = &deployment.options;
    let scaling = options.scaling.map(|scaling| {
        json!({
            "min_replicas": scaling.min_replicas,
            "max_replicas": scaling.max_replicas,
            "target_percent": scaling.target_percent,
            "queue_wait_ms": scaling.queue_wait_ms,
            "idle_ms": scaling.idle_ms,
        })
    });
    let rollout = deployment.rollout.as_ref().map(|rollout| {
        let nodes = rollout.previous.iter().map(ToString::to_string);
        json!({
            "from_version": rollout.from.0,
            "previous_worker_nodes": nodes.collect::<Vec<_>>(),
            "paused": rollout.paused,
            "stopped": rollout.stopped,
        })
    });
    json!({
        "labels": options.labels,
        "spread": options.spread,
        "memory_bytes": options.memory_bytes,
        "max_surge": options.max_surge,
        "max_unavailable": options.max_unavailable,
        "keep_previous": options.keep_previous,
        "scaling": scaling,
        "rollout": rollout,
        "replaced_version": deployment.replaced.map(|version| version.0),
        "replaced_replicas": deployment.replaced_replicas,
    })
}

pub(crate) async fn pause(
    caller: OpenSearchCaller,
    path: Path<String>,
) -> Result<Json<Value>, ApiError> {
    roll(caller, path, RolloutAction::Pause).await
}

pub(crate) async fn resume(
    caller: OpenSearchCaller,
    path: Path<String>,
) -> Result<Json<Value>, ApiError> {
    roll(caller, path, RolloutAction::Resume).await
}

pub(crate) async fn roll_back(
    caller: OpenSearchCaller,
    path: Path<String>,
) -> Result<Json<Value>, ApiError> {
    let replicas = replaced_replicas(&caller, &path);
    roll(caller, path, RolloutAction::Rollback { replicas }).await
}

/// The number of replicas that a rollback restores. `None` if it equals the current number, or if a
/// coordinator of an earlier version would not support it.
fn replaced_replicas(caller: &OpenSearchCaller, Path(id): &Path<String>) -> Option<u32> {
    let registry = caller.cluster.registry.state();
    let entry = registry.models.get(&ModelName::new(id.as_str()).ok()?)?;
    let deployment = entry.deployment.as_ref()?;
    let replicas = deployment.replaced_replicas?;
    let action = RolloutAction::Rollback {
        replicas: Some(replicas),
    };
    let model = entry.name.clone();
    let level = RegistryCommand::Rollout { model, action }.level();
    let status = caller.cluster.view.status();
    let understood = level <= status.level
        || status.raft.members.iter().all(|member| {
            let report = status.reports.get(&member.id);
            report.is_some_and(|report| level <= report.level)
        });
    (understood && replicas != deployment.replicas).then_some(replicas)
}

async fn roll(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    action: RolloutAction,
) -> Result<Json<Value>, ApiError> {
    let model = ModelName::new(id)?;
    let command = RegistryCommand::Rollout {
        model: model.clone(),
        action,
    };
    caller.cluster.registry.write(command).await?;
    let registry = caller.cluster.registry.state();
    let entry = registry.models.get(&model);
    let deployment = entry.and_then(|entry| entry.deployment.as_ref());
    Ok(Json(json!({
        "model_id": model.as_str(),
        "deployed_version": deployment.map(|deployment| deployment.version.0),
        "deployment": shown(deployment),
    })))
}

#[cfg(test)]
mod tests;
