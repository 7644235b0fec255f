//! The kinds of models that a worker of this binary can run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use volley_artifacts::{ArtifactConfig, Artifacts, FetchingLoader};
use volley_backend::BackendLoader;
use volley_backend::fake::{DisallowedFake, FakeLoader};
use volley_backend::text::TextLoader;
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_backend_remote::{RemoteConfig, RemoteLoader};
use volley_model_host::{BySource, HostedLoader, Program, TrustedModels, Use};
use volley_telemetry::Metrics;
use volley_types::registry::OpenSecret;
use volley_types::{CheckConnector, PredictError};

/// Which models have processes of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Those that are fetched from elsewhere; all others are tried in one first, but those that
    /// this binary brought.
    #[default]
    Auto,
    /// Those that are fetched from elsewhere.
    Fetched,
    /// None.
    None,
    /// None; but each is loaded and tried in one first.
    Probe,
    /// All.
    Process,
}

impl Isolation {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "fetched" => Some(Self::Fetched),
            "none" => Some(Self::None),
            "probe" => Some(Self::Probe),
            "process" => Some(Self::Process),
            _ => None,
        }
    }
}

/// What a worker knows of ONNX models.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnnxPlan {
    pub(crate) library: Option<PathBuf>,
    pub(crate) config: OnnxConfig,
    pub(crate) isolation: Isolation,
    /// What a model's process may take, in bytes.
    pub(crate) process_memory: Option<u64>,
    /// Where this binary has put models that it carries.
    pub(crate) brought: Option<PathBuf>,
}

/// What a model's process is told of its loader.
#[derive(Serialize, Deserialize)]
pub(crate) struct HostSettings {
    pub(crate) library: Option<PathBuf>,
    pub(crate) onnx: OnnxConfig,
}

/// What loads each kind of model.
pub(crate) type Loaders = Vec<Arc<dyn BackendLoader>>;

/// All loaders, and who knows whether connectors work. Without ONNX Runtime's library the worker still serves everything else: ONNX
/// models then fail to load, and the reason says what to do.
///
/// # Errors
/// When the HTTP client of remote models cannot be set up, or `artifacts` is wrong.
pub(crate) fn loaders(
    onnx: OnnxPlan,
    remote: RemoteConfig,
    artifacts: ArtifactConfig,
    secrets: Option<Arc<dyn OpenSecret>>,
    allow_fake: bool,
    metrics: Metrics,
) -> Result<(Loaders, Arc<dyn CheckConnector>), PredictError> {
    let artifacts = Artifacts::new(artifacts, metrics.clone())?;
    let fetching = |inner| -> Arc<dyn BackendLoader> {
        Arc::new(FetchingLoader::new(inner, artifacts.clone()))
    };
    let serve = || Ok::<_, PredictError>(fetching(hosted(&onnx, Use::Serve, metrics.clone())?));
    let probe = || Ok::<_, PredictError>(fetching(hosted(&onnx, Use::Probe, metrics.clone())?));
    let apart = |trusted, own: Arc<dyn BackendLoader>, others: Arc<dyn BackendLoader>| {
        Arc::new(BySource {
            trusted,
            own,
            others,
        })
    };
    let onnx: Arc<dyn BackendLoader> = match onnx.isolation {
        Isolation::Auto => {
            let own: Arc<dyn BackendLoader> = match &onnx.brought {
                Some(directory) => {
                    let brought = TrustedModels::Below(directory.clone());
                    apart(brought, fetching(here(&onnx)), probe()?)
                }
                None => probe()?,
            };
            apart(TrustedModels::Local, own, serve()?)
        }
        Isolation::Fetched => apart(TrustedModels::Local, fetching(here(&onnx)), serve()?),
        Isolation::None => fetching(here(&onnx)),
        Isolation::Probe => probe()?,
        Isolation::Process => serve()?,
    };
    let remote = RemoteLoader::new(remote)?.counted_by(metrics);
    let remote = match secrets {
        Some(secrets) => remote.opening(secrets),
        None => remote,
    };
    let fake: Arc<dyn BackendLoader> = match allow_fake {
        true => Arc::new(FakeLoader::default()),
        false => Arc::new(DisallowedFake),
    };
    let remote = Arc::new(remote);
    let loaders = vec![onnx, remote.clone(), Arc::new(TextLoader), fake];
    Ok((loaders, remote))
}

/// ONNX Runtime's library, configured or found.
///
/// # Errors
/// `Unavailable`, with what to do, when it is not there.
pub(crate) fn runtime(library: Option<&Path>) -> Result<Runtime, PredictError> {
    Runtime::locate(library).and_then(|library| Runtime::init(&library))
}

/// Loads in this process.
fn here(onnx: &OnnxPlan) -> Arc<dyn BackendLoader> {
    let runtime = runtime(onnx.library.as_deref());
    if let Err(error) = &runtime {
        tracing::warn!(error = error.chain(), "ONNX models cannot be loaded");
    }
    Arc::new(OnnxLoader::new(runtime, onnx.config))
}

/// Loads in processes.
fn hosted(
    onnx: &OnnxPlan,
    what_for: Use,
    metrics: Metrics,
) -> Result<Arc<dyn BackendLoader>, PredictError> {
    let settings = HostSettings {
        library: onnx.library.clone(),
        onnx: onnx.config,
    };
    let settings = serde_json::to_value(settings)
        .map_err(|error| PredictError::internal("the settings of ONNX models", error))?;
    let mut program = Program::this(&["model-host"], settings);
    // CUDA maps far more than it takes.
    let system = || volley_worker::system_bytes().filter(|_| onnx.config.device != Device::Cuda);
    program.memory_limit = onnx.process_memory.or_else(system);
    let loader = HostedLoader::new(here(onnx), program, what_for, metrics);
    Ok(Arc::new(loader))
}
