//! Models of Triton's Python backend in real processes. The interpreter has numpy only; see
//! `scripts/get-triton.sh`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "support/files.rs"]
#[allow(dead_code, reason = "each file of tests uses its part")]
mod files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch};
use arrow_schema::DataType;
use futures::{StreamExt, TryStreamExt};
use tempfile::TempDir;
use volley_backend::{Backend, BackendLoader};
use volley_backend_python::{INFO, PythonConfig, PythonLoader, is_python};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, ModelSource, ModelVersionSpec};
use volley_types::signature::ModelMetadata;
use volley_types::{
    ErrorCode, Input, ModelName, ModelRef, ModelVersion, ParamValue, PredictError, PredictRequest,
    Signature,
};

const ADD_SUB: &str = r#"
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Adds and subtracts."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.dtype = pb_utils.triton_string_to_numpy(
            pb_utils.get_output_config_by_name(config, "SUM")["data_type"])
        self.version = float(args["model_version"])

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            if (a < 0).any():
                error = pb_utils.TritonError("A is negative", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            numbers = np.array([self.version, os.getpid()], dtype=np.float32)
            about = np.broadcast_to(numbers, (len(a), 2))
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("SUM", (a + b).astype(self.dtype)),
                pb_utils.Tensor("DIFFERENCE", (a - b).astype(self.dtype)),
                pb_utils.Tensor("ABOUT", about)]))
        return responses
"#;

const CONFIG: &str = r#"
backend: "python"
max_batch_size: 4
input [
  { name: "A" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "B" data_type: TYPE_FP32 dims: [ 2 ] }
]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "DIFFERENCE" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "ABOUT" data_type: TYPE_FP32 dims: [ 2 ] }
]
dynamic_batching { }
instance_group [ { count: 2 kind: KIND_CPU } ]
"#;

/// A model of a repository.
struct Repository(TempDir);

impl Repository {
    fn new(config: &str, versions: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.pbtxt"), config).unwrap();
        for (version, source) in versions {
            std::fs::create_dir(directory.path().join(version)).unwrap();
            std::fs::write(directory.path().join(version).join("model.py"), source).unwrap();
        }
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    async fn load(
        &self,
        parameters: &[(&str, ParamValue)],
    ) -> Result<Arc<dyn Backend>, PredictError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let interpreter: PathBuf = root.join("target/venv-triton/bin/python");
        assert!(interpreter.exists(), "run scripts/get-triton.sh");
        let config = PythonConfig {
            enabled: true,
            environments: self.path().join("environments"),
            interpreter,
            keeper: files::keeper(),
            ..PythonConfig::default()
        };
        let parameters = parameters.iter();
        let parameters = parameters.map(|(name, value)| ((*name).to_owned(), value.clone()));
        let assignment = Assignment {
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
        };
        let loader = PythonLoader::new(config, Metrics::new());
        loader.load(&assignment).await
    }
}

async fn signature(backend: &dyn Backend) -> Signature {
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    backend.signature(&model).await.unwrap()
}

/// Rows of two numbers each for the inputs `A` and `B`.
fn rows(signature: &Signature, a: &[f32], b: &[f32]) -> PredictRequest {
    let columns = signature.input.fields().iter().zip([a, b]);
    let columns = columns.map(|(field, values)| {
        let DataType::FixedSizeList(item, size) = field.data_type() else {
            panic!("a tensor is a list of a fixed size");
        };
        let values = Arc::new(Float32Array::from(values.to_vec()));
        let list = FixedSizeListArray::try_new(item.clone(), *size, values, None).unwrap();
        (field.name(), Arc::new(list) as ArrayRef)
    });
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    PredictRequest::new(model, Input::Batch(batch))
}

/// The numbers of an output.
async fn numbers(backend: &dyn Backend, request: PredictRequest, name: &str) -> Vec<f32> {
    let stream = backend.predict(request).await.unwrap();
    let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
    let lists = batches.iter().map(|batch| {
        let list = batch.column_by_name(name).unwrap().as_fixed_size_list();
        list.values()
            .as_primitive::<Float32Type>()
            .values()
            .to_vec()
    });
    lists.flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_a_repository_serves_its_signature_and_its_configuration() {
    let repository = Repository::new(CONFIG, &[("1", "1 / 0"), ("3", ADD_SUB)]);
    assert!(is_python(repository.path()));
    let model = repository.load(&[]).await.unwrap();
    let signature = signature(&*model).await;
    let names: Vec<_> = signature
        .output
        .fields()
        .iter()
        .map(|it| it.name().as_str())
        .collect();
    assert_eq!(names, ["SUM", "DIFFERENCE", "ABOUT"]);
    let config = ModelMetadata::of(&signature).config.unwrap();
    assert_eq!(config["max_batch_size"], 4);
    assert_eq!(config["input"][1]["dims"], serde_json::json!([2]));

    // Six rows are two requests of the model.
    let (a, b): (Vec<f32>, Vec<f32>) = (0..12_u8).map(|n| (f32::from(n), 1.0)).unzip();
    let sums = numbers(&*model, rows(&signature, &a, &b), "SUM").await;
    let expected: Vec<f32> = a.iter().map(|a| a + 1.0).collect();
    assert_eq!(sums, expected);
    let mut differences = model.predict(rows(&signature, &a, &b)).await.unwrap();
    assert!(differences.next().await.unwrap().is_ok());

    let request = rows(&signature, &[-1.0, 0.0], &[0.0, 0.0]);
    let mut stream = model.predict(request).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (ErrorCode::InvalidInput, "A is negative")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_and_the_processes_are_those_of_the_repository() {
    let repository = Repository::new(CONFIG, &[("2", ADD_SUB), ("10", ADD_SUB)]);
    for (parameters, version) in [
        (vec![], 10.0),
        (vec![("model_version", ParamValue::Int(2))], 2.0),
    ] {
        let model = repository.load(&parameters).await.unwrap();
        // Two instances, each with place for two full batches.
        assert_eq!(model.capacity(), 2 * 2 * 4);
        let signature = signature(&*model).await;
        let about = numbers(&*model, rows(&signature, &[0.0; 2], &[0.0; 2]), "ABOUT").await;
        assert_eq!(about[0], version);
    }
    let one = repository
        .load(&[("instances", ParamValue::Int(1))])
        .await
        .unwrap();
    assert_eq!(one.capacity(), 2 * 4);
    let missing = [("model_version", ParamValue::Int(7))];
    let error = repository.load(&missing).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("versions 2, 10"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_execute_is_refused_by_name() {
    let source = "class TritonPythonModel:\n    pass\n";
    let repository = Repository::new("backend: 'python'", &[("1", source)]);
    let error = repository.load(&[]).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("declares no inputs"), "{error}");
    let repository = Repository::new(CONFIG, &[("1", source)]);
    let error = repository.load(&[]).await.err().unwrap();
    assert!(error.message.contains("has no method execute"), "{error}");
}
