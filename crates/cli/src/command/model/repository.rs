//! `volley model register --repository`: every model of a Triton repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use volley_backend_onnx::{OnnxConfig, describe, ensemble};
use volley_client::Client;
use volley_types::Parameters;

use super::waiting;
use crate::args::Register;
use crate::command::{explain, object};
use crate::terminal::Terminal;

/// The result for one model.
struct Outcome {
    name: String,
    /// The reference of the registered model, or the error.
    registered: Result<String, String>,
    stage: Stage,
}

/// The last step that succeeded.
enum Stage {
    Registered,
    /// An ensemble, which is available as soon as its models are.
    Ensemble,
    BeingDeployed,
    Deployed,
}

impl Outcome {
    fn line(&self) -> String {
        let Self {
            name,
            registered,
            stage,
        } = self;
        match (registered, stage) {
            (Ok(reference), Stage::Registered) => format!("{reference} is registered"),
            (Ok(name), Stage::Ensemble) => format!("{name} is registered as an ensemble"),
            (Ok(reference), Stage::BeingDeployed) => {
                format!("{reference} is registered and being deployed")
            }
            (Ok(reference), Stage::Deployed) => format!("{reference} is registered and deployed"),
            (Err(reason), Stage::Registered | Stage::Ensemble) => {
                format!("{name} is not registered: {reason}")
            }
            (Err(reason), _) => format!("{name} is registered, and not deployed: {reason}"),
        }
    }

    fn json(&self) -> Value {
        match &self.registered {
            Ok(reference) => json!({ "name": self.name, "model_id": reference }),
            Err(reason) => json!({ "name": self.name, "error": reason }),
        }
    }
}

/// Registers the models of `directory` and prints a line for each. A failed model does not stop the
/// others.
///
/// # Errors
/// When the directory contains no models, or when any model failed.
pub(super) async fn register(
    client: &Client,
    directory: &Path,
    options: &Register,
) -> anyhow::Result<()> {
    let directory = std::path::absolute(directory).context("the repository's path")?;
    let models = models(&directory)?;
    if models.is_empty() {
        bail!(
            "{} contains no directory; a repository has one directory for each model, with \
             numbered versions inside",
            directory.display()
        );
    }
    let mut out = Terminal::stdout();
    let mut outcomes = Vec::with_capacity(models.len());
    let (mut waiting, mut plain) = (Vec::new(), Vec::new());
    for (name, path) in models {
        match ensemble(&path) {
            Ok(Some(config)) => waiting.push((name, Value::Object(config))),
            Ok(None) | Err(_) => plain.push((name, path)),
        }
    }
    let mut tell = |outcome: Outcome, out: &mut Terminal| {
        if !options.json {
            out.line(&outcome.line())?;
        }
        outcomes.push(outcome);
        anyhow::Ok(())
    };
    for (name, path) in plain {
        tell(one(client, name, &path, options).await, &mut out)?;
    }
    for (name, config) in in_order(waiting) {
        tell(one_ensemble(client, name, config, options).await, &mut out)?;
    }
    if options.json {
        out.json(&outcomes.iter().map(Outcome::json).collect::<Vec<_>>())?;
    }
    let failed = outcomes.iter().filter(|it| it.registered.is_err()).count();
    if failed != 0 {
        bail!(
            "{failed} of {} models could not be registered or deployed",
            outcomes.len()
        );
    }
    Ok(())
}

async fn one(client: &Client, name: String, path: &Path, options: &Register) -> Outcome {
    let mut outcome = Outcome {
        name,
        registered: Err(String::new()),
        stage: Stage::Registered,
    };
    let is_python = volley_backend_python::is_python(path);
    // Unsupported models are detected from their files. A Python model is understood by its worker.
    if !is_python && let Err(error) = describe(path, &Parameters::default(), &OnnxConfig::default())
    {
        outcome.registered = Err(error.message.to_string());
        return outcome;
    }
    let body = json!({
        "name": outcome.name,
        "description": options.description,
        "parameters": object(options.parameters.clone()),
        "function_name": if is_python { "python" } else { "onnx" },
        "path": path.to_string_lossy(),
    });
    let reference = match client.register(&body).await.map_err(explain) {
        Ok(registered) => format!("{}:{}", registered.model_id, registered.model_version),
        Err(error) => {
            outcome.registered = Err(format!("{error:#}"));
            return outcome;
        }
    };
    if let Some(replicas) = options.deploy {
        let body = replicas.map_or_else(|| json!({}), |replicas| json!({ "replicas": replicas }));
        let deployed = client.deploy_with(&reference, &body).await;
        outcome.stage = Stage::BeingDeployed;
        let mut deployed = deployed.map_err(explain);
        if options.wait && deployed.is_ok() {
            deployed = waiting::until_deployed(client, &reference).await;
            outcome.stage = Stage::Deployed;
        }
        if let Err(error) = deployed {
            outcome.registered = Err(format!("{error:#}"));
            return outcome;
        }
    }
    outcome.registered = Ok(reference);
    outcome
}

async fn one_ensemble(client: &Client, name: String, config: Value, options: &Register) -> Outcome {
    let body = json!({ "ensemble": config, "description": options.description });
    let put = client.put_pipeline(&name, &body, None).await;
    let registered = match put.map_err(explain) {
        Ok(_) => Ok(name.clone()),
        Err(error) => Err(format!("{error:#}")),
    };
    Outcome {
        name,
        registered,
        stage: Stage::Ensemble,
    }
}

/// Sorts ensembles after the ensembles that they call. Circular ones come last; the cluster rejects
/// them.
fn in_order(mut ensembles: Vec<(String, Value)>) -> Vec<(String, Value)> {
    let mut ordered = Vec::with_capacity(ensembles.len());
    while !ensembles.is_empty() {
        let names: Vec<_> = ensembles.iter().map(|(name, _)| name.clone()).collect();
        let calls_none = |(own, config): &(String, Value)| {
            let steps = config["ensemble_scheduling"]["step"].as_array();
            let mut called = steps.into_iter().flatten().map(|step| &step["model_name"]);
            !called.any(|called| names.iter().any(|name| name != own && *called == **name))
        };
        let (now, later): (Vec<_>, Vec<_>) = ensembles.into_iter().partition(calls_none);
        if now.is_empty() {
            ordered.extend(later);
            return ordered;
        }
        ordered.extend(now);
        ensembles = later;
    }
    ordered
}

/// The model directories of a repository with their names, sorted by name.
fn models(directory: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("{}", directory.display()))?;
    let mut models = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("{}", directory.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('.') {
            models.push((name, entry.path()));
        }
    }
    models.sort();
    Ok(models)
}

#[cfg(test)]
mod tests;
