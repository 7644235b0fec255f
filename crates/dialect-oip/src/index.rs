//! The repository index, which lists the models.

use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::control::ModelStatus;
use volley_types::registry::{ModelState, RegistryState, ReplicaState};
use volley_types::signature::ModelMetadata;
use volley_types::{ModelName, ModelRef};

use super::{label, repository};
use crate::state::OipCaller;
use volley_http_edge::body::{Fields, JsonObject, take_flag};
use volley_http_edge::error::ApiError;

/// Lists all models, or with `{"ready": true}` the ready ones.
///
/// # Errors
/// `InvalidInput` naming the field that is not known, or not true or false.
pub(crate) async fn index(
    caller: OipCaller,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only("an index", &["ready"])?;
    let only_ready = take_flag(&mut body, "ready")?;
    let told = |entry: IndexEntry| {
        json!({ "name": entry.name, "version": entry.version, "state": entry.state,
                "reason": entry.reason })
    };
    let entries = entries(&caller, only_ready).await;
    Ok(Json(entries.into_iter().map(told).collect()))
}

/// A version of a model in the index.
#[derive(Clone)]
pub(super) struct IndexEntry {
    pub(super) name: String,
    /// The deployed version, by the name that clients use.
    pub(super) version: Option<String>,
    pub(super) state: &'static str,
    /// Why the model is not ready, if known.
    pub(super) reason: String,
}

/// Every version of every deployed model, and every model that is not deployed. With `only_ready`,
/// only the ready ones.
pub(super) async fn entries(caller: &OipCaller, only_ready: bool) -> Vec<IndexEntry> {
    let registry = caller.cluster.registry.state();
    let others = registry.aliases.keys().chain(registry.pipelines.keys());
    let mut entries = Vec::new();
    for name in registry.models.keys().chain(others) {
        let Some(status) = caller.cluster.view.model_status(name) else {
            continue;
        };
        let state = match status.state {
            ModelState::Deployed | ModelState::PartiallyDeployed => "READY",
            ModelState::Deploying => "LOADING",
            ModelState::Registered | ModelState::Undeployed | ModelState::DeployFailed => {
                "UNAVAILABLE"
            }
        };
        let mut served = served(caller, name, &status).await;
        // During a rollout, also a failed one, another version may answer.
        let mut others = match status.serves_another() {
            true => std::mem::take(&mut served),
            false => Vec::new(),
        };
        if others.is_empty() {
            let versions = status.serving.iter();
            let versions = versions.filter(|version| Some(**version) != status.version);
            others.extend(versions.map(|version| label(&registry, name, *version)));
        }
        entries.extend(others.into_iter().map(|version| IndexEntry {
            name: name.as_str().to_owned(),
            version: Some(version),
            state: "READY",
            reason: String::new(),
        }));
        if only_ready && state != "READY" {
            continue;
        }
        let entry = IndexEntry {
            name: name.as_str().to_owned(),
            version: version(&registry, name, &status),
            state,
            reason: repository::failure(&status).unwrap_or_default().to_owned(),
        };
        let versions = served.into_iter().map(|version| IndexEntry {
            version: Some(version),
            ..entry.clone()
        });
        let before = entries.len();
        entries.extend(versions);
        if entries.len() == before {
            entries.push(entry);
        }
    }
    entries
}

/// The versions that the replicas of a model serve under names from its files. A model that is
/// scaled to zero is not activated for this.
async fn served(caller: &OipCaller, name: &ModelName, status: &ModelStatus) -> Vec<String> {
    let mut replicas = status.replicas.iter();
    let ready = replicas.any(|it| it.state == ReplicaState::Ready && !it.evicted);
    if !ready && !status.serves_another() {
        return Vec::new();
    }
    let model = ModelRef::deployed(name.clone());
    let signature = caller.cluster.inference.signature(&model).await.ok();
    signature.map_or_else(Vec::new, |signature| ModelMetadata::of(&signature).versions)
}

/// The name of the deployed version.
fn version(registry: &RegistryState, name: &ModelName, status: &ModelStatus) -> Option<String> {
    if let Some(version) = status.version {
        return Some(label(registry, name, version));
    }
    let pipeline = registry.pipelines.get(name)?;
    pipeline.spec.ensemble.as_ref().map(|_| "1".to_owned())
}
