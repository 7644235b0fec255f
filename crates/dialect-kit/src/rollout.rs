//! Rollouts in status documents. Pure.

use serde_json::{Value, json};
use volley_types::control::{DeploymentFailure, ModelStatus};
use volley_types::registry::ModelEntry;

/// The failure of a model's deployment, and the next step; null without a failure.
pub fn failure(entry: &ModelEntry, status: &ModelStatus) -> Value {
    let found = DeploymentFailure::find(entry.deployment.as_ref(), status);
    found.map_or(Value::Null, |failure| {
        json!({
            "version": failure.version.0,
            "reason": failure.reason,
            "serving_version": failure.serving.map(|version| version.0),
            "message": failure.message(),
            "next_command": failure.next_command(&entry.name),
        })
    })
}
