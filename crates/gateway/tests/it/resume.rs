//! Streams that are interrupted and resumed: on the same node, on another one, late, or never.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use volley_gateway::{ApiConfig, EdgeConfig, PeerStreams, ResumeConfig, Streams};
use volley_types::chunk::BatchResult;
use volley_types::{GenerationChunk, GenerationChunks, NodeId, StreamSource};

use super::support::{Edge, Reply, SOON, Script, event, eventually, last, request, text};

const STREAM: &str = "/_plugins/_ml/models/m/_predict/stream";
const PROMPT: &str = r#"{"parameters":{"prompt":"tell"}}"#;

fn resumable(path: &str, body: &str) -> Request<Full<Bytes>> {
    with(
        request(Method::POST, path, body),
        "x-volley-stream",
        "resumable",
    )
}

fn with(
    mut request: Request<Full<Bytes>>,
    name: &'static str,
    value: &str,
) -> Request<Full<Bytes>> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

fn rest(id: &str, last: Option<&str>) -> Request<Full<Bytes>> {
    let request = request(Method::GET, &format!("/v1/streams/{id}"), "");
    match last {
        Some(last) => with(request, "last-event-id", last),
        None => request,
    }
}

fn id_of<T>(response: &Response<T>) -> String {
    response.headers()["x-volley-stream-id"]
        .to_str()
        .unwrap()
        .to_owned()
}

fn stream_id(reply: &Reply) -> String {
    reply.headers["x-volley-stream-id"]
        .to_str()
        .unwrap()
        .to_owned()
}

/// The bytes of an event with its id.
fn numbered(stream: &str, sequence: usize, event: &str) -> String {
    format!("id: {stream}.{sequence}\n{event}")
}

async fn send(feed: &mpsc::Sender<BatchResult>, chunk: GenerationChunk) {
    let batch = GenerationChunks::single(&chunk);
    tokio::time::timeout(SOON, feed.send(Ok(batch)))
        .await
        .expect("the stream takes it")
        .unwrap();
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

/// Three edges with access to each other's streams, and the feed of a model on the first edge.
async fn three(config: ApiConfig) -> [Edge; 3] {
    let streams = [1, 2, 3].map(|id| Streams::new(NodeId(id), config.resume));
    let all = streams.clone();
    let peers: PeerStreams = Arc::new(move |node: NodeId| {
        let streams = all.get(usize::try_from(node.0).ok()?.checked_sub(1)?)?;
        Some(Arc::new(streams.clone()) as Arc<dyn StreamSource>)
    });
    let [one, two, three] = streams;
    [
        Edge::holding(config, one, peers.clone()).await,
        Edge::holding(config, two, peers.clone()).await,
        Edge::holding(config, three, peers).await,
    ]
}

fn short_window() -> ApiConfig {
    ApiConfig {
        resume: ResumeConfig {
            window: Duration::from_millis(1_500),
            ..ResumeConfig::default()
        },
        ..ApiConfig::default()
    }
}

fn open_streams(edge: &Edge) -> usize {
    edge.cluster.open.load(std::sync::atomic::Ordering::SeqCst)
}

#[tokio::test]
async fn a_stream_that_is_cut_goes_on_at_any_coordinator_byte_for_byte() {
    let edges = three(ApiConfig::default()).await;
    let feed = edges[0].cluster.feed("m");
    send(&feed, text("n1")).await;
    let mut response = edges[0].open(resumable(STREAM, PROMPT)).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let id = id_of(&response);
    let written = |sequence: usize| {
        let event = match sequence {
            40 => event("", true),
            sequence => event(&format!("n{sequence}"), false),
        };
        numbered(&id, sequence, &event)
    };
    assert_eq!(piece(&mut response).await, written(1));
    let mut had = 1;
    for sequence in 2..=40 {
        if sequence % 10 == 3 {
            // Interrupted. Events in transit are lost with the connection.
            drop(response);
            send(&feed, text(&format!("n{sequence}"))).await;
            let lost = had - usize::from(sequence == 13);
            let edge = &edges[sequence / 10 % 3];
            let again = rest(&id, Some(&format!("{id}.{lost}")));
            response = edge.open(again).await;
            assert_eq!(response.status(), 200);
            assert_eq!(id_of(&response), id);
            let mut expected: String = (lost + 1..=sequence).map(written).collect();
            while !expected.is_empty() {
                let piece = piece(&mut response).await;
                let piece = std::str::from_utf8(&piece).unwrap();
                expected = expected.strip_prefix(piece).expect(piece).to_owned();
            }
        } else {
            let chunk = if sequence == 40 {
                last()
            } else {
                text(&format!("n{sequence}"))
            };
            send(&feed, chunk).await;
            assert_eq!(piece(&mut response).await, written(sequence));
        }
        had = sequence;
    }
    drop(feed);
    assert!(response.body_mut().frame().await.is_none());
    eventually("the work is done", || open_streams(&edges[0]) == 0).await;
    // The complete stream again, from the start and from the middle.
    for edge in &edges {
        let whole = edge.send(rest(&id, None)).await;
        assert_eq!(whole.text(), (1..=40).map(written).collect::<String>());
        let path = format!("/_plugins/_ml/streams/{id}?after=38");
        assert_eq!(edge.get(&path).await.text(), written(39) + &written(40));
        // An EventSource also reconnects after the end, and must be stopped.
        let end = edge.send(rest(&id, Some(&format!("{id}.40")))).await;
        assert_eq!((end.status.as_u16(), end.text()), (204, ""));
    }
}

#[tokio::test]
async fn a_request_that_is_sent_again_with_its_last_event_is_not_run_again() {
    let edges = three(ApiConfig::default()).await;
    let chunks = vec![text("a"), text("b"), last()];
    edges[0].cluster.script("m", Script::Chunks(chunks));
    let first = edges[0].send(resumable(STREAM, PROMPT)).await;
    let id = stream_id(&first);
    let again = resumable(STREAM, PROMPT);
    let again = edges[1]
        .send(with(again, "last-event-id", &format!("{id}.1")))
        .await;
    let expected = numbered(&id, 2, &event("b", false)) + &numbered(&id, 3, &event("", true));
    assert_eq!(again.text(), expected);
    assert_eq!(edges[0].cluster.calls.lock().len(), 1);
    assert_eq!(edges[1].cluster.calls.lock().len(), 0);
}

#[tokio::test]
async fn every_dialect_has_ids_when_asked_and_none_when_not() {
    let edge = Edge::start().await;
    let chat = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let message =
        r#"{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
    let text_input = r#"{"text_input":"hi"}"#;
    for (path, body) in [
        (STREAM, PROMPT),
        ("/v1/chat/completions", chat),
        (
            "/v1/completions",
            r#"{"model":"m","stream":true,"prompt":"hi"}"#,
        ),
        ("/v1/messages", message),
        ("/v2/models/m/generate_stream", text_input),
    ] {
        edge.cluster
            .script("m", Script::Chunks(vec![text("a"), text("b"), last()]));
        let plain = edge.post(path, body).await;
        assert_eq!(plain.status, 200, "{}", plain.text());
        assert!(!plain.text().contains("id: "), "{}", plain.text());
        assert!(!plain.headers.contains_key("x-volley-stream-id"));
        let held = edge.send(resumable(path, body)).await;
        let id = stream_id(&held);
        let events: Vec<_> = held.text().split_inclusive("\n\n").collect();
        for (index, event) in events.iter().enumerate() {
            let head = format!("id: {id}.{}\n", index + 1);
            assert!(event.starts_with(&head), "{event}");
        }
        let bare: String = events
            .iter()
            .map(|event| event.split_once('\n').unwrap().1)
            .collect();
        let shape = |text: &str| {
            let names = text
                .lines()
                .map(|line| line.split('{').next().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(shape(&bare), shape(plain.text()), "{path}");
        assert_eq!(edge.send(rest(&id, None)).await.text(), held.text());
    }
}

#[tokio::test]
async fn a_detached_stream_is_read_by_a_plain_event_source() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let path = format!("{STREAM}?volley-stream=detached");
    let begun = edge.post(&path, PROMPT).await;
    assert_eq!(begun.status, 202);
    let id = begun.json()["stream_id"].as_str().unwrap().to_owned();
    assert_eq!(begun.headers["location"], format!("/v1/streams/{id}"));
    let read = edge.get(begun.json()["url"].as_str().unwrap()).await;
    assert_eq!(read.headers["content-type"], "text/event-stream");
    assert_eq!(read.headers["cache-control"], "no-cache");
    let expected = numbered(&id, 1, &event("a", false)) + &numbered(&id, 2, &event("", true));
    assert_eq!(read.text(), expected);
}

#[tokio::test]
async fn a_stream_that_nobody_takes_up_is_cancelled_and_then_gone() {
    let edge = Edge::with(short_window()).await;
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    let mut response = edge.open(resumable(STREAM, PROMPT)).await;
    let id = id_of(&response);
    piece(&mut response).await;
    drop(response);
    // The stream waits for a reader, and continues meanwhile.
    send(&feed, text("b")).await;
    assert_eq!(open_streams(&edge), 1);
    tokio::time::timeout(SOON, feed.closed()).await.unwrap();
    eventually("the permit is given back", || open_streams(&edge) == 0).await;
    let gone = edge.send(rest(&id, Some(&format!("{id}.1")))).await;
    assert!(gone.refused(410).contains("not resumed in time"));
}

#[tokio::test]
async fn a_stream_is_cancelled_from_anywhere() {
    let edges = three(ApiConfig::default()).await;
    let feed = edges[0].cluster.feed("m");
    send(&feed, text("a")).await;
    let mut response = edges[0].open(resumable(STREAM, PROMPT)).await;
    let id = id_of(&response);
    piece(&mut response).await;
    let cancelled = edges[2].delete(&format!("/v1/streams/{id}")).await;
    assert_eq!(cancelled.ok()["cancelled"], true);
    tokio::time::timeout(SOON, feed.closed()).await.unwrap();
    let cut = tokio::time::timeout(SOON, response.body_mut().frame())
        .await
        .unwrap();
    assert!(cut.unwrap().is_err(), "a cut stream does not look whole");
    edges[1]
        .delete(&format!("/v1/streams/{id}"))
        .await
        .refused(410);
}

#[tokio::test]
async fn who_takes_a_stream_up_takes_it_over() {
    let edges = three(ApiConfig::default()).await;
    let feed = edges[0].cluster.feed("m");
    send(&feed, text("a")).await;
    let mut old = edges[0].open(resumable(STREAM, PROMPT)).await;
    let id = id_of(&old);
    piece(&mut old).await;
    let mut new = edges[1].open(rest(&id, Some(&format!("{id}.1")))).await;
    let cut = tokio::time::timeout(SOON, old.body_mut().frame())
        .await
        .unwrap();
    assert!(cut.unwrap().is_err());
    send(&feed, text("b")).await;
    assert_eq!(piece(&mut new).await, numbered(&id, 2, &event("b", false)));
    drop(new);
    assert_eq!(open_streams(&edges[0]), 1, "it waits for the next");
}

#[tokio::test]
async fn a_reader_who_does_not_read_holds_the_model_back_and_memory_stays_bounded() {
    let config = ApiConfig {
        resume: ResumeConfig {
            stream_bytes: 64 << 10,
            ..ResumeConfig::default()
        },
        ..ApiConfig::default()
    };
    let streams = Streams::new(NodeId(1), config.resume);
    let edge = Edge::holding(config, streams.clone(), Arc::new(|_| None)).await;
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    let response = edge.open(resumable(STREAM, PROMPT)).await;
    let id = id_of(&response);
    let large = text(&"x".repeat(16 << 10));
    let flood = async {
        loop {
            feed.send(Ok(GenerationChunks::single(&large)))
                .await
                .unwrap();
            // The count has the memory of the node, not that of the connection.
            assert!(streams.counts().bytes <= 128 << 10);
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(2), flood)
            .await
            .is_err()
    );
    drop(response);
    // Events that only the connection has received are no longer buffered. This is reported as an
    // error, not skipped.
    let late = edge.send(rest(&id, Some(&format!("{id}.1")))).await;
    assert!(late.refused(410).contains("no longer buffered"));
    assert_eq!(edge.delete(&format!("/v1/streams/{id}")).await.status, 200);
    eventually("all is freed", || streams.counts().bytes == 0).await;
}

#[tokio::test]
async fn silence_on_a_held_stream_is_filled_with_comments_that_end_no_event() {
    let config = ApiConfig::from(EdgeConfig {
        keep_alive: Duration::from_millis(50),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    let mut response = edge.open(resumable(STREAM, PROMPT)).await;
    let id = id_of(&response);
    assert_eq!(
        piece(&mut response).await,
        numbered(&id, 1, &event("a", false))
    );
    assert_eq!(piece(&mut response).await, ": keep-alive\n");
    drop(response);
    send(&feed, last()).await;
    drop(feed);
    let whole = edge.send(rest(&id, None)).await;
    assert_eq!(
        whole.text(),
        numbered(&id, 1, &event("a", false)) + &numbered(&id, 2, &event("", true))
    );
}

#[tokio::test]
async fn errors_before_the_first_chunk_are_statuses_and_after_it_events_that_are_held() {
    let edge = Edge::start().await;
    let refused = volley_types::PredictError::invalid("no");
    edge.cluster.script("m", Script::Fails(refused.clone()));
    edge.send(resumable(STREAM, PROMPT)).await.refused(400);
    let feed = edge.cluster.feed("m");
    send(&feed, text("a")).await;
    feed.send(Err(refused)).await.unwrap();
    let told = edge.send(resumable(STREAM, PROMPT)).await;
    let id = stream_id(&told);
    assert!(told.text().contains("\"status\":400"), "{}", told.text());
    assert_eq!(edge.send(rest(&id, None)).await.text(), told.text());
}

#[tokio::test]
async fn ids_that_are_none_and_streams_that_are_not_there_are_refused() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let held = edge.send(resumable(STREAM, PROMPT)).await;
    let id = stream_id(&held);
    let token = "abcdefghijklmnopqrstuv";
    for bad in [
        "x",
        "1.short",
        "1.%00",
        &format!("99999999999999999999.{token}"),
    ] {
        edge.get(&format!("/v1/streams/{bad}")).await.refused(400);
        edge.delete(&format!("/v1/streams/{bad}"))
            .await
            .refused(400);
    }
    for unknown in [format!("1.{token}"), format!("77.{token}")] {
        edge.get(&format!("/v1/streams/{unknown}"))
            .await
            .refused(410);
        let again = with(
            request(Method::POST, STREAM, PROMPT),
            "last-event-id",
            &format!("{unknown}.3"),
        );
        edge.send(again).await.refused(410);
    }
    edge.send(rest(&id, Some("nonsense"))).await.refused(400);
    edge.send(rest(&id, Some(&format!("1.{token}.1"))))
        .await
        .refused(400);
    edge.send(rest(&id, Some(&format!("{id}.99"))))
        .await
        .refused(400);
    edge.get(&format!("/v1/streams/{id}?after=x"))
        .await
        .refused(400);
    edge.get(&format!("/v1/streams/{id}?since=1"))
        .await
        .refused(400);
    let what = with(
        request(Method::POST, STREAM, PROMPT),
        "x-volley-stream",
        "maybe",
    );
    edge.send(what).await.refused(400);
    assert_eq!(
        edge.post(&format!("/v1/streams/{id}"), "{}").await.status,
        405
    );
}
