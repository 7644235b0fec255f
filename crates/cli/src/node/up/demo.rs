//! The demo models, embedded in the binary.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use tokio::time::Instant;
use volley_coordinator::Coordinator;
use volley_types::registry::{
    BackendName, DeployOptions, ModelEntry, ModelSource, ModelVersionSpec, RegistryCommand,
    ReplicaState,
};
use volley_types::{ClusterView, ModelName, ModelVersion, Parameters, Registry};

use crate::node::LOOK;

/// Time limit for the demo models to become ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// A model with files in the binary.
struct DemoModel {
    name: &'static str,
    description: &'static str,
    files: &'static [(&'static str, &'static [u8])],
}

macro_rules! files {
    ($folder:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../../../../models/", $folder, "/", $name)))),+]
    };
}

const MODELS: &[DemoModel] = &[
    DemoModel {
        name: "storyteller",
        description: "Tells very short stories; 1.75 million parameters, int4",
        files: files!(
            "storyteller":
            "model.onnx",
            "model.onnx.data",
            "genai_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ),
    },
    DemoModel {
        name: "classifier",
        description: "Reads digits of 8 x 8 pixels",
        files: files!("classifier": "model.onnx"),
    },
];

/// Registers and deploys the demo models unless they are deployed, and waits until they accept
/// requests. A model that a user has deployed under the same name is not changed.
///
/// # Errors
/// When a model could not be loaded, with the reason.
pub(super) async fn deploy(coordinator: &Coordinator, folder: &Path) -> anyhow::Result<()> {
    let by = Instant::now() + PATIENCE;
    let mut names = Vec::new();
    for demo in MODELS {
        let name = ModelName::new(demo.name)?;
        let directory = demo.extract(folder)?;
        // A new cluster has no leader for a moment.
        while let Err(error) = want(coordinator, demo, &name, &directory, folder).await {
            if by < Instant::now() {
                return Err(error.context("deploying the demo models"));
            }
            tokio::time::sleep(LOOK).await;
        }
        names.push(name);
    }
    for name in &names {
        wait_until_ready(coordinator, name, by).await?;
    }
    Ok(())
}

async fn want(
    coordinator: &Coordinator,
    demo: &DemoModel,
    name: &ModelName,
    directory: &Path,
    folder: &Path,
) -> anyhow::Result<()> {
    let source = ModelSource::Path(directory.to_string_lossy().into_owned());
    let registry = coordinator.state();
    let entry = registry.models.get(name);
    if entry.is_some_and(|entry| is_someone_elses(entry, folder)) {
        return Ok(());
    }
    let registered = entry.and_then(|entry| version_from(entry, &source));
    let version = if registered.is_some() {
        registered
    } else {
        let spec = ModelVersionSpec {
            version: ModelVersion::default(),
            backend: BackendName::ONNX,
            source,
            parameters: Parameters::default(),
            description: demo.description.to_owned(),
            created_ms: now_ms(),
        };
        let register = RegistryCommand::RegisterModel(name.clone(), spec);
        coordinator.write(register).await?.version
    };
    let deploy = RegistryCommand::Deploy {
        model: name.clone(),
        version,
        replicas: 1,
        overcommit: false,
        options: DeployOptions::default(),
        workers: Vec::new(),
    };
    coordinator.write(deploy).await?;
    Ok(())
}

/// Whether the deployed version of this name is not a demo model.
fn is_someone_elses(entry: &ModelEntry, folder: &Path) -> bool {
    let deployed = entry.deployment.as_ref();
    let spec = deployed.and_then(|deployment| entry.versions.get(&deployment.version));
    spec.is_some_and(|spec| match &spec.source {
        ModelSource::Path(path) => !Path::new(path).starts_with(folder),
        ModelSource::None | ModelSource::Url { .. } | ModelSource::Connector(_) => true,
    })
}

fn version_from(entry: &ModelEntry, source: &ModelSource) -> Option<ModelVersion> {
    let mut newest_first = entry.versions.iter().rev();
    let found = newest_first.find(|(_, spec)| spec.source == *source);
    found.map(|(version, _)| *version)
}

async fn wait_until_ready(
    coordinator: &Coordinator,
    name: &ModelName,
    by: Instant,
) -> anyhow::Result<()> {
    loop {
        let status = coordinator.model_status(name);
        let status = status.with_context(|| format!("the demo model '{name}' was deleted"))?;
        for replica in &status.replicas {
            match &replica.state {
                ReplicaState::Ready => return Ok(()),
                ReplicaState::Failed(reason) => {
                    bail!("the demo model '{name}' could not be loaded: {reason}");
                }
                ReplicaState::Loading | ReplicaState::Draining => {}
            }
        }
        ensure!(
            Instant::now() < by,
            "the demo model '{name}' was not ready within {} s",
            PATIENCE.as_secs()
        );
        tokio::time::sleep(LOOK).await;
    }
}
impl DemoModel {
    /// Writes the files below `models` unless they exist, and returns their directory. Its name
    /// contains a fingerprint of the content, so that a binary with other files registers a new
    /// version instead of changing a loaded one.
    ///
    /// # Errors
    /// When the directory cannot be written.
    fn extract(&self, models: &Path) -> anyhow::Result<PathBuf> {
        let folder = format!("{}-{:016x}", self.name, self.fingerprint());
        let directory = models.join(&folder);
        let complete = self.files.iter().all(|(name, bytes)| {
            let length = std::fs::metadata(directory.join(name)).map(|found| found.len());
            length.is_ok_and(|length| length == bytes.len() as u64)
        });
        if complete {
            return Ok(directory);
        }
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&directory)?;
            for (name, bytes) in self.files {
                let partial = directory.join(format!("{name}.part"));
                std::fs::write(&partial, bytes)?;
                std::fs::rename(partial, directory.join(name))?;
            }
            Ok(())
        };
        write().with_context(|| format!("writing a demo model to {}", directory.display()))?;
        Ok(directory)
    }

    /// FNV-1a hash of names and contents.
    fn fingerprint(&self) -> u64 {
        let parts = self
            .files
            .iter()
            .flat_map(|(name, bytes)| [name.as_bytes(), bytes]);
        parts.flatten().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
