//! Compressed bodies, and the headers of streams, on every route that streams.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use flate2::write::{GzDecoder, GzEncoder, ZlibEncoder};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::json;
use volley_gateway::{ApiConfig, EdgeConfig};
use volley_types::chunk::BatchResult;
use volley_types::{GenerationChunks, Signature, Task};

use super::support::{Edge, SOON, Script, last, request, text};

const STREAM: &str = "/_plugins/_ml/models/m/_predict/stream";
const GZIP: &str = "gzip, deflate, br";

/// Routes whose clients only support JSON lines, which have no comments.
const LINES_ALONE: &str = " /api/";

/// A body for a route that streams. A new route needs a line here; otherwise this panics.
fn body(path: &str) -> String {
    let messages = json!([{ "role": "user", "content": "tell" }]);
    let end = path.rsplit('/').next().unwrap();
    let body = match end {
        _ if path == "/" || path == "/tgi/m" => json!({ "inputs": "tell", "stream": true }),
        "generate_stream" if !path.starts_with("/v2/") => json!({ "inputs": "tell" }),
        "stream" => json!({ "parameters": { "prompt": "tell" } }),
        "completions" if path.contains("chat") => {
            json!({ "model": "m", "stream": true, "messages": messages })
        }
        "completions" => json!({ "model": "m", "stream": true, "prompt": "tell" }),
        "responses" => json!({ "model": "m", "stream": true, "input": "tell" }),
        "messages" => {
            json!({ "model": "m", "stream": true, "max_tokens": 9, "messages": messages })
        }
        "chat" => json!({ "model": "m", "stream": true, "messages": messages }),
        "own" => json!({ "prompt": "tell" }),
        "generate" => json!({ "model": "m", "prompt": "tell" }),
        "generate_stream" => json!({ "text_input": "tell" }),
        "infer_stream" => json!({ "inputs": [
            { "name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["tell"] }
        ] }),
        _ => panic!("tell here what {path} takes"),
    };
    body.to_string()
}

fn chunk(content: &str) -> BatchResult {
    Ok(GenerationChunks::single(&text(content)))
}

/// A stream that is decompressed as it arrives.
struct SessionEvent {
    response: Response<Incoming>,
    decoder: Decoder,
}

enum Decoder {
    Gzip(Box<GzDecoder<Vec<u8>>>),
    Zstd(zstd::stream::write::Decoder<'static, Vec<u8>>),
    Plain(Vec<u8>),
}

impl SessionEvent {
    fn new(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), 200);
        let encoding = response.headers().get("content-encoding");
        let decoder = match encoding.map(|encoding| encoding.to_str().unwrap()) {
            Some("gzip") => Decoder::Gzip(Box::new(GzDecoder::new(Vec::new()))),
            Some("zstd") => Decoder::Zstd(zstd::stream::write::Decoder::new(Vec::new()).unwrap()),
            None => Decoder::Plain(Vec::new()),
            other => panic!("{other:?}"),
        };
        Self { response, decoder }
    }

    fn text(&mut self) -> String {
        let read = match &mut self.decoder {
            Decoder::Gzip(decoder) => {
                decoder.flush().unwrap();
                decoder.get_mut()
            }
            Decoder::Zstd(decoder) => {
                decoder.flush().unwrap();
                decoder.get_mut()
            }
            Decoder::Plain(read) => read,
        };
        String::from_utf8(read.clone()).unwrap()
    }

    /// Reads until the text `what` has arrived.
    async fn until(&mut self, what: &str) {
        let read = async {
            while !self.text().contains(what) {
                let frame = self.response.body_mut().frame().await;
                let frame = frame.expect("the stream goes on").unwrap();
                let piece = frame.into_data().unwrap();
                match &mut self.decoder {
                    Decoder::Gzip(decoder) => decoder.write_all(&piece).unwrap(),
                    Decoder::Zstd(decoder) => decoder.write_all(&piece).unwrap(),
                    Decoder::Plain(read) => read.extend_from_slice(&piece),
                }
            }
        };
        let read = tokio::time::timeout(SOON, read).await;
        assert!(read.is_ok(), "no '{what}' in {:?}", self.text());
    }
}

fn has_the_head_of_a_stream(headers: &HeaderMap, encoding: Option<&str>, route: &str) {
    let is = |name: &str, value: Option<&str>| {
        let given = headers.get(name).map(|given| given.to_str().unwrap());
        assert_eq!(given, value, "{name} of {route}");
    };
    let lines = route.contains(LINES_ALONE);
    let media = if lines {
        "application/x-ndjson"
    } else {
        "text/event-stream"
    };
    is("content-type", Some(media));
    is("cache-control", Some("no-cache"));
    is("x-accel-buffering", Some("no"));
    is("vary", Some("accept-encoding"));
    is("content-encoding", encoding);
    is("content-length", None);
    assert!(headers.contains_key("x-request-id"), "{route}");
}

#[tokio::test]
async fn every_stream_has_its_head_its_comments_and_its_events_at_once_however_compressed() {
    let config = ApiConfig::from(EdgeConfig {
        keep_alive: Duration::from_millis(40),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let routes = edge.api.streaming_routes();
    assert!(13 <= routes.len(), "{routes:?}");
    for (method, template) in routes {
        let path = template
            .replace("{id}", "m")
            .replace("{model}", "m")
            .replace("{route}", "own")
            .replace("{version}", "1");
        for (accepted, encoding) in [
            ("", None),
            (GZIP, Some("gzip")),
            ("gzip, zstd", Some("zstd")),
        ] {
            for held in [false, true] {
                let feed = edge.cluster.feed("m");
                feed.send(chunk("first")).await.unwrap();
                let route = format!("{method} {template}, '{accepted}', held: {held}");
                let asked = if method == "GET" && path.ends_with("/own") {
                    request(Method::GET, &format!("{path}?prompt=tell"), "")
                } else if method == "GET" {
                    let mut begin = request(Method::POST, STREAM, &body(STREAM));
                    let headers = begin.headers_mut();
                    headers.insert("x-volley-stream", "detached".parse().unwrap());
                    let begun = edge.send(begin).await;
                    assert_eq!(begun.status, 202, "{route}");
                    let id = begun.json()["stream_id"].as_str().unwrap().to_owned();
                    request(Method::GET, &template.replace("{id}", &id), "")
                } else {
                    request(Method::POST, &path, &body(&path))
                };
                let mut asked = asked;
                let headers = asked.headers_mut();
                headers.insert("accept-encoding", accepted.parse().unwrap());
                if held && method == "POST" {
                    headers.insert("x-volley-stream", "resumable".parse().unwrap());
                }
                let response = edge.open(asked).await;
                has_the_head_of_a_stream(response.headers(), encoding, &route);
                let mut told = SessionEvent::new(response);
                told.until("first").await;
                if !route.contains(LINES_ALONE) {
                    told.until(": keep-alive\n").await;
                }
                feed.send(chunk("second")).await.unwrap();
                told.until("second").await;
                let end = Ok(GenerationChunks::single(&last()));
                feed.send(end).await.unwrap();
            }
        }
    }
}

fn gzipped(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// The body in each supported encoding.
fn packed(body: &[u8]) -> [(&'static str, Vec<u8>); 3] {
    let mut zlib = ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    zlib.write_all(body).unwrap();
    [
        ("gzip", gzipped(body)),
        ("deflate", zlib.finish().unwrap()),
        ("zstd", zstd::encode_all(body, 3).unwrap()),
    ]
}

fn post(path: &str, encoding: &str, media: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    let request = Request::builder().method(Method::POST).uri(path);
    let request = request.header("host", "volley.test");
    let request = request.header("content-type", media);
    let request = request.header("content-encoding", encoding);
    request.body(Full::new(body.into())).unwrap()
}

#[tokio::test]
async fn bodies_may_be_compressed_on_every_route_and_bombs_are_refused() {
    let config = ApiConfig::from(EdgeConfig {
        max_body_bytes: 100_000,
        max_tensor_bytes: 100_000,
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let json = "application/json";
    for path in [
        STREAM,
        "/v1/chat/completions",
        "/v1/messages",
        "/v2/models/m/generate_stream",
    ] {
        for (encoding, bytes) in packed(body(path).as_bytes()) {
            let whole = edge.send(post(path, encoding, json, bytes.clone())).await;
            assert_eq!(whole.status, 200, "{path} {encoding}: {}", whole.text());
            let cut = bytes[..bytes.len() - 4].to_vec();
            let cut = edge.send(post(path, encoding, json, cut)).await;
            assert_eq!(cut.status, 400, "{path} {encoding}: {}", cut.text());
        }
        for (encoding, bytes) in packed(&[b' '; 200_000]) {
            let bomb = edge.send(post(path, encoding, json, bytes)).await;
            assert_eq!(bomb.status, 413, "{path} {encoding}: {}", bomb.text());
        }
        let other = edge.send(post(path, "br", json, b"x".to_vec())).await;
        assert_eq!(other.status, 415, "{path}");
    }
    // A body of rows may be longer than the limit, but not by decompression.
    let lines = "application/x-ndjson";
    let row = |index: usize| format!("{{\"prompt\": \"{index:0100}\"}}\n");
    let rows: String = (0..4_000).map(row).collect();
    let bomb = format!("{{\"prompt\": \"{}\"}}\n", "x".repeat(90_000)).repeat(400);
    let texts = Arc::new(Schema::new(vec![Field::new(
        "prompt",
        DataType::Utf8,
        false,
    )]));
    let signature = Signature {
        task: Task::Tensors,
        input: texts.clone(),
        output: texts,
    };
    edge.cluster.script("m", Script::Echo(signature));
    for (encoding, bytes) in packed(rows.as_bytes()) {
        let long = edge.send(post(STREAM, encoding, lines, bytes)).await;
        assert_eq!(long.status, 200, "{encoding}");
    }
    for (encoding, bytes) in packed(bomb.as_bytes()) {
        let refused = edge.send(post(STREAM, encoding, lines, bytes)).await;
        let told = refused.text();
        let known = refused.status == 413 || told.contains("\"status\":413");
        assert!(known, "{encoding}: {} {told:.300}", refused.status);
    }
    let other = edge.send(post(STREAM, "br", lines, b"x".to_vec())).await;
    assert_eq!(other.status, 415);
}

#[tokio::test]
async fn whole_answers_are_compressed_too_and_small_ones_are_not() {
    let edge = Edge::start().await;
    let mut about = request(Method::GET, "/openapi.json", "");
    let gzip = GZIP.parse().unwrap();
    about.headers_mut().insert("accept-encoding", gzip);
    let reply = edge.send(about).await;
    assert_eq!(reply.headers["content-encoding"], "gzip");
    assert!(!reply.headers.contains_key("content-length"));
    let mut whole = String::new();
    flate2::read::GzDecoder::new(&reply.body[..])
        .read_to_string(&mut whole)
        .unwrap();
    let plain = edge.get("/openapi.json").await;
    assert_eq!(whole, plain.text());
    assert!(!plain.headers.contains_key("content-encoding"));
    let mut live = request(Method::GET, "/_volley/health/live", "");
    live.headers_mut()
        .insert("accept-encoding", "zstd".parse().unwrap());
    assert!(
        !edge
            .send(live)
            .await
            .headers
            .contains_key("content-encoding")
    );
}
