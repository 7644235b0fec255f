//! What the contract promises when something goes wrong.

use std::time::{Duration, Instant};

use arrow_flight::FlightDescriptor;
use arrow_flight::encode::FlightDataEncoderBuilder;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::net::TcpListener;
use volley_flight::client::{FlightClient, FlightClientConfig};
use volley_flight::server::FlightServerConfig;
use volley_types::{Deadline, ErrorCode, Input, Predict, PredictError, PredictRequest};

use super::support::{
    Node, column, eventually, input_schema, numbers, overloaded, request, soon, upstream_failed,
};

#[tokio::test]
async fn a_dropped_stream_stops_the_work_also_while_the_input_is_open() {
    let node = Node::start().await;
    let open_input = Input::Stream {
        schema: input_schema(),
        batches: stream::iter([Ok(numbers(&[1]))])
            .chain(stream::pending())
            .boxed(),
    };
    for request in [
        request("drip", &[1]),
        request("flood", &[1]),
        PredictRequest::new("drip".parse().unwrap(), open_input),
    ] {
        let mut stream = node.client.predict(request).await.unwrap();
        soon("a first chunk", stream.next()).await.unwrap().unwrap();
        let dropped = Instant::now();
        drop(stream);
        node.all_stopped().await;
        // Without the cancellation, its keep-alive would find it after 10 s.
        assert!(dropped.elapsed() < Duration::from_secs(8));
    }
}

#[tokio::test]
async fn ten_thousand_cancels_leave_the_node_as_it_was() {
    let node = Node::start().await;
    for _ in 0..100 {
        let streams = (0..100).map(|_| node.client.predict(request("drip", &[1])));
        let streams = futures::future::try_join_all(streams).await.unwrap();
        drop(streams);
    }
    node.all_stopped().await;
    let stream = node.client.predict(request("double", &[4])).await.unwrap();
    let batches: Vec<_> = soon("the answer", stream.try_collect()).await.unwrap();
    assert_eq!(column(&batches[0], "y"), [8]);
}

#[tokio::test]
async fn a_refusal_keeps_its_code_message_and_advice() {
    let node = Node::start().await;
    let mut stream = node.client.predict(request("refuse", &[1])).await.unwrap();
    let error = soon("the refusal", stream.next())
        .await
        .unwrap()
        .unwrap_err();
    assert_same(&error, &overloaded());
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn an_error_after_rows_comes_after_all_of_them_and_ends_the_stream() {
    let node = Node::start().await;
    let stream = node
        .client
        .predict(request("late_error", &[1]))
        .await
        .unwrap();
    let items: Vec<_> = soon("the end", stream.collect()).await;
    let (error, rows) = items.split_last().unwrap();
    let rows: Vec<_> = rows
        .iter()
        .flat_map(|batch| column(batch.as_ref().unwrap(), "y"))
        .collect();
    assert_eq!(rows, [0, 1, 2]);
    assert_same(error.as_ref().unwrap_err(), &upstream_failed());
}

#[tokio::test]
async fn a_panic_in_a_model_is_an_error_after_the_rows_before_it() {
    let node = Node::start().await;
    let stream = node.client.predict(request("panic", &[1])).await.unwrap();
    let items: Vec<_> = soon("the end", stream.collect()).await;
    assert_eq!(
        items.last().unwrap().as_ref().unwrap_err().code,
        ErrorCode::Internal
    );
    let stream = node.client.predict(request("double", &[4])).await.unwrap();
    assert!(stream.try_collect::<Vec<_>>().await.is_ok());
}

#[tokio::test]
async fn the_deadline_holds_over_the_whole_stream_at_both_ends() {
    let node = Node::start().await;
    let mut request = request("drip", &[1]);
    request.deadline = Some(Deadline::after(Instant::now(), Duration::from_secs(2)));
    let mut stream = node.client.predict(request).await.unwrap();
    soon("a first chunk", stream.next()).await.unwrap().unwrap();
    let error = soon("the deadline", stream.next())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    // The stream is still held here: the server stops by its own clock.
    node.all_stopped().await;
}

#[tokio::test]
async fn an_error_in_the_input_reaches_the_caller_and_is_no_complete_input() {
    let node = Node::start().await;
    let broken = Input::Stream {
        schema: input_schema(),
        batches: stream::iter([
            Ok(numbers(&[1])),
            Err(PredictError::new(
                ErrorCode::TooLarge,
                "the upload is over its limit",
            )),
        ])
        .boxed(),
    };
    let request = PredictRequest::new("double".parse().unwrap(), broken);
    let outcome: Result<Vec<_>, _> = match node.client.predict(request).await {
        Ok(stream) => soon("the end", stream.try_collect()).await,
        Err(error) => Err(error),
    };
    let error = outcome.unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert_eq!(error.message, "the upload is over its limit");
    node.all_stopped().await;
}

#[tokio::test]
async fn slow_readers_do_not_stall_others_on_the_same_connection() {
    let node = Node::start().await;
    let mut stalled = Vec::new();
    for _ in 0..50 {
        stalled.push(node.client.predict(request("flood", &[1])).await.unwrap());
    }
    for i in 0..100 {
        let stream = node.client.predict(request("double", &[i])).await.unwrap();
        let batches: Vec<_> = soon("an answer", stream.try_collect()).await.unwrap();
        assert_eq!(column(&batches[0], "y"), [2 * i]);
    }
    drop(stalled);
    node.all_stopped().await;
}

#[tokio::test]
async fn a_reader_that_stalls_too_long_is_cut_and_told() {
    let config = FlightServerConfig {
        stall_timeout: Duration::from_millis(200),
        ..FlightServerConfig::default()
    };
    let node = Node::with(config, 1).await;
    let stream = node.client.predict(request("flood", &[1])).await.unwrap();
    eventually("the flood was started", || async {
        node.client.models().await.len() > 1
    })
    .await;
    node.all_stopped().await;
    let items: Vec<_> = soon("the end", stream.collect()).await;
    assert_eq!(
        items.last().unwrap().as_ref().unwrap_err().code,
        ErrorCode::Cancelled
    );
}

#[tokio::test]
async fn a_node_with_no_place_left_says_when_to_try_again() {
    let config = FlightServerConfig {
        max_exchanges: 1,
        ..FlightServerConfig::default()
    };
    let node = Node::with(config, 1).await;
    let held = node.client.predict(request("drip", &[1])).await.unwrap();
    let error = node
        .client
        .predict(request("drip", &[1]))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Overloaded);
    assert!(error.retry_after.is_some());
    drop(held);
    eventually("the place is free again", || async {
        node.client.predict(request("double", &[1])).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_node_that_cannot_be_reached_or_is_silent_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = FlightClientConfig {
        accept_timeout: Duration::from_millis(300),
        ..FlightClientConfig::default()
    };
    let silent = FlightClient::new(&address, config.clone()).unwrap();
    let error = soon("giving up", silent.predict(request("double", &[1])))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);

    drop(listener);
    let refused = FlightClient::new(&address, config).unwrap();
    let error = soon("giving up", refused.predict(request("double", &[1])))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(!error.message.contains("127.0.0.1"), "{}", error.message);
    assert!(FlightClient::new("not an address", FlightClientConfig::default()).is_err());
}

#[test]
fn a_node_that_dies_mid_stream_is_unavailable() {
    let client_side = tokio::runtime::Runtime::new().unwrap();
    let server_side = tokio::runtime::Runtime::new().unwrap();
    let node = server_side.block_on(Node::start());
    let address = node.address.clone();
    let mut stream = client_side.block_on(async {
        let client = FlightClient::new(&address, FlightClientConfig::default()).unwrap();
        let mut stream = client.predict(request("drip", &[1])).await.unwrap();
        soon("a first chunk", stream.next()).await.unwrap().unwrap();
        stream
    });
    // All sockets of the node close with its runtime, as when its process is killed.
    server_side.shutdown_background();
    let error = client_side
        .block_on(async { soon("the failure", stream.next()).await })
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    drop(client_side.enter());
    drop(node);
}

fn assert_same(error: &PredictError, expected: &PredictError) {
    assert_eq!(
        (error.code, &error.message, error.retry_after, error.origin),
        (
            expected.code,
            &expected.message,
            expected.retry_after,
            expected.origin
        )
    );
}

#[tokio::test]
async fn a_calls_own_timeout_ends_its_whole_stream() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let descriptor = FlightDescriptor::new_path(vec!["drip".to_owned()]);
    let messages = FlightDataEncoderBuilder::new()
        .with_flight_descriptor(Some(descriptor))
        .build(stream::iter([Ok(numbers(&[1]))]).chain(stream::pending()));
    let messages = messages.filter_map(|message| async move { message.ok() });
    let mut asked = tonic::Request::new(messages);
    // Put there by hand, for the client must not end the stream by itself.
    let timeout = "300m".parse().unwrap();
    asked.metadata_mut().insert("grpc-timeout", timeout);
    let mut answer = client.do_exchange(asked).await.unwrap().into_inner();
    let end = async {
        loop {
            match answer.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended well"),
                Err(status) => return status,
            }
        }
    };
    let status = soon("the end", end).await;
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status:?}");
    node.all_stopped().await;
}
