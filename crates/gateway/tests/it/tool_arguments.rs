//! Arguments of tool calls that dialects with objects cannot represent.

use http::Method;
use serde_json::{Value, json};
use volley_types::{FinishReason, GenerationChunk};

use super::support::{Edge, Reply, Script, last, request};

/// A complete call, and one whose arguments end early.
fn script(reason: FinishReason) -> Script {
    let call = |index: u64, arguments: &str| {
        json!({ "index": index, "id": format!("c{index}"), "type": "function",
                "function": { "name": format!("f{index}"), "arguments": arguments } })
    };
    let calls = json!([call(0, "{\"a\":1}"), call(1, "{\"city\":\"Be")]);
    let called = GenerationChunk {
        tool_calls: Some(calls.to_string()),
        ..GenerationChunk::default()
    };
    let end = GenerationChunk {
        finish_reason: Some(reason),
        ..last()
    };
    Script::Chunks(vec![called, end])
}

async fn asked(edge: &Edge, path: &str, stream: bool) -> Reply {
    let mut body = json!({ "model": "m", "stream": stream,
                           "messages": [{ "role": "user", "content": "Hi" }] });
    if path == "/v1/messages" {
        body["max_tokens"] = 9.into();
    }
    edge.send(request(Method::POST, path, &body.to_string()))
        .await
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_left_out() {
    let edge = Edge::start().await;
    edge.cluster.script("m", script(FinishReason::Length));
    let message = asked(&edge, "/v1/messages", false).await.ok();
    assert_eq!(message["stop_reason"], "max_tokens");
    let block = json!({ "type": "tool_use", "id": "c0", "name": "f0", "input": { "a": 1 } });
    assert_eq!(message["content"], json!([block]));
    let chat = asked(&edge, "/api/chat", false).await.ok();
    assert_eq!(chat["done_reason"], "length");
    let call = json!({ "function": { "name": "f0", "arguments": { "a": 1 } } });
    assert_eq!(chat["message"]["tool_calls"], json!([call]));
    let lines = asked(&edge, "/api/chat", true).await;
    let first = lines.text().lines().next().unwrap();
    let first: Value = serde_json::from_str(first).unwrap();
    assert_eq!(first["message"]["tool_calls"], json!([call]));
    let events = asked(&edge, "/v1/messages", true).await;
    assert!(
        events.text().contains("message_stop"),
        "as Anthropic's own stream that is cut off: {}",
        events.text()
    );
}

#[tokio::test]
async fn numbers_in_arguments_keep_their_text() {
    let edge = Edge::start().await;
    let arguments = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let call = json!({ "index": 0, "id": "c", "type": "function",
                       "function": { "name": "f", "arguments": arguments } });
    let called = GenerationChunk {
        tool_calls: Some(json!([call]).to_string()),
        ..GenerationChunk::default()
    };
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::ToolCalls),
        ..last()
    };
    edge.cluster.script("m", Script::Chunks(vec![called, end]));
    for (path, stream) in [
        ("/v1/messages", false),
        ("/api/chat", false),
        ("/api/chat", true),
    ] {
        let reply = asked(&edge, path, stream).await;
        assert!(
            reply.text().contains(&format!(":{arguments}")),
            "{}",
            reply.text()
        );
        assert_eq!(
            reply.headers["content-type"].to_str().unwrap(),
            match stream {
                true => "application/x-ndjson",
                false => "application/json",
            }
        );
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_an_error() {
    let edge = Edge::start().await;
    edge.cluster.script("m", script(FinishReason::ToolCalls));
    for path in ["/v1/messages", "/api/chat"] {
        let whole = asked(&edge, path, false).await;
        assert_eq!(whole.status, 502, "{path}: {}", whole.text());
        assert!(whole.text().contains("'f1'"), "{}", whole.text());
        let stream = asked(&edge, path, true).await;
        let said = stream.text();
        assert!(
            said.contains("\"error\"") && said.contains("'f1'"),
            "{said}"
        );
        assert!(!said.contains("message_stop") && !said.contains("\"done\":true"));
    }
}
