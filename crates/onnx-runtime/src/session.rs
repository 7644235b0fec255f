//! Builds sessions.

use std::path::Path;

use ort::ErrorCode as OrtCode;
use ort::ep;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::builder::SessionBuilder;
use ort::session::{NoSelectedOutputs, RunOptions, Session};
use volley_types::PredictError;

use crate::{Device, OnnxConfig, Runtime, arena, graph, memory_watch};

/// Bytes of weights per thread.
const THREAD_BYTES: u64 = 32 << 20;

/// The options of a run, shared with the task that may stop it.
pub type SharedRunOptions = RunOptions<NoSelectedOutputs>;

/// The device of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionDevice {
    /// The CPU and host memory.
    Host,
    /// The GPU of that number.
    Cuda(i32),
}

impl ExecutionDevice {
    /// Memory info of the device, for outputs.
    ///
    /// # Errors
    /// ONNX Runtime's own.
    pub fn memory(self) -> ort::Result<MemoryInfo<'static>> {
        match self {
            Self::Host => Ok(MemoryInfo::default()),
            Self::Cuda(gpu) => MemoryInfo::new(
                AllocationDevice::CUDA,
                gpu,
                AllocatorType::Device,
                MemoryType::Default,
            ),
        }
    }
}

/// The run option that selects the CUDA graph to capture or replay.
pub const GRAPH: &str = "gpu_graph_id";
/// The value of [`GRAPH`] for runs without a CUDA graph.
pub const NO_GRAPH: &str = "-1";
/// The session option for the directory of external weights of a model in memory.
const WEIGHTS: &str = "session.model_external_initializers_file_folder_path";
/// The session option that keeps weights out of the arena.
const WEIGHTS_APART: &str = "session.use_device_allocator_for_initializers";
/// The session option for how long a thread spins for work before it sleeps, in microseconds.
const SPIN_US: &str = "session.intra_op.spin_duration_us";
/// About the time that a decoder step spends between two of its operators, so that no operator
/// waits for a thread to wake up. A longer time occupies cores that other work needs
/// (`docs/evidence/peers.md`, threads of a decoder).
const SPIN_FOR_US: &str = "20";
/// The session option that puts its threads to sleep when a run ends.
const STOP_SPINNING: &str = "session.force_spinning_stop";
/// The run option that lists the arenas to shrink when the run ends.
const SHRINK: &str = "memory.enable_memory_arena_shrinkage";

/// Options for a run after which the session returns its unused memory.
///
/// After a failed allocation, an arena requests at least that size whenever it grows, and takes as
/// much as it gets, up to its limit. Only shrinking resets this.
///
/// # Errors
/// ONNX Runtime's own, when the options cannot be created.
pub fn shrinking(place: ExecutionDevice) -> ort::Result<RunOptions<NoSelectedOutputs>> {
    let arena = match place {
        ExecutionDevice::Host => "cpu:0".to_owned(),
        ExecutionDevice::Cuda(gpu) => format!("cpu:0;gpu:{gpu}"),
    };
    let mut options = RunOptions::new()?;
    options.set(SHRINK, arena)?;
    options.set(GRAPH, NO_GRAPH)?;
    Ok(options)
}

/// Whether a message of ONNX Runtime reports a failed allocation.
pub fn lacks_memory(message: &str) -> bool {
    let signs = [
        "allocate memory",
        "bad_alloc",
        "out of memory",
        "is smaller than requested bytes",
    ];
    signs.iter().any(|sign| message.contains(sign))
}

/// Builds a session for the model at `path` on the configured device, and returns the session and
/// its device.
///
/// # Errors
/// `InvalidInput` when the model cannot be loaded, or when CUDA is configured but not available.
/// `Internal` when the session cannot be set up.
pub fn build_placed(
    runtime: &Runtime,
    path: &Path,
    config: &OnnxConfig,
) -> Result<(Session, ExecutionDevice), PredictError> {
    graph::outline(path)?;
    let gpu = ExecutionDevice::Cuda(config.gpu);
    match config.device {
        Device::Cpu => Ok((
            commit(cpu(runtime, config, path)?, path)?,
            ExecutionDevice::Host,
        )),
        Device::Cuda => Ok((commit(cuda(runtime, config, path)?, path)?, gpu)),
        Device::Auto => match cuda(runtime, config, path) {
            Ok(builder) => {
                tracing::info!(device = "cuda", gpu = config.gpu, "session device chosen");
                Ok((commit(builder, path)?, gpu))
            }
            Err(error) => {
                tracing::info!(
                    device = "cpu",
                    reason = error.chain(),
                    "session device chosen"
                );
                Ok((
                    commit(cpu(runtime, config, path)?, path)?,
                    ExecutionDevice::Host,
                ))
            }
        },
    }
}

/// Builds a CPU session from `model`, a modified graph of the model at `path` with the same
/// external weights.
///
/// # Errors
/// As [`build_placed`].
pub fn build_in_memory(
    runtime: &Runtime,
    model: &[u8],
    path: &Path,
    config: &OnnxConfig,
) -> Result<Session, PredictError> {
    graph::outline(path)?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let builder = cpu(runtime, config, path)?;
    let mut builder = builder
        .with_config_entry(WEIGHTS, directory.to_string_lossy())
        .map_err(|error| {
            PredictError::internal("a session could not be set up", error.to_string())
        })?;
    let _load = memory_watch::load(session_bytes(path));
    let built = builder.commit_from_memory(model);
    built.map_err(|error| refusal_of(&error, path))
}

/// The device of sessions that are built with `config`.
///
/// # Errors
/// `InvalidInput` when CUDA is configured but not available.
pub fn place(runtime: &Runtime, config: &OnnxConfig) -> Result<ExecutionDevice, PredictError> {
    let gpu = || cuda(runtime, config, Path::new("")).map(|_| ExecutionDevice::Cuda(config.gpu));
    match config.device {
        Device::Cpu => Ok(ExecutionDevice::Host),
        Device::Cuda => gpu(),
        Device::Auto => Ok(gpu().unwrap_or(ExecutionDevice::Host)),
    }
}

fn commit(mut builder: SessionBuilder, path: &Path) -> Result<Session, PredictError> {
    let _load = memory_watch::load(session_bytes(path));
    let built = builder.commit_from_file(path);
    built.map_err(|error| refusal_of(&error, path))
}

fn refusal_of(error: &ort::Error, path: &Path) -> PredictError {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let what = refusal(error.code(), error.message());
    PredictError::invalid(format!(
        "'{name}' could not be loaded: {what}; the worker's log has the details"
    ))
    .with_source(error.to_string())
}

/// `InvalidInput` for a model that loads and then fails its first run with `error`.
pub fn cannot_run(error: PredictError) -> PredictError {
    PredictError::invalid("the model loads, but cannot run; the worker's log has the details")
        .with_source(error)
}

/// The reason for which ONNX Runtime rejected a model.
fn refusal(code: OrtCode, message: &str) -> String {
    if let Some(operator) = unknown_operator(message) {
        return format!(
            "it needs the operator {operator}, which this ONNX Runtime does not have; custom \
             operator libraries are not loaded"
        );
    }
    if let Some(locale) = missing_locale(message) {
        return format!(
            "its text operators need the locale '{locale}', which this worker's machine does not \
             have (ONNX Runtime's default for an operator without one is 'en_US.UTF-8'); install it \
             there (Debian: the package 'locales-all', or 'locales' and 'locale-gen'), or export \
             the operators with locale = 'C', which every machine has and which changes the case \
             of ASCII letters only"
        );
    }
    if message.contains("escapes model directory") {
        return "its weights are not in its own directory: a link points outside".to_owned();
    }
    if message.contains("No graph was found") {
        return "it is not an ONNX model, or is incomplete".to_owned();
    }
    let what = match code {
        OrtCode::NoSuchFile | OrtCode::NoModel => "a file of the model is missing",
        OrtCode::InvalidProtobuf => "it is not an ONNX model",
        OrtCode::NotImplemented => "it needs an operator that this ONNX Runtime does not have",
        OrtCode::InvalidGraph => "its graph is not valid for this ONNX Runtime",
        _ => "ONNX Runtime rejected it",
    };
    what.to_owned()
}

/// The operator that a message reports as unknown: `… domain:Name(-1) is not a registered
/// function/op`.
fn unknown_operator(message: &str) -> Option<&str> {
    let (before, _) = message.split_once(" is not a registered function/op")?;
    let (_, last) = before.rsplit_once(' ')?;
    let (name, _) = last.split_once('(')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    ((1..=128).contains(&name.len()) && name.chars().all(plain)).then_some(name)
}

/// The locale that a message reports as missing: `Failed to construct locale with name:en_US:…`.
fn missing_locale(message: &str) -> Option<&str> {
    let (_, after) = message.split_once("Failed to construct locale with name:")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '@');
    let end = after.find(|c| !plain(c)).unwrap_or(after.len());
    Some(&after[..end]).filter(|name| (1..=64).contains(&name.len()))
}

/// Number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Threads for the model at `path`. If the configuration leaves this open, at most the number of
/// cores per session.
fn threads(config: &OnnxConfig, path: &Path) -> usize {
    match config.threads {
        0 => threads_of(
            weight_bytes(path),
            cores().div_ceil(config.instances.max(1)),
        ),
        threads => threads,
    }
}

/// Threads for a model with `bytes` bytes of weights: one for each started 32 MiB, at most `cores`.
/// Waking a thread for each operator of a small model costs more than it gains.
pub fn threads_of(bytes: u64, cores: usize) -> usize {
    usize::try_from(bytes.div_ceil(THREAD_BYTES))
        .unwrap_or(cores)
        .clamp(1, cores.max(1))
}

/// Maximum bytes of a session for the graph at `path`: 16-bit weights are kept in 32 bits too.
fn session_bytes(path: &Path) -> u64 {
    weight_bytes(path).saturating_mul(3)
}

/// Bytes of a graph and of the files beside it that start with its name (`model.onnx`,
/// `model.onnx.data`, `model.onnx_data`).
fn weight_bytes(path: &Path) -> u64 {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else {
        return 0;
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let file = entry.file_name();
        file.to_string_lossy().starts_with(&*name.to_string_lossy())
    });
    named
        .filter_map(|entry| Some(entry.metadata().ok()?.len()))
        .sum()
}

fn cpu(
    runtime: &Runtime,
    config: &OnnxConfig,
    path: &Path,
) -> Result<SessionBuilder, PredictError> {
    let build = || {
        let builder = Session::builder(&runtime.0).map_err(|error| error.to_string())?;
        let builder = builder
            .with_intra_threads(threads(config, path))
            .map_err(|error| error.to_string())?;
        let builder = builder
            .with_intra_op_spinning(true)
            .map_err(|error| error.to_string())?;
        let builder = builder
            .with_config_entry(SPIN_US, SPIN_FOR_US)
            .map_err(|error| error.to_string())?;
        let builder = builder
            .with_config_entry(STOP_SPINNING, "1")
            .map_err(|error| error.to_string())?;
        let builder = match config.memory_limit {
            None => builder,
            Some(bytes) => {
                arena::limit(&runtime.0, bytes).map_err(|error| error.chain())?;
                memory_watch::limit(bytes);
                builder
                    .with_env_allocators()
                    .map_err(|error| error.to_string())?
                    // Weights are freed with their session.
                    .with_config_entry(WEIGHTS_APART, "1")
                    .map_err(|error| error.to_string())?
            }
        };
        // ONNX Runtime keeps a memory pattern for every shape that ever ran, without limit.
        // Patterns bring no measurable gain.
        builder
            .with_memory_pattern(false)
            .map_err(|error| error.to_string())
    };
    build().map_err(|error| PredictError::internal("a session could not be set up", error))
}

fn cuda(
    runtime: &Runtime,
    config: &OnnxConfig,
    path: &Path,
) -> Result<SessionBuilder, PredictError> {
    let builder = cpu(runtime, config, path)?;
    // Without `error_on_failure`, a library without CUDA silently falls back to the CPU.
    let provider = ep::CUDA::default()
        .with_device_id(config.gpu)
        .with_cuda_graph(config.cuda_graphs);
    let provider = provider.build().error_on_failure();
    builder
        .with_execution_providers([provider])
        .map_err(|error| {
            PredictError::invalid(
                "CUDA is not available on this worker: ONNX Runtime with CUDA, its CUDA libraries \
                 and a driver are needed; 'onnx.device = \"cpu\"' does not need them",
            )
            .with_source(error.to_string())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_model_is_told_without_paths() {
        let told = |message: &str| refusal(OrtCode::GenericFailure, message);
        let operator = "Load model from /models/a.onnx failed:Fatal error: \
                        my.domain:Frobnicate(-1) is not a registered function/op";
        assert!(told(operator).contains("the operator my.domain:Frobnicate,"));
        let link = "Error: External data path escapes model directory. \
                    External data path: \"w.bin\" resolved path: \"/etc/w.bin\"";
        assert!(told(link).contains("a link points outside"));
        let locale = "Exception during initialization: string_normalizer.cc:85 Locale] Failed to \
                      construct locale with name:en_US:locale::facet::_S_create_c_locale name not \
                      valid:Please, install necessary language-pack-en and configure locales";
        assert!(
            told(locale).contains("the locale 'en_US'"),
            "{}",
            told(locale)
        );
        assert!(told(locale).contains("with locale = 'C'"));
        assert!(!told(locale).contains("without a locale"));
        let odd = "failed: a/b(1) is not a registered function/op";
        for message in [
            operator,
            link,
            odd,
            "No graph was found in the protobuf.",
            "",
        ] {
            assert!(!told(message).contains('/'), "{message}");
        }
    }
}
