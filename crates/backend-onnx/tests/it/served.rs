//! Triton repositories: several versions, strings of arbitrary bytes, sequences with states, and
//! queue policies.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt64Type};
use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use futures::TryStreamExt;
use serde_json::json;
use volley_backend::Backend;
use volley_types::octets::{to_bytes, to_text};
use volley_types::signature::{ModelMetadata, SERVED_VERSION, takes_octets};
use volley_types::{
    ErrorCode, Input, ModelName, ModelRef, ParamValue, Parameters, PredictError, PredictRequest,
};

use crate::setup;

/// A repository with a configuration and graphs at these paths.
fn repository(config: &str, graphs: &[(&str, &str)]) -> tempfile::TempDir {
    let repository = tempfile::Builder::new().prefix("repo").tempdir().unwrap();
    for (place, model) in graphs {
        let folder = repository.path().join(place);
        std::fs::create_dir_all(&folder).unwrap();
        let graph = setup::test_model(model).join("model.onnx");
        std::fs::copy(graph, folder.join("model.onnx")).unwrap();
    }
    std::fs::write(repository.path().join("config.pbtxt"), config).unwrap();
    repository
}

async fn load(directory: &Path) -> Arc<dyn Backend> {
    setup::load(directory).await.unwrap()
}

fn model() -> ModelRef {
    ModelRef::deployed(ModelName::new("m").unwrap())
}

async fn ask(
    backend: &Arc<dyn Backend>,
    column: ArrayRef,
    parameters: &[(&str, ParamValue)],
) -> Result<RecordBatch, PredictError> {
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let mut request = PredictRequest::new(model(), Input::Batch(batch));
    let given = parameters.iter();
    request.parameters = given
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect::<Parameters>();
    let answer: Vec<RecordBatch> = backend.predict(request).await?.try_collect().await?;
    Ok(answer.into_iter().next().unwrap())
}

fn lists(values: ArrayRef, size: i32) -> ArrayRef {
    let item = Arc::new(Field::new("item", values.data_type().clone(), false));
    Arc::new(FixedSizeListArray::new(item, size, values, None))
}

#[tokio::test(flavor = "multi_thread")]
async fn strings_hold_any_bytes() {
    let backend = load(&setup::test_model("identity-string")).await;
    let signature = backend.signature(&model()).await.unwrap();
    assert!(takes_octets(signature.input.field(0)));
    let given: [&[u8]; 4] = [b"hi", b"\xff\xfe", b"a\0b", b""];
    let column = StringArray::from_iter_values(given.map(to_text));
    let answer = ask(&backend, lists(Arc::new(column), 2), &[])
        .await
        .unwrap();
    let values = answer.column(0).as_fixed_size_list().values().clone();
    assert_eq!(*values.data_type(), DataType::Utf8);
    let back: Vec<Vec<u8>> = values
        .as_string::<i32>()
        .iter()
        .map(|text| to_bytes(text.unwrap()).into_owned())
        .collect();
    assert_eq!(back, given);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_versions_of_a_policy_are_served_by_their_names() {
    let config = "max_batch_size: 4 version_policy { all { } }
        input [ { name: 'x' data_type: TYPE_FP32 dims: [ 2 ] format: FORMAT_NONE } ]
        output [ { name: 'y' data_type: TYPE_FP32 dims: [ 2 ] } ]";
    let graphs = ["1", "3", "beta"].map(|place| (place, "identity-float32"));
    let repository = repository(config, &graphs);
    let backend = load(repository.path()).await;
    let served = ModelMetadata::of(&backend.signature(&model()).await.unwrap());
    assert_eq!(served.versions, ["beta", "1", "3"]);
    let config = served.config.unwrap();
    assert_eq!(config["max_batch_size"], 4);
    assert_eq!(config["platform"], "onnxruntime_onnx");
    assert_eq!(config["input"][0]["dims"], json!([2]));
    assert_eq!(config["version_policy"], json!({ "all": {} }));
    let pair = || lists(Arc::new(Float32Array::from(vec![1.0, 2.0])), 2);
    for version in ["1", "3", "beta"] {
        let named = [(SERVED_VERSION, ParamValue::Text(version.to_owned()))];
        ask(&backend, pair(), &named).await.unwrap();
    }
    ask(&backend, pair(), &[]).await.unwrap();
    let other = [(SERVED_VERSION, ParamValue::Text("2".to_owned()))];
    let error = ask(&backend, pair(), &other).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NotFound);
}

fn summing(strategy: &str) -> tempfile::TempDir {
    let config = format!(
        "max_batch_size: 8
         input [ {{ name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }} ]
         output [ {{ name: 'sum' data_type: TYPE_FP32 dims: [ 1 ] }},
                  {{ name: 'id' data_type: TYPE_UINT64 dims: [ 1 ] }} ]
         sequence_batching {{ {strategy} max_sequence_idle_microseconds: 60000000
           control_input [
             {{ name: 'START' control [ {{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }} ] }},
             {{ name: 'ID' control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} ] }} ]
           state [ {{ input_name: 'before' output_name: 'after' data_type: TYPE_FP32 dims: [ 1 ] }} ] }}"
    );
    repository(&config, &[("1", "summing")])
}

/// The sum and the id in the answer to a request of a sequence.
async fn step(
    backend: &Arc<dyn Backend>,
    id: i64,
    number: f32,
    flags: &[&str],
) -> Result<(f32, u64), PredictError> {
    let mut parameters = vec![("sequence_id", ParamValue::Int(id))];
    parameters.extend(flags.iter().map(|flag| (*flag, ParamValue::Bool(true))));
    let column = lists(Arc::new(Float32Array::from(vec![number])), 1);
    let answer = ask(backend, column, &parameters).await?;
    let of = |name: &str| {
        let column = answer.column_by_name(name).unwrap();
        column.as_fixed_size_list().values().clone()
    };
    let sum = of("sum").as_primitive::<Float32Type>().value(0);
    Ok((sum, of("id").as_primitive::<UInt64Type>().value(0)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_goes_on_where_its_last_request_ended() {
    for strategy in ["direct { }", "oldest { max_candidate_sequences: 2 }"] {
        let repository = summing(strategy);
        let backend = load(repository.path()).await;
        let signature = backend.signature(&model()).await.unwrap();
        let names = |schema: &arrow_schema::Schema| -> Vec<String> {
            schema
                .fields()
                .iter()
                .map(|field| field.name().clone())
                .collect()
        };
        assert_eq!(names(&signature.input), ["x"]);
        assert_eq!(names(&signature.output), ["sum", "id"]);
        let start = ["sequence_start"];
        assert_eq!(step(&backend, 7, 1.0, &start).await.unwrap(), (1.0, 7));
        assert_eq!(step(&backend, 8, 10.0, &start).await.unwrap(), (10.0, 8));
        assert_eq!(step(&backend, 7, 2.0, &[]).await.unwrap(), (3.0, 7));
        assert_eq!(step(&backend, 8, 5.0, &[]).await.unwrap(), (15.0, 8));
        let last = step(&backend, 7, 3.0, &["sequence_end"]).await;
        assert_eq!(last.unwrap(), (6.0, 7));
        let over = step(&backend, 7, 1.0, &[]).await.unwrap_err();
        assert!(over.message.contains("sequence_start"), "{over}");
        assert_eq!(
            step(&backend, 8, 1.0, &start).await.unwrap(),
            (1.0, 8),
            "anew"
        );
        let column = lists(Arc::new(Float32Array::from(vec![1.0])), 1);
        let none = ask(&backend, column, &[]).await.unwrap_err();
        assert!(none.message.contains("sequence_id"), "{none}");
        let many = lists(Arc::new(Float32Array::from(vec![1.0, 2.0])), 1);
        let of = [("sequence_id", ParamValue::Int(8))];
        let two = ask(&backend, many, &of).await.unwrap_err();
        assert!(two.message.contains("one row"), "{two}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_begins_with_the_state_in_a_file() {
    let repository = summing("direct { }");
    let config = repository.path().join("config.pbtxt");
    let text = std::fs::read_to_string(&config).unwrap();
    let from = "dims: [ 1 ] initial_state { name: 's' data_type: TYPE_FP32 dims: [ 1 ] data_file: 'first' }";
    let at = text.rfind("dims: [ 1 ]").unwrap();
    let text = format!("{}{from}{}", &text[..at], &text[at + 11..]);
    // The graph resets its state when the control is 1.
    let text = text.replace("fp32_false_true: [ 0, 1 ]", "fp32_false_true: [ 1, 0 ]");
    std::fs::write(&config, text).unwrap();
    let missing = setup::load(repository.path()).await.err().unwrap();
    assert!(missing.message.contains("data_file"), "{missing}");
    let folder = repository.path().join("initial_state");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("first"), [0; 3]).unwrap();
    let short = setup::load(repository.path()).await.err().unwrap();
    assert!(short.message.contains("'before'"), "{short}");
    std::fs::write(folder.join("first"), 0.5_f32.to_le_bytes()).unwrap();
    let backend = load(repository.path()).await;
    let begun = step(&backend, 7, 1.0, &["sequence_start"]).await.unwrap();
    assert_eq!(begun, (1.5, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_waits_for_a_place() {
    let repository = summing("oldest { max_candidate_sequences: 1 }");
    let backend = load(repository.path()).await;
    step(&backend, 1, 1.0, &["sequence_start"]).await.unwrap();
    let other = backend.clone();
    let waiting = tokio::spawn(async move { step(&other, 2, 5.0, &["sequence_start"]).await });
    // The first sequence continues while the other one waits, and its end frees the permit.
    assert_eq!(step(&backend, 1, 1.0, &[]).await.unwrap(), (2.0, 1));
    assert!(!waiting.is_finished());
    step(&backend, 1, 1.0, &["sequence_end"]).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), (5.0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_what_comes_next() {
    let config = "max_batch_size: 4
        dynamic_batching { max_queue_delay_microseconds: 1000000
          default_queue_policy { max_queue_size: 2 } }";
    let repository = repository(config, &[("1", "identity-float32")]);
    let backend = load(repository.path()).await;
    let pair = || lists(Arc::new(Float32Array::from(vec![1.0, 2.0])), 2);
    let asked: Vec<_> = (0..12).map(|_| ask(&backend, pair(), &[])).collect();
    let answers = futures::future::join_all(asked).await;
    let full = answers.iter().filter_map(|answer| answer.as_ref().err());
    let full: Vec<_> = full.collect();
    assert!(!full.is_empty() && full.len() < 12, "{full:?}");
    assert!(full.iter().all(|error| error.code == ErrorCode::Overloaded));
    assert!(full[0].message.contains("max_queue_size"), "{}", full[0]);
    ask(&backend, pair(), &[]).await.unwrap();
}
