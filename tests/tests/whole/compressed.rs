//! Compressed streams of every dialect through a cluster whose workers are other processes, of a
//! model and of a pipeline: each event is there when it was sent, and all of them are the same.

use std::io::Write;

use flate2::write::{GzDecoder, GzEncoder, ZlibDecoder};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use volley_tests::cluster::Cluster;
use volley_tests::until;

const WORDS: usize = 20;

/// What comes of a stream, decompressed as it comes.
enum Decompressor {
    Gzip(Box<GzDecoder<Vec<u8>>>),
    Deflate(Box<ZlibDecoder<Vec<u8>>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Vec<u8>>>),
}

impl Decompressor {
    fn new(encoding: &str) -> Self {
        match encoding {
            "gzip" => Self::Gzip(Box::new(GzDecoder::new(Vec::new()))),
            "deflate" => Self::Deflate(Box::new(ZlibDecoder::new(Vec::new()))),
            "zstd" => {
                let decoder = zstd::stream::write::Decoder::new(Vec::new());
                Self::Zstd(Box::new(decoder.unwrap()))
            }
            other => panic!("{other}"),
        }
    }

    fn push(&mut self, piece: &[u8]) -> String {
        let read = match self {
            Self::Gzip(decoder) => {
                decoder.write_all(piece).unwrap();
                decoder.flush().unwrap();
                decoder.get_ref()
            }
            Self::Deflate(decoder) => {
                decoder.write_all(piece).unwrap();
                decoder.flush().unwrap();
                decoder.get_ref()
            }
            Self::Zstd(decoder) => {
                decoder.write_all(piece).unwrap();
                decoder.flush().unwrap();
                decoder.get_ref()
            }
        };
        String::from_utf8_lossy(read).into_owned()
    }
}

/// The routes that stream, and what each takes.
fn asked(model: &str) -> Vec<(String, Value)> {
    let messages = json!([{ "role": "user", "content": "x" }]);
    vec![
        (
            "/v1/chat/completions".to_owned(),
            json!({ "model": model, "stream": true, "messages": messages }),
        ),
        (
            "/v1/completions".to_owned(),
            json!({ "model": model, "stream": true, "prompt": "x" }),
        ),
        (
            "/v1/responses".to_owned(),
            json!({ "model": model, "stream": true, "input": "x" }),
        ),
        (
            "/v1/messages".to_owned(),
            json!({ "model": model, "stream": true, "max_tokens": 99, "messages": messages }),
        ),
        (
            "/api/chat".to_owned(),
            json!({ "model": model, "messages": messages }),
        ),
        (
            format!("/v2/models/{model}/generate_stream"),
            json!({ "text_input": "x" }),
        ),
        (
            format!("/_plugins/_ml/models/{model}/_predict/stream"),
            json!({ "parameters": { "prompt": "x" } }),
        ),
    ]
}

fn gzipped(body: &Value) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body.to_string().as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A request whose own body is compressed too.
async fn post(http: &Client, url: &str, body: &Value, accepted: &str) -> Response {
    let request = http.post(url).header("accept-encoding", accepted);
    let request = request
        .header("content-type", "application/json")
        .header("content-encoding", "gzip");
    let response = request.body(gzipped(body)).send().await.unwrap();
    assert_eq!(response.status(), 200, "{url} {accepted}");
    response
}

/// Where the words stand, each behind the one before.
fn in_order(text: &str, what: &str) {
    let mut rest = text;
    for word in 0..WORDS {
        let word = format!("n{word}.");
        let at = rest
            .find(&word)
            .unwrap_or_else(|| panic!("{what}: no {word} in {text}"));
        rest = &rest[at + word.len()..];
    }
}

/// Reads a stream to its end; the first word must be there before the last one was made, which is
/// three seconds after it.
async fn told(mut response: Response, encoding: &str, what: &str) -> String {
    let headers = response.headers();
    assert_eq!(headers["content-encoding"], encoding, "{what}");
    assert_eq!(headers["cache-control"], "no-cache", "{what}");
    assert_eq!(headers["x-accel-buffering"], "no", "{what}");
    let (mut told, mut text, mut early) = (Decompressor::new(encoding), String::new(), false);
    while let Some(piece) = response.chunk().await.unwrap() {
        text = told.push(&piece);
        early |= text.contains("n0.") && !text.contains(&format!("n{}.", WORDS - 1));
    }
    assert!(early, "{what}: all came at once");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_streams_come_word_by_word_from_other_processes_and_through_pipelines() {
    let cluster = Cluster::start(2, 2).await;
    let parameters = json!({ "chunks": WORDS, "delay_ms": 150, "text": "n{n}. " });
    let body = json!({ "name": "drill", "function_name": "fake", "parameters": parameters });
    cluster.deploy(&body, 2).await;
    let pipe = json!({ "task": "generate", "output": "said", "steps": [
        { "name": "ask", "template": { "template": "say {{ prompt }}",
                                       "inputs": { "prompt": "request.prompt" } } },
        { "name": "said", "model": "drill", "inputs": { "prompt": "ask.text" } },
    ] });
    cluster
        .client(0)
        .put_pipeline("pipe", &pipe, None)
        .await
        .unwrap();
    // The second client of a process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = Client::new();
    let other = &cluster.coordinators[1].http;
    until("the other coordinator knows the pipeline", || async {
        let url = format!("http://{other}/_volley/pipelines/pipe");
        let found = http.get(url).send().await.ok()?;
        found.status().is_success().then_some(())
    })
    .await;

    for (model, encoding) in [
        ("drill", "gzip"),
        ("drill", "zstd"),
        ("pipe", "zstd"),
        ("pipe", "deflate"),
    ] {
        let read = asked(model).into_iter().map(|(path, body)| {
            let (http, url) = (http.clone(), format!("http://{other}{path}"));
            let what = format!("{path} {model} {encoding}");
            tokio::spawn(async move {
                let response = post(&http, &url, &body, encoding).await;
                in_order(&told(response, encoding, &what).await, &what);
            })
        });
        for read in read.collect::<Vec<_>>() {
            read.await.unwrap();
        }
    }
}
