//! The start of a model's processes: what they get, and the load of the model in them.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use volley_model_directory::triton::python::PythonRepository;
use volley_model_host::{Launch, Launched, LoadReport};
use volley_types::registry::Assignment;
use volley_types::{ErrorCode, ErrorOrigin, Predict, PredictError};

use crate::batcher::{BatchRules, Batcher};
use crate::cgroup;
use crate::config::PythonConfig;
use crate::environment::Environments;
use crate::frame::{self, Command, Event, Interface};
use crate::gpus::{self, GpuLease, Gpus};
use crate::host::HostProgram;
use crate::keeper::Order;
use crate::log::ModelLog;
use crate::model::PythonModel;
use crate::process::{self, ModelProcess, Start};
use crate::sandbox::{Reach, Sandbox};
use crate::session::Session;
use crate::settings::Settings;
use crate::triton;
use crate::usage::Limits;

/// Files that a process may open, unless the worker's own limit is lower.
const MAX_FILES: u64 = 4_096;

/// What all models of a worker share.
pub(crate) struct WorkerState {
    pub(crate) config: PythonConfig,
    pub(crate) environments: Environments,
    gpus: Gpus,
    /// Written at the first load.
    program: OnceCell<HostProgram>,
    /// The control group of all models; `None` where the keepers watch their processes themselves.
    cgroup: OnceCell<Option<PathBuf>>,
}

impl WorkerState {
    pub(crate) fn new(config: PythonConfig) -> Self {
        Self {
            environments: Environments::new(config.clone()),
            gpus: Gpus::new(config.gpus.clone()),
            config,
            program: OnceCell::new(),
            cgroup: OnceCell::new(),
        }
    }

    async fn cgroup(&self) -> Option<PathBuf> {
        let prepare = || async {
            let prepared = tokio::task::spawn_blocking(cgroup::prepare).await;
            match prepared.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(group) => {
                    tracing::info!(
                        limits = "control groups",
                        group = %group.display(),
                        "limits of Python models"
                    );
                    Some(group)
                }
                Err(reason) => {
                    tracing::info!(
                        limits = "resource limits, and a look at the processes every 100 ms",
                        reason,
                        "limits of Python models"
                    );
                    None
                }
            }
        };
        self.cgroup.get_or_init(prepare).await.clone()
    }
}

/// Starts the processes of one instance.
pub(crate) struct Launcher {
    pub(crate) shared: Arc<WorkerState>,
    pub(crate) assignment: Assignment,
    pub(crate) settings: Settings,
    pub(crate) interpreter: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) file: Option<String>,
    /// The model, if it lies in a Triton repository.
    pub(crate) repository: Option<PythonRepository>,
    /// Number of the instance, from 0.
    pub(crate) instance: usize,
    /// The GPUs of the instance.
    pub(crate) gpus: Option<GpuLease>,
    /// Interface and description of the last process.
    pub(crate) seen: Arc<Mutex<(String, String)>>,
}

#[async_trait]
impl Launch for Launcher {
    async fn launch(&self) -> Result<Launched, PredictError> {
        let log = ModelLog::new(self.assignment.model.clone(), self.assignment.spec.version);
        let start = self.start().await?;
        let process = process::start(start, log.clone()).await;
        let process = process.map_err(|error| {
            PredictError::internal("the model's process could not be started", error)
        })?;
        let timeout = self.settings.load_timeout;
        let ModelProcess {
            process,
            tree,
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
        let calls = interface.concurrency.max(1);
        let rules = BatchRules::of(&interface);
        let session = Session::new(socket, tree, self.settings.cancel_grace, log);
        let gone = session.gone();
        let model = PythonModel::new(self.assignment.model.clone(), interface, session)?;
        let model: Arc<dyn Predict> = Arc::new(model);
        let (client, capacity) = match rules {
            Some(rules) => (Batcher::around(model, rules), rules.capacity(calls)),
            None => (model, calls),
        };
        Ok(Launched {
            process,
            client,
            gone,
            report: LoadReport {
                capacity,
                memory_bytes: 0,
            },
        })
    }
}

impl Launcher {
    /// The launcher of the instance with this number, with GPUs of its own.
    ///
    /// # Errors
    /// `InvalidInput` when the worker has fewer GPUs, or cannot provide the sandbox.
    pub(crate) fn for_instance(&self, instance: usize) -> Result<Self, PredictError> {
        let sandbox = self.sandbox();
        if let Some(missing) = sandbox.missing() {
            return Err(self.failed(&format!("the sandbox is not available: {missing}")));
        }
        Ok(Self {
            shared: self.shared.clone(),
            assignment: self.assignment.clone(),
            settings: self.settings.clone(),
            interpreter: self.interpreter.clone(),
            directory: self.directory.clone(),
            file: self.file.clone(),
            repository: self.repository.clone(),
            instance,
            gpus: Some(self.shared.gpus.lease(self.settings.gpus)?),
            seen: self.seen.clone(),
        })
    }

    /// The stricter one of the worker's sandbox and the model's.
    fn sandbox(&self) -> Sandbox {
        self.shared.config.sandbox.max(self.settings.sandbox)
    }

    /// How a process of the model is started.
    async fn start(&self) -> Result<Start, PredictError> {
        let (config, settings) = (&self.shared.config, &self.settings);
        let program = self
            .shared
            .program
            .get_or_try_init(|| async { HostProgram::write(&config.environments) })
            .await?;
        let mut hidden = config.hidden.clone();
        hidden.push(program.root().to_owned());
        let host = program.program();
        let order = Order {
            interpreter: self.interpreter.clone(),
            arguments: ["-I", "-B", "-u"]
                .map(str::to_owned)
                .into_iter()
                .chain([host.to_string_lossy().into_owned()])
                .collect(),
            limits: Limits {
                memory: settings.memory_limit.or(config.process_memory),
                tasks: settings.task_limit.unwrap_or(config.process_tasks),
                files: MAX_FILES,
            },
            reach: Reach {
                sandbox: self.sandbox(),
                hidden,
                read_only: vec![host, config.environments.clone()],
                writable: Vec::new(),
                model: self.directory.clone(),
            },
            temporary: program.temporary(),
            cgroup: self.shared.cgroup().await,
            outlives: false,
        };
        let visible = self.gpus.as_ref().map(GpuLease::visible);
        Ok(Start {
            program: config.keeper.clone(),
            order,
            directory: self.directory.clone(),
            variables: vec![(gpus::VARIABLE, visible.unwrap_or_default())],
        })
    }

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
                    Event::Loaded(interface) => return Ok(*interface),
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
