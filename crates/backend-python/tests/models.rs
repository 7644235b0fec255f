//! Real Python processes behind the loader: answers, cancellation, crashes and bad models.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "setup/files.rs"]
mod files;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use futures::StreamExt;
use volley_backend::{Backend, BackendLoader};
use volley_backend_python::{PythonConfig, PythonLoader};
use volley_telemetry::Metrics;
use volley_types::{
    ErrorCode, GenerationRow, Input, ModelName, ModelRef, ParamValue, PredictError, PredictRequest,
};

use crate::files::{Files, until};

fn prompt(text: &str) -> PredictRequest {
    let prompts: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let rows = RecordBatch::try_from_iter_with_nullable([("prompt", prompts, true)]).unwrap();
    request(rows)
}

fn request(rows: RecordBatch) -> PredictRequest {
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    PredictRequest::new(model, Input::Batch(rows))
}

/// The texts of an answer, and the error that ended it.
async fn read(backend: &dyn Backend, request: PredictRequest) -> (String, Option<PredictError>) {
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

const WORDS: &str = r#"
class Model:
    """Splits a prompt into words."""

    def __init__(self, mark: str = ""):
        self.mark = mark

    def generate(self, prompt: str, limit: int = 1000):
        for word in prompt.split()[:limit]:
            yield word + self.mark + " "
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_generator_streams_and_takes_its_parameters() {
    let files = Files::new(WORDS);
    let mark = [("mark", ParamValue::Text("!".to_owned()))];
    let model = files.load(&mark).await.unwrap();
    let (text, error) = read(&*model, prompt("one two three")).await;
    assert_eq!(
        (text.as_str(), error.is_none()),
        ("one! two! three! ", true)
    );

    let mut limited = prompt("one two three");
    let limit = [("limit".to_owned(), ParamValue::Int(1))];
    limited.parameters = limit.into_iter().collect();
    assert_eq!(read(&*model, limited).await.0, "one! ");

    let mut unknown = prompt("one");
    let limit = [("limmit".to_owned(), ParamValue::Int(1))];
    unknown.parameters = limit.into_iter().collect();
    let error = read(&*model, unknown).await.1.unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("did you mean 'limit'?"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_arguments_become_columns() {
    let files = Files::new(
        "def predict(age: int, fare: float, city: str) -> float:\n    return age * fare + len(city)\n",
    );
    let model = files.load(&[]).await.unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("age", Arc::new(Int64Array::from(vec![2, 3]))),
        ("fare", Arc::new(Float64Array::from(vec![0.5, 2.0]))),
        ("city", Arc::new(StringArray::from(vec!["Rome", "Ur"]))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let mut stream = model.predict(request(rows)).await.unwrap();
    let mut values = Vec::new();
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap();
        let column = batch.column(0).as_primitive::<Float64Type>();
        values.extend(column.values().iter().copied());
    }
    assert_eq!(values, [5.0, 8.0]);
    let signature = model
        .signature(&ModelRef::deployed(ModelName::new("m").unwrap()))
        .await;
    let names: Vec<_> = signature
        .unwrap()
        .input
        .fields()
        .iter()
        .map(|it| it.name().clone())
        .collect();
    assert_eq!(names, ["age", "fare", "city"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_closes_the_generator() {
    let files = Files::new(
        r#"
def generate(prompt: str):
    try:
        while True:
            yield "x"
    finally:
        with open("closed", "w") as file:
            file.write("yes")
"#,
    );
    let model = files.load(&[]).await.unwrap();
    let mut stream = model.predict(prompt("go")).await.unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    assert_eq!(files.written("closed").await, "yes");
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_does_not_end_after_a_cancel_loses_its_process_and_a_new_one_serves() {
    let files = Files::new(
        r#"
import time

def generate(prompt: str):
    yield "begun"
    if prompt == "hang":
        while True:
            pass
"#,
    );
    let grace = [("cancel_grace_seconds", ParamValue::Float(0.2))];
    let model = files.load(&grace).await.unwrap();
    let mut stream = model.predict(prompt("hang")).await.unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    let text = until("a new process answers", async || {
        let (text, error) = read(&*model, prompt("go")).await;
        let codes = [ErrorCode::Unavailable, ErrorCode::Internal];
        let error = error.inspect(|error| assert!(codes.contains(&error.code), "{error}"));
        error.is_none().then_some(text)
    })
    .await;
    assert_eq!(text, "begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_the_error_of_its_calls_and_the_model_comes_back() {
    let files = Files::new(
        r#"
import os, signal

def generate(prompt: str):
    yield "a"
    if prompt == "exit":
        os._exit(3)
    if prompt == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if prompt == "sys.exit":
        raise SystemExit(1)
"#,
    );
    let model = files.load(&[]).await.unwrap();
    for (cause, expected) in [("exit", "code 3"), ("segfault", "segmentation fault")] {
        until("the call fails with its process", async || {
            let error = read(&*model, prompt(cause)).await.1.unwrap();
            if error.message.contains(expected) && error.message.contains("while it ran") {
                return Some(());
            }
            // Between two processes.
            assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
            None
        })
        .await;
    }
    until("the model is back", async || {
        let error = read(&*model, prompt("go")).await.1;
        error.is_none().then_some(())
    })
    .await;
    let error = read(&*model, prompt("sys.exit")).await.1.unwrap();
    assert_eq!(error.code, ErrorCode::Internal, "{error}");
    assert_eq!(read(&*model, prompt("go")).await.0, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_names_the_reason() {
    for (source, expected) in [
        ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
        ("def predict(:\n", "line 1"),
        ("class Model:\n    pass\n", "predict"),
        (
            "class Model:\n    def __init__(self):\n        raise ValueError('no weights')\n    def generate(self, prompt: str):\n        yield ''\n",
            "no weights",
        ),
    ] {
        let error = Files::new(source).load(&[]).await.err().expect(source);
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains(expected), "{error}");
        assert!(!error.message.contains("/tmp"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_python_models_says_how_to_allow_them() {
    let files = Files::new(WORDS);
    let loader = PythonLoader::new(PythonConfig::default(), Metrics::new());
    let error = loader.load(&files.assignment(&[])).await.err().unwrap();
    assert!(error.message.contains("python.enabled"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_share_the_requests() {
    let files = Files::new(
        r#"
import os

def predict(x: int) -> int:
    return os.getpid()
"#,
    );
    let model = files
        .load(&[("instances", ParamValue::Int(2))])
        .await
        .unwrap();
    let call = || async {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let rows = RecordBatch::try_from_iter([("x", column)]).unwrap();
        model.predict(request(rows)).await.unwrap()
    };
    let (mut one, mut other) = (call().await, call().await);
    let process = |batch: RecordBatch| batch.column(0).as_primitive::<Int64Type>().value(0);
    let one = process(one.next().await.unwrap().unwrap());
    let other = process(other.next().await.unwrap().unwrap());
    assert_ne!(one, other);
}
