//! Loads models like a worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::{ModelName, ModelVersion, Parameters, PredictError};

pub(crate) fn runtime() -> Runtime {
    let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
    Runtime::init(&library).unwrap()
}

pub(crate) fn config() -> OnnxConfig {
    OnnxConfig {
        device: device(),
        slots: 4,
        // Has no effect on a CPU.
        cuda_graphs: std::env::var_os("VOLLEY_TEST_CUDA_GRAPHS").is_some(),
        ..OnnxConfig::default()
    }
}

/// The CPU, unless `VOLLEY_TEST_DEVICE` is set.
fn device() -> Device {
    match std::env::var("VOLLEY_TEST_DEVICE") {
        Ok(name) => Device::from_name(&name).expect("VOLLEY_TEST_DEVICE is auto, cpu or cuda"),
        Err(_) => Device::Cpu,
    }
}

pub(crate) fn model_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models")
        .join(name)
}

pub(crate) fn test_model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/models")
        .join(name)
}

pub(crate) async fn load(directory: &Path) -> Result<Arc<dyn Backend>, PredictError> {
    load_with(directory, config()).await
}

pub(crate) async fn load_with(
    directory: &Path,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    load_as(directory, config, Parameters::default()).await
}

/// Loads a model with parameters of its version.
pub(crate) async fn load_as(
    directory: &Path,
    config: OnnxConfig,
    parameters: Parameters,
) -> Result<Arc<dyn Backend>, PredictError> {
    OnnxLoader::new(Ok(runtime()), config)
        .load(&assignment(directory, parameters))
        .await
}

/// The assignment of a model version in `directory`.
pub(crate) fn assignment(directory: &Path, parameters: Parameters) -> Assignment {
    Assignment {
        model: ModelName::new(directory.file_name().unwrap().to_string_lossy()).unwrap(),
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::ONNX,
            source: ModelSource::Path(directory.to_string_lossy().into_owned()),
            parameters,
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    }
}
