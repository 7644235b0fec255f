//! ONNX models, in this process or in separate processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use volley_backend::BackendLoader;
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_model_host::{BySource, HostedLoader, Program, TrustedModels, Use};
use volley_telemetry::Metrics;
use volley_types::PredictError;

use crate::Setup;

/// The driver of the GPUs that CUDA uses, on machines that have them.
const GPU_DRIVER: &str = "/dev/nvidiactl";
/// Bytes of a model's process for its threads and requests.
const PROCESS_BYTES: u64 = 256 << 20;

/// Selects the ONNX models that run in separate processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Fetched models. All others are first probed in a process, except the bundled models.
    #[default]
    Auto,
    /// Fetched models.
    Fetched,
    /// None.
    None,
    /// None, but each is first probed in a process.
    Probe,
    /// All.
    Process,
}

impl Isolation {
    /// The mode of that name in a configuration.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
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

/// How a worker runs ONNX models.
#[derive(Clone, Debug, Default)]
pub struct OnnxPlan {
    /// Configured path of ONNX Runtime's library.
    pub library: Option<PathBuf>,
    /// Threads, devices and memory.
    pub config: OnnxConfig,
    /// Models that run in separate processes.
    pub isolation: Isolation,
    /// The memory limit of a model's process in bytes; by default that of its weights and its runs,
    /// at most `system_memory`.
    pub process_memory: Option<u64>,
    /// The memory of this machine in bytes, if known.
    pub system_memory: Option<u64>,
    /// The directory of the bundled models.
    pub bundled: Option<PathBuf>,
}

impl OnnxPlan {
    /// The memory limit of a model's process in bytes. `has_gpu` is whether this machine has a GPU.
    fn process_limit(&self, has_gpu: bool) -> Option<u64> {
        // Weights are limited to the budget, and so are runs.
        let budget = self.config.memory_limit;
        let budget = budget.map(|bytes| bytes.saturating_mul(2).saturating_add(PROCESS_BYTES));
        let default = match self.config.device {
            // CUDA maps far more memory than it uses.
            Device::Cuda => None,
            Device::Auto if has_gpu => self.system_memory,
            Device::Auto | Device::Cpu => budget.into_iter().chain(self.system_memory).min(),
        };
        self.process_memory.or(default)
    }
}

/// The settings of the loader in a model's process, as the worker sends them.
#[derive(Serialize, Deserialize)]
pub struct HostSettings {
    library: Option<PathBuf>,
    onnx: OnnxConfig,
}

/// The loader of ONNX models, selected by the source of a model.
pub(crate) fn loader(setup: &Setup) -> Result<Arc<dyn BackendLoader>, PredictError> {
    let onnx = &setup.onnx;
    let hosted = |use_for| {
        let loader = hosted(onnx, use_for, setup.metrics.clone())?;
        Ok::<_, PredictError>(setup.fetching(loader))
    };
    let by_source = |trusted, own: Arc<dyn BackendLoader>, others: Arc<dyn BackendLoader>| {
        Arc::new(BySource {
            trusted,
            own,
            others,
        })
    };
    Ok(match onnx.isolation {
        Isolation::Auto => {
            let own: Arc<dyn BackendLoader> = match &onnx.bundled {
                Some(directory) => {
                    let bundled = TrustedModels::Below(directory.clone());
                    by_source(bundled, setup.fetching(here(onnx)), hosted(Use::Probe)?)
                }
                None => hosted(Use::Probe)?,
            };
            by_source(TrustedModels::Local, own, hosted(Use::Serve)?)
        }
        Isolation::Fetched => by_source(
            TrustedModels::Local,
            setup.fetching(here(onnx)),
            hosted(Use::Serve)?,
        ),
        Isolation::None => setup.fetching(here(onnx)),
        Isolation::Probe => hosted(Use::Probe)?,
        Isolation::Process => hosted(Use::Serve)?,
    })
}

/// The loader in a model process that a worker started. `turn` counts the processes of that worker,
/// and chooses among its GPUs.
///
/// # Errors
/// `InvalidInput` when the number of a GPU does not fit.
pub fn host_loader(settings: HostSettings, turn: u64) -> Result<OnnxLoader, PredictError> {
    let HostSettings { library, mut onnx } = settings;
    let gpus = u64::from(onnx.gpus.max(1));
    let offset = i32::try_from(turn % gpus)
        .map_err(|_| PredictError::invalid("'onnx.gpus' is too large"))?;
    onnx.gpu += offset;
    onnx.gpus = 1;
    Ok(OnnxLoader::new(runtime(library.as_deref()), onnx))
}

/// ONNX Runtime's library, from the configured path or the places where it is installed.
///
/// # Errors
/// `Unavailable`, with the remedy, when the library is missing.
pub fn runtime(library: Option<&Path>) -> Result<Runtime, PredictError> {
    Runtime::locate(library).and_then(|library| Runtime::init(&library))
}

/// A loader in this process.
fn here(onnx: &OnnxPlan) -> Arc<dyn BackendLoader> {
    let runtime = runtime(onnx.library.as_deref());
    if let Err(error) = &runtime {
        tracing::warn!(error = error.chain(), "ONNX Runtime is not available");
    }
    Arc::new(OnnxLoader::new(runtime, onnx.config))
}

/// A loader that starts a process for each model.
fn hosted(
    onnx: &OnnxPlan,
    use_for: Use,
    metrics: Metrics,
) -> Result<Arc<dyn BackendLoader>, PredictError> {
    let settings = HostSettings {
        library: onnx.library.clone(),
        onnx: onnx.config,
    };
    let settings = serde_json::to_value(settings)
        .map_err(|error| PredictError::internal("the settings of ONNX models", error))?;
    let mut program = Program::this(&["model-host"], settings);
    let is_gpu = Path::new(GPU_DRIVER).exists();
    program.memory_limit = onnx.process_limit(is_gpu);
    let loader = HostedLoader::new(here(onnx), program, use_for, metrics);
    Ok(Arc::new(loader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_limited_by_the_budget() {
        let mut plan = OnnxPlan {
            system_memory: Some(8 << 30),
            ..OnnxPlan::default()
        };
        assert_eq!(plan.process_limit(false), Some(8 << 30));
        plan.config.memory_limit = Some(512 << 20);
        assert_eq!(plan.process_limit(false), Some((1 << 30) + PROCESS_BYTES));
        assert_eq!(plan.process_limit(true), Some(8 << 30));
        plan.config.memory_limit = Some(6 << 30);
        assert_eq!(plan.process_limit(false), Some(8 << 30));
        plan.config.device = Device::Cuda;
        assert_eq!(plan.process_limit(false), None);
        plan.process_memory = Some(1);
        assert_eq!(plan.process_limit(false), Some(1));
    }
}
