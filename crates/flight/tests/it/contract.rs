//! What the contract promises when nothing goes wrong.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use futures::{SinkExt, StreamExt, TryStreamExt};
use volley_types::{ErrorCode, Input, Predict, PredictRequest};

use super::support::{Node, column, input_schema, numbers, request, soon};

#[tokio::test]
async fn one_batch_is_answered_and_known_to_be_whole() {
    let node = Node::start().await;
    let stream = node
        .client
        .predict(request("double", &[1, 2]))
        .await
        .unwrap();
    assert_eq!(stream.schema().field(0).name(), "y");
    let batches: Vec<_> = soon("the answer", stream.try_collect()).await.unwrap();
    assert_eq!(column(&batches[0], "y"), [2, 4]);
    assert_eq!(node.model.whole.load(Ordering::SeqCst), 1);
    node.all_stopped().await;
}

#[tokio::test]
async fn answers_to_a_streamed_request_start_before_its_input_ends() {
    let node = Node::start().await;
    let (mut rows, batches) = mpsc::channel(1);
    let input = Input::Stream {
        schema: input_schema(),
        batches: batches.boxed(),
    };
    let request = PredictRequest::new("double".parse().unwrap(), input);
    let mut stream = node.client.predict(request).await.unwrap();
    for i in 0..20 {
        rows.send(Ok(numbers(&[i]))).await.unwrap();
        let answer = soon("an answer", stream.next()).await.unwrap().unwrap();
        assert_eq!(column(&answer, "y"), [2 * i]);
    }
    drop(rows);
    assert!(soon("the end", stream.next()).await.is_none());
    assert_eq!(node.model.streamed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn chunks_that_are_ready_travel_together() {
    let node = Node::start().await;
    let stream = node.client.predict(request("ready", &[0])).await.unwrap();
    let batches: Vec<_> = soon("the answer", stream.try_collect()).await.unwrap();
    let rows: Vec<_> = batches
        .iter()
        .flat_map(|batch| column(batch, "y"))
        .collect();
    assert_eq!(rows, (0..200).collect::<Vec<_>>());
    assert!(
        batches.len() < 20,
        "{} messages for 200 rows",
        batches.len()
    );
}

#[tokio::test]
async fn the_schema_of_a_whole_request_waits_for_rows_but_not_for_ever() {
    let node = Node::start().await;
    let started = Instant::now();
    let call = node.client.predict(request("mute", &[1]));
    let stream = soon("the schema", call).await.unwrap();
    assert_eq!(stream.schema().field(0).name(), "y");
    // No rows ever come. Where the client did not let it wait, or the node did not, it came at
    // once; that it was slow for another reason fails nothing.
    assert!(Duration::from_millis(250) <= started.elapsed());
    drop(stream);
    node.all_stopped().await;
}

#[tokio::test]
async fn a_request_over_the_message_size_is_split_and_answered() {
    let node = Node::start().await;
    let values: Vec<i64> = (0..3_000_000).collect();
    let stream = node
        .client
        .predict(request("double", &values))
        .await
        .unwrap();
    let batches: Vec<_> = soon("the answer", stream.try_collect()).await.unwrap();
    let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    assert_eq!(rows, values.len());
    assert_eq!(column(&batches[0], "y")[..3], [0, 2, 4]);
}

#[tokio::test]
async fn models_and_signatures_are_discovered() {
    let node = Node::start().await;
    assert_eq!(node.client.models().await, node.model.models().await);
    let model = "double".parse().unwrap();
    assert_eq!(
        node.client.signature(&model).await.unwrap(),
        node.model.signature(&model).await.unwrap()
    );
    let missing = "missing".parse().unwrap();
    let error = node.client.signature(&missing).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NotFound);
    assert_eq!(error.message, "model 'missing' is not registered");
}
