//! The stop string that ended an answer, in the dialects that report it.

use http::Method;
use serde_json::json;
use volley_types::{Details, FinishReason, GenerationChunk};

use super::support::{Edge, Reply, Script, last, request, text};

fn ended(details: Details) -> Script {
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Stop),
        details: details.to_json(),
        ..last()
    };
    Script::Chunks(vec![text("Hi"), end])
}

async fn asked(edge: &Edge, path: &str, stream: bool) -> Reply {
    let mut body = json!({ "model": "m", "max_tokens": 9, "stream": stream,
                           "messages": [{ "role": "user", "content": "Hi" }] });
    if path.starts_with("/generate") {
        body = json!({ "inputs": "Hi", "parameters": { "details": true } });
    }
    edge.send(request(Method::POST, path, &body.to_string()))
        .await
}

#[tokio::test]
async fn a_stop_string_is_no_end_of_a_turn() {
    let edge = Edge::start().await;
    let found = Details {
        stop_sequence: Some("there".to_owned()),
        ..Details::default()
    };
    edge.cluster.script("m", ended(found));
    let message = asked(&edge, "/v1/messages", false).await.ok();
    assert_eq!(message["stop_reason"], "stop_sequence");
    assert_eq!(message["stop_sequence"], "there");
    let events = asked(&edge, "/v1/messages", true).await;
    assert!(events.text().contains("\"stop_sequence\":\"there\""));
    for (path, stream) in [
        ("/v2/chat", false),
        ("/v2/chat", true),
        ("/generate?model=m", false),
        ("/generate_stream?model=m", true),
    ] {
        let reply = asked(&edge, path, stream).await;
        let said = reply.text().to_ascii_lowercase();
        assert!(said.contains("\"stop_sequence\""), "{path}: {said}");
    }
    for (format, reason) in [(None, "stop_sequence"), (Some("cohere"), "STOP_SEQUENCE")] {
        let unnamed = Details {
            format: format.map(str::to_owned),
            stop_reason: Some(reason.to_owned()),
            ..Details::default()
        };
        edge.cluster.script("m", ended(unnamed));
        let message = asked(&edge, "/v1/messages", false).await.ok();
        assert_eq!(message["stop_reason"], "stop_sequence", "{format:?}");
        assert!(message["stop_sequence"].is_null(), "{format:?}");
    }
}
