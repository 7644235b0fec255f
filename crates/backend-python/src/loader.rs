//! Loading of Python models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::try_join_all;
use parking_lot::Mutex;
use volley_backend::{Backend, BackendLoader, Hold, LoadProgress};
use volley_model_directory::triton::python::{self, PythonRepository};
use volley_model_host::{HostedModel, Launch, Launched, LoadReport, Restarts, Supervisor};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, BackendName, ModelSource};
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::config::PythonConfig;
use crate::environment::Environments;
use crate::frame::{self, Command, Event, Interface};
use crate::host::HostProgram;
use crate::instances::Instances;
use crate::log::ModelLog;
use crate::model::PythonModel;
use crate::process::{self, ModelProcess, Start};
use crate::session::Session;
use crate::settings::Settings;
use crate::triton;

/// Memory of an interpreter with its host program, in bytes; measured, with a reserve.
const OVERHEAD_BYTES: u64 = 64 << 20;
/// A cancelled call may kill its process, which then counts as an end: more of them are normal
/// than for other models.
const RESTARTS: usize = 20;

/// Loads Python models, each instance in a process of its own.
pub struct PythonLoader {
    shared: Arc<LoaderState>,
    metrics: Metrics,
}

struct LoaderState {
    config: PythonConfig,
    environments: Environments,
    /// Written at the first load.
    program: tokio::sync::OnceCell<HostProgram>,
}

impl PythonLoader {
    /// A loader with this configuration.
    #[must_use]
    pub fn new(config: PythonConfig, metrics: Metrics) -> Self {
        Self {
            shared: Arc::new(LoaderState {
                environments: Environments::new(config.clone()),
                config,
                program: tokio::sync::OnceCell::new(),
            }),
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
            let mut settings = Settings::read(&assignment.spec.parameters)?;
            let (directory, file) = model_files(Path::new(path))?;
            let repository = repository(&directory, file.as_deref(), &mut settings)?;
            let named = triton::interpreter(&settings, repository.as_ref());
            self.shared
                .environments
                .interpreter(&directory, named.as_deref())
                .await?;
        }
        Ok(None)
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        let mut settings = Settings::read(&assignment.spec.parameters)?;
        let repository = match &assignment.spec.source {
            ModelSource::Path(path) => {
                let (directory, file) = model_files(Path::new(path))?;
                repository(&directory, file.as_deref(), &mut settings)?
            }
            _ => None,
        };
        let limit = settings.memory_limit.unwrap_or(OVERHEAD_BYTES);
        let instances = triton::instances(&settings, repository.as_ref())?;
        Ok(limit.saturating_mul(instances as u64))
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let settings = Settings::read(&assignment.spec.parameters)?;
        let launcher = self.launcher(assignment, settings).await?;
        let count = triton::instances(&launcher.settings, launcher.repository.as_ref())?;
        let launches = (0..count).map(|instance| {
            self.supervised(Launcher {
                instance,
                ..launcher.clone()
            })
        });
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

/// Whether a path has a Python model: a `.py` file, or a directory with one, with the settings of
/// MLServer or with a model of Triton's Python backend, and without a graph.
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
    let is_recognised = files.iter().any(is_python) || python::is_python(path);
    is_recognised && !files.iter().any(is_graph)
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
        let backend = self.supervised(launcher).await?;
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
        mut settings: Settings,
    ) -> Result<Launcher, PredictError> {
        self.check_enabled()?;
        let ModelSource::Path(path) = &assignment.spec.source else {
            return Err(PredictError::invalid(
                "a Python model needs the path of its files",
            ));
        };
        let (directory, file) = model_files(Path::new(path))?;
        let repository = repository(&directory, file.as_deref(), &mut settings)?;
        let named = triton::interpreter(&settings, repository.as_ref());
        let interpreter = self
            .shared
            .environments
            .interpreter(&directory, named.as_deref())
            .await?;
        Ok(Launcher {
            shared: self.shared.clone(),
            assignment: assignment.clone(),
            settings,
            interpreter,
            directory,
            file,
            repository,
            instance: 0,
            seen: Arc::default(),
        })
    }

    /// Starts one process and keeps it running.
    async fn supervised(&self, launcher: Launcher) -> Result<Arc<dyn Backend>, PredictError> {
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

/// The model of a Triton repository, unless the source names one file.
fn repository(
    directory: &Path,
    file: Option<&str>,
    settings: &mut Settings,
) -> Result<Option<PythonRepository>, PredictError> {
    match file {
        None => triton::find(directory, settings),
        Some(_) => Ok(None),
    }
}

/// Starts the processes of one instance.
#[derive(Clone)]
struct Launcher {
    shared: Arc<LoaderState>,
    assignment: Assignment,
    settings: Settings,
    interpreter: PathBuf,
    directory: PathBuf,
    file: Option<String>,
    /// The model, if it lies in a Triton repository.
    repository: Option<PythonRepository>,
    /// Number of the instance, from 0.
    instance: usize,
    /// Interface and description of the last process.
    seen: Arc<Mutex<(String, String)>>,
}

#[async_trait]
impl Launch for Launcher {
    async fn launch(&self) -> Result<Launched, PredictError> {
        let program = self
            .shared
            .program
            .get_or_try_init(|| async { HostProgram::write() });
        let program = program.await?.path().to_owned();
        let log = ModelLog::new(self.assignment.model.clone(), self.assignment.spec.version);
        let memory = self
            .settings
            .memory_limit
            .or(self.shared.config.process_memory);
        let start = Start {
            interpreter: self.interpreter.clone(),
            host: program,
            directory: self.directory.clone(),
            memory_limit: memory,
        };
        let process = process::start(start, log.clone()).await;
        let process = process.map_err(|error| {
            PredictError::internal("the model's process could not be started", error)
        })?;
        let timeout = self.settings.load_timeout;
        let ModelProcess {
            process,
            group,
            mut socket,
        } = process;
        let interface = match tokio::time::timeout(timeout, self.load(&mut socket)).await {
            Ok(loaded) => loaded?,
            Err(_) => {
                return Err(self.failed(&format!(
                    "it did not load within {} s; see 'load_timeout_seconds'",
                    timeout.as_secs_f64()
                )));
            }
        };
        tracing::info!(
            model = %self.assignment.model, interface = interface.interface,
            description = interface.description, "Python model loaded"
        );
        *self.seen.lock() = (interface.interface.clone(), interface.description.clone());
        let capacity = interface.concurrency.max(1);
        let session = Session::new(socket, group, self.settings.cancel_grace, log);
        let gone = session.gone();
        let model = PythonModel::new(self.assignment.model.clone(), interface, session)?;
        Ok(Launched {
            process,
            client: Arc::new(model),
            gone,
            report: LoadReport {
                capacity,
                memory_bytes: 0,
            },
        })
    }
}

impl Launcher {
    /// Has the process load the model.
    async fn load(&self, socket: &mut tokio::net::UnixStream) -> Result<Interface, PredictError> {
        let mut parameters = self.settings.own.clone();
        if let Some(file) = &self.file {
            parameters.insert("file".to_owned(), file.as_str().into());
        }
        let command = Command::Load {
            directory: self.directory.to_string_lossy().into_owned(),
            interface: self.settings.interface.clone(),
            model: self.assignment.model.to_string(),
            version: self.assignment.spec.version.0.into(),
            parameters,
            triton: self
                .repository
                .as_ref()
                .map(|repository| triton::source(repository, self.instance)),
        };
        let broke = |error: std::io::Error| {
            self.failed("its process ended while it was loaded; see the worker's log")
                .with_source(error)
        };
        frame::write(socket, &[command], &crate::column::Body::default())
            .await
            .map_err(broke)?;
        loop {
            let frame = frame::read(socket).await.map_err(broke)?;
            let frame = frame.ok_or_else(|| {
                self.failed("its process ended while it was loaded; see the worker's log")
            })?;
            for event in frame.events {
                match event {
                    Event::Loaded(interface) => return Ok(interface),
                    Event::Failed { message } => return Err(self.failed(&message)),
                    Event::Log { level, message, .. } => {
                        let (model, version) =
                            (&self.assignment.model, self.assignment.spec.version);
                        ModelLog::new(model.clone(), version).record(&level, &message);
                    }
                    Event::Rows { .. } | Event::End { .. } | Event::Error { .. } => {}
                }
            }
        }
    }

    fn failed(&self, why: &str) -> PredictError {
        let why: String = why.chars().take(1_024).collect();
        let message = format!("the Python model cannot be loaded: {why}");
        PredictError::new(ErrorCode::InvalidInput, message).with_origin(ErrorOrigin::Model)
    }
}
