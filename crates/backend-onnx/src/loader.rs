//! Loads model directories.

use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use volley_backend::{Backend, BackendLoader};
use volley_types::registry::{Assignment, BackendName, ModelSource};
use volley_types::{Parameters, PredictError};

use crate::served;
use crate::served::LoadedVersion;
use volley_model_directory::layout;
use volley_model_directory::layout::Layout;
use volley_model_directory::overrides::{ModelKind, Overrides, VARIANT};
use volley_model_directory::registered::RegisteredConfig;
use volley_model_directory::triton::TritonConfig;
use volley_onnx_runtime::graph::GraphSummary;
use volley_onnx_runtime::session;
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::{Device, OnnxConfig, Runtime, graph};

/// Loads ONNX models of all layouts.
#[derive(Debug)]
pub struct OnnxLoader {
    runtime: Result<Runtime, PredictError>,
    config: OnnxConfig,
    models_dir: Option<PathBuf>,
    loads: AtomicU16,
    /// The device that `auto` resolved to, after the first resolution.
    settled: Arc<OnceLock<Device>>,
}

impl OnnxLoader {
    /// Creates a loader. If `runtime` is an error, every load fails with it.
    #[must_use]
    pub fn new(runtime: Result<Runtime, PredictError>, config: OnnxConfig) -> Self {
        Self {
            runtime,
            config,
            models_dir: None,
            loads: AtomicU16::new(0),
            settled: Arc::default(),
        }
    }

    /// Sets the directory for relative model paths. Without it, only absolute paths are accepted,
    /// because workers have different working directories.
    #[must_use]
    pub fn with_models_dir(mut self, directory: PathBuf) -> Self {
        self.models_dir = Some(directory);
        self
    }
}

#[async_trait]
impl BackendLoader for OnnxLoader {
    fn name(&self) -> BackendName {
        BackendName::ONNX
    }

    fn stops_when_dropped(&self, _: &Assignment) -> bool {
        false
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        let directory = self.directory(assignment)?;
        let parameters = assignment.spec.parameters.clone();
        let (runtime, settled, config) = (self.runtime.clone(), self.settled.clone(), self.config);
        on_thread(move || {
            let config = match &runtime {
                Ok(runtime) => resolve_device_once(&settled, runtime, config),
                Err(_) => config,
            };
            estimate(&directory, &parameters, &config)
        })
        .await
    }

    async fn needs_process(&self, assignment: &Assignment) -> Result<bool, PredictError> {
        let directory = self.directory(assignment)?;
        let (parameters, config) = (assignment.spec.parameters.clone(), self.config);
        on_thread(move || {
            let variant = parameters.text(VARIANT);
            let registered = RegisteredConfig::read(&parameters)?;
            let all = ModelDirectory::all(&directory, &registered, config, variant.as_deref())?;
            for (_, found) in all {
                // Graphs of other kinds only get tokens as inputs, so a request can choose neither
                // divisors nor sizes.
                if let Layout::Graph(graph) = &found.layout
                    && needs_process(&graph::outline(&found.directory.join(graph))?)
                {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let runtime = self.runtime.clone()?;
        let mut config = self.config;
        // Models are distributed over the GPUs in turn.
        let turn = self.loads.fetch_add(1, Ordering::Relaxed) % config.gpus.max(1);
        config.gpu += i32::from(turn);
        let directory = self.directory(assignment)?;
        let (assignment, settled) = (assignment.clone(), self.settled.clone());
        on_thread(move || {
            let config = resolve_device_once(&settled, &runtime, config);
            load(&runtime, &directory, &assignment, config)
        })
        .await
    }
}

impl OnnxLoader {
    fn directory(&self, assignment: &Assignment) -> Result<PathBuf, PredictError> {
        let ModelSource::Path(path) = &assignment.spec.source else {
            return Err(PredictError::invalid(
                "an ONNX model needs the path of its directory",
            ));
        };
        resolve(self.models_dir.as_deref(), Path::new(path))
    }
}

/// Resolves `auto` for this machine: `cuda` if a session can use it. Blocks.
#[must_use]
pub fn resolve_device(runtime: &Runtime, config: OnnxConfig) -> OnnxConfig {
    let there = config.device == Device::Auto
        && matches!(
            session::place(runtime, &config),
            Ok(ExecutionDevice::Cuda(_))
        );
    if there {
        tracing::info!(device = "cuda", gpu = config.gpu, "session device chosen");
    }
    let device = if there { Device::Cuda } else { config.device };
    OnnxConfig { device, ..config }
}

/// As [`resolve_device`], but queries the machine only once. Blocks.
fn resolve_device_once(
    settled: &OnceLock<Device>,
    runtime: &Runtime,
    config: OnnxConfig,
) -> OnnxConfig {
    let device = *settled.get_or_init(|| resolve_device(runtime, config).device);
    OnnxConfig { device, ..config }
}

/// Whether a run on a caller's tensors could end the process that runs it, or exceed its memory.
fn needs_process(graph: &GraphSummary) -> bool {
    graph.divides || graph.grows_heap
}

/// Runs `work` on a separate thread. Nothing can stop ONNX Runtime during a load, and a tokio
/// runtime that shuts down would wait forever for its own blocking threads.
///
/// Dropping the future does not stop the thread; its result is discarded.
async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PredictError> + Send + 'static,
) -> Result<T, PredictError> {
    let runtime = tokio::runtime::Handle::current();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("onnx-load".to_owned());
    let work = move || {
        let _entered = runtime.enter();
        // The caller may have stopped waiting.
        let _ = sender.send(work());
    };
    thread
        .spawn(work)
        .map_err(|error| PredictError::internal("loading the model failed", error))?;
    receiver
        .await
        .map_err(|error| PredictError::internal("loading the model failed", error))?
}

/// Resolves a model's `path` to a directory.
fn resolve(models_dir: Option<&Path>, path: &Path) -> Result<PathBuf, PredictError> {
    if path.is_absolute() {
        return Ok(path.to_path_buf());
    }
    let models_dir = models_dir.ok_or_else(|| {
        PredictError::invalid(
            "the model's path is relative; give the absolute path of its directory",
        )
    })?;
    let stays = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.components().all(stays) {
        Ok(models_dir.join(path))
    } else {
        Err(PredictError::invalid(
            "the model's path is relative, and leaves the directory of models",
        ))
    }
}

fn there(directory: &Path) -> Result<(), PredictError> {
    if directory.exists() {
        return Ok(());
    }
    Err(PredictError::invalid(
        "the model's directory does not exist on this worker; every worker that may hold the \
         model needs it at the same path",
    ))
}

fn estimate(
    directory: &Path,
    parameters: &Parameters,
    config: &OnnxConfig,
) -> Result<u64, PredictError> {
    let variant = parameters.text(VARIANT);
    let registered = RegisteredConfig::read(parameters)?;
    let all = ModelDirectory::all(directory, &registered, *config, variant.as_deref())?;
    let sizes = all.iter().map(|(_, found)| estimate_one(found));
    sizes.sum()
}

fn estimate_one(found: &ModelDirectory) -> Result<u64, PredictError> {
    let (directory, variant) = (&found.directory, found.variant.as_deref());
    let graph = match &found.layout {
        Layout::Decoder => {
            return volley_onnx_generate::estimate(directory, variant, &found.config);
        }
        Layout::Encoder => {
            let graph = layout::graph(directory, variant)?;
            let outline = graph::outline(&directory.join(graph))?;
            return Ok(volley_onnx_text::estimate(&found.config, &outline));
        }
        Layout::Graph(graph) => graph,
    };
    let outline = graph::outline(&directory.join(graph))?;
    Ok(found.config.weights(&outline))
}

fn load(
    runtime: &Runtime,
    directory: &Path,
    assignment: &Assignment,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let registered = RegisteredConfig::read(&assignment.spec.parameters)?;
    let variant = assignment.spec.parameters.text(VARIANT);
    let all = ModelDirectory::all(directory, &registered, config, variant.as_deref())?;
    let mut versions = Vec::with_capacity(all.len());
    for (name, found) in all {
        let loaded = load_one(runtime, assignment, &registered, found)?;
        versions.push((name, loaded));
    }
    served::versions(versions)
}

fn load_one(
    runtime: &Runtime,
    assignment: &Assignment,
    registered: &RegisteredConfig,
    found: ModelDirectory,
) -> Result<LoadedVersion, PredictError> {
    let model = assignment.model.clone();
    let defaults = assignment.spec.parameters.clone();
    let defaults = defaults.or_defaults(&found.own.parameters());
    let (directory, mut config) = (found.directory, found.config);
    // Models of other kinds run with many different shapes.
    config.cuda_graphs &= found.layout == Layout::Decoder;
    if found.layout == Layout::Decoder {
        // All slots decode together in one session.
        config.instances = 1;
    }
    match found.layout {
        Layout::Decoder => volley_onnx_generate::load(runtime, &directory, model, defaults, config),
        Layout::Encoder => {
            volley_onnx_text::load(runtime, &directory, model, &defaults, registered, config)
        }
        Layout::Graph(graph) => {
            let declared = found.declared.as_ref();
            let graph = directory.join(graph);
            volley_onnx_tensors::load(runtime, &graph, model, declared, &found.own, config)
        }
    }
}

/// A recognized path with its effective settings.
pub(crate) struct ModelDirectory {
    pub(crate) directory: PathBuf,
    pub(crate) layout: Layout,
    pub(crate) own: Overrides,
    pub(crate) config: OnnxConfig,
    pub(crate) variant: Option<String>,
    /// The Triton configuration, if there is one.
    pub(crate) declared: Option<TritonConfig>,
}

impl ModelDirectory {
    /// Recognizes a directory, or a single graph without a `model.toml`.
    ///
    /// # Errors
    /// `InvalidInput` when the layout is unknown, a file is malformed, or the path does not exist.
    pub(crate) fn new(
        path: &Path,
        registered: &RegisteredConfig,
        config: OnnxConfig,
        variant: Option<&str>,
    ) -> Result<Self, PredictError> {
        let declared = registered.declared(path)?;
        there(path)?;
        let (directory, layout) = layout::recognise(path, registered, declared.as_ref())?;
        Self::with(path, directory, layout, declared, config, variant)
    }

    /// Recognizes each served version, with the default version last, and the names from the files.
    /// A model without versions has one entry, usually without a name. For models other than
    /// graphs, only the last version is returned.
    ///
    /// # Errors
    /// As [`ModelDirectory::new`].
    pub(crate) fn all(
        path: &Path,
        registered: &RegisteredConfig,
        config: OnnxConfig,
        variant: Option<&str>,
    ) -> Result<Vec<(Option<String>, Self)>, PredictError> {
        there(path)?;
        let declared = registered.declared(path)?;
        let mut versions = layout::versions(path, declared.as_ref())?;
        let last = Self::new(path, registered, config, variant)?;
        let Some(newest) = versions.pop() else {
            return Ok(vec![(served::own_version(path), last)]);
        };
        let mut all = Vec::with_capacity(versions.len() + 1);
        for version in versions {
            let layout = layout::within(&version.directory, registered, declared.as_ref())?;
            if layout.kind() == ModelKind::Graph && last.layout.kind() == ModelKind::Graph {
                let directory = version.directory;
                let declared = declared.clone();
                let found = Self::with(path, directory, layout, declared, config, variant)?;
                all.push((Some(version.name), found));
            }
        }
        all.push((Some(newest.name), last));
        Ok(all)
    }

    fn with(
        path: &Path,
        directory: PathBuf,
        mut layout: Layout,
        declared: Option<TritonConfig>,
        config: OnnxConfig,
        variant: Option<&str>,
    ) -> Result<Self, PredictError> {
        let own = if path.is_file() {
            Overrides::default()
        } else {
            Overrides::read(&directory, layout.kind())?
        };
        let config = declared.iter().fold(config, |config, it| it.apply(config));
        let config = own.apply(config)?;
        let mut variant = variant.map(str::to_owned).or_else(|| own.variant.clone());
        if variant.is_none() && config.device == Device::Cuda && !path.is_file() {
            variant = layout::gpu_variant(&directory, layout.kind());
        }
        if let (Layout::Graph(graph), Some(variant), false) =
            (&mut layout, &variant, path.is_file())
        {
            *graph = layout::graph(&directory, Some(variant))?;
        }
        Ok(Self {
            config,
            directory,
            layout,
            own,
            variant,
            declared,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_from_the_directory_of_models_and_stay_in_it() {
        let models = Path::new("/models");
        let resolve = |path| resolve(Some(models), Path::new(path));
        assert_eq!(resolve("/else/m").unwrap(), Path::new("/else/m"));
        assert_eq!(resolve("team/m").unwrap(), Path::new("/models/team/m"));
        assert!(resolve("../m").is_err());
        assert!(super::resolve(None, Path::new("m")).is_err());
    }

    /// The graph that is chosen among the existing ones, on each device.
    #[test]
    fn each_device_has_its_variant_unless_one_is_named() {
        let all = ["", "_fp16", "_q4f16", "_int8", "_q4"];
        for (there, cpu, gpu) in [
            (&all[..], "", "_fp16"),
            (&["", "_q4f16", "_q4"], "", "_q4f16"),
            (&["", "_int8", "_q4"], "", ""),
            (&["_fp16", "_int8", "_q4"], "_int8", "_fp16"),
            (&["_fp16", "_q4", "_q4f16"], "_q4", "_fp16"),
            (&["_fp16", "_q4f16"], "_fp16", "_fp16"),
            (&["_q4"], "_q4", "_q4"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for variant in there {
                std::fs::write(folder.path().join(format!("model{variant}.onnx")), "").unwrap();
            }
            let taken = |device, variant| {
                let config = OnnxConfig {
                    device,
                    ..OnnxConfig::default()
                };
                let found = ModelDirectory::new(
                    folder.path(),
                    &RegisteredConfig::default(),
                    config,
                    variant,
                );
                match found.unwrap().layout {
                    Layout::Graph(graph) => graph,
                    layout => panic!("{layout:?}"),
                }
            };
            let named = |variant: &str| PathBuf::from(format!("model{variant}.onnx"));
            assert_eq!(taken(Device::Cpu, None), named(cpu), "{there:?}");
            // An `auto` that was not resolved to a GPU means the CPU.
            assert_eq!(taken(Device::Auto, None), named(cpu), "{there:?}");
            assert_eq!(taken(Device::Cuda, None), named(gpu), "{there:?}");
            let last = there.last().unwrap();
            let asked = last.trim_start_matches('_');
            assert_eq!(taken(Device::Cuda, Some(asked)), named(last), "{there:?}");
        }
    }
}
