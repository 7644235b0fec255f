//! Anthropic's dialect: parsed bodies, and the events of a stream.

use http::Method;
use serde_json::{Value, json};
use volley_types::chat::conversation;
use volley_types::{ErrorCode, FinishReason, GenerationChunk, PredictError, Usage};

use super::support::{Edge, Reply, Script, last, request, text, typed_events as events};

const MESSAGES: &str = "/v1/messages";

fn ask(more: &Value) -> String {
    let mut body = json!({
        "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "Hi" }],
    });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body.to_string()
}

fn thought(thinking: &str) -> GenerationChunk {
    GenerationChunk {
        thinking: Some(thinking.to_owned()),
        ..GenerationChunk::default()
    }
}

fn called(delta: &Value) -> GenerationChunk {
    GenerationChunk {
        tool_calls: Some(json!([delta]).to_string()),
        ..GenerationChunk::default()
    }
}

/// Reasons, writes text, and calls two tools.
fn script() -> Script {
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::ToolCalls),
        usage: Some(Usage {
            prompt_tokens: 4,
            completion_tokens: 7,
            ..Usage::default()
        }),
        ..last()
    };
    Script::Chunks(vec![
        thought("hm"),
        text("Let me "),
        text("see."),
        called(&json!({ "index": 0, "id": "a", "function": { "name": "f", "arguments": "" } })),
        called(&json!({ "index": 0, "function": { "arguments": "{\"x\":" } })),
        called(&json!({ "index": 0, "function": { "arguments": "1}" } })),
        called(&json!({ "index": 1, "id": "b", "function": { "name": "g", "arguments": "{}" } })),
        end,
    ])
}

#[tokio::test]
async fn a_message_comes_whole_with_its_blocks() {
    let edge = Edge::start().await;
    edge.cluster.script("m", script());
    let body = ask(&json!({ "system": "Be brief.", "stop_sequences": ["x"] }));
    let message = edge.post(MESSAGES, &body).await.ok();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        message["content"],
        json!([
            { "type": "thinking", "thinking": "hm", "signature": "" },
            { "type": "text", "text": "Let me see." },
            { "type": "tool_use", "id": "a", "name": "f", "input": { "x": 1 } },
            { "type": "tool_use", "id": "b", "name": "g", "input": {} },
        ])
    );
    assert_eq!(message["stop_reason"], "tool_use");
    let usage = json!({ "input_tokens": 4, "output_tokens": 7 });
    assert_eq!(message["usage"], usage);
    let call = edge.cluster.last_call();
    let said = conversation(call.rows.column_by_name("messages").unwrap(), 0).unwrap();
    assert_eq!(said.len(), 2);
    assert_eq!(call.parameters.strings("stop").unwrap(), ["x"]);
    assert_eq!(call.parameters.unsigned("max_tokens").unwrap(), Some(9));
}

#[tokio::test]
async fn numbers_in_the_inputs_of_calls_keep_their_text() {
    let edge = Edge::start().await;
    edge.cluster.script("m", script());
    let input = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let body = format!(
        r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":"Hi"}},{{"role":"assistant","content":[{{"type":"tool_use","id":"c","name":"f","input":{input}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c","content":"1"}}]}}]}}"#
    );
    edge.post(MESSAGES, &body).await.ok();
    let call = edge.cluster.last_call();
    let talk = conversation(call.rows.column_by_name("messages").unwrap(), 0).unwrap();
    let calls: Value = serde_json::from_str(talk[1].tool_calls.as_deref().unwrap()).unwrap();
    assert_eq!(calls[0]["function"]["arguments"], input);
}

#[tokio::test]
async fn a_stream_has_a_start_blocks_one_by_one_and_an_end() {
    let edge = Edge::start().await;
    edge.cluster.script("m", script());
    let body = ask(&json!({ "stream": true }));
    let events = events(&edge.send(request(Method::POST, MESSAGES, &body)).await);
    assert_eq!(events[0]["message"]["role"], "assistant");
    let told: Vec<_> = events
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), event["index"].as_u64()))
        .collect();
    let block = |index| {
        [
            ("content_block_start", Some(index)),
            ("content_block_delta", Some(index)),
            ("content_block_stop", Some(index)),
        ]
    };
    let mut expected = vec![("message_start", None)];
    expected.extend(block(0));
    for index in [1, 2] {
        let [start, delta, stop] = block(index);
        expected.extend([start, delta, delta, stop]);
    }
    expected.extend(block(3));
    expected.extend([("message_delta", None), ("message_stop", None)]);
    assert_eq!(told, expected);
    assert_eq!(events[8]["content_block"]["name"], "f");
    assert_eq!(events[9]["delta"]["partial_json"], "{\"x\":");
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["usage"]["output_tokens"], 7);
}

#[tokio::test]
async fn failures_have_anthropics_shape_and_a_stream_that_fails_does_not_stop() {
    let edge = Edge::start().await;
    let refused = |reply: Reply, status: u16, kind: &str| {
        assert_eq!(reply.status.as_u16(), status, "{}", reply.text());
        let body = reply.json();
        assert_eq!(
            (&body["type"], &body["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
        assert_eq!(
            body["request_id"],
            reply.headers["x-request-id"].to_str().unwrap()
        );
    };
    refused(
        edge.post(MESSAGES, &ask(&json!({}))).await,
        404,
        "not_found_error",
    );
    edge.cluster.script("m", script());
    for bad in [
        r#"{"model":"m","messages":[]}"#.to_owned(),
        ask(&json!({ "max_tokens": null })),
        "{".to_owned(),
    ] {
        refused(
            edge.post(MESSAGES, &bad).await,
            400,
            "invalid_request_error",
        );
    }
    refused(edge.get(MESSAGES).await, 405, "invalid_request_error");
    let busy = PredictError::new(ErrorCode::Unavailable, "nobody is there");
    edge.cluster.script("m", Script::Refuses(busy));
    refused(
        edge.post(MESSAGES, &ask(&json!({}))).await,
        529,
        "overloaded_error",
    );

    let cut = PredictError::new(ErrorCode::UpstreamIncomplete, "it was cut");
    let failed = GenerationChunk {
        error: Some((cut.code.as_str().to_owned(), cut.message.clone())),
        ..last()
    };
    edge.cluster
        .script("m", Script::Chunks(vec![text("On"), failed]));
    let body = ask(&json!({ "stream": true }));
    let events = events(&edge.send(request(Method::POST, MESSAGES, &body)).await);
    let last = events.last().unwrap();
    assert_eq!(
        last["error"],
        json!({ "type": "api_error", "message": "it was cut" })
    );
    assert!(events.iter().all(|event| event["type"] != "message_stop"));
}

#[tokio::test]
async fn tokens_are_counted_by_the_model_that_would_answer() {
    let edge = Edge::start().await;
    let counted = GenerationChunk {
        usage: Some(Usage {
            prompt_tokens: 12,
            completion_tokens: 0,
            ..Usage::default()
        }),
        ..last()
    };
    edge.cluster
        .script("m", Script::Chunks(vec![counted.clone()]));
    let tokens = format!("{MESSAGES}/count_tokens");
    let body = json!({ "model": "m", "system": "Be brief.",
                       "messages": [{ "role": "user", "content": "Hi" }] });
    let counted = edge.post(&tokens, &body.to_string()).await.ok();
    assert_eq!(counted, json!({ "input_tokens": 12 }));
    let called = edge.cluster.last_call();
    assert!(called.parameters.boolean("count_tokens").unwrap().is_some());
    let said = conversation(called.rows.column_by_name("messages").unwrap(), 0).unwrap();
    assert_eq!(said.len(), 2);

    let body = json!({ "model": "m", "input": "Hi" }).to_string();
    let counted = edge.post("/v1/responses/input_tokens", &body).await.ok();
    let expected = json!({ "object": "response.input_tokens", "input_tokens": 12 });
    assert_eq!(counted, expected);

    // A model that generates text instead has not counted the tokens.
    let end = GenerationChunk {
        usage: Some(Usage {
            prompt_tokens: 12,
            completion_tokens: 1,
            ..Usage::default()
        }),
        ..last()
    };
    let chunks = vec![text("On"), end];
    edge.cluster.script("m", Script::Chunks(chunks));
    let refusal = edge.post(&tokens, &ask(&json!({}))).await;
    assert_eq!(refusal.headers["x-should-retry"], "false");
    assert_eq!(refusal.status, 501);
    assert_eq!(refusal.json()["error"]["type"], "api_error");
}

#[tokio::test]
async fn an_empty_stream_counts_the_tokens_of_a_cache_apart() {
    let edge = Edge::start().await;
    let end = GenerationChunk {
        usage: Some(Usage {
            prompt_tokens: 127,
            completion_tokens: 2,
            cached_tokens: 100,
            cache_write_tokens: 7,
            ..Usage::default()
        }),
        ..last()
    };
    edge.cluster.script("m", Script::Chunks(vec![end]));
    let body = ask(&json!({ "stream": true }));
    let events = events(&edge.send(request(Method::POST, MESSAGES, &body)).await);
    assert_eq!(
        events[0]["message"]["usage"],
        json!({ "input_tokens": 20, "output_tokens": 0, "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 7 })
    );
}
