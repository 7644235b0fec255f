//! Loads model directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use volley_backend::{Backend, BackendLoader};
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendKind, ModelSource};

use crate::{OnnxConfig, Runtime, generate, tensors};

/// Loads ONNX models: a directory with `genai_config.json` is a generation model, one with
/// `model.onnx` alone a tensor model.
#[derive(Debug)]
pub struct OnnxLoader {
    runtime: Result<Runtime, PredictError>,
    config: OnnxConfig,
}

impl OnnxLoader {
    /// A loader on `runtime`. Where that is an error, every load fails with it.
    #[must_use]
    pub fn new(runtime: Result<Runtime, PredictError>, config: OnnxConfig) -> Self {
        Self { runtime, config }
    }
}

#[async_trait]
impl BackendLoader for OnnxLoader {
    fn kind(&self) -> BackendKind {
        BackendKind::Onnx
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let runtime = self.runtime.clone()?;
        let config = self.config;
        let ModelSource::Path(path) = &assignment.spec.source else {
            return Err(PredictError::invalid(
                "an ONNX model needs the path of its directory",
            ));
        };
        let directory = PathBuf::from(path);
        let assignment = assignment.clone();
        let work = move || load(&runtime, &directory, &assignment, config);
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| PredictError::internal("loading the model failed", error))?
    }
}

fn load(
    runtime: &Runtime,
    directory: &Path,
    assignment: &Assignment,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    if !directory.is_dir() {
        return Err(PredictError::invalid(
            "the model's directory does not exist on this worker; every worker that may hold the \
             model needs it at the same path",
        ));
    }
    let model = assignment.model.clone();
    let defaults = assignment.spec.parameters.clone();
    if directory.join("genai_config.json").is_file() {
        generate::load(runtime, directory, model, defaults, config)
    } else if directory.join("model.onnx").is_file() {
        tensors::load(runtime, directory, model, config)
    } else {
        Err(PredictError::invalid(
            "the model's directory has no model.onnx",
        ))
    }
}
