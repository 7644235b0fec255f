//! Models in Triton repositories: numbered versions beside a `config.pbtxt`.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field};
use futures::TryStreamExt;
use futures::future::join_all;
use volley_backend::Backend;
use volley_types::{ErrorCode, Input, ModelName, ModelRef, PredictError, PredictRequest};

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

/// Number of rows that ran together with each of `numbers`, each sent in a separate request.
async fn company(model: &Arc<dyn Backend>, numbers: &[i64]) -> Result<Vec<i64>, PredictError> {
    let column: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let answer = model.predict(PredictRequest::new(name, Input::Batch(batch)));
    let answer: Vec<RecordBatch> = answer.await?.try_collect().await?;
    let rows = answer.iter().flat_map(|batch| {
        let rows = batch.column_by_name("rows").unwrap();
        rows.as_primitive::<Int64Type>().values().to_vec()
    });
    Ok(rows.collect())
}

/// A directory with the graph that returns the number of rows in its run.
fn telling(file: &str, text: &str) -> tempfile::TempDir {
    let directory = tempfile::Builder::new().prefix("told").tempdir().unwrap();
    let graph = setup::test_model("together").join("model.onnx");
    std::fs::copy(graph, directory.path().join("model.onnx")).unwrap();
    std::fs::write(directory.path().join(file), text).unwrap();
    directory
}

/// The window is long enough for all concurrent requests, and ends when a run is full.
const DYNAMIC: &str = "max_batch_size: 8 input [ { name: 'x' data_type: TYPE_INT64 dims: [ 1 ] } ]\n\
    dynamic_batching { max_queue_delay_microseconds: 900000 }";

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_several_requests_run_together_where_the_files_say_so() {
    let toml = "max_batch_rows = 8\nbatch_window_us = 900000\n";
    for (file, text) in [("config.pbtxt", DYNAMIC), ("model.toml", toml)] {
        let directory = telling(file, text);
        let model = load(directory.path()).await.unwrap();
        let requests = [&[1, 2, 3][..], &[4, 5], &[6, 7, 8]];
        let told = join_all(requests.map(|numbers| company(&model, numbers))).await;
        let told: Vec<Vec<i64>> = told.into_iter().map(Result::unwrap).collect();
        assert_eq!(told, [vec![8; 3], vec![8; 2], vec![8; 3]], "{file}");
        // More rows than the maximum of a run are split into two runs.
        let many: Vec<i64> = (20..36).collect();
        assert_eq!(company(&model, &many).await.unwrap(), [8; 16], "{file}");
    }
    let plain = load(&setup::test_model("together")).await.unwrap();
    let told = join_all((0..9).map(|number| {
        let plain = &plain;
        async move { company(plain, &[number, 100]).await }
    }))
    .await;
    assert!(
        told.into_iter().all(|told| told.unwrap() == [2, 2]),
        "nobody said that they may"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_fails_its_own_request_and_who_leaves_takes_nothing_along() {
    let directory = telling("config.pbtxt", DYNAMIC);
    let model = load(directory.path()).await.unwrap();
    let requests = [&[1, 2, 3][..], &[13, 5], &[6, 7, 8]];
    let [good, bad, other] = requests.map(|numbers| company(&model, numbers));
    let (good, bad, other) = futures::join!(good, bad, other);
    assert_eq!((good.unwrap(), other.unwrap()), (vec![3; 3], vec![3; 3]));
    assert_eq!(bad.unwrap_err().code, ErrorCode::InvalidInput);
    let limit = std::time::Duration::from_millis(100);
    let leaver = tokio::time::timeout(limit, company(&model, &[1, 2, 3]));
    let (left, stayed) = futures::join!(leaver, company(&model, &[4; 2]));
    assert!(left.is_err());
    assert_eq!(stayed.unwrap(), [2; 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_without_a_batch_is_not_told_to_merge_rows() {
    let directory = telling("model.toml", "max_batch_rows = 8\n");
    let graph = setup::test_model("unbatched").join("model.onnx");
    std::fs::copy(graph, directory.path().join("model.onnx")).unwrap();
    let refused = load(directory.path()).await.err().unwrap();
    assert!(refused.contains("max_batch_rows"), "{refused}");
}

/// The output of a graph of the test models for rows of two numbers in the shape `dims`.
async fn pairs_of(model: &Arc<dyn Backend>) -> Vec<f32> {
    run(model, 3).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_seen_in_the_declared_shape_and_run_in_the_graphs_own() {
    let shaped = |dims: &str| {
        format!(
            "max_batch_size: 4 {}",
            config(&format!("data_type: TYPE_FP32 {dims}"), "")
        )
    };
    let seen = repository(
        &shaped("dims: [ 2, 1 ] reshape { shape: [ 2 ] }"),
        &[("1", "model.onnx")],
    );
    let model = load(seen.path()).await.unwrap();
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let signature = model.signature(&name).await.unwrap();
    for schema in [&signature.input, &signature.output] {
        let told = schema.field(0).metadata()["ARROW:extension:metadata"].clone();
        assert_eq!(told, r#"{"shape":[2,1]}"#);
    }
    assert_eq!(pairs_of(&model).await, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let other = repository(
        &shaped("dims: [ 3 ] reshape { shape: [ 3, 1 ] }"),
        &[("1", "model.onnx")],
    );
    let refused = load(other.path()).await.err().unwrap();
    assert!(refused.contains("[3, 1]"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_names_of_values_come_from_their_file() {
    let labelled = |file: &str| {
        let input = "data_type: TYPE_FP32 dims: [ 2 ]";
        let config = config(input, "max_batch_size: 4");
        let output = format!("name: 'y' label_filename: '{file}'");
        repository(
            &config.replace("name: 'y'", &output),
            &[("1", "model.onnx")],
        )
    };
    let named = labelled("labels.txt");
    std::fs::write(named.path().join("labels.txt"), "fox\ncrow\n").unwrap();
    let model = load(named.path()).await.unwrap();
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let signature = model.signature(&name).await.unwrap();
    let labels = volley_types::signature::labels(signature.output.field(0));
    assert_eq!(labels, ["fox", "crow"]);
    for file in ["labels.txt", "../labels.txt", "1/labels.txt"] {
        let refused = load(labelled(file).path()).await.err().unwrap();
        assert!(refused.contains("label"), "{file}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_runs_before_the_model_serves() {
    let warm = |dims: &str| {
        let input = "data_type: TYPE_FP32 dims: [ 2 ]";
        let sample = format!(
            "max_batch_size: 4 model_warmup {{ name: 'first' batch_size: 2 inputs {{ key: 'x' \
             value {{ data_type: TYPE_FP32 {dims} zero_data: true }} }} }}"
        );
        repository(&config(input, &sample), &[("1", "model.onnx")])
    };
    assert!(load(warm("dims: [ 2 ]").path()).await.is_ok());
    let refused = load(warm("dims: [ 3 ]").path()).await.err().unwrap();
    assert!(refused.contains("'first'"), "{refused}");
    let telling = |rows: usize| {
        let sample = format!(
            "{DYNAMIC} model_warmup {{ batch_size: {rows} inputs {{ key: 'x' value {{ dims: 1 }} }} }}"
        );
        telling("config.pbtxt", &sample)
    };
    assert!(load(telling(3).path()).await.is_ok());
    let refused = load(telling(1_000_000_000).path()).await.err().unwrap();
    assert!(refused.contains("too many values"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_several_instances_runs_while_another_does() {
    let config = "input [ { name: 'x' data_type: TYPE_INT64 dims: [ 1 ] } ]\n\
                  instance_group [ { count: 2 kind: KIND_CPU } ]";
    let directory = tempfile::Builder::new()
        .prefix("counting")
        .tempdir()
        .unwrap();
    std::fs::create_dir(directory.path().join("1")).unwrap();
    let graph = setup::test_model("counting").join("model.onnx");
    std::fs::copy(&graph, directory.path().join("1/model.onnx")).unwrap();
    let single = setup::load(&setup::test_model("counting")).await.unwrap();
    std::fs::write(directory.path().join("config.pbtxt"), config).unwrap();
    let model = load(directory.path()).await.unwrap();
    assert_eq!(model.memory_bytes(), 2 * single.memory_bytes());
    let count = |to: i64| {
        let model = model.clone();
        async move {
            let item = Arc::new(Field::new("item", DataType::Int64, false));
            let values: ArrayRef = Arc::new(Int64Array::from(vec![to]));
            let column: ArrayRef = Arc::new(FixedSizeListArray::new(item, 1, values, None));
            let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
            let name = ModelRef::deployed(ModelName::new("m").unwrap());
            let answer = model.predict(PredictRequest::new(name, Input::Batch(batch)));
            answer.await?.try_collect::<Vec<RecordBatch>>().await
        }
    };
    let endless = tokio::spawn(count(i64::MAX));
    // With a single session each request would wait behind the endless one.
    for to in [3, 5, 7] {
        let limit = std::time::Duration::from_secs(60);
        let answer = tokio::time::timeout(limit, count(to))
            .await
            .unwrap()
            .unwrap();
        let told = answer[0].column(0).as_fixed_size_list().value(0);
        assert_eq!(told.as_primitive::<Int64Type>().values(), &[to]);
    }
    assert!(!endless.is_finished());
    endless.abort();
}
