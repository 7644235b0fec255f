//! Models as they lie in a Triton repository: numbered versions beside a `config.pbtxt`.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Float32Array, RecordBatch};
use arrow_schema::{DataType, Field};
use futures::TryStreamExt;
use volley_backend::Backend;
use volley_types::{ErrorCode, Input, ModelName, ModelRef, PredictRequest};

use crate::setup;

/// A repository with these versions of one model.
fn repository(config: &str, versions: &[(&str, &str)]) -> tempfile::TempDir {
    let repository = tempfile::Builder::new().prefix("pairs").tempdir().unwrap();
    for (version, file) in versions {
        let folder = repository.path().join(version);
        std::fs::create_dir(&folder).unwrap();
        let graph = setup::test_model("identity-float32").join("model.onnx");
        std::fs::copy(graph, folder.join(file)).unwrap();
    }
    std::fs::write(repository.path().join("config.pbtxt"), config).unwrap();
    repository
}

fn config(input: &str, rest: &str) -> String {
    format!(
        "name: 'pairs' platform: 'onnxruntime_onnx'\n\
         input [ {{ name: 'x' {input} }} ]\noutput [ {{ name: 'y' {input} }} ]\n{rest}\n"
    )
}

async fn load(directory: &Path) -> Result<Arc<dyn Backend>, String> {
    let loaded = setup::load(directory).await;
    loaded.map_err(|error| {
        assert_eq!(error.code, ErrorCode::InvalidInput, "{error}");
        error.message
    })
}

/// The sizes of the answer's batches, and all of its numbers.
async fn run(model: &Arc<dyn Backend>, rows: usize) -> (Vec<usize>, Vec<f32>) {
    let values: ArrayRef = Arc::new(Float32Array::from_iter_values(
        (0..2 * rows).map(|number| number as f32),
    ));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let column: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, values, None));
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let answer = model.predict(PredictRequest::new(name, Input::Batch(batch)));
    let answer: Vec<RecordBatch> = answer.await.unwrap().try_collect().await.unwrap();
    let sizes = answer.iter().map(RecordBatch::num_rows).collect();
    let numbers = answer.iter().flat_map(|batch| {
        let column = batch.column(0).as_fixed_size_list();
        (0..column.len())
            .flat_map(|row| {
                column
                    .value(row)
                    .as_primitive::<Float32Type>()
                    .values()
                    .to_vec()
            })
            .collect::<Vec<_>>()
    });
    (sizes, numbers.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_is_served_as_its_configuration_says() {
    let pairs = "data_type: TYPE_FP32 dims: [ 2 ]";
    let rest = "max_batch_size: 4 default_model_filename: 'net.onnx'\n\
                version_policy { specific { versions: [ 2 ] } }\n\
                dynamic_batching { preferred_batch_size: 4 }";
    let versions = [("1", "net.onnx"), ("2", "net.onnx"), ("3", "other.bin")];
    let repository = repository(&config(pairs, rest), &versions);
    let model = load(repository.path()).await.unwrap();
    let (sizes, numbers) = run(&model, 10).await;
    assert_eq!(
        sizes,
        [4, 4, 2],
        "no run is larger than the configuration allows"
    );
    let expected: Vec<f32> = (0..20).map(|number| number as f32).collect();
    assert_eq!(numbers, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_graph_contradicts_is_refused_by_its_name() {
    let fine = "data_type: TYPE_FP32 dims: [ 2 ]";
    for (config, told) in [
        (
            config("data_type: TYPE_INT8 dims: [ 2 ]", "max_batch_size: 4"),
            "'x' is declared as",
        ),
        (
            config("data_type: TYPE_FP32 dims: [ 3 ]", "max_batch_size: 4"),
            "[3]",
        ),
        (config(fine, ""), "[2]"),
        (
            config(fine, "max_batch_size: 4").replace("'x'", "'z'"),
            "no input 'z'; it has x",
        ),
        (
            config(fine, "max_batch_size: 4 ensemble_scheduling {}"),
            "ensemble_scheduling",
        ),
        (config(fine, "max_batch_size: 4 }"), "line 4"),
        (
            config(
                fine,
                "max_batch_size: 4 version_policy { specific { versions: 9 } }",
            ),
            "version_policy",
        ),
    ] {
        let repository = repository(&config, &[("1", "model.onnx")]);
        let refused = load(repository.path()).await.err();
        let refused = refused.unwrap_or_else(|| panic!("served: {config}"));
        assert!(refused.contains("config.pbtxt"), "{refused}");
        assert!(refused.contains(told), "{refused}");
    }
}
