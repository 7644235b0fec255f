//! Building sessions.

use std::path::Path;

use ort::ep;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use volley_types::PredictError;

use crate::{Device, OnnxConfig, Runtime};

/// A session over the model at `path`, on the device that the configuration asks for.
///
/// # Errors
/// `InvalidInput` when the model cannot be loaded, or CUDA is asked for and not there.
pub(crate) fn build(
    runtime: &Runtime,
    path: &Path,
    config: &OnnxConfig,
) -> Result<Session, PredictError> {
    match config.device {
        Device::Cpu => commit(cpu(runtime, config)?, path),
        Device::Cuda => commit(cuda(runtime, config)?, path),
        Device::Auto => match cuda(runtime, config) {
            Ok(builder) => {
                tracing::info!(device = "cuda", "session device chosen");
                commit(builder, path)
            }
            Err(error) => {
                tracing::info!(
                    device = "cpu",
                    reason = error.chain(),
                    "session device chosen"
                );
                commit(cpu(runtime, config)?, path)
            }
        },
    }
}

fn commit(mut builder: SessionBuilder, path: &Path) -> Result<Session, PredictError> {
    builder.commit_from_file(path).map_err(|error| {
        PredictError::invalid("the ONNX model could not be loaded; see the worker's log")
            .with_source(error.to_string())
    })
}

fn cpu(runtime: &Runtime, config: &OnnxConfig) -> Result<SessionBuilder, PredictError> {
    let build = || {
        let builder = Session::builder(&runtime.0).map_err(|error| error.to_string())?;
        let builder = builder
            .with_intra_threads(config.threads.max(1))
            .map_err(|error| error.to_string())?;
        // Spinning threads burn whole cores between runs and gain nothing measurable.
        builder
            .with_intra_op_spinning(false)
            .map_err(|error| error.to_string())
    };
    build().map_err(|error| PredictError::internal("a session could not be set up", error))
}

fn cuda(runtime: &Runtime, config: &OnnxConfig) -> Result<SessionBuilder, PredictError> {
    let builder = cpu(runtime, config)?;
    // Without this, a library that lacks CUDA falls back to the CPU in silence.
    let provider = ep::CUDA::default().build().error_on_failure();
    builder
        .with_execution_providers([provider])
        .map_err(|error| {
            PredictError::invalid("CUDA is not available on this worker")
                .with_source(error.to_string())
        })
}
