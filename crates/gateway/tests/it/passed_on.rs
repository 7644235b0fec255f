//! Parts of an upstream's response besides its text: the progress of tools that run at the
//! provider, and the reasons of failed rows.

use http::Method;
use serde_json::{Value, json};
use volley_types::{Details, ErrorReason, GenerationChunk, PredictError};

use super::support::{Edge, Script, last, request, text, typed_events};

fn told(details: Details) -> GenerationChunk {
    let details = Details {
        format: Some("openai_responses".to_owned()),
        ..details
    };
    GenerationChunk {
        details: details.to_json(),
        ..GenerationChunk::default()
    }
}

fn happened(event: Value) -> GenerationChunk {
    told(Details {
        events: vec![event],
        ..Details::default()
    })
}

#[tokio::test]
async fn the_progress_of_a_providers_tool_stands_in_the_stream_of_responses() {
    let edge = Edge::start().await;
    let item = |status: &str| json!({ "type": "web_search_call", "id": "ws_1", "status": status });
    let progress = |kind: &str| {
        happened(json!({
            "type": format!("response.web_search_call.{kind}"), "item_id": "ws_1",
            "output_index": 7, "sequence_number": 99,
        }))
    };
    let begun = json!({ "type": "response.output_item.added", "output_index": 7,
                        "item": item("in_progress") });
    let done = Details {
        blocks: vec![item("completed")],
        ..Details::default()
    };
    let chunks = vec![
        text("I look. "),
        happened(begun),
        progress("in_progress"),
        progress("searching"),
        progress("completed"),
        told(done),
        text("Found."),
        last(),
    ];
    edge.cluster.script("m", Script::Chunks(chunks));
    let body = json!({ "model": "m", "input": "x", "stream": true }).to_string();
    let reply = edge
        .send(request(Method::POST, "/v1/responses", &body))
        .await;
    let events = typed_events(&reply);
    let of_tool: Vec<_> = events
        .iter()
        .filter(|event| event["item_id"] == "ws_1" || event["item"]["id"] == "ws_1")
        .map(|event| (event["type"].as_str().unwrap(), &event["output_index"]))
        .collect();
    let place = json!(1);
    let expected = [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ];
    assert_eq!(of_tool, expected.map(|kind| (kind, &place)));
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let response = &events.last().unwrap()["response"];
    let kinds: Vec<_> = response["output"].as_array().unwrap().iter().collect();
    assert_eq!(kinds.len(), 3, "{response}");
    assert_eq!(*kinds[1], item("completed"));
    let whole = json!({ "model": "m", "input": "x" }).to_string();
    let whole = edge.post("/v1/responses", &whole).await.ok();
    assert_eq!(whole["output"][1], item("completed"));
    // Other dialects have no field for it.
    let chat = json!({ "model": "m", "messages": [{ "role": "user", "content": "x" }] });
    let chat = edge
        .post("/v1/chat/completions", &chat.to_string())
        .await
        .ok();
    assert_eq!(chat["choices"][0]["message"]["content"], "I look. Found.");
}

#[tokio::test]
async fn a_row_that_fails_beside_others_carries_its_reason() {
    let edge = Edge::start().await;
    let error = PredictError::context_length("the prompt is too long");
    assert_eq!(error.reason, Some(ErrorReason::ContextLength));
    let failed = GenerationChunk {
        last: false,
        ..GenerationChunk::failed(0, 1, error)
    };
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), failed, last()]));
    for (path, body) in [
        (
            "/v1/completions",
            json!({ "model": "m", "prompt": ["a", "b"], "max_tokens": 4 }),
        ),
        (
            "/v1/chat/completions",
            json!({ "model": "m", "n": 2, "messages": [{ "role": "user", "content": "x" }] }),
        ),
    ] {
        let reply = edge.post(path, &body.to_string()).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        let error = reply.json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded", "{path}: {error}");
        assert_eq!(error["message"], "the prompt is too long", "{path}");
    }
}
