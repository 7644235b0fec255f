//! Errors and limits of tensor models, and streams of batches.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::*;
use arrow_schema::{DataType, Field};
use futures::{FutureExt, StreamExt};
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_onnx_runtime::wire;
use volley_types::*;

use crate::setup;

fn model_ref() -> ModelRef {
    ModelRef::deployed(ModelName::new("m").unwrap())
}

/// Rows with `width` numbers each.
fn rows(name: &str, width: usize, values: &[f32]) -> RecordBatch {
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let values = Arc::new(Float32Array::from(values.to_vec()));
    let column = FixedSizeListArray::new(item, i32::try_from(width).unwrap(), values, None);
    RecordBatch::try_from_iter([(name, Arc::new(column) as ArrayRef)]).unwrap()
}

/// One row of a tensor with one dynamic dimension.
fn vector(values: &[f32]) -> ArrayRef {
    let mut data = builder::ListBuilder::new(builder::Float32Builder::new());
    data.append_value(values.iter().copied().map(Some));
    let mut shape = builder::FixedSizeListBuilder::new(builder::Int32Builder::new(), 1);
    shape
        .values()
        .append_value(i32::try_from(values.len()).unwrap());
    shape.append(true);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("data", Arc::new(data.finish())),
        ("shape", Arc::new(shape.finish())),
    ];
    Arc::new(StructArray::try_from(columns).unwrap())
}

async fn test_model(name: &str) -> Arc<dyn Backend> {
    setup::load(&setup::test_model(name)).await.unwrap()
}

async fn run(model: &Arc<dyn Backend>, batch: RecordBatch) -> Result<RecordBatch, PredictError> {
    let request = PredictRequest::new(model_ref(), Input::Batch(batch));
    let mut answer = model.predict(request).await?;
    answer.next().await.expect("one batch in, one batch out")
}

#[tokio::test(flavor = "multi_thread")]
async fn shapes_that_only_the_graph_can_tell_are_the_callers_and_name_the_step() {
    let model = test_model("picky").await;
    let both = |a: &[f32], b: &[f32]| {
        RecordBatch::try_from_iter([("a", vector(a)), ("b", vector(b))]).unwrap()
    };
    let error = run(&model, both(&[1.0, 2.0], &[1.0, 2.0, 3.0])).await;
    let error = error.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert_eq!(error.origin, ErrorOrigin::Model);
    assert!(error.message.contains("Add"), "{}", error.message);
    assert!(!error.message.contains('/'), "{}", error.message);
    let answer = run(&model, both(&[1.0, 2.0], &[10.0, 20.0])).await.unwrap();
    assert_eq!(answer.num_rows(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_own_defect_is_no_fault_of_the_caller() {
    let model = test_model("defective").await;
    let error = run(&model, rows("x", 2, &[1.0, 2.0])).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal, "{}", error.chain());
    assert_eq!(error.origin, ErrorOrigin::Model);

    let model = test_model("nobatch").await;
    let error = run(&model, rows("x", 2, &[1.0, 2.0])).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal);
    assert!(error.message.contains("'y'"), "{}", error.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_would_not_fit_into_memory_is_refused_and_the_model_lives_on() {
    let model = test_model("hungry").await;
    let ask = |a: i64, b: i64| {
        let item = Arc::new(Field::new("item", DataType::Int64, false));
        let values = Arc::new(Int64Array::from(vec![a, b]));
        let column = Arc::new(FixedSizeListArray::new(item, 2, values, None)) as ArrayRef;
        run(
            &model,
            RecordBatch::try_from_iter([("shape", column)]).unwrap(),
        )
        .boxed()
    };
    let error = ask(1 << 23, 1 << 20).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge, "{}", error.chain());
    let error = ask(-3, 2).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput, "{}", error.chain());
    let answer = ask(2, 3).await.unwrap();
    let data = answer.column(0).as_struct().column_by_name("data").unwrap();
    assert_eq!(data.as_list::<i32>().value(0).len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_beyond_the_budget_is_refused_and_others_go_on() {
    let config = OnnxConfig {
        memory_limit: Some(128 << 20),
        ..setup::config()
    };
    let hungry = setup::load_with(&setup::test_model("hungry"), config).await;
    let other = setup::load_with(&setup::test_model("identity-float32"), config).await;
    let (hungry, other) = (hungry.unwrap(), other.unwrap());
    let ask = |a: i64, b: i64| {
        let item = Arc::new(Field::new("item", DataType::Int64, false));
        let values = Arc::new(Int64Array::from(vec![a, b]));
        let column = Arc::new(FixedSizeListArray::new(item, 2, values, None)) as ArrayRef;
        let rows = RecordBatch::try_from_iter([("shape", column)]).unwrap();
        run(&hungry, rows).boxed()
    };
    for _ in 0..3 {
        // Half a gibibyte: more than the limit, but less than the machine's memory.
        let error = ask(1 << 14, 1 << 13).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge, "{}", error.chain());
        assert!(run(&other, rows("x", 2, &[1.0, 2.0])).await.is_ok());
        let answer = ask(2, 3).await.unwrap();
        let data = answer.column(0).as_struct().column_by_name("data").unwrap();
        assert_eq!(data.as_list::<i32>().value(0).len(), 6);
    }
}

/// A model that doubles the texts in `x` 25 times and compares the result with itself.
fn doubling() -> tempfile::TempDir {
    let node = |inputs: &[&str], output: &str, operator: &str| {
        let inputs = inputs.iter().map(|name| wire::field(1, name.as_bytes()));
        let inputs: Vec<u8> = inputs.flatten().collect();
        let rest = [
            wire::field(2, output.as_bytes()),
            wire::field(4, operator.as_bytes()),
        ];
        wire::field(1, &[inputs, rest.concat()].concat())
    };
    let value = |name: &str, element: u64| {
        let shape = wire::field(2, &wire::field(1, &wire::field(2, b"n")));
        let tensor = [wire::number(1, element), shape].concat();
        let kind = wire::field(2, &wire::field(1, &tensor));
        [wire::field(1, name.as_bytes()), kind].concat()
    };
    let mut graph = wire::field(2, b"doubling");
    let mut last = "x".to_owned();
    for step in 0..25 {
        let next = format!("t{step}");
        graph.extend(node(&[&last, &last], &next, "StringConcat"));
        last = next;
    }
    graph.extend(node(&[&last, &last], "y", "Equal"));
    graph.extend(wire::field(11, &value("x", 8)));
    graph.extend(wire::field(12, &value("y", 9)));
    let model = [
        wire::number(1, 9),
        wire::field(7, &graph),
        wire::field(8, &wire::number(2, 20)),
    ];
    let folder = tempfile::Builder::new()
        .prefix("doubling-")
        .tempdir()
        .unwrap();
    std::fs::write(folder.path().join("model.onnx"), model.concat()).unwrap();
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_texts_exceed_the_budget_is_stopped() {
    let config = OnnxConfig {
        memory_limit: Some(128 << 20),
        ..setup::config()
    };
    let folder = doubling();
    let model = setup::load_with(folder.path(), config).await.unwrap();
    let ask = |text: &str| {
        let column = Arc::new(StringArray::from(vec![text.to_owned()])) as ArrayRef;
        run(&model, RecordBatch::try_from_iter([("x", column)]).unwrap())
    };
    // Half a gibibyte, which the arena does not see.
    let error = ask("sixteen letters.").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge, "{}", error.chain());
    assert!(error.message.contains("models.memory_budget"), "{error}");
    let answer = ask("").await.unwrap();
    assert!(answer.column(0).as_boolean().value(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nulls_are_refused_with_their_row() {
    let model = test_model("identity-float32").await;
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let outer = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        vec![Some(vec![Some(1.0), Some(2.0)]), None],
        2,
    );
    let inner = Float32Array::from(vec![Some(1.0), None]);
    let inner = FixedSizeListArray::new(item, 2, Arc::new(inner), None);
    for (column, sign) in [(outer, "row 1 is null"), (inner, "nulls inside")] {
        let batch = RecordBatch::try_from_iter([("x", Arc::new(column) as ArrayRef)]).unwrap();
        let error = run(&model, batch).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains("'x'") && error.message.contains(sign));
    }
    let model = test_model("identity-string").await;
    let item = Arc::new(Field::new("item", DataType::Utf8, false));
    let values = Arc::new(StringArray::from(vec!["a", "b\0c"]));
    let column = Arc::new(FixedSizeListArray::new(item, 2, values, None)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let answer = run(&model, batch.clone()).await.unwrap();
    let texts = |batch: &RecordBatch| batch.column(0).to_data().child_data()[0].clone();
    assert_eq!(texts(&answer), texts(&batch), "a zero byte is a byte");
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_batches_are_answered_in_order_before_the_input_ends() {
    let model = test_model("identity-float32").await;
    let (sender, receiver) = tokio::sync::mpsc::channel(2);
    let batches = futures::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    });
    let schema = rows("x", 2, &[0.0, 0.0]).schema();
    let batches = Box::pin(batches);
    let request = PredictRequest::new(model_ref(), Input::Stream { schema, batches });
    let mut answer = model.predict(request).await.unwrap();
    for index in 0..20_u8 {
        let values: Vec<f32> = (0..=index).flat_map(|n| [f32::from(n), 0.5]).collect();
        let sent = rows("x", 2, &values);
        sender.send(Ok(sent.clone())).await.unwrap();
        let came = answer.next().await.unwrap().unwrap();
        assert_eq!(
            came.column(0).as_fixed_size_list().values(),
            sent.column(0).as_fixed_size_list().values()
        );
    }
    // An empty batch, and then a batch with another schema.
    sender.send(Ok(rows("x", 2, &[]))).await.unwrap();
    sender.send(Ok(rows("x", 3, &[0.0; 3]))).await.unwrap();
    let error = answer.next().await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("'x'"), "{}", error.message);
    assert!(answer.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_and_weights_beside_the_graph_are_found() {
    let config = OnnxConfig {
        max_rows: 2,
        tensor_streams: 3,
        ..setup::config()
    };
    let directory = setup::test_model("external");
    let model = setup::load_with(&directory, config).await.unwrap();
    assert_eq!(model.capacity(), 3);
    assert!(0 < model.memory_bytes());
    let answer = run(&model, rows("x", 2, &[1.0, 2.0, 3.0, 4.0])).await;
    let values = answer
        .unwrap()
        .column(0)
        .as_fixed_size_list()
        .values()
        .clone();
    let values = values.as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(values, [11.0, 22.0, 13.0, 24.0]);
    let error = run(&model, rows("x", 2, &[0.0; 6])).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_while_waiting_takes_no_place_from_those_who_come() {
    let config = OnnxConfig {
        tensor_streams: 1,
        ..setup::config()
    };
    let directory = setup::test_model("slow");
    let model = setup::load_with(&directory, config).await.unwrap();
    let slow = || run(&model, rows("x", 64, &[1.0; 64]));
    let mut first = Box::pin(slow());
    let wait = Duration::from_millis(100);
    assert!(tokio::time::timeout(wait, &mut first).await.is_err());
    for _ in 0..5 {
        // The request waits: neither rejected nor answered, because the first one still runs.
        assert!(tokio::time::timeout(wait, slow()).await.is_err());
    }
    drop(first);
    let wrong = run(&model, rows("x", 2, &[1.0; 2]));
    let wrong = tokio::time::timeout(Duration::from_secs(60), wrong).await;
    assert_eq!(wrong.unwrap().unwrap_err().code, ErrorCode::InvalidInput);
}

fn assignment(path: &Path) -> registry::Assignment {
    registry::Assignment {
        model: ModelName::new("m").unwrap(),
        spec: registry::ModelVersionSpec {
            version: ModelVersion(1),
            backend: registry::BackendName::ONNX,
            source: registry::ModelSource::Path(path.to_string_lossy().into_owned()),
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_says_why_and_tells_no_path() {
    let folder = tempfile::Builder::new().prefix("volley-faults-").tempdir();
    let folder = folder.unwrap();
    let scratch = folder.path();
    let make = |name: &str, files: &[(&str, &[u8])]| {
        let directory = scratch.join(name);
        std::fs::create_dir_all(&directory).unwrap();
        for (file, bytes) in files {
            std::fs::write(directory.join(file), bytes).unwrap();
        }
        directory
    };
    let graph = std::fs::read(setup::test_model("external").join("model.onnx")).unwrap();
    let cases = [
        (scratch.join("absent"), "does not exist"),
        (make("empty", &[]), "no .onnx file"),
        (
            make("garbage", &[("model.onnx", b"no model")]),
            "'model.onnx'",
        ),
        (make("void", &[("model.onnx", b"")]), "'model.onnx'"),
        (make("bare", &[("model.onnx", &graph)]), "'model.onnx'"),
    ];
    for (directory, sign) in cases {
        let error = setup::load(&directory).await.err().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{sign}");
        assert!(error.message.contains(sign), "{}", error.message);
        assert!(
            !error.message.contains("volley-faults"),
            "{}",
            error.message
        );
    }

    let models = setup::test_model("external")
        .parent()
        .unwrap()
        .to_path_buf();
    let loader = OnnxLoader::new(Ok(setup::runtime()), setup::config());
    let relative = assignment(Path::new("external"));
    let error = loader.load(&relative).await.err().unwrap();
    assert!(error.message.contains("absolute"), "{}", error.message);
    let loader = loader.with_models_dir(models);
    assert!(loader.load(&relative).await.is_ok());

    let missing = Runtime::locate(Some(Path::new("/nowhere/libonnxruntime.so"))).map(|_| panic!());
    let loader = OnnxLoader::new(missing, setup::config());
    let error = loader.load(&relative).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_takes_any_device_and_cuda_nothing_less() {
    let on = |device| {
        let config = OnnxConfig {
            device,
            ..setup::config()
        };
        async move { setup::load_with(&setup::test_model("external"), config).await }
    };
    let model = on(Device::Auto).await.unwrap();
    let answer = run(&model, rows("x", 2, &[1.0, 2.0])).await.unwrap();
    assert_eq!(answer.num_rows(), 1);
    // If the library and the machine support CUDA, the model loads; otherwise the error names what
    // is missing.
    if let Err(error) = on(Device::Cuda).await {
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains("CUDA is not available"));
        assert!(!error.message.contains(".so"), "{}", error.message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locale_that_is_missing_is_named() {
    let error = setup::load(&setup::test_model("foreign")).await.err();
    let error = error.unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(
        error.message.contains("the locale 'xx_YY'"),
        "{}",
        error.chain()
    );
}
