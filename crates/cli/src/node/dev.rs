//! `volley dev`: one Python model, loaded again whenever its files change.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use notify::{EventKind, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use volley_types::registry::{
    BackendName, DeployOptions, ModelSource, ModelVersionSpec, RegistryCommand, ReplicaState,
};
use volley_types::{ClusterView, ModelName, ModelVersion, ParamValue, Parameters, Registry};

use super::LOOK;
use super::up::{self, LocalCluster};
use crate::args::{AllowFake, Dev, Up};
use crate::terminal::Terminal;

/// A save is over when nothing has changed for so long.
const QUIET: Duration = Duration::from_millis(200);
/// Directories whose files are not the model's source.
const IGNORED: [&str; 3] = ["__pycache__", "venv", "node_modules"];

/// Serves the model until a signal.
pub(crate) async fn run(dev: Dev) -> anyhow::Result<()> {
    let path = dev.path.canonicalize();
    let path = path.with_context(|| format!("{}", dev.path.display()))?;
    let name = match &dev.name {
        Some(name) => ModelName::new(name)?,
        None => ModelName::new(path.file_stem().unwrap_or_default().to_string_lossy())?,
    };
    let data = tempfile::Builder::new().prefix("volley-dev-").tempdir()?;
    let up = Up {
        allow_python: true,
        data_dir: None,
        host: std::net::Ipv4Addr::LOCALHOST.into(),
        bootstrap_key_file: None,
        master_key_files: Vec::new(),
        port: dev.port,
        extra_http_ports: Vec::new(),
        admin_port: None,
        grpc_triton_port: None,
        grpc_mlserver_port: None,
        cors_origins: Vec::new(),
        fake: AllowFake {
            allow_fake_backend: false,
        },
        max_body_size: None,
        max_tensor_size: None,
    };
    let parameters = dev.parameters.into_iter();
    let parameters = parameters.map(|(name, value)| (name, parameter(value)));
    let model = DevModel {
        name,
        path,
        parameters: parameters.collect(),
    };
    let serve = async |cluster: &LocalCluster<'_>| model.serve(cluster).await;
    up::run_with(up, data.path(), true, serve).await
}

fn parameter(value: serde_json::Value) -> ParamValue {
    use serde_json::Value;
    match value {
        Value::Bool(value) => ParamValue::Bool(value),
        Value::String(text) => ParamValue::Text(text),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => ParamValue::Int(number),
            (None, Some(number)) => ParamValue::Float(number),
            (None, None) => ParamValue::Text(number.to_string()),
        },
        other => ParamValue::Json(other.to_string()),
    }
}

struct DevModel {
    name: ModelName,
    path: PathBuf,
    parameters: Parameters,
}

impl DevModel {
    async fn serve(&self, cluster: &LocalCluster<'_>) -> anyhow::Result<()> {
        let (changes, mut changed) = mpsc::channel(1);
        let _watcher = watch(&self.path, changes)?;
        let mut serving = None;
        let url = format!("http://{}", cluster.rest());
        let mut out = Terminal::stdout();
        loop {
            match self.deploy(cluster).await {
                Ok(version) => {
                    serving = Some(version);
                    out.line(&format!(
                        "{}:{version} serves at {url}; waiting for changes",
                        self.name
                    ))?;
                }
                Err(error) => {
                    out.line(&format!("error: {error:#}"))?;
                    if let Some(version) = serving {
                        self.order(cluster, version).await?;
                        out.line(&format!("{}:{version} goes on", self.name))?;
                    }
                }
            }
            if changed.recv().await.is_none() {
                bail!("the files of the model cannot be watched any more");
            }
            while let Ok(Some(())) = tokio::time::timeout(QUIET, changed.recv()).await {}
        }
    }

    /// Registers the files as they are now, and waits until they serve.
    async fn deploy(&self, cluster: &LocalCluster<'_>) -> anyhow::Result<ModelVersion> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let spec = ModelVersionSpec {
            version: ModelVersion::default(),
            backend: BackendName::from_static("python"),
            source: ModelSource::Path(self.path.to_string_lossy().into_owned()),
            parameters: self.parameters.clone(),
            description: String::new(),
            created_ms: u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
        };
        let register = RegistryCommand::RegisterModel(self.name.clone(), spec);
        let version = loop {
            match cluster.coordinator.write(register.clone()).await {
                Ok(written) => break written.version,
                // A new cluster has no leader for a moment.
                Err(error) if error.code == volley_types::ErrorCode::Unavailable => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let version = version.context("the model was registered without a version")?;
        self.order(cluster, version).await?;
        loop {
            let status = cluster.coordinator.model_status(&self.name);
            let status = status.context("the model was deleted")?;
            let mut replicas = status.replicas.iter();
            match replicas
                .find(|it| it.version == version)
                .map(|it| &it.state)
            {
                Some(ReplicaState::Ready) => return Ok(version),
                Some(ReplicaState::Failed(reason)) => bail!("{reason}"),
                Some(ReplicaState::Loading | ReplicaState::Draining) | None => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Has the cluster serve a version.
    async fn order(&self, cluster: &LocalCluster<'_>, version: ModelVersion) -> anyhow::Result<()> {
        let deploy = RegistryCommand::Deploy {
            model: self.name.clone(),
            version: Some(version),
            replicas: 1,
            overcommit: false,
            options: DeployOptions::default(),
            workers: Vec::new(),
        };
        cluster.coordinator.write(deploy).await?;
        Ok(())
    }
}

/// Reports changes of the model's files until the watcher is dropped.
fn watch(path: &Path, changes: mpsc::Sender<()>) -> anyhow::Result<impl Watcher> {
    let directory = match path.is_dir() {
        true => path,
        false => path.parent().context("the file has no directory")?,
    };
    let root = directory.to_owned();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let Ok(event) = event else {
            return;
        };
        let is_change = matches!(
            event.kind,
            EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_)
        );
        if is_change && event.paths.iter().any(|path| is_source(&root, path)) {
            // A change that is already reported and not yet seen has the same effect.
            let _ = changes.try_send(());
        }
    })?;
    watcher
        .watch(directory, RecursiveMode::Recursive)
        .with_context(|| format!("watching {}", directory.display()))?;
    Ok(watcher)
}

/// Whether a changed file may be part of the model.
fn is_source(root: &Path, path: &Path) -> bool {
    let endings = ["py", "json", "yaml", "yml", "toml", "txt", "pbtxt"];
    let ending = path.extension().and_then(|ending| ending.to_str());
    let Ok(relative) = path.strip_prefix(root) else {
        return false;
    };
    let mut parts = relative.iter().filter_map(|part| part.to_str());
    ending.is_some_and(|ending| endings.contains(&ending))
        && !parts.any(|part| part.starts_with('.') || IGNORED.contains(&part))
}

#[cfg(test)]
mod tests;
