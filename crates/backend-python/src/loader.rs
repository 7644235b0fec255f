//! Loading of Python models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::try_join_all;
use volley_backend::{Backend, BackendLoader, Hold, LoadProgress};
use volley_model_host::{HostedModel, Launch, Restarts, Supervisor};
use volley_telemetry::Metrics;
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendName, ModelSource};

use crate::config::PythonConfig;
use crate::instances::Instances;
use crate::launcher::{Launcher, WorkerState};
use crate::sandbox;
use crate::settings::Settings;

/// Memory of an interpreter with its host program, in bytes; measured, with a reserve.
const OVERHEAD_BYTES: u64 = 64 << 20;
/// A cancelled call may kill its process, which then counts as an end: more of them are normal
/// than for other models.
const RESTARTS: usize = 20;

/// Loads Python models, each instance in a process of its own.
pub struct PythonLoader {
    shared: Arc<WorkerState>,
    metrics: Metrics,
}

impl PythonLoader {
    /// A loader with this configuration.
    #[must_use]
    pub fn new(config: PythonConfig, metrics: Metrics) -> Self {
        if config.enabled && !sandbox::has_landlock() {
            tracing::warn!(
                "the kernel has no Landlock of version 3 (Linux 6.2): the code of Python models \
                 can read every file of the worker's user, keys included"
            );
        }
        Self {
            shared: Arc::new(WorkerState::new(config)),
            metrics,
        }
    }

    fn check_enabled(&self) -> Result<(), PredictError> {
        match self.shared.config.enabled {
            true => Ok(()),
            false => Err(PredictError::invalid(
                "Python models are disabled on this worker, because their code runs as its user; \
                 set 'python.enabled = true' in its configuration, or start `volley up \
                 --allow-python`",
            )),
        }
    }
}

#[async_trait]
impl BackendLoader for PythonLoader {
    fn name(&self) -> BackendName {
        crate::INFO.name
    }

    async fn prepare(
        &self,
        assignment: &Assignment,
        _: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        self.check_enabled()?;
        // Packages are installed without a load permit. A model from a URL is not here yet: its
        // packages are installed as it is loaded.
        if let ModelSource::Path(path) = &assignment.spec.source {
            let settings = Settings::read(&assignment.spec.parameters)?;
            let (directory, _) = model_files(Path::new(path))?;
            let named = settings.python.as_deref();
            self.shared
                .environments
                .interpreter(&directory, named)
                .await?;
        }
        Ok(None)
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        let settings = Settings::read(&assignment.spec.parameters)?;
        let limit = settings.memory_limit.unwrap_or(OVERHEAD_BYTES);
        Ok(limit.saturating_mul(settings.instances as u64))
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let settings = Settings::read(&assignment.spec.parameters)?;
        let launcher = self.launcher(assignment, settings).await?;
        let launchers = (0..launcher.settings.instances).map(|_| launcher.for_instance());
        let launchers = launchers.collect::<Result<Vec<_>, _>>()?;
        let launches = launchers.into_iter().map(|it| self.supervised(it));
        let mut instances = try_join_all(launches).await?;
        Ok(match instances.len() {
            1 => instances.remove(0),
            _ => Arc::new(Instances::new(instances)),
        })
    }
}

/// What a model's files were understood to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name of the programming interface, such as `plain`.
    pub interface: String,
    /// The model's docstring; may be empty.
    pub description: String,
    /// The interpreter.
    pub interpreter: PathBuf,
}

/// Whether a path has a Python model: a `.py` file, or a directory with one or with the settings of
/// MLServer, and without a graph.
#[must_use]
pub fn is_python(path: &Path) -> bool {
    let has_ending = |file: &Path, ending: &str| file.extension().is_some_and(|it| it == ending);
    if path.is_file() {
        return has_ending(path, "py");
    }
    let Ok(entries) = std::fs::read_dir(path) else {
        return false;
    };
    let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let is_python = |file: &PathBuf| {
        has_ending(file, "py")
            || file
                .file_name()
                .is_some_and(|it| it == "model-settings.json")
    };
    let is_graph = |file: &PathBuf| has_ending(file, "onnx");
    files.iter().any(is_python) && !files.iter().any(is_graph)
}

impl PythonLoader {
    /// Loads one instance of a model and describes it. Cancel safe: dropping the future ends the
    /// process.
    ///
    /// # Errors
    /// As [`BackendLoader::load`].
    pub async fn inspect(
        &self,
        assignment: &Assignment,
    ) -> Result<(Description, Arc<dyn Backend>), PredictError> {
        let settings = Settings::read(&assignment.spec.parameters)?;
        let launcher = self.launcher(assignment, settings).await?;
        let (interpreter, seen) = (launcher.interpreter.clone(), launcher.seen.clone());
        let backend = self.supervised(launcher.for_instance()?).await?;
        let (interface, description) = seen.lock().clone();
        let description = Description {
            interface,
            description,
            interpreter,
        };
        Ok((description, backend))
    }

    /// The launcher of an instance, whose packages are installed.
    async fn launcher(
        &self,
        assignment: &Assignment,
        settings: Settings,
    ) -> Result<Launcher, PredictError> {
        self.check_enabled()?;
        let ModelSource::Path(path) = &assignment.spec.source else {
            return Err(PredictError::invalid(
                "a Python model needs the path of its files",
            ));
        };
        let (directory, file) = model_files(Path::new(path))?;
        let named = settings.python.as_deref();
        let interpreter = self
            .shared
            .environments
            .interpreter(&directory, named)
            .await?;
        Ok(Launcher {
            shared: self.shared.clone(),
            assignment: assignment.clone(),
            settings,
            interpreter,
            directory,
            file,
            gpus: None,
            seen: Arc::default(),
        })
    }

    /// Starts one process and keeps it running.
    async fn supervised(&self, launcher: Launcher) -> Result<Arc<HostedModel>, PredictError> {
        let launched = launcher.launch().await?;
        let supervisor = Supervisor {
            assignment: launcher.assignment.clone(),
            launcher: Box::new(launcher),
            restarts: Restarts {
                most: RESTARTS,
                ..Restarts::default()
            },
            metrics: self.metrics.clone(),
        };
        Ok(Arc::new(
            HostedModel::new(supervisor, launched, OVERHEAD_BYTES).await?,
        ))
    }
}

/// The directory of a model, and its file if the source names one file.
fn model_files(path: &Path) -> Result<(PathBuf, Option<String>), PredictError> {
    let missing = || {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        PredictError::invalid(format!("the model '{name}' does not exist on this worker"))
    };
    let path = path
        .canonicalize()
        .map_err(|error| missing().with_source(error))?;
    if path.is_dir() {
        return Ok((path, None));
    }
    let file = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(missing)?;
    let directory = path.parent().ok_or_else(missing)?;
    Ok((directory.to_owned(), Some(file.to_owned())))
}
