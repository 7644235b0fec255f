//! Directories of models, and what the models leave behind in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use volley_backend::{Backend, BackendLoader};
use volley_backend_python::{INFO, PythonConfig, PythonLoader};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, ModelSource, ModelVersionSpec};
use volley_types::{ModelName, ModelVersion, ParamValue, PredictError};

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until `found` gives a value, for [`PATIENCE`] at most.
pub async fn until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(value) = found().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let value = tokio::time::timeout(PATIENCE, asked).await;
    value.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// A directory with a model and what its code leaves behind.
pub struct Files(TempDir);

impl Files {
    /// A directory with this `model.py`.
    pub fn new(source: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("model.py"), source).unwrap();
        Self(directory)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Waits until the model's code has written a file of that name; gives its text.
    pub async fn written(&self, name: &str) -> String {
        let file: PathBuf = self.path().join(name);
        until("the model's code writes a file", async || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            (!text.is_empty()).then_some(text)
        })
        .await
    }

    /// Loads the model.
    pub async fn load(
        &self,
        parameters: &[(&str, ParamValue)],
    ) -> Result<Arc<dyn Backend>, PredictError> {
        let config = PythonConfig {
            enabled: true,
            environments: self.path().join("environments"),
            ..PythonConfig::default()
        };
        let loader = PythonLoader::new(config, Metrics::new());
        loader.load(&self.assignment(parameters)).await
    }

    /// The assignment of the model to a worker.
    pub fn assignment(&self, parameters: &[(&str, ParamValue)]) -> Assignment {
        let parameters = parameters.iter();
        let parameters = parameters.map(|(name, value)| ((*name).to_owned(), value.clone()));
        Assignment {
            model: ModelName::new("m").unwrap(),
            spec: ModelVersionSpec {
                version: ModelVersion(1),
                backend: INFO.name,
                source: ModelSource::Path(self.path().to_string_lossy().into_owned()),
                parameters: parameters.collect(),
                description: String::new(),
                created_ms: 0,
            },
            connector: None,
        }
    }
}
