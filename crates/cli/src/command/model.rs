//! `volley model`.

mod repository;
mod waiting;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use volley_client::{Client, ModelInfo};

use self::waiting::FetchProgress;
use super::{explain, object};
use crate::args::{Model, PlacementArgs, Register, Rollout};
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Model) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    match command {
        Model::Register(register) => self::register(client, register).await,
        Model::Deploy {
            model,
            replicas,
            overcommit,
            wait,
            options,
        } => {
            let body = deployment(replicas, overcommit, options)?;
            client.deploy_with(&model, &body).await.map_err(explain)?;
            if wait {
                waiting::until_deployed(client, &model).await?;
                return out.line(&format!("{model} is deployed"));
            }
            out.line(&format!(
                "{model} is being deployed; `volley model show {model}` shows its state"
            ))
        }
        Model::Rollout(rollout) => {
            let (model, action, effect) = match rollout {
                Rollout::Pause { model } => (model, "pause", "is paused; both versions serve"),
                Rollout::Resume { model } => (model, "resume", "continues to its new version"),
                Rollout::Undo { model } => (model, "rollback", "returns to the previous version"),
            };
            let answer = client.rollout(&model, action).await.map_err(explain)?;
            if let Some(line) = undone(&model, &answer).filter(|_| action == "rollback") {
                return out.line(&line);
            }
            out.line(&format!("the rollout of {model} {effect}"))
        }
        Model::Undeploy { model } => {
            client.undeploy(&model).await.map_err(explain)?;
            out.line(&format!("{model} is undeployed"))
        }
        Model::Delete { model } => {
            client.delete(&model).await.map_err(explain)?;
            out.line(&format!("{model} is deleted"))
        }
        Model::List { json } => {
            let models = client.models().await.map_err(explain)?;
            if json {
                out.json(&models)
            } else {
                list(&mut out, &models)
            }
        }
        Model::Inspect { .. } | Model::Manifest { .. } => {
            bail!("a directory is read without a cluster")
        }
        Model::Show { model, json } => {
            let model = client.model(&model).await.map_err(explain)?;
            if json {
                return out.json(&model);
            }
            show(&mut out, &model, &FetchProgress::now(client, &model).await)
        }
    }
}

/// The versions between which an undo changes. Undoing it changes back.
fn undone(model: &str, answer: &Value) -> Option<String> {
    let now = answer["deployed_version"].as_u64()?;
    let before = answer["deployment"]["replaced_version"].as_u64()?;
    Some(format!(
        "{model} returns from version {before} to version {now}; another `rollout undo` goes back \
         to version {before}"
    ))
}

fn list(out: &mut Terminal, models: &[ModelInfo]) -> anyhow::Result<()> {
    if models.is_empty() {
        return out.line("no models; register one with `volley model register`");
    }
    let rows: Vec<_> = models.iter().map(row).collect();
    out.table(
        &[
            "MODEL",
            "VERSION",
            "BACKEND",
            "STATE",
            "REPLICAS",
            "DESCRIPTION",
        ],
        &rows,
    )
}

/// The body of a deployment. Options that were not given are omitted, so that the cluster's
/// defaults apply.
fn deployment(
    replicas: Option<u32>,
    overcommit: Option<bool>,
    options: PlacementArgs,
) -> anyhow::Result<Value> {
    let label = |label: &String| {
        let (name, value) = label
            .split_once('=')
            .with_context(|| format!("--label {label}: write name=value"))?;
        Ok((name.to_owned(), Value::from(value)))
    };
    let labels = options.labels.iter().map(label);
    let labels = labels.collect::<anyhow::Result<Map<_, _>>>()?;
    let mut body = json!({});
    if let Some(overcommit) = overcommit {
        body["overcommit"] = overcommit.into();
    }
    if !labels.is_empty() {
        body["labels"] = labels.into();
    }
    if let Some(spread) = options.spread {
        body["spread"] = spread.into();
    }
    let numbers = [
        ("replicas", replicas.map(u64::from)),
        ("memory_bytes", options.memory_bytes),
        ("max_surge", options.max_surge.map(u64::from)),
        ("max_unavailable", options.max_unavailable.map(u64::from)),
        ("keep_previous", options.keep_previous.map(u64::from)),
        ("max_replicas", options.max_replicas.map(u64::from)),
        ("min_replicas", options.min_replicas.map(u64::from)),
        ("target_percent", options.target_percent.map(u64::from)),
        ("queue_wait_ms", options.queue_wait_ms.map(u64::from)),
        ("idle_ms", options.idle_ms.map(u64::from)),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            body[name] = number.into();
        }
    }
    Ok(body)
}

async fn register(client: &Client, register: Register) -> anyhow::Result<()> {
    if let Some(directory) = &register.repository {
        return repository::register(client, directory, &register).await;
    }
    let mut body = json!({
        "name": register.name,
        "description": register.description,
        "parameters": object(register.parameters),
    });
    if let Some(path) = &register.path {
        // The path is relative to the working directory; workers need an absolute one.
        let path = std::path::absolute(path).context("the model's path")?;
        body["function_name"] = "onnx".into();
        body["path"] = path.to_string_lossy().into();
    } else if let Some(url) = register.from {
        body["function_name"] = "onnx".into();
        body["url"] = url.into();
        if let Some(sha256) = register.sha256 {
            body["model_content_hash_value"] = sha256.into();
        }
    } else if let Some(connector) = register.connector {
        body["function_name"] = "remote".into();
        body["connector_id"] = connector.into();
    } else if register.backend.is_none() {
        body["function_name"] = if register.fake { "fake" } else { "text" }.into();
    }
    if let Some(backend) = register.backend {
        body["function_name"] = backend.into();
    }
    let registered = client.register(&body).await.map_err(explain)?;
    let reference = format!("{}:{}", registered.model_id, registered.model_version);
    let mut deployed = false;
    if let Some(replicas) = register.deploy {
        let body = replicas.map_or_else(|| json!({}), |replicas| json!({ "replicas": replicas }));
        client
            .deploy_with(&reference, &body)
            .await
            .map_err(explain)?;
        deployed = match register.wait {
            true => waiting::until_deployed(client, &reference)
                .await
                .map(|()| true)?,
            false => waiting::fails_early(client, &reference).await?,
        };
    }
    let mut out = Terminal::stdout();
    if register.json {
        return out.json(&registered);
    }
    match register.deploy {
        Some(_) if deployed => out.line(&format!("{reference} is registered and deployed")),
        Some(_) => out.line(&format!("{reference} is registered and being deployed")),
        None => out.line(&format!(
            "{reference} is registered; deploy it with `volley model deploy {reference}`"
        )),
    }
}

/// The deployed version, and the previous one if that still serves after a failed rollout.
pub(super) fn serving(version: &str, previous: Option<u32>) -> String {
    match previous {
        Some(previous) => format!("{version} ({previous} serves)"),
        None => version.to_owned(),
    }
}

fn version(model: &ModelInfo) -> String {
    let failure = model.failure.as_ref();
    let previous = failure.and_then(|failure| failure.serving_version);
    serving(&model.model_version, previous)
}

fn row(model: &ModelInfo) -> Vec<String> {
    vec![
        model.model_id.clone(),
        version(model),
        model.algorithm.clone().unwrap_or_default().to_lowercase(),
        model.model_state.clone(),
        format!(
            "{}/{}",
            model.current_worker_nodes.len(),
            model.desired_replicas
        ),
        model.description.clone().unwrap_or_default(),
    ]
}

fn show(out: &mut Terminal, model: &ModelInfo, fetched: &[FetchProgress]) -> anyhow::Result<()> {
    let source = model
        .path
        .as_ref()
        .or(model.url.as_ref())
        .or(model.connector_id.as_ref())
        .cloned()
        .unwrap_or_default();
    let versions: Vec<_> = model.versions.iter().map(ToString::to_string).collect();
    let mut rows = vec![
        ("model", model.model_id.clone()),
        (
            "version",
            format!("{} of {}", version(model), versions.join(", ")),
        ),
        (
            "backend",
            model.algorithm.clone().unwrap_or_default().to_lowercase(),
        ),
        ("source", source),
        (
            "sha256",
            model.model_content_hash_value.clone().unwrap_or_default(),
        ),
        ("state", model.model_state.clone()),
        (
            "replicas",
            format!(
                "{}/{}",
                model.current_worker_nodes.len(),
                model.desired_replicas
            ),
        ),
        ("workers", model.current_worker_nodes.join(", ")),
        ("description", model.description.clone().unwrap_or_default()),
    ];
    if let Some(failure) = &model.failure {
        rows.push(("failure", failure.message.clone()));
        rows.push(("next", format!("`{}`", failure.next_command)));
    }
    if let Some(unplaced) = &model.unplaced {
        rows.push(("waits", unplaced.reason.clone()));
    }
    rows.extend(fetched.iter().map(|fetch| ("fetching", fetch.told())));
    rows.extend(
        model
            .failures
            .iter()
            .map(|(worker, reason)| ("failed", format!("{worker}: {reason}"))),
    );
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        out.line(&format!("{name:<12} {value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
