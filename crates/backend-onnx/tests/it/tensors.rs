use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::*;
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields};
use futures::StreamExt;
use volley_backend::Backend;
use volley_types::*;

use crate::setup;

async fn run(model: &Arc<dyn Backend>, batch: RecordBatch) -> Result<RecordBatch, PredictError> {
    let reference = ModelRef::deployed(ModelName::new("m").unwrap());
    let request = PredictRequest::new(reference, Input::Batch(batch));
    let mut answer = model.predict(request).await?;
    answer.next().await.expect("one batch in, one batch out")
}

async fn test_model(name: &str) -> Arc<dyn Backend> {
    setup::load(&setup::test_model(name)).await.unwrap()
}

/// Pairs of values as rows of a fixed shape.
fn pairs(values: ArrayRef) -> RecordBatch {
    let item = Arc::new(Field::new("item", values.data_type().clone(), false));
    let list = FixedSizeListArray::try_new(item, 2, values, None).unwrap();
    RecordBatch::try_from_iter([("x", Arc::new(list) as ArrayRef)]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_that_arrow_and_onnx_share_goes_there_and_back() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "float16",
            Arc::new(Float16Array::from_iter_values(
                [1.5, -2.0, 0.0, 65504.0].map(half::f16::from_f32),
            )),
        ),
        (
            "float32",
            Arc::new(Float32Array::from(vec![1.5, -2.0, f32::MIN, f32::INFINITY])),
        ),
        (
            "float64",
            Arc::new(Float64Array::from(vec![1.5, -2.0, 0.0, f64::MAX])),
        ),
        (
            "int8",
            Arc::new(Int8Array::from(vec![1, -2, i8::MIN, i8::MAX])),
        ),
        (
            "int16",
            Arc::new(Int16Array::from(vec![1, -2, i16::MIN, i16::MAX])),
        ),
        (
            "int32",
            Arc::new(Int32Array::from(vec![1, -2, i32::MIN, i32::MAX])),
        ),
        (
            "int64",
            Arc::new(Int64Array::from(vec![1, -2, i64::MIN, i64::MAX])),
        ),
        (
            "bfloat16",
            Arc::new(UInt16Array::from(vec![0x3fc0, 0xc000, 0, 0x7f80])),
        ),
        ("uint8", Arc::new(UInt8Array::from(vec![1, 2, 0, u8::MAX]))),
        (
            "uint16",
            Arc::new(UInt16Array::from(vec![1, 2, 0, u16::MAX])),
        ),
        (
            "uint32",
            Arc::new(UInt32Array::from(vec![1, 2, 0, u32::MAX])),
        ),
        (
            "uint64",
            Arc::new(UInt64Array::from(vec![1, 2, 0, u64::MAX])),
        ),
        (
            "bool",
            Arc::new(BooleanArray::from(vec![true, false, false, true])),
        ),
        (
            "string",
            Arc::new(StringArray::from(vec!["a", "", "grüße", "\u{1f98a}"])),
        ),
    ];
    for (name, values) in columns {
        let model = test_model(&format!("identity-{name}")).await;
        let sent = pairs(values);
        let came = run(&model, sent.clone()).await.unwrap();
        assert_eq!(came.num_rows(), 2);
        assert_eq!(
            came.column(0).as_fixed_size_list().values(),
            sent.column(0).as_fixed_size_list().values(),
            "{name}"
        );
        // A slice of a column only contains its own rows.
        let second = run(&model, sent.slice(1, 1)).await.unwrap();
        assert_eq!(
            &second.column(0).as_fixed_size_list().value(0),
            &came.column(0).as_fixed_size_list().value(1),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_classifier_reads_a_seven_and_says_what_it_takes() {
    let model = setup::load(&setup::model_dir("classifier")).await.unwrap();
    let signature = model
        .signature(&ModelRef::deployed(ModelName::new("m").unwrap()))
        .await
        .unwrap();
    let pixels = signature.input.field(0).clone();
    assert_eq!(
        pixels.metadata()["ARROW:extension:metadata"],
        r#"{"shape":[8,8]}"#
    );
    let rows = [
        "00111110", "00000010", "00000100", "00001000", "00001000", "00010000", "00010000",
        "00000000",
    ];
    let values = rows
        .iter()
        .flat_map(|row| row.chars())
        .map(|c| if c == '1' { 1.0 } else { 0.0 });
    let values: ArrayRef = Arc::new(Float32Array::from_iter_values(values));
    let DataType::FixedSizeList(item, size) = pixels.data_type() else {
        panic!("{pixels:?}")
    };
    let column = FixedSizeListArray::try_new(item.clone(), *size, values, None).unwrap();
    let batch = RecordBatch::try_new(signature.input.clone(), vec![Arc::new(column)]).unwrap();
    let answer = run(&model, batch).await.unwrap();
    assert_eq!(
        answer
            .column_by_name("label")
            .unwrap()
            .as_primitive::<Int64Type>()
            .value(0),
        7
    );
    let probabilities = answer
        .column_by_name("probabilities")
        .unwrap()
        .as_fixed_size_list()
        .value(0);
    let total: f32 = probabilities
        .as_primitive::<Float32Type>()
        .values()
        .iter()
        .sum();
    assert!((total - 1.0).abs() < 1e-4);
}

/// Rows of two-dimensional tensors.
fn ragged(rows: &[(Vec<f32>, [i32; 2])]) -> ArrayRef {
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let dim = Arc::new(Field::new("item", DataType::Int32, false));
    let lengths = rows.iter().map(|(values, _)| values.len());
    let values = Float32Array::from(
        rows.iter()
            .flat_map(|(values, _)| values.clone())
            .collect::<Vec<_>>(),
    );
    let data = ListArray::new(
        item.clone(),
        OffsetBuffer::from_lengths(lengths),
        Arc::new(values),
        None,
    );
    let dims = Int32Array::from(
        rows.iter()
            .flat_map(|(_, shape)| *shape)
            .collect::<Vec<_>>(),
    );
    let shape = FixedSizeListArray::new(dim.clone(), 2, Arc::new(dims), None);
    let fields = Fields::from(vec![
        Field::new("data", DataType::List(item), false),
        Field::new("shape", DataType::FixedSizeList(dim, 2), false),
    ]);
    Arc::new(StructArray::new(
        fields,
        vec![Arc::new(data), Arc::new(shape)],
        None,
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_different_shapes_run_together_and_come_back_in_order() {
    let model = test_model("ragged").await;
    let rows = [
        (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]),
        (vec![7.0], [1, 1]),
        (vec![0.0, 1.0, 0.0, 1.0, 0.0, 1.0], [2, 3]),
        (vec![], [0, 4]),
    ];
    let batch = RecordBatch::try_from_iter([("x", ragged(&rows))]).unwrap();
    let answer = run(&model, batch).await.unwrap();
    let sums = answer
        .column_by_name("sum")
        .unwrap()
        .as_primitive::<Float32Type>();
    assert_eq!(sums.values(), &[21.0, 7.0, 3.0, 0.0]);
    let turned = answer.column_by_name("turned").unwrap().as_struct();
    let first = turned
        .column_by_name("data")
        .unwrap()
        .as_list::<i32>()
        .value(0);
    assert_eq!(
        first.as_primitive::<Float32Type>().values(),
        &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_batch_dimension_runs_row_by_row() {
    let model = test_model("unbatched").await;
    let column = |from: f32| {
        let values = Float32Array::from_iter_values((0..12).map(|index| from + index as f32));
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        Arc::new(FixedSizeListArray::new(item, 6, Arc::new(values), None)) as ArrayRef
    };
    let batch = RecordBatch::try_from_iter([("b", column(1.0)), ("a", column(0.0))]).unwrap();
    let answer = run(&model, batch).await.unwrap();
    assert_eq!(answer.num_rows(), 2);
    // The matrix product [0 1 2; 3 4 5] × [1 2; 3 4; 5 6].
    let first = answer.column(0).as_fixed_size_list().value(0);
    assert_eq!(
        first.as_primitive::<Float32Type>().values(),
        &[13.0, 16.0, 40.0, 52.0]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused_and_the_model_lives_on() {
    let model = test_model("ragged").await;
    let refuse = |rows: Vec<(Vec<f32>, [i32; 2])>| {
        let model = model.clone();
        async move {
            let batch = RecordBatch::try_from_iter([("x", ragged(&rows))]).unwrap();
            let error = run(&model, batch).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput, "{}", error.message);
            error.message
        }
    };
    assert!(
        refuse(vec![(vec![1.0], [2, 3])])
            .await
            .contains("'x', row 0")
    );
    assert!(
        refuse(vec![(vec![1.0], [1, 1]), (vec![], [-1, 0])])
            .await
            .contains("row 1")
    );
    let wrong: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let wrong = RecordBatch::try_from_iter([("x", wrong)]).unwrap();
    assert!(
        run(&model, wrong)
            .await
            .unwrap_err()
            .message
            .contains("'x'")
    );
    let good = RecordBatch::try_from_iter([("x", ragged(&[(vec![2.0], [1, 1])]))]).unwrap();
    assert_eq!(run(&model, good).await.unwrap().num_rows(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_answer_is_the_models_own_memory_and_outlives_the_model() {
    let model = test_model("identity-float32").await;
    let mut answers = Vec::new();
    for round in 0..20_u16 {
        let values: Vec<f32> = (0..20_000_u16)
            .map(|n| f32::from(n) + f32::from(round))
            .collect();
        let batch = pairs(Arc::new(Float32Array::from(values)));
        answers.push((round, run(&model, batch).await.unwrap()));
    }
    drop(model);
    for (round, answer) in answers {
        let pairs = answer.column(0).as_fixed_size_list();
        let values = pairs.values().as_primitive::<Float32Type>();
        let expected = (0..20_000_u16).map(|n| f32::from(n) + f32::from(round));
        assert!(values.values().iter().copied().eq(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_caller_leaves_is_stopped() {
    let model = test_model("slow").await;
    let values = Arc::new(Float32Array::from(vec![1.0; 64])) as ArrayRef;
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let column = Arc::new(FixedSizeListArray::new(item, 64, values, None)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    for _ in 0..3 {
        // Each run would take minutes. They run one after the other, so the second one could not
        // begin if the first one were not stopped.
        let left =
            tokio::time::timeout(Duration::from_millis(200), run(&model, batch.clone())).await;
        assert!(left.is_err(), "it was still running");
    }
    drop(model);
    let stopped = async {
        while threads_named("onnx-slow") != 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), stopped)
        .await
        .expect("its thread ends");
}

fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_that_no_tensor_model_has_is_refused_with_the_nearest_name() {
    let model = test_model("identity-float32").await;
    let ask = |name: &str, dialect: Dialect| {
        let reference = ModelRef::deployed(ModelName::new("m").unwrap());
        let rows = pairs(Arc::new(Float32Array::from(vec![1.5, 2.5])));
        let mut request = PredictRequest::new(reference, Input::Batch(rows));
        request.parameters.set(name, ParamValue::Int(1)).unwrap();
        request.dialect = dialect;
        model.predict(request)
    };
    for (name, hint) in [
        ("sequence_ids", "did you mean 'sequence_id'?"),
        ("temperature", "leave it out"),
    ] {
        let error = ask(name, Dialect::Own).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains(&format!("'{name}'")), "{error:?}");
        assert!(error.message.ends_with(hint), "{error:?}");
        // The protocol requires that unknown parameters are ignored.
        ask(name, Dialect::OpenInference).await.unwrap();
    }
    ask("priority", Dialect::Own).await.unwrap();
}
