//! Models in directories of their own, loaded with real processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::StreamExt;
use tempfile::TempDir;
use volley_backend::{Backend, BackendLoader};
use volley_backend_python::{INFO, KeeperProgram, PythonConfig, PythonLoader};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, ModelSource, ModelVersionSpec};
use volley_types::{
    GenerationRow, Input, ModelName, ModelRef, ModelVersion, ParamValue, PredictError,
    PredictRequest,
};

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until `found` gives a value, for [`PATIENCE`] at most.
pub(crate) async fn until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
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

/// The keeper of this crate, which does what `volley python-host` does.
pub(crate) fn keeper() -> KeeperProgram {
    KeeperProgram {
        path: PathBuf::from(env!("CARGO_BIN_EXE_volley-python-host")),
        arguments: Vec::new(),
    }
}

/// A directory with a model and what its code leaves behind.
pub(crate) struct Files {
    model: TempDir,
    environments: TempDir,
}

impl Files {
    pub(crate) fn new(source: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("model.py"), source).unwrap();
        Self {
            model: directory,
            environments: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.model.path()
    }

    /// Waits until the model's code has written a file of that name; gives its text.
    pub(crate) async fn written(&self, name: &str) -> String {
        let file: PathBuf = self.path().join(name);
        until("the model's code writes a file", async || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            (!text.is_empty()).then_some(text)
        })
        .await
    }

    pub(crate) async fn load(
        &self,
        parameters: &[(&str, ParamValue)],
    ) -> Result<Arc<dyn Backend>, PredictError> {
        self.load_with(parameters, |_| ()).await
    }

    /// Loads the model on a worker whose configuration `change` has changed.
    #[allow(dead_code, reason = "not every test changes it")]
    pub(crate) async fn load_with(
        &self,
        parameters: &[(&str, ParamValue)],
        change: impl FnOnce(&mut PythonConfig),
    ) -> Result<Arc<dyn Backend>, PredictError> {
        let mut config = PythonConfig {
            enabled: true,
            environments: self.environments.path().join("python"),
            keeper: keeper(),
            ..PythonConfig::default()
        };
        change(&mut config);
        let loader = PythonLoader::new(config, Metrics::new());
        loader.load(&self.assignment(parameters)).await
    }

    pub(crate) fn assignment(&self, parameters: &[(&str, ParamValue)]) -> Assignment {
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

pub(crate) fn prompt(text: &str) -> PredictRequest {
    let prompts: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let rows = RecordBatch::try_from_iter_with_nullable([("prompt", prompts, true)]).unwrap();
    request(rows)
}

pub(crate) fn request(rows: RecordBatch) -> PredictRequest {
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    PredictRequest::new(model, Input::Batch(rows))
}

/// The texts of an answer, and the error that ended it.
pub(crate) async fn read(
    backend: &dyn Backend,
    request: PredictRequest,
) -> (String, Option<PredictError>) {
    let mut stream = match backend.predict(request).await {
        Ok(stream) => stream,
        Err(error) => return (String::new(), Some(error)),
    };
    let mut text = String::new();
    while let Some(batch) = stream.next().await {
        match batch {
            Ok(batch) => {
                for row in GenerationRow::rows(&batch).unwrap() {
                    text.push_str(row.text().unwrap_or_default());
                }
            }
            Err(error) => return (text, Some(error)),
        }
    }
    (text, None)
}
