//! `ModelStreamInfer` in both flavors.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Streaming};
use volley_gateway::{ApiConfig, EdgeConfig};
use volley_proto::inference::triton::infer_parameter::ParameterChoice;
use volley_proto::inference::triton::{
    ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
};
use volley_types::{ErrorCode, FinishReason, GenerationChunk, GenerationChunks, PredictError};

use super::grpc::{mlserver, parameter, prompt, raw_request, tensors, triton, words};
use super::support::{Edge, SOON, Script, eventually, last, text};

type Requests = mpsc::Sender<ModelInferRequest>;

/// An open stream of Triton's flavor.
async fn open(edge: &Edge) -> (Requests, Streaming<ModelStreamInferResponse>) {
    let (sender, receiver) = mpsc::channel(16);
    let requests = ReceiverStream::new(receiver);
    let stream = triton(edge).await.model_stream_infer(requests).await;
    (sender, stream.unwrap().into_inner())
}

async fn next<T>(stream: &mut Streaming<T>) -> Option<T> {
    let next = tokio::time::timeout(SOON, stream.message()).await;
    next.expect("a message in time").expect("no error")
}

/// The id, the text, and whether the message is the last.
fn read(message: &ModelStreamInferResponse) -> (String, String, bool) {
    assert_eq!(message.error_message, "");
    let response = message.infer_response.as_ref().unwrap();
    (response.id.clone(), said(response), is_last(message))
}

fn said(response: &ModelInferResponse) -> String {
    let texts = response.raw_output_contents.first();
    texts.map_or(String::new(), |text| {
        String::from_utf8(text[4..].to_vec()).unwrap()
    })
}

fn is_last(message: &ModelStreamInferResponse) -> bool {
    let response = message.infer_response.as_ref().unwrap();
    let choice = &response.parameters["triton_final_response"].parameter_choice;
    matches!(choice, Some(ParameterChoice::BoolParam(true)))
}

fn chunk(chunk: &GenerationChunk) -> volley_types::chunk::BatchResult {
    Ok(GenerationChunks::single(chunk))
}

#[tokio::test]
async fn generations_interleave_and_say_when_they_end() {
    let edge = Edge::start().await;
    let (one, other) = (edge.cluster.feed("one"), edge.cluster.feed("other"));
    let (requests, mut stream) = open(&edge).await;
    let mut asked = prompt("one", "1", "tell");
    let enable = parameter(ParameterChoice::BoolParam(true));
    asked
        .parameters
        .insert("triton_enable_empty_final_response".to_owned(), enable);
    requests.send(asked).await.unwrap();
    one.send(chunk(&text("Once"))).await.unwrap();
    assert_eq!(
        read(&next(&mut stream).await.unwrap()),
        ("1".into(), "Once".into(), false)
    );
    requests.send(prompt("other", "2", "tell")).await.unwrap();
    other.send(chunk(&text("Hello"))).await.unwrap();
    assert_eq!(
        read(&next(&mut stream).await.unwrap()),
        ("2".into(), "Hello".into(), false)
    );
    assert!(
        edge.cluster
            .calls
            .lock()
            .iter()
            .all(|call| call.parameters.is_empty())
    );
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Stop),
        ..last()
    };
    one.send(chunk(&end)).await.unwrap();
    drop(one);
    let message = next(&mut stream).await.unwrap();
    assert_eq!(read(&message), ("1".into(), String::new(), true));
    let response = message.infer_response.unwrap();
    assert!(response.outputs.is_empty());
    let reason = ParameterChoice::StringParam("stop".to_owned());
    assert_eq!(response.parameters["finish_reason"], parameter(reason));
    // Without an empty last message, the last text has the end, if the model reports both together.
    let end = GenerationChunk {
        text: Some("!".to_owned()),
        ..last()
    };
    other.send(chunk(&end)).await.unwrap();
    drop(other);
    assert_eq!(
        read(&next(&mut stream).await.unwrap()),
        ("2".into(), "!".into(), true)
    );
    drop(requests);
    assert_eq!(next(&mut stream).await, None);
}

#[tokio::test]
async fn tensors_keep_their_order_and_an_error_is_a_message() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let (requests, mut stream) = open(&edge).await;
    for (id, model) in [("a", "m"), ("b", "nobody"), ("c", "m")] {
        let asked = ModelInferRequest {
            id: id.to_owned(),
            ..raw_request(model)
        };
        requests.send(asked).await.unwrap();
    }
    drop(requests);
    let mut ids = Vec::new();
    while let Some(message) = next(&mut stream).await {
        assert!(is_last(&message));
        let response = message.infer_response.unwrap();
        assert_eq!(message.error_message.is_empty(), response.id != "b");
        ids.push(response.id);
    }
    assert_eq!(ids, ["a", "b", "c"]);
    // Unless the client requests that errors end the stream.
    let asked = tokio_stream::iter([raw_request("nobody"), raw_request("m")]);
    let mut asked = Request::new(asked);
    asked
        .metadata_mut()
        .insert("triton_grpc_error", "true".parse().unwrap());
    let stream = triton(&edge).await.model_stream_infer(asked).await;
    let error = stream.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
}

#[tokio::test]
async fn a_failed_generation_leaves_the_others_alone() {
    let edge = Edge::start().await;
    let (good, bad) = (edge.cluster.feed("good"), edge.cluster.feed("bad"));
    let (requests, mut stream) = open(&edge).await;
    requests.send(prompt("bad", "1", "tell")).await.unwrap();
    requests.send(prompt("good", "2", "tell")).await.unwrap();
    bad.send(chunk(&text("Once"))).await.unwrap();
    assert_eq!(read(&next(&mut stream).await.unwrap()).1, "Once");
    let error = PredictError::new(ErrorCode::UpstreamFailed, "the upstream failed");
    bad.send(Err(error)).await.unwrap();
    let message = next(&mut stream).await.unwrap();
    assert_eq!(message.error_message, "the upstream failed");
    assert_eq!(message.infer_response.unwrap().id, "1");
    good.send(chunk(&text("fine"))).await.unwrap();
    assert_eq!(read(&next(&mut stream).await.unwrap()).1, "fine");
    // A stream that stops without an end has failed.
    drop(good);
    let message = next(&mut stream).await.unwrap();
    assert!(message.error_message.contains("without a terminal event"));
    let mut two = prompt("good", "3", "tell");
    two.inputs[0].shape = vec![2];
    two.raw_input_contents = vec![words(&["a", "b"])];
    requests.send(two).await.unwrap();
    let message = next(&mut stream).await.unwrap();
    assert!(message.error_message.contains("one prompt"), "{message:?}");
}

#[tokio::test]
async fn in_mlservers_skin_messages_are_plain_and_an_error_ends_the_stream() {
    let edge = Edge::start().await;
    edge.cluster.script(
        "g",
        Script::Chunks(vec![text("Once"), text(" upon"), last()]),
    );
    let requests = tokio_stream::iter([prompt("g", "1", "tell"), prompt("nobody", "2", "tell")]);
    let stream = mlserver(&edge).await.model_stream_infer(requests).await;
    let mut stream = stream.unwrap().into_inner();
    for text in ["Once", " upon"] {
        let response = next(&mut stream).await.unwrap();
        assert_eq!((&*response.model_name, &*response.id), ("g", "1"));
        assert_eq!(said(&response), text);
        assert!(response.parameters.is_empty());
    }
    assert_eq!(stream.message().await.unwrap_err().code(), Code::NotFound);
    // Without requests there are no responses.
    let none = tokio_stream::empty::<ModelInferRequest>();
    let stream = mlserver(&edge).await.model_stream_infer(none).await;
    assert_eq!(next(&mut stream.unwrap().into_inner()).await, None);
}

#[tokio::test]
async fn who_leaves_leaves_no_work_behind() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("g");
    let (requests, mut stream) = open(&edge).await;
    requests.send(prompt("g", "1", "tell")).await.unwrap();
    feed.send(chunk(&text("Once"))).await.unwrap();
    next(&mut stream).await.unwrap();
    assert_eq!(edge.cluster.open.load(Ordering::SeqCst), 1);
    drop((requests, stream));
    let open = edge.cluster.open.clone();
    eventually("the work's end", move || open.load(Ordering::SeqCst) == 0).await;
    // The same applies to a call that waits for its complete response.
    let _feed = edge.cluster.feed("g");
    let mut client = triton(&edge).await;
    let call = tokio::spawn(async move { client.model_infer(prompt("g", "", "tell")).await });
    let open = edge.cluster.open.clone();
    eventually("the call's work", move || open.load(Ordering::SeqCst) == 1).await;
    call.abort();
    let open = edge.cluster.open.clone();
    eventually("the work's end", move || open.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn a_deadline_holds_for_the_whole_stream_and_a_limit_for_each_request() {
    let config = ApiConfig::from(EdgeConfig {
        request_timeout: Duration::from_millis(200),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let _feed = edge.cluster.feed("g");
    let (requests, mut stream) = open(&edge).await;
    requests.send(prompt("g", "1", "tell")).await.unwrap();
    let message = next(&mut stream).await.unwrap();
    assert!(message.error_message.contains("in time"), "{message:?}");
    assert_eq!(edge.cluster.open.load(Ordering::SeqCst), 0);

    let (_requests, receiver) = mpsc::channel::<ModelInferRequest>(1);
    let mut asked = Request::new(ReceiverStream::new(receiver));
    asked
        .metadata_mut()
        .insert("grpc-timeout", "1S".parse().unwrap());
    let stream = triton(&edge).await.model_stream_infer(asked).await;
    let late = stream.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_server_that_shuts_down_ends_what_it_has_begun_and_then_its_streams() {
    let mut edge = Edge::start().await;
    let feed = edge.cluster.feed("g");
    let (requests, mut stream) = open(&edge).await;
    requests.send(prompt("g", "1", "tell")).await.unwrap();
    feed.send(chunk(&text("Once"))).await.unwrap();
    next(&mut stream).await.unwrap();
    edge.shutdown.cancel();
    feed.send(chunk(&text("upon"))).await.unwrap();
    assert_eq!(read(&next(&mut stream).await.unwrap()).1, "upon");
    feed.send(chunk(&last())).await.unwrap();
    drop(feed);
    let end = tokio::time::timeout(SOON, stream.message()).await.unwrap();
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    let server: &mut JoinHandle<()> = &mut edge.server;
    tokio::time::timeout(SOON, server).await.unwrap().unwrap();
    drop(requests);
}
