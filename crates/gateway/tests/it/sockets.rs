//! Connections below HTTP: hosts, sizes, slow senders, both versions, and the shutdown of the
//! server.

use std::time::Duration;

use http::Method;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use volley_gateway::{ApiConfig, EdgeConfig, Origins};
use volley_security::Authenticator;
use volley_types::{GenerationChunks, Signature};

use super::support::{Edge, SOON, Script, event, last, request, text};

/// Writes `bytes` and reads until the server closes.
async fn raw(edge: &Edge, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(edge.address).await.unwrap();
    // The server may respond and close before it has read everything.
    let _ = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(SOON, socket.read_to_end(&mut answer))
        .await
        .expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn exactly_one_host_is_wanted() {
    let edge = Edge::start().await;
    for (hosts, status) in [
        ("host: a\r\n", "200"),
        ("", "400"),
        ("host: a\r\nhost: a\r\n", "400"),
        ("host: a\r\nHost: b\r\n", "400"),
    ] {
        let answer = raw(
            &edge,
            format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n").as_bytes(),
        )
        .await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{hosts:?}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_page_whose_name_was_made_to_lead_here_gets_nothing() {
    let ask = async |edge: &Edge, host: &str| {
        let request =
            format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        raw(edge, request.as_bytes()).await
    };
    let open = Edge::start().await;
    for own in ["localhost:8420", "127.0.0.1", "[::1]:1", "volley"] {
        let answer = ask(&open, own).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{own}: {answer}");
    }
    let answer = ask(&open, "rebound.example.org:8420").await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("browser.origins"), "{answer}");

    let named = Origins::new(&["https://app.example.org"]).unwrap();
    let named = Edge::allowing(named).await;
    let answer = ask(&named, "app.example.org").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A page has no key where one is required.
    let gate = |registry| Authenticator::keys(registry, Some(&"b".repeat(40))).unwrap();
    let keyed = Edge::guarded(ApiConfig::default(), gate).await;
    let answer = ask(&keyed, "rebound.example.org").await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn a_client_that_is_slow_with_its_headers_is_cut() {
    let config = ApiConfig::from(EdgeConfig {
        header_timeout: Duration::from_millis(200),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    for sent in ["", "P", "PRI * HT", "GET / HTTP/1.1\r\nhost: a\r\nx-slow: "] {
        let answer = raw(&edge, sent.as_bytes()).await;
        assert!(!answer.contains("200 OK"), "{sent:?}: {answer}");
    }
}

#[tokio::test]
async fn a_client_that_asked_in_time_may_take_its_time() {
    let config = ApiConfig::from(EdgeConfig {
        header_timeout: Duration::from_millis(500),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    feed.send(Ok(GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    let response = edge.open(stream_request()).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(1_500), feed.closed())
            .await
            .is_err()
    );
    feed.send(Ok(GenerationChunks::single(&last())))
        .await
        .unwrap();
    drop(feed);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, event("a", false) + &event("", true));
}

#[tokio::test]
async fn an_http_2_stream_whose_client_takes_no_more_is_cut() {
    let config = ApiConfig::from(EdgeConfig {
        write_stall: Duration::from_millis(200),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    feed.send(Ok(GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    let (mut sender, _connection) = http2(&edge).await;
    // The client reads its socket, so the connection is alive, but it does not read this stream.
    let stalled = sender.send_request(stream_request()).await.unwrap();
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
    edge.cluster
        .script("m", Script::Chunks(vec![text("b"), last()]));
    let other = sender.send_request(stream_request()).await.unwrap();
    let body = other.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(
        body,
        event("b", false) + &event("", true),
        "the connection lives on"
    );
    drop(stalled);
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_is_closed_and_one_that_waits_for_an_answer_is_not()
{
    let config = ApiConfig::from(EdgeConfig {
        idle_timeout: Duration::from_millis(200),
        write_stall: Duration::from_millis(200),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    feed.send(Ok(GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    let (mut sender, connection) = http2(&edge).await;
    let response = sender.send_request(stream_request()).await.unwrap();
    let gone = tokio::time::timeout(Duration::from_secs(1), feed.closed()).await;
    assert!(gone.is_err() && !connection.is_finished());
    feed.send(Ok(GenerationChunks::single(&last())))
        .await
        .unwrap();
    drop(feed);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, event("a", false) + &event("", true));
    // The client would send another request, and meanwhile answers pings.
    let closed = tokio::time::timeout(SOON, connection).await;
    closed.expect("it is closed").unwrap().unwrap();
    drop(sender);
}

/// A client's end of an HTTP/2 connection, and its task.
async fn http2(
    edge: &Edge,
) -> (
    SendRequest<Full<bytes::Bytes>>,
    JoinHandle<hyper::Result<()>>,
) {
    let socket = TcpStream::connect(edge.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket))
        .await
        .unwrap();
    (sender, tokio::spawn(connection))
}

fn stream_request() -> http::Request<Full<bytes::Bytes>> {
    let path = "http://volley.test/_plugins/_ml/models/m/_predict/stream";
    http::Request::post(path)
        .header("host", "volley.test")
        .header("content-type", "application/json")
        .body(Full::from(r#"{"parameters":{"prompt":"x"}}"#))
        .unwrap()
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let config = ApiConfig::from(EdgeConfig {
        body_timeout: Duration::from_millis(200),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let head = "POST /_plugins/_ml/models/m/_predict HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{\"par";
    let answer = raw(&edge, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let edge = Edge::with(ApiConfig::from(EdgeConfig {
        max_body_bytes: 1_000,
        ..EdgeConfig::default()
    }))
    .await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let body = format!(r#"{{"parameters":{{"prompt":"{}"}}}}"#, "x".repeat(2_000));
    let reason = edge
        .post("/_plugins/_ml/models/m/_predict", &body)
        .await
        .refused(413);
    assert!(reason.contains("1000"), "{reason}");
    let long = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(200_000));
    assert!(raw(&edge, long.as_bytes()).await.starts_with("HTTP/1.1 4"));
    let headers = "x-a: b\r\n".repeat(500);
    let many = format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
    assert!(
        raw(&edge, many.as_bytes())
            .await
            .starts_with("HTTP/1.1 431")
    );
}

#[tokio::test]
async fn what_is_no_http_does_not_harm() {
    let edge = Edge::start().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"\r\n\r\n\0\0\r\n",
        b"GET\r\n\r\n",
    ] {
        assert!(!raw(&edge, bytes).await.contains("200 OK"));
    }
    assert_eq!(edge.get("/").await.status, 200);
}

#[tokio::test]
async fn http_2_is_spoken_too() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let (mut sender, _connection) = http2(&edge).await;
    let request = http::Request::post("http://volley.test/_plugins/_ml/models/m/_predict/stream")
        .header("content-type", "application/json")
        .body(Full::<bytes::Bytes>::from(
            r#"{"parameters":{"prompt":"x"}}"#,
        ))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, event("a", false) + &event("", true));
}

#[tokio::test]
async fn past_the_cap_connections_are_refused_at_once_and_taken_again_once_there_is_a_place() {
    let edge = Edge::with(ApiConfig::from(EdgeConfig {
        max_connections: 1,
        ..EdgeConfig::default()
    }))
    .await;
    let feed = edge.cluster.feed("m");
    feed.send(Ok(GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    let stream = request(
        Method::POST,
        "/_plugins/_ml/models/m/_predict/stream",
        r#"{"parameters":{"prompt":"x"}}"#,
    );
    let streaming = edge.open(stream).await;
    let good = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    for _ in 0..20 {
        let refused = raw(&edge, good).await;
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(refused.contains("retry-after: 1"), "{refused}");
        let silent = raw(&edge, b"").await;
        assert!(silent.contains("overloaded"), "before a word is said");
    }
    drop(streaming);
    let taken = async {
        while !raw(&edge, good).await.starts_with("HTTP/1.1 200") {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, taken)
        .await
        .expect("the place is free again");
}

#[tokio::test]
async fn a_connection_whose_requests_are_taken_back_as_they_come_is_closed() {
    let edge = Edge::start().await;
    // The model never responds, so none of the requests is answered.
    let silent = Script::Deaf(Signature::generation());
    edge.cluster.script("m", silent);
    let (mut sender, connection) = http2(&edge).await;
    let mut sent = 0;
    while sent < 20_000 && sender.ready().await.is_ok() {
        let asked = (0..100).map(|_| sender.clone().send_request(stream_request()));
        // One unanswered request is sufficient.
        let asked = futures::future::try_join_all(asked.collect::<Vec<_>>());
        let answered = tokio::time::timeout(Duration::from_millis(5), asked).await;
        assert!(!matches!(answered, Ok(Ok(_))), "nothing is answered");
        sent += 100;
    }
    assert!((100..20_000).contains(&sent), "{sent} requests");
    // The client may report this as an error or as an end.
    let _ = tokio::time::timeout(SOON, connection)
        .await
        .expect("the connection is closed");
    assert_eq!(edge.get("/").await.status, 200, "others do not notice");
}

#[tokio::test]
async fn a_drain_lets_streams_end_and_takes_nothing_new() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    feed.send(Ok(GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    let stream = request(
        Method::POST,
        "/_plugins/_ml/models/m/_predict/stream",
        r#"{"parameters":{"prompt":"x"}}"#,
    );
    let mut response = edge.open(stream).await;
    response.body_mut().frame().await.unwrap().unwrap();
    edge.shutdown.cancel();
    let refused = async {
        while TcpStream::connect(edge.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, refused)
        .await
        .expect("the port is closed");
    assert!(!edge.server.is_finished(), "a stream still runs");
    feed.send(Ok(GenerationChunks::single(&last())))
        .await
        .unwrap();
    drop(feed);
    let rest = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(rest, event("", true));
    finished(edge).await;
}

#[tokio::test]
async fn a_drain_has_an_end() {
    let config = ApiConfig::from(EdgeConfig {
        drain_timeout: Duration::from_millis(100),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    feed.send(Ok(GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    let stream = request(
        Method::POST,
        "/_plugins/_ml/models/m/_predict/stream",
        r#"{"parameters":{"prompt":"x"}}"#,
    );
    let response = edge.open(stream).await;
    edge.shutdown.cancel();
    finished(edge).await;
    tokio::time::timeout(SOON, feed.closed())
        .await
        .expect("the stream is dropped");
    assert!(
        response.into_body().collect().await.is_err(),
        "cut short, and visibly so"
    );
}

async fn finished(mut edge: Edge) {
    tokio::time::timeout(SOON, &mut edge.server)
        .await
        .expect("the server ends")
        .unwrap();
}
