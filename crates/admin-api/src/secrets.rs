//! `/_volley/secrets`: stores, lists, re-encrypts and deletes sealed secrets. No response contains
//! a secret.

use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::registry::{RegistryCommand, SealedSecret};
use volley_types::{PredictError, SecretName};

use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

pub(crate) async fn put(
    caller: Caller,
    Path(name): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only("a secret", &["value"])?;
    let name = SecretName::new(name)?;
    let sealed = caller
        .gate
        .master_keys()?
        .seal(&name, body.required("value")?)?;
    let command = RegistryCommand::PutSecret {
        name: name.clone(),
        sealed: sealed.clone(),
    };
    caller.cluster.registry.write(command).await?;
    Ok(Json(render(&name, &sealed)))
}

pub(crate) async fn list(caller: Caller) -> Json<Value> {
    let registry = caller.cluster.registry.state();
    let secrets = registry.secrets.iter();
    let secrets: Vec<_> = secrets.map(|(name, sealed)| render(name, sealed)).collect();
    Json(json!({ "secrets": secrets }))
}

pub(crate) async fn delete(
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = SecretName::new(name)?;
    caller
        .cluster
        .registry
        .write(RegistryCommand::DeleteSecret(name.clone()))
        .await?;
    Ok(Json(json!({ "name": name.as_str(), "result": "deleted" })))
}

/// Re-encrypts the key of every secret with the newest master key. A secret that changed in the
/// meantime already uses that key. Failures are listed in the response and do not stop the others.
pub(crate) async fn rewrap(
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only("a rotation", &[])?;
    let keys = caller.gate.master_keys()?;
    let registry = caller.cluster.registry.state();
    let (mut done, mut failed) = (0, Vec::new());
    for (name, before) in registry.secrets.iter() {
        match keys.rewrap(name, before) {
            Ok(None) => {}
            Ok(Some(after)) => {
                let command = RegistryCommand::RewrapSecret {
                    name: name.clone(),
                    before: before.clone(),
                    after,
                };
                match caller.cluster.registry.write(command).await {
                    Ok(_) => done += 1,
                    Err(error) => failed.push(failure(name, &error)),
                }
            }
            Err(error) => failed.push(failure(name, &error)),
        }
    }
    Ok(Json(json!({
        "master_key": keys.newest(),
        "rewrapped": done,
        "failed": failed,
    })))
}

fn failure(name: &SecretName, error: &PredictError) -> Value {
    json!({ "name": name.as_str(), "reason": error.message })
}

fn render(name: &SecretName, sealed: &SealedSecret) -> Value {
    json!({ "name": name.as_str(), "master_key": sealed.master })
}
