//! Building sessions.

use std::path::Path;

use ort::ErrorCode as OrtCode;
use ort::ep;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use volley_types::PredictError;

use crate::{Device, OnnxConfig, Runtime, graph};

/// A session over the model at `path`, on the device that the configuration asks for.
///
/// # Errors
/// `InvalidInput` when the model cannot be loaded, or CUDA is asked for and not there.
pub(crate) fn build(
    runtime: &Runtime,
    path: &Path,
    config: &OnnxConfig,
) -> Result<Session, PredictError> {
    graph::outline(path)?;
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
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let what = refusal(error.code());
        PredictError::invalid(format!(
            "'{name}' could not be loaded: {what}; the worker's log has the details"
        ))
        .with_source(error.to_string())
    })
}

/// What ONNX Runtime has against a model.
fn refusal(code: OrtCode) -> &'static str {
    match code {
        OrtCode::NoSuchFile | OrtCode::NoModel => "a file of the model is missing",
        OrtCode::InvalidProtobuf => "it is no ONNX model",
        OrtCode::NotImplemented => "it needs an operator that this ONNX Runtime does not have",
        OrtCode::InvalidGraph => "its graph is not valid for this ONNX Runtime",
        _ => "ONNX Runtime does not take it",
    }
}

fn cpu(runtime: &Runtime, config: &OnnxConfig) -> Result<SessionBuilder, PredictError> {
    let build = || {
        let builder = Session::builder(&runtime.0).map_err(|error| error.to_string())?;
        let builder = builder
            .with_intra_threads(config.threads.max(1))
            .map_err(|error| error.to_string())?;
        // Spinning threads burn whole cores between runs and gain nothing measurable.
        let builder = builder
            .with_intra_op_spinning(false)
            .map_err(|error| error.to_string())?;
        // A pattern is kept for every shape that ever ran, without limit, and gains nothing
        // measurable.
        builder
            .with_memory_pattern(false)
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
            PredictError::invalid(
                "CUDA is not available on this worker: ONNX Runtime with CUDA, its CUDA libraries \
                 and a driver are needed; 'onnx.device = \"cpu\"' does without",
            )
            .with_source(error.to_string())
        })
}
