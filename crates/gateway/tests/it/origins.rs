//! Requests that are rejected before routing: from pages of other origins, and with malformed
//! framing or hosts.

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use volley_gateway::{ApiConfig, EdgeConfig, GrpcFlavor, Origins};
use volley_security::Authenticator;

use super::support::{Edge, SOON, Script, last, request, text};

/// Every operation of the document that may change state, with its path parameters set.
async fn unsafe_operations(edge: &Edge) -> Vec<(Method, String)> {
    let document = edge.get("/openapi.json").await.ok();
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let parts = path.split('/').map(|part| match part.starts_with('{') {
            true => "m",
            false => part,
        });
        let path: Vec<_> = parts.collect();
        for method in methods.as_object().unwrap().keys() {
            let method: Method = method.to_ascii_uppercase().parse().unwrap();
            if method != Method::GET {
                all.push((method, path.join("/")));
            }
        }
    }
    assert!(50 < all.len(), "{}", all.len());
    all
}

/// The status of a request with these headers.
async fn status(edge: &Edge, method: &Method, path: &str, headers: &[(&'static str, &str)]) -> u16 {
    let mut asked = request(method.clone(), path, "{}");
    for (name, value) in headers {
        asked.headers_mut().append(*name, value.parse().unwrap());
    }
    edge.send(asked).await.status.as_u16()
}

#[tokio::test]
async fn pages_of_other_origins_can_change_nothing_on_any_route() {
    let gate = |registry| Authenticator::keys(registry, Some(&"b".repeat(40))).unwrap();
    let edges = [
        Edge::start().await,
        Edge::guarded(ApiConfig::default(), gate).await,
    ];
    for edge in &edges {
        let operations = unsafe_operations(edge).await;
        for (method, path) in &operations {
            for headers in [
                &[("sec-fetch-site", "cross-site")][..],
                &[("sec-fetch-site", "same-site")],
                &[("origin", "http://evil.example")],
                &[("origin", "null")],
                &[("origin", "null"), ("sec-fetch-site", "none")],
                &[
                    ("origin", "http://volley.test"),
                    ("sec-fetch-site", "cross-site"),
                ],
            ] {
                let refused = status(edge, method, path, headers).await;
                assert_eq!(refused, 403, "{method} {path} {headers:?}");
            }
        }
        for unknown in [Method::POST, Method::PATCH, Method::DELETE, Method::TRACE] {
            let evil = [("origin", "http://evil.example")];
            assert_eq!(status(edge, &unknown, "/nothing", &evil).await, 403);
        }
    }
    // The server's own pages and programs are still served.
    for headers in [
        &[][..],
        &[("sec-fetch-site", "none")],
        &[
            ("origin", "http://volley.test"),
            ("sec-fetch-site", "same-origin"),
        ],
    ] {
        let known = status(&edges[0], &Method::POST, "/v2/repository/index", headers).await;
        assert_eq!(known, 200, "{headers:?}");
        let safe = status(&edges[0], &Method::GET, "/v1/models", headers).await;
        assert_eq!(safe, 200, "{headers:?}");
    }
    let link = [("sec-fetch-site", "cross-site")];
    assert_eq!(status(&edges[0], &Method::GET, "/docs", &link).await, 200);
}

#[tokio::test]
async fn a_named_page_may_call_and_a_refusal_has_its_dialects_form() {
    let edge = Edge::allowing(Origins::new(&["https://app.example"]).unwrap()).await;
    let named = [
        ("origin", "https://app.example"),
        ("sec-fetch-site", "cross-site"),
    ];
    let known = status(&edge, &Method::POST, "/v2/repository/index", &named).await;
    assert_eq!(known, 200);
    for (path, reason) in [
        ("/v1/chat/completions", "/error/message"),
        ("/v1/messages", "/error/message"),
        ("/v2/models/m/infer", "/error"),
        ("/api/chat", "/error"),
        ("/_plugins/_ml/models/m/_undeploy", "/error/reason"),
    ] {
        let mut asked = request(Method::POST, path, "{}");
        let evil = "https://evil.example".parse().unwrap();
        asked.headers_mut().insert("origin", evil);
        let reply = edge.send(asked).await;
        assert_eq!(reply.status, 403);
        let body = reply.json();
        let reason = body.pointer(reason).and_then(Value::as_str).expect(path);
        assert!(reason.contains("browser.origins"), "{path}: {body}");
        assert!(reply.headers.contains_key("x-request-id"));
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
    }
}

/// Sends the bytes and reads until the server closes the connection.
async fn raw(address: std::net::SocketAddr, bytes: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let _ = socket.write_all(bytes.as_bytes()).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SOON, socket.read_to_end(&mut answer));
    let _ = read.await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn every_listener_refuses_pages_of_other_origins() {
    let edge = Edge::start().await;
    let mut addresses = vec![edge.address];
    let stop = CancellationToken::new();
    let listen = async || {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    };
    let (listener, address) = listen().await;
    tokio::spawn(edge.api.clone().serve_also(listener, stop.clone()));
    addresses.push(address);
    for flavor in [GrpcFlavor::Triton, GrpcFlavor::MlServer] {
        let (listener, address) = listen().await;
        tokio::spawn(edge.api.clone().serve_grpc(flavor, listener, stop.clone()));
        addresses.push(address);
    }
    let (listener, address) = listen().await;
    tokio::spawn(volley_gateway::serve_node(
        listener,
        std::sync::Arc::new(|| "# EOF\n".to_owned()),
        std::sync::Arc::new(|| true),
        EdgeConfig::default(),
        std::sync::Arc::new(Authenticator::open()),
        stop.clone(),
    ));
    addresses.push(address);
    for address in addresses {
        let asked = "POST / HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: cross-site\r\n\
                     content-length: 0\r\nconnection: close\r\n\r\n";
        let answer = raw(address, asked).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{address}: {answer}");
        assert!(
            answer.contains("x-content-type-options: nosniff"),
            "{answer}"
        );
        let asked = "GET /_plugins/_ml/models/m/_predict/ws HTTP/1.1\r\nhost: localhost\r\n\
                     upgrade: websocket\r\nconnection: upgrade\r\norigin: null\r\n\r\n";
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(asked.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        socket.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 403", "{address}");
    }
    stop.cancel();
}

#[tokio::test]
async fn a_malformed_host_or_frame_is_refused_and_ends_the_connection() {
    let edge = Edge::start().await;
    for (host, status) in [
        ("volley.test", 200),
        ("volley:8420", 200),
        ("[::1]:8420", 200),
        ("", 400),
        (":8420", 400),
        ("volley/path", 400),
        ("volley/", 400),
        ("me@volley", 400),
        ("me:secret@volley:8420", 400),
        ("http://volley", 400),
        ("volley?x", 400),
        ("volley:port", 400),
    ] {
        let asked = format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = raw(edge.address, &asked).await;
        let line = format!("HTTP/1.1 {status}");
        assert!(answer.starts_with(&line), "{host}: {answer}");
    }
    let target = "GET http://me@volley/v1/models HTTP/1.1\r\nhost: volley\r\n\r\n";
    assert!(raw(edge.address, target).await.starts_with("HTTP/1.1 400"));
    for coding in [
        "chunked, chunked",
        "chunked\r\ntransfer-encoding: chunked",
        "gzip, chunked",
    ] {
        // The following bytes are not parsed as another request, because the connection ends.
        let asked = format!(
            "POST /v2/repository/index HTTP/1.1\r\nhost: volley\r\ntransfer-encoding: {coding}\r\n\
             \r\n2\r\n{{}}\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: volley\r\n\r\n"
        );
        let answer = raw(edge.address, &asked).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{coding}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    }
    let once = "POST /v2/repository/index HTTP/1.1\r\nhost: volley\r\nconnection: close\r\n\
                transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    assert!(raw(edge.address, once).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_body_that_announces_too_much_is_refused_before_it_is_sent() {
    let config = ApiConfig::from(EdgeConfig {
        max_body_bytes: 1_000,
        max_tensor_bytes: 1_000,
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    for (length, more) in [(1_001, ""), (1_001, "content-encoding: gzip\r\n")] {
        for path in [
            "/v1/chat/completions",
            "/v2/models/m/infer",
            "/_plugins/_ml/models/m/_predict",
        ] {
            let asked = format!(
                "POST {path} HTTP/1.1\r\nhost: volley\r\ncontent-length: {length}\r\n{more}\
                 expect: 100-continue\r\n\r\n"
            );
            let answer = raw(edge.address, &asked).await;
            assert!(answer.starts_with("HTTP/1.1 413"), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn json_is_read_whatever_it_is_called() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let messages = json!([{ "role": "user", "content": "hi" }]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "model": "m", "messages": messages }),
        ),
        ("/v1/completions", json!({ "model": "m", "prompt": "hi" })),
        (
            "/v1/messages",
            json!({ "model": "m", "messages": messages, "max_tokens": 5 }),
        ),
        ("/v1/responses", json!({ "model": "m", "input": "hi" })),
        ("/v2/chat", json!({ "model": "m", "messages": messages })),
        ("/v2/models/m/generate", json!({ "text_input": "hi" })),
        (
            "/api/chat",
            json!({ "model": "m", "messages": messages, "stream": false }),
        ),
        (
            "/api/generate",
            json!({ "model": "m", "prompt": "hi", "stream": false }),
        ),
        (
            "/_plugins/_ml/models/m/_predict",
            json!({ "parameters": { "prompt": "hi" } }),
        ),
        (
            "/_plugins/_ml/models/m/_predict/stream",
            json!({ "parameters": { "prompt": "hi" } }),
        ),
        ("/_volley/aliases", json!({ "name": "a" })),
    ] {
        let declared = edge.post(path, &body.to_string()).await;
        assert_ne!(declared.status, 415, "{path}");
        for media in [
            None,
            Some("application/x-www-form-urlencoded"),
            Some("application/octet-stream"),
            Some("text/plain;charset=UTF-8"),
        ] {
            let mut asked = request(Method::POST, path, &body.to_string());
            asked.headers_mut().remove("content-type");
            if let Some(media) = media {
                asked
                    .headers_mut()
                    .insert("content-type", media.parse().unwrap());
            }
            let reply = edge.send(asked).await;
            let told = reply.text();
            assert_eq!(reply.status, declared.status, "{path} as {media:?}: {told}");
        }
    }
}
