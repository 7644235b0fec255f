//! Rows that arrive while responses are sent: over both versions of HTTP, in every format.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use volley_gateway::{ApiConfig, EdgeConfig};
use volley_types::{Signature, Task};

use super::support::{Edge, SOON, Script, eventually, last, request, text};

const STREAM: &str = "/_plugins/_ml/models/m/_predict/stream";
const LINES: &str = "application/x-ndjson";
const ARROW: &str = "application/vnd.apache.arrow.stream";

/// Takes numbers and names, and returns them.
fn signature() -> Signature {
    let schema = Arc::new(Schema::new(vec![
        Field::new("x", DataType::Float32, false),
        Field::new("name", DataType::Utf8, true),
    ]));
    Signature {
        task: Task::Tensors,
        input: schema.clone(),
        output: schema,
    }
}

fn batch(numbers: &[f32]) -> RecordBatch {
    let names = vec![Some("n"); numbers.len()];
    let columns: Vec<arrow_array::ArrayRef> = vec![
        Arc::new(Float32Array::from(numbers.to_vec())),
        Arc::new(StringArray::from(names)),
    ];
    RecordBatch::try_new(signature().input, columns).unwrap()
}

fn arrow(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

type Body = StreamBody<futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// A request whose body the test feeds, and its pending response.
async fn begin(
    edge: &Edge,
    http2: bool,
    media: &str,
    accept: &str,
) -> (
    mpsc::Sender<Bytes>,
    impl Future<Output = Response<Incoming>> + use<>,
) {
    let (feed, answer, _) = connect(edge, http2, media, accept).await;
    (feed, answer)
}

/// As [`begin`], with the connection.
async fn connect(
    edge: &Edge,
    http2: bool,
    media: &str,
    accept: &str,
) -> (
    mpsc::Sender<Bytes>,
    impl Future<Output = Response<Incoming>> + use<>,
    AbortHandle,
) {
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let frames = futures::stream::unfold(receiver, async |mut receiver| {
        let piece = receiver.recv().await?;
        Some((Ok(Frame::data(piece)), receiver))
    });
    let body: Body = StreamBody::new(frames.boxed());
    let uri = if http2 {
        format!("http://volley.test{STREAM}")
    } else {
        STREAM.to_owned()
    };
    let request = Request::builder().method(Method::POST).uri(uri);
    let request = request
        .header("content-type", media)
        .header("accept", accept);
    let request = if http2 {
        request
    } else {
        request.header("host", "volley.test")
    };
    let request = request.body(body).unwrap();
    let socket = TokioIo::new(TcpStream::connect(edge.address).await.unwrap());
    let (answer, connection) = if http2 {
        let client = hyper::client::conn::http2::handshake(TokioExecutor::new(), socket);
        let (mut client, connection) = client.await.unwrap();
        let connection = tokio::spawn(async move { connection.await.is_ok() });
        let answer = tokio::spawn(async move { client.send_request(request).await.unwrap() });
        (answer, connection.abort_handle())
    } else {
        let (mut client, connection) = hyper::client::conn::http1::handshake(socket).await.unwrap();
        let connection = tokio::spawn(async move { connection.await.is_ok() });
        let answer = tokio::spawn(async move { client.send_request(request).await.unwrap() });
        (answer, connection.abort_handle())
    };
    let answer = async move { tokio::time::timeout(SOON, answer).await.unwrap().unwrap() };
    (sender, answer, connection)
}

async fn piece(response: &mut Response<Incoming>) -> String {
    let frame = tokio::time::timeout(SOON, response.body_mut().frame()).await;
    let frame = frame
        .expect("an answer in time")
        .expect("the answer goes on")
        .unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

async fn whole(response: Response<Incoming>) -> Bytes {
    let body = tokio::time::timeout(SOON, response.into_body().collect()).await;
    body.unwrap().unwrap().to_bytes()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn open_streams(edge: &Edge) -> usize {
    edge.cluster.open.load(std::sync::atomic::Ordering::SeqCst)
}

#[tokio::test]
async fn each_row_is_answered_before_the_next_is_sent() {
    for http2 in [false, true] {
        for (accept, before) in [(LINES, ""), ("text/event-stream", "data: ")] {
            let edge = Edge::start().await;
            edge.cluster.script("m", Script::Echo(signature()));
            let (feed, answer) = begin(&edge, http2, LINES, accept).await;
            feed.send("{\"x\": 0.5}\n".into()).await.unwrap();
            let mut response = answer.await;
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["content-type"], accept);
            assert_eq!(response.headers()["x-accel-buffering"], "no");
            for number in 0..20 {
                let told = piece(&mut response).await;
                let told = told.trim_end().strip_prefix(before).unwrap();
                let told: Value = serde_json::from_str(told).unwrap();
                assert_eq!(told["item"], number);
                assert_eq!(told["output"][0]["data"][0], f64::from(number) + 0.5);
                let next = format!("{{\"x\": {}.5, \"name\": \"n\"}}\n", number + 1);
                feed.send(next.into()).await.unwrap();
            }
            drop(feed);
            let rest = whole(response).await;
            let rest = String::from_utf8(rest.to_vec()).unwrap();
            let mut end = rest.lines().filter_map(|line| line.strip_prefix(before));
            let end: Value = serde_json::from_str(end.next_back().unwrap()).unwrap();
            assert_eq!(end, serde_json::json!({ "items": 21, "last": true }));
            eventually("the work is done", || open_streams(&edge) == 0).await;
        }
    }
}

#[tokio::test]
async fn arrow_in_and_arrow_out_are_the_same_rows_wherever_they_are_cut() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Echo(signature()));
    let batches = [batch(&[1.0, 2.0]), batch(&[3.0]), batch(&[4.0, 5.0, 6.0])];
    let sent = arrow(&batches);
    for cut in [7, 64, 100_000] {
        let (feed, answer) = begin(&edge, cut == 64, ARROW, ARROW).await;
        let pieces: Vec<_> = sent.chunks(cut).map(Bytes::copy_from_slice).collect();
        let send = async move {
            for piece in pieces {
                feed.send(piece).await.unwrap();
            }
        };
        let ((), response) = tokio::join!(send, answer);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], ARROW);
        let told = whole(response).await;
        let told: Vec<_> = StreamReader::try_new(told.as_ref(), None)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(told, batches);
    }
    // The same with different formats of request and response.
    let (feed, answer) = begin(&edge, false, ARROW, LINES).await;
    feed.send(sent.into()).await.unwrap();
    drop(feed);
    let told = whole(answer.await).await;
    let told = lines(std::str::from_utf8(&told).unwrap());
    assert_eq!(told.len(), 7);
    assert_eq!(told[5]["output"][0]["data"], json!([6.0]));
}

#[tokio::test]
async fn prompts_have_parameters_once_and_answers_say_whose_they_are() {
    let edge = Edge::start().await;
    let second = volley_types::GenerationChunk {
        item: 1,
        ..text("b")
    };
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), second, last()]));
    let (feed, answer) = begin(&edge, false, LINES, LINES).await;
    let body = "{\"parameters\": {\"temperature\": 0.5}}\n\n{\"prompt\": \"one\"}\n\
                {\"messages\": [{\"role\": \"user\", \"content\": \"two\"}]}\n";
    feed.send(body.into()).await.unwrap();
    drop(feed);
    let told = whole(answer.await).await;
    let told = lines(std::str::from_utf8(&told).unwrap());
    assert_eq!(
        told,
        [
            json!({ "item": 0, "text": "a" }),
            json!({ "item": 1, "text": "b" }),
            json!({ "item": 0, "last": true }),
        ]
    );
    let call = edge.cluster.last_call();
    assert_eq!(call.rows.num_rows(), 2);
    assert_eq!(call.parameters.float("temperature").unwrap(), Some(0.5));

    // The dialect's own body, with a response in JSON lines.
    let mut plain = request(Method::POST, STREAM, r#"{"parameters":{"prompt":"tell"}}"#);
    plain.headers_mut().insert("accept", LINES.parse().unwrap());
    let told = edge.send(plain).await;
    assert_eq!(lines(told.text()).len(), 3);
}

#[tokio::test]
async fn what_is_wrong_is_told_with_its_line() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Echo(signature()));
    for (body, says) in [
        ("", "no rows"),
        ("[1]\n", "line 1"),
        ("{\"x\": \"no\"}\n", "line 1"),
        ("{\"y\": 1}\n", "line 1"),
        ("nonsense\n", "line 1: not valid JSON"),
        ("{\"parameters\": 1}\n", "must be an object"),
    ] {
        let (feed, answer) = begin(&edge, false, LINES, LINES).await;
        feed.send(body.into()).await.unwrap();
        drop(feed);
        let response = answer.await;
        assert_eq!(response.status(), 400, "{body}");
        let told = whole(response).await;
        assert!(
            std::str::from_utf8(&told).unwrap().contains(says),
            "{told:?}"
        );
    }
    // A later error is the last line of the response. An Arrow stream breaks off.
    for accept in [LINES, ARROW] {
        let (feed, answer) = begin(&edge, false, LINES, accept).await;
        feed.send("{\"x\": 1}\n".into()).await.unwrap();
        let response = answer.await;
        assert_eq!(response.status(), 200);
        feed.send("{\"x\": 2}\n\n{\"x\": \n".into()).await.unwrap();
        drop(feed);
        if accept == ARROW {
            assert!(response.into_body().collect().await.is_err());
            continue;
        }
        let told = whole(response).await;
        let told = lines(std::str::from_utf8(&told).unwrap());
        let error = told.last().unwrap();
        assert_eq!(
            (&error["status"], &error["code"]),
            (&json!(400), &json!("invalid_input"))
        );
        assert!(
            error["error"].as_str().unwrap().contains("line 4"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_is_no_arrow_stream_is_refused() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Echo(signature()));
    let good = arrow(&[batch(&[1.0])]);
    let mut long = good.clone();
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let other = Schema::new(vec![Field::new("x", DataType::Int64, false)]);
    let other = RecordBatch::try_new(Arc::new(other), vec![Arc::new(Int64Array::from(vec![1]))]);
    for (bad, status) in [
        (b"nonsense".to_vec(), 400),
        (Vec::new(), 400),
        (good[..20].to_vec(), 400),
        (long, 413),
        (arrow(&[other.unwrap()]), 400),
    ] {
        let (feed, answer) = begin(&edge, false, ARROW, LINES).await;
        feed.send(bad.into()).await.unwrap();
        drop(feed);
        let response = answer.await;
        if response.status() == 200 {
            // Types are checked by the cluster, which is scripted here.
            continue;
        }
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn a_model_that_takes_nothing_makes_its_caller_wait_and_a_caller_who_leaves_ends_it() {
    let config = ApiConfig::from(EdgeConfig {
        keep_alive: Duration::from_millis(100),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    edge.cluster.script("m", Script::Deaf(signature()));
    let (feed, answer, connection) = connect(&edge, false, LINES, "text/event-stream").await;
    let line = format!("{{\"x\": 1, \"name\": \"{}\"}}\n", "n".repeat(16 << 10));
    let mut sent = 0;
    let flood = async {
        while feed.send(line.clone().into()).await.is_ok() {
            sent += line.len();
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(2), flood)
            .await
            .is_err()
    );
    assert!(sent < 16 << 20, "{sent} bytes were taken");
    let response = answer.await;
    assert_eq!(
        response.status(),
        200,
        "the caller is told that it is heard"
    );
    assert_eq!(open_streams(&edge), 1);
    connection.abort();
    eventually("the work ends", || open_streams(&edge) == 0).await;
}

#[tokio::test]
async fn a_caller_who_leaves_in_a_pause_is_noticed_though_the_model_reads_nothing() {
    for (media, first) in [
        (LINES, b"{\"x\": 1}\n{\"x\": 2}\n".to_vec()),
        (ARROW, arrow(&[batch(&[1.0])])[..200].to_vec()),
    ] {
        let edge = Edge::start().await;
        edge.cluster.script("m", Script::Deaf(signature()));
        let (feed, answer, connection) = connect(&edge, false, media, LINES).await;
        feed.send(first.into()).await.unwrap();
        let response = answer.await;
        assert_eq!(response.status(), 200);
        assert_eq!(open_streams(&edge), 1);
        let left = std::time::Instant::now();
        connection.abort();
        eventually("the work ends", || open_streams(&edge) == 0).await;
        // Without this detection, the keep-alive would notice it after 15 s.
        assert!(left.elapsed() < Duration::from_secs(10), "at once");
    }
}
