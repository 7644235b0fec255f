//! Scenarios with sockets that send fixed bytes, so that every response can be produced.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::time::Duration;

use futures::TryStreamExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use volley_client::{Client, ClientError};

/// A server of one connection. Its task returns the head of the request.
struct Canned {
    url: String,
    request: JoinHandle<String>,
}

impl Canned {
    async fn start(answer: String) -> Self {
        // An error only means that another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let request = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 << 10];
            let length = socket.read(&mut request).await.unwrap();
            socket.write_all(answer.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        Self { url, request }
    }

    async fn json(status: &str, body: &str) -> Self {
        let length = body.len();
        Self::start(format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        ))
        .await
    }

    /// A stream that ends when its connection closes.
    async fn events(events: &[&str]) -> Self {
        let events: Vec<_> = events.iter().map(|event| format!("{event}\n\n")).collect();
        Self::start(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{}",
            events.concat()
        ))
        .await
    }

    fn client(&self) -> Client {
        Client::new(&[&self.url]).unwrap()
    }

    /// All texts, and the result of the stream.
    async fn texts(&self) -> (Vec<String>, Result<(), ClientError>) {
        let mut stream = self
            .client()
            .stream("m", &json!({ "prompt": "p" }))
            .await
            .unwrap();
        let mut texts = Vec::new();
        loop {
            match stream.try_next().await {
                Ok(Some(text)) => texts.push(text),
                Ok(None) => return (texts, Ok(())),
                Err(error) => {
                    assert!(
                        stream.try_next().await.unwrap().is_none(),
                        "an error is the end"
                    );
                    return (texts, Err(error));
                }
            }
        }
    }
}

fn event(content: &str, is_last: bool) -> String {
    let map = json!({ "content": content, "is_last": is_last });
    let output = json!({ "name": "response", "dataAsMap": map });
    format!(
        "data: {}",
        json!({ "inference_results": [{ "output": [output] }] })
    )
}

#[tokio::test]
async fn a_whole_stream_gives_its_texts_and_ends() {
    let (one, two, last) = (event("one", false), event(" two", false), event("", true));
    let server = Canned::events(&[&one, ": keep-alive", &two, &last]).await;
    let (texts, end) = server.texts().await;
    assert_eq!(texts, ["one", " two"]);
    end.unwrap();
    let request = server.request.await.unwrap();
    assert!(
        request.starts_with("POST /_plugins/_ml/models/m/_predict/stream "),
        "{request}"
    );
}

#[tokio::test]
async fn a_stream_that_just_ends_is_an_error() {
    for events in [
        vec![],
        vec![event("one", false)],
        vec![event("one", false), "data: x".into()],
    ] {
        let events: Vec<_> = events.iter().map(String::as_str).collect();
        let server = Canned::events(&events).await;
        let (texts, end) = server.texts().await;
        assert!(texts.len() <= 1);
        assert!(matches!(end, Err(ClientError::Incomplete)), "{end:?}");
    }
}

#[tokio::test]
async fn an_error_event_is_told_with_its_code() {
    let failed = r#"data: {"code":"upstream_failed","error":"it broke","status":502,"type":"x"}"#;
    let server = Canned::events(&[&event("one", false), failed]).await;
    let (texts, end) = server.texts().await;
    assert_eq!(texts, ["one"]);
    match end.unwrap_err() {
        ClientError::Refused {
            status,
            code,
            reason,
            ..
        } => {
            assert_eq!(
                (status, code.as_str(), reason.as_str()),
                (502, "upstream_failed", "it broke")
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refusal_is_told_with_its_reason_and_when_to_try_again() {
    let body = r#"{"error":{"root_cause":[],"type":"t","reason":"full","code":"overloaded"},"status":429}"#;
    let server = Canned::json("429 Too Many Requests\r\nretry-after: 3", body).await;
    match server
        .client()
        .stream("m", &json!({ "prompt": "p" }))
        .await
        .unwrap_err()
    {
        ClientError::Refused {
            status,
            code,
            reason,
            retry_after,
        } => {
            assert_eq!(
                (status, code.as_str(), reason.as_str()),
                (429, "overloaded", "full")
            );
            assert_eq!(retry_after, Some(Duration::from_secs(3)));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_answer_that_is_not_ours_is_an_error() {
    let server = Canned::json("502 Bad Gateway", "<html>").await;
    let error = server.client().status().await.unwrap_err();
    assert!(
        matches!(error, ClientError::Refused { status: 502, .. }),
        "{error:?}"
    );
    let server = Canned::json("200 OK", "<html>").await;
    let error = server.client().status().await.unwrap_err();
    assert!(matches!(error, ClientError::Broken(_)), "{error:?}");
}

#[tokio::test]
async fn the_next_coordinator_is_asked_when_one_cannot_be_reached() {
    let body = r#"{"task_id":"t","status":"CREATED","model_id":"m","model_version":"1"}"#;
    let server = Canned::json("200 OK", body).await;
    let nobody = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let client = Client::new(&[&format!("http://{nobody}"), &server.url]).unwrap();
    let registered = client.register_text_model("m").await.unwrap();
    assert_eq!(registered.model_version, "1");

    let client = Client::new(&[format!("http://{nobody}")]).unwrap();
    let error = client.status().await.unwrap_err();
    assert!(matches!(error, ClientError::Connect(..)), "{error:?}");
}

#[tokio::test]
async fn names_stay_inside_their_part_of_the_path() {
    let server = Canned::json("404 Not Found", "{}").await;
    server.client().model("a b/../c?d").await.unwrap_err();
    let request = server.request.await.unwrap();
    assert!(
        request.starts_with("GET /_plugins/_ml/models/a%20b%2F..%2Fc%3Fd "),
        "{request}"
    );
}

#[test]
fn what_is_no_url_is_refused() {
    for bases in [&[][..], &["localhost:8420"], &["http://"], &["nonsense"]] {
        assert!(
            matches!(Client::new(bases), Err(ClientError::Url(_))),
            "{bases:?}"
        );
    }
}

#[tokio::test]
async fn a_backup_over_the_limit_is_too_large_and_not_incomplete() {
    let server = Canned::json("200 OK", "0123456789").await;
    assert_eq!(server.client().backup(10).await.unwrap(), b"0123456789");
    let server = Canned::json("200 OK", "0123456789").await;
    let error = server.client().backup(9).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge), "{error:?}");
}

#[tokio::test]
async fn health_checks_give_up_on_a_coordinator_that_is_silent() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&[format!("http://{}", listener.local_addr().unwrap())]).unwrap();
    let mut sockets = Vec::new();
    for check in 0..2 {
        let silence = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            assert_ne!(socket.read(&mut [0; 1_024]).await.unwrap(), 0);
            // Only the time limit is left to wait for.
            tokio::time::pause();
            sockets.push(socket);
            std::future::pending::<()>().await
        };
        let asked = async {
            match check {
                0 => client.ready().await.map(drop),
                _ => client.date().await.map(drop),
            }
        };
        let ended = tokio::select! {
            ended = asked => ended,
            () = silence => Ok(()),
            () = tokio::time::sleep(Duration::from_secs(600)) => Ok(()),
        };
        tokio::time::resume();
        assert!(matches!(ended, Err(ClientError::Timeout)), "{ended:?}");
    }
}
