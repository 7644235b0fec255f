//! Real Python processes that stream events of columns.

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
use arrow_array::types::{Int64Type, UInt32Type};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use futures::StreamExt;
use volley_types::{ChunkStream, ErrorCode, Input, ModelName, ModelRef, PredictRequest, Task};

use crate::files::{Files, until};

const COUNT: &str = r#"
from typing import Iterator, TypedDict


class Step(TypedDict):
    number: list[int]


def stream(upto: int) -> Iterator[Step]:
    try:
        for number in range(upto):
            with open("number", "w") as file:
                file.write(str(number + 1))
            yield {"number": [number] * (number % 3 + 1)}
        if upto == 7:
            yield {"numbr": [1]}
    finally:
        with open("closed", "w") as file:
            file.write("yes")
"#;

fn rows(values: Vec<i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from(values));
    RecordBatch::try_from_iter([("upto", column)]).unwrap()
}

fn request(input: impl Into<Input>) -> PredictRequest {
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    PredictRequest::new(model, input.into())
}

/// The number, the event and the end of each row.
async fn read(mut stream: ChunkStream) -> (Vec<(i64, u32, bool)>, Option<ErrorCode>) {
    let mut found = Vec::new();
    while let Some(batch) = stream.next().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return (found, Some(error.code)),
        };
        let (numbers, events) = (batch.column(0), batch.column(1));
        for row in 0..batch.num_rows() {
            found.push((
                numbers.as_primitive::<Int64Type>().value(row),
                events.as_primitive::<UInt32Type>().value(row),
                batch.column(2).as_boolean().value(row),
            ));
        }
    }
    (found, None)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_value_of_a_generator_is_an_event_of_rows() {
    let files = Files::new(COUNT);
    let model = files.load(&[]).await.unwrap();
    let deployed = ModelRef::deployed(ModelName::new("m").unwrap());
    let signature = model.signature(&deployed).await.unwrap();
    assert_eq!(signature.task, Task::Events);
    let declared = Schema::new(vec![Field::new("number", DataType::Int64, false)]);
    assert_eq!(signature.declared_output().fields(), declared.fields());

    let stream = model.predict(request(Input::Batch(rows(vec![3])))).await;
    let expected = vec![
        (0, 0, true),
        (1, 1, false),
        (1, 1, true),
        (2, 2, false),
        (2, 2, false),
        (2, 2, true),
    ];
    assert_eq!(read(stream.unwrap()).await, (expected, None));

    // A request is one call, however its rows are cut.
    let batches = [vec![], vec![2]].map(|values| Ok(rows(values)));
    let input = Input::Stream {
        schema: rows(vec![]).schema(),
        batches: Box::pin(futures::stream::iter(batches)),
    };
    let (found, error) = read(model.predict(request(input)).await.unwrap()).await;
    assert_eq!((found.len(), error), (3, None));
    for wrong in [vec![], vec![1, 2]] {
        let stream = model.predict(request(Input::Batch(rows(wrong)))).await;
        let found = read(stream.unwrap()).await;
        assert_eq!(found, (vec![], Some(ErrorCode::InvalidInput)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_with_other_columns_ends_the_stream_with_the_difference() {
    let files = Files::new(COUNT);
    let model = files.load(&[]).await.unwrap();
    let stream = model.predict(request(Input::Batch(rows(vec![7])))).await;
    let mut stream = stream.unwrap();
    let error = loop {
        match stream.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let message = &error.message;
    assert!(message.contains("missing: number; added: numbr"), "{error}");
    assert!(stream.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_waits_stops_the_generator_and_one_that_leaves_closes_it() {
    let files = Files::new(COUNT);
    let model = files.load(&[]).await.unwrap();
    let stream = model
        .predict(request(Input::Batch(rows(vec![1_000_000]))))
        .await;
    let mut stream = stream.unwrap();
    stream.next().await.unwrap().unwrap();
    let mut before = files.written("number").await;
    until("the generator waits", async || {
        // It writes the number of each event, so it stands still between two looks.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let now = files.written("number").await;
        let stands = now == before;
        before = now;
        stands.then_some(())
    })
    .await;
    let sent: u64 = before.parse().unwrap();
    assert!(sent < 1_000, "{sent}");
    drop(stream);
    assert_eq!(files.written("closed").await, "yes");
}
