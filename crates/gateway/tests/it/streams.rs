//! `_predict/stream`: bytes, time of the status, keep-alives, errors and disconnects.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::sync::mpsc;
use volley_gateway::{ApiConfig, EdgeConfig};
use volley_types::chunk::BatchResult;
use volley_types::{ErrorCode, FinishReason, GenerationChunk, GenerationChunks, PredictError};

use super::support::{Edge, SOON, Script, event, eventually, last, request, text};

const STREAM: &str = "/_plugins/_ml/models/m/_predict/stream";
const PROMPT: &str = r#"{"parameters":{"prompt":"tell"}}"#;

fn open_streams(edge: &Edge) -> usize {
    edge.cluster.open.load(std::sync::atomic::Ordering::SeqCst)
}

async fn piece(response: &mut Response<Incoming>) -> Bytes {
    let frame = tokio::time::timeout(SOON, response.body_mut().frame()).await;
    frame
        .unwrap()
        .expect("the stream goes on")
        .unwrap()
        .into_data()
        .unwrap()
}

async fn send(feed: &mpsc::Sender<BatchResult>, chunk: GenerationChunk) {
    feed.send(Ok(GenerationChunks::single(&chunk)))
        .await
        .unwrap();
}

async fn opened(edge: &Edge) -> Response<Incoming> {
    let response = edge.open(request(Method::POST, STREAM, PROMPT)).await;
    assert_eq!(response.status(), 200);
    response
}

#[tokio::test]
async fn a_stream_is_byte_for_byte_what_the_plugin_writes() {
    let edge = Edge::start().await;
    let chunks = vec![text("Sure"), text(" \"né\"\n\u{2028}\\"), text(""), last()];
    edge.cluster.script("m", Script::Chunks(chunks));
    let reply = edge.send(request(Method::POST, STREAM, PROMPT)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    assert_eq!(reply.headers["cache-control"], "no-cache");
    assert_eq!(reply.headers["x-accel-buffering"], "no");
    assert!(reply.headers.contains_key("x-request-id"));
    let expected = [
        event("Sure", false),
        event(" \"né\"\n\u{2028}\\", false),
        event("", true),
    ];
    assert_eq!(reply.text(), expected.concat());
}

#[tokio::test]
async fn text_on_the_last_row_is_an_event_of_its_own() {
    let edge = Edge::start().await;
    let end = GenerationChunk {
        last: true,
        ..text("end")
    };
    edge.cluster.script("m", Script::Chunks(vec![end]));
    let reply = edge.send(request(Method::POST, STREAM, PROMPT)).await;
    assert_eq!(reply.text(), event("end", false) + &event("", true));
}

#[tokio::test]
async fn chunks_go_out_as_they_come_and_together_when_they_are_ready_together() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    let mut response = opened(&edge).await;
    assert_eq!(piece(&mut response).await, event("a", false));
    send(&feed, text("b")).await;
    assert_eq!(piece(&mut response).await, event("b", false));
    let mut rows = GenerationChunks::default();
    for chunk in [text("c"), text("d"), last()] {
        rows.push(&chunk);
    }
    feed.send(Ok(rows.finish())).await.unwrap();
    let together = [event("c", false), event("d", false), event("", true)].concat();
    assert_eq!(piece(&mut response).await, together);
    drop(feed);
    assert!(
        response.body_mut().frame().await.is_none(),
        "nothing follows the end"
    );
    eventually("the stream is dropped", || open_streams(&edge) == 0).await;
}

#[tokio::test]
async fn the_status_waits_for_the_first_chunk() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    let answer = edge.open(request(Method::POST, STREAM, PROMPT));
    tokio::pin!(answer);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut answer).await;
    assert!(early.is_err(), "no status while nothing is known");
    let refused = PredictError::new(ErrorCode::UpstreamFailed, "the upstream answered 401");
    feed.send(Err(refused)).await.unwrap();
    let response = answer.await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["content-type"], "application/json");
}

#[tokio::test]
async fn an_item_that_fails_at_once_is_a_status() {
    let edge = Edge::start().await;
    let failed = GenerationChunk {
        error: Some(("too_large".to_owned(), "the prompt is too long".to_owned())),
        finish_reason: Some(FinishReason::Error),
        ..last()
    };
    edge.cluster.script("m", Script::Chunks(vec![failed]));
    let reply = edge.post(STREAM, PROMPT).await;
    assert_eq!(reply.refused(413), "the prompt is too long");
}

#[tokio::test]
async fn an_error_amid_the_stream_is_its_last_event() {
    for (ending, says, status) in [
        (
            Some(Err(PredictError::new(
                ErrorCode::UpstreamIncomplete,
                "cut \"off\" \\",
            ))),
            "cut \"off\" \\",
            502,
        ),
        (
            Some(Ok(GenerationChunks::single(&GenerationChunk {
                error: Some(("unavailable".to_owned(), "the slot was lost".to_owned())),
                finish_reason: Some(FinishReason::Error),
                ..last()
            }))),
            "the slot was lost",
            503,
        ),
        (None, "without a terminal event", 500),
    ] {
        let edge = Edge::start().await;
        let feed = edge.cluster.feed("m");
        send(&feed, text("a")).await;
        let mut response = opened(&edge).await;
        assert_eq!(piece(&mut response).await, event("a", false));
        if let Some(ending) = ending {
            feed.send(ending).await.unwrap();
        }
        drop(feed);
        let rest = response.into_body().collect().await.unwrap().to_bytes();
        let rest = std::str::from_utf8(&rest).unwrap();
        let body = rest
            .strip_prefix("data: ")
            .and_then(|rest| rest.strip_suffix("\n\n"))
            .unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(body["error"].as_str().unwrap().contains(says), "{body}");
        assert_eq!(body["status"], status);
    }
}

#[tokio::test]
async fn a_stream_without_any_row_is_an_error() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![]));
    edge.post(STREAM, PROMPT).await.refused(500);
    edge.post(STREAM.strip_suffix("/stream").unwrap(), PROMPT)
        .await
        .refused(500);
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let config = ApiConfig::from(EdgeConfig {
        keep_alive: Duration::from_millis(50),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    let mut response = opened(&edge).await;
    assert_eq!(piece(&mut response).await, event("a", false));
    assert_eq!(piece(&mut response).await, ": keep-alive\n\n");
    assert_eq!(piece(&mut response).await, ": keep-alive\n\n");
    send(&feed, text("b")).await;
    loop {
        let piece = piece(&mut response).await;
        if piece != ": keep-alive\n\n" {
            assert_eq!(piece, event("b", false));
            break;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_work() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    let mut response = opened(&edge).await;
    piece(&mut response).await;
    assert_eq!(open_streams(&edge), 1);
    drop(response);
    // Without this detection, the keep-alive would notice it after 15 s.
    tokio::time::timeout(Duration::from_secs(10), feed.closed())
        .await
        .unwrap();
    eventually("the permit is given back", || open_streams(&edge) == 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_chunk_stops_the_work_too() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    let called = async {
        while edge.cluster.calls.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = edge.open(request(Method::POST, STREAM, PROMPT)) => panic!("there is no chunk yet"),
        called = tokio::time::timeout(SOON, called) => called.expect("the model is called"),
    }
    tokio::time::timeout(SOON, feed.closed()).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_runs_into_its_deadline_ends_in_an_error() {
    let edge = Edge::start().await;
    for first in [false, true] {
        let feed = edge.cluster.feed("m");
        let mut sent = request(Method::POST, STREAM, PROMPT);
        sent.headers_mut()
            .insert("x-volley-timeout-ms", "1000".parse().unwrap());
        if first {
            send(&feed, text("a")).await;
        }
        let reply = edge.send(sent).await;
        if first {
            assert_eq!(reply.status, 200);
            assert!(reply.text().contains("\"status\":504"), "{}", reply.text());
        } else {
            reply.refused(504);
        }
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let config = ApiConfig::from(EdgeConfig {
        write_stall: Duration::from_millis(200),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    let response = opened(&edge).await;
    let flood = text(&"x".repeat(64 << 10));
    let stopped = async {
        while feed
            .send(Ok(GenerationChunks::single(&flood)))
            .await
            .is_ok()
        {}
    };
    tokio::time::timeout(SOON, stopped)
        .await
        .expect("the stream is dropped");
    drop(response);
}
