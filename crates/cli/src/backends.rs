//! The kinds of models that a worker of this binary can run.

use std::path::Path;
use std::sync::Arc;

use volley_artifacts::{ArtifactConfig, Artifacts, FetchingLoader};
use volley_backend::BackendLoader;
use volley_backend::fake::FakeLoader;
use volley_backend::text::TextLoader;
use volley_backend_onnx::{OnnxConfig, OnnxLoader, Runtime};
use volley_backend_remote::{RemoteConfig, RemoteLoader};
use volley_telemetry::Metrics;
use volley_types::PredictError;

/// All loaders. Without ONNX Runtime's library the worker still serves everything else: ONNX
/// models then fail to load, and the reason says what to do.
///
/// # Errors
/// When the HTTP client of remote models cannot be set up, or `artifacts` is wrong.
pub(crate) fn loaders(
    library: Option<&Path>,
    onnx: OnnxConfig,
    remote: RemoteConfig,
    artifacts: ArtifactConfig,
    metrics: Metrics,
) -> Result<Vec<Arc<dyn BackendLoader>>, PredictError> {
    let runtime = Runtime::locate(library).and_then(|library| Runtime::init(&library));
    if let Err(error) = &runtime {
        tracing::warn!(error = error.chain(), "ONNX models cannot be loaded");
    }
    let onnx = Arc::new(OnnxLoader::new(runtime, onnx));
    let artifacts = Artifacts::new(artifacts, metrics.clone())?;
    Ok(vec![
        Arc::new(FetchingLoader::new(onnx, artifacts)),
        Arc::new(RemoteLoader::new(remote)?.counted_by(metrics)),
        Arc::new(TextLoader),
        Arc::new(FakeLoader::default()),
    ])
}
