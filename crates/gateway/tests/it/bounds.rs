//! Limits of one caller: memory for bodies, connections and wrong keys. Also duplicate names in
//! bodies, and listeners without administration.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use volley_gateway::{ApiConfig, EdgeConfig};
use volley_security::{Authenticator, ThrottleConfig};
use volley_types::{Signature, Task};

use super::keys::{BOOTSTRAP, keyed};
use super::support::{Edge, SOON, Script, ask, last, request, text};

/// An edge with a model that returns its input of floats.
async fn echo(config: ApiConfig) -> Edge {
    let edge = Edge::with(config).await;
    let field = Field::new("x", DataType::Float32, false);
    let schema = Arc::new(Schema::new(vec![field]));
    let signature = Signature {
        task: Task::Tensors,
        input: schema.clone(),
        output: schema,
    };
    edge.cluster.script("m", Script::Echo(signature));
    edge
}

/// A tensor of `count` floats in the protocol's JSON.
fn tensor(count: usize, value: &str) -> String {
    let data = vec![value; count].join(",");
    format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{count}],"data":[{data}]}}]}}"#)
}

#[tokio::test]
async fn a_large_tensor_in_json_is_the_same_as_a_small_one() {
    let edge = echo(ApiConfig::default()).await;
    for count in [3, 100_000] {
        let reply = edge
            .post("/v2/models/m/infer", &tensor(count, "1.5"))
            .await
            .ok();
        let data = reply["outputs"][0]["data"].as_array().unwrap();
        assert_eq!(data.len(), count);
        assert!(data.iter().all(|value| *value == 1.5));
    }
    let wrong = edge
        .post("/v2/models/m/infer", &tensor(100_000, "null"))
        .await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("input 'x', row 0: must be a number"));
}

#[tokio::test]
async fn bodies_that_do_not_fit_into_the_memory_for_bodies_are_refused_and_others_go_on() {
    let config = ApiConfig::from(EdgeConfig {
        max_inflight_body_bytes: 200_000,
        ..EdgeConfig::default()
    });
    let edge = echo(config).await;
    edge.cluster
        .script("chat", Script::Chunks(vec![text("a"), last()]));
    // A body that never fits.
    let large = edge
        .post("/v2/models/m/infer", &tensor(100_000, "1.5"))
        .await;
    assert_eq!(large.status, 413, "{}", large.text());
    // A list of objects needs far more memory than its text.
    let many = format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(1_000));
    let many = edge.post("/v1/chat/completions", &many).await;
    assert_eq!(many.status, 413, "{}", many.text());
    // A body that would fit, except that another one is still being sent.
    let mut held = TcpStream::connect(edge.address).await.unwrap();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: volley\r\ncontent-length: 190000\r\n\r\n";
    held.write_all(head.as_bytes()).await.unwrap();
    held.write_all(&[b' '; 180_000]).await.unwrap();
    let body = json!({
        "model": "chat", "messages": [{ "role": "user", "content": "x".repeat(60_000) }],
    });
    let body = body.to_string();
    let refused = async {
        loop {
            let reply = edge.post("/v1/chat/completions", &body).await;
            if reply.status == 429 {
                return reply;
            }
        }
    };
    let reply = tokio::time::timeout(SOON, refused).await.unwrap();
    assert!(reply.headers.contains_key("retry-after"));
    assert!(reply.text().contains("requests.max_body_memory"));
    drop(held);
    let mut served = edge.post("/v1/chat/completions", &body).await.status;
    while served == 429 {
        served = edge.post("/v1/chat/completions", &body).await.status;
    }
    assert_eq!(served, 200);
}

#[tokio::test]
async fn a_body_in_one_byte_chunks_is_read_and_counts_as_its_content() {
    let config = ApiConfig::from(EdgeConfig {
        // The pieces would not fit if each needed at least forty bytes.
        max_inflight_body_bytes: 200_000,
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let content = "x".repeat(60_000);
    let messages = json!([{ "role": "user", "content": content }]);
    let body = json!({ "model": "m", "messages": messages }).to_string();
    let mut sent = "POST /v1/chat/completions HTTP/1.1\r\nhost: volley\r\n\
                    connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_owned();
    for byte in body.chars().chain([' ', ' ']) {
        write!(sent, "1\r\n{byte}\r\n").unwrap();
    }
    sent.push_str("0\r\n\r\n");
    let mut socket = TcpStream::connect(edge.address).await.unwrap();
    socket.write_all(sent.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.300}");
}

#[tokio::test]
async fn an_address_has_its_part_of_the_connections() {
    let config = ApiConfig::from(EdgeConfig {
        max_connections_per_address: 2,
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let one = TcpStream::connect(edge.address).await.unwrap();
    let _two = TcpStream::connect(edge.address).await.unwrap();
    let told = async || {
        let mut more = TcpStream::connect(edge.address).await.unwrap();
        let asked = "GET /_volley/health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let _ = more.write_all(asked.as_bytes()).await;
        let mut answer = String::new();
        let _ = more.read_to_string(&mut answer).await;
        answer
    };
    let refused = async {
        loop {
            let answer = told().await;
            if answer.starts_with("HTTP/1.1 429") {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(SOON, refused).await.unwrap();
    assert!(refused.contains("this address"), "{refused}");
    drop(one);
    let served = async { while !told().await.starts_with("HTTP/1.1 200") {} };
    tokio::time::timeout(SOON, served).await.unwrap();
}

#[tokio::test]
async fn an_address_of_many_wrong_keys_is_not_listened_to() {
    let throttle = ThrottleConfig {
        burst: 5,
        per_minute: 1,
    };
    let gate = |registry| {
        let gate = Authenticator::keys(registry, Some(BOOTSTRAP)).unwrap();
        gate.with_throttle(throttle)
    };
    let edge = Edge::guarded(ApiConfig::default(), gate).await;
    let ask_with = async |key: &str| {
        let asked = keyed(key, request(Method::GET, "/_volley/whoami", ""));
        edge.send(asked).await
    };
    assert_eq!(ask_with(BOOTSTRAP).await.status, 200);
    for guess in 0..5 {
        assert_eq!(ask_with(&format!("vly_{guess}_guess")).await.status, 401);
    }
    let refused = ask_with("vly_6_guess").await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.headers.contains_key("retry-after"));
    // A key that was valid before still works, and so do routes without keys.
    assert_eq!(ask_with(BOOTSTRAP).await.status, 200);
    assert_eq!(edge.get("/_volley/health/live").await.status, 200);
    assert_eq!(
        edge.get("/_volley/whoami").await.status,
        401,
        "no key, no guess"
    );
}

#[tokio::test]
async fn a_name_that_stands_twice_in_what_grants_is_refused_by_name() {
    let edge = Edge::start().await;
    for (path, body, name) in [
        (
            "/_volley/keys",
            r#"{"name":"a","role":"viewer","role":"cluster-admin"}"#,
            "'role'",
        ),
        (
            "/_volley/secrets/s",
            r#"{"value":"a","value":"b"}"#,
            "'value'",
        ),
        (
            "/_volley/aliases",
            r#"{"name":"a","targets":[{"model":"m","weight":1,"model":"n"}]}"#,
            "'model'",
        ),
        (
            "/_plugins/_ml/connectors/_create",
            r#"{"name":"c","credential":{"key":"a","key":"b"}}"#,
            "'key'",
        ),
        (
            "/_plugins/_ml/models/_register",
            r#"{"name":"a","function_name":"text","function_name":"onnx"}"#,
            "'function_name'",
        ),
    ] {
        let reason = edge.post(path, body).await.refused(400);
        assert!(
            reason.contains(name) && reason.contains("twice"),
            "{path}: {reason}"
        );
    }
    let settings = r#"{"transient":{"a":1,"a":2}}"#;
    let asked = request(Method::PUT, "/_cluster/settings", settings);
    assert!(edge.send(asked).await.refused(400).contains("'a'"));
    // A body that grants nothing is parsed like that of any other server.
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let twice = r#"{"model":"x","model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    edge.post("/v1/chat/completions", twice).await.ok();
}

#[tokio::test]
async fn administration_is_served_on_its_own_listener_alone() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let public = edge.api.clone().without_administration();
    let serving = tokio::spawn(public.serve_also(listener, stop.clone()));
    for (method, path) in [
        (Method::POST, "/_plugins/_ml/models/m/_undeploy"),
        (Method::DELETE, "/_plugins/_ml/models/m"),
        (Method::POST, "/_volley/keys"),
        (Method::GET, "/_volley/keys"),
        (Method::POST, "/_volley/nodes/w/drain"),
        (Method::POST, "/v2/repository/models/m/unload"),
        (Method::GET, "/_volley/backup"),
    ] {
        let asked = || {
            request(
                method.clone(),
                path,
                if method == Method::POST { "{}" } else { "" },
            )
        };
        let refused = ask(address, asked()).await;
        assert_eq!(refused.status, 403, "{path}");
        assert!(
            refused.text().contains("listen.admin"),
            "{}",
            refused.text()
        );
        assert_ne!(edge.send(asked()).await.status, 403, "{path}");
    }
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    let chat = request(Method::POST, "/v1/chat/completions", &body.to_string());
    ask(address, chat).await.ok();
    ask(address, request(Method::GET, "/_volley/status", ""))
        .await
        .ok();
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(30), serving)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn answers_of_management_and_errors_are_not_compressed() {
    let edge = echo(ApiConfig::default()).await;
    let zipped = async |method: Method, path: &str, body: &str| {
        let mut asked = request(method, path, body);
        let accepted = "gzip, deflate".parse().unwrap();
        asked.headers_mut().insert("accept-encoding", accepted);
        let reply = edge.send(asked).await;
        (
            reply.status.as_u16(),
            reply.headers.contains_key("content-encoding"),
        )
    };
    for path in [
        "/v2",
        "/v2/models/m",
        "/v2/models/m/config",
        "/v2/models/m/stats",
        "/v1/models",
        "/v1/models?all=true",
        "/api/tags",
        "/_volley/status",
        "/_plugins/_ml/stats",
        "/_plugins/_ml/models/m",
    ] {
        assert_eq!(zipped(Method::GET, path, "").await, (200, false), "{path}");
    }
    for path in ["models", "connectors", "tasks"] {
        let path = format!("/_plugins/_ml/{path}/_search");
        let query = r#"{"query":{"match_all":{}}}"#;
        let found = zipped(Method::POST, &path, query).await;
        assert_eq!(found, (200, false), "{path}");
    }
    for path in ["/openapi.json", "/docs", "/docs/page.js"] {
        assert_eq!(zipped(Method::GET, path, "").await, (200, true), "{path}");
    }
    let index = zipped(Method::POST, "/v2/repository/index", "{}").await;
    assert_eq!(index, (200, false));
    let unknown = format!("/v2/models/{}/infer", "n".repeat(100));
    let (status, compressed) = zipped(Method::POST, &unknown, &tensor(1, "1")).await;
    assert!(400 <= status && !compressed, "{status}");
    let (status, compressed) = zipped(Method::POST, "/v1/chat/completions", "{}").await;
    assert!(400 <= status && !compressed, "{status}");
    let infer = zipped(Method::POST, "/v2/models/m/infer", &tensor(1_000, "1.5")).await;
    assert_eq!(infer, (200, true));
}

#[tokio::test]
async fn an_unknown_role_is_refused_in_every_dialect() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    for role in ["admin", "users", ""] {
        let messages = json!([{ "role": role, "content": "hi" }]);
        let chat = json!({ "model": "m", "messages": messages, "max_tokens": 5 });
        let ml = json!({ "parameters": { "messages": messages } });
        for (path, body) in [
            ("/v1/chat/completions", &chat),
            ("/v1/messages", &chat),
            ("/v2/chat", &json!({ "model": "m", "messages": messages })),
            ("/v1/responses", &json!({ "model": "m", "input": messages })),
            ("/api/chat", &json!({ "model": "m", "messages": messages })),
            ("/_plugins/_ml/models/m/_predict", &ml),
            ("/_plugins/_ml/models/m/_predict/stream", &ml),
        ] {
            let reply = edge.post(path, &body.to_string()).await;
            assert_eq!(reply.status, 400, "{path} {role}: {}", reply.text());
            assert!(reply.text().contains("role"), "{path}: {}", reply.text());
        }
    }
}
