//! Interleaved calls, signed reasoning, refusals, and responses without usage, in each dialect.

use http::Method;
use serde_json::{Value, json};
use volley_types::{Details, FinishReason, GenerationChunk, Usage};

use super::support::{Edge, Script, last, request, text, typed_events};

const DIALECTS: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v2/chat",
    "/api/chat",
];

fn ask(path: &str, stream: bool) -> String {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let mut body = json!({ "model": "m", "max_tokens": 9, "stream": stream });
    match path {
        "/v1/responses" => {
            body = json!({ "model": "m", "input": messages, "stream": stream });
        }
        "/api/chat" => body = json!({ "model": "m", "messages": messages, "stream": stream }),
        _ => body["messages"] = messages,
    }
    body.to_string()
}

fn called(delta: &Value) -> GenerationChunk {
    GenerationChunk {
        tool_calls: Some(json!([delta]).to_string()),
        ..GenerationChunk::default()
    }
}

fn begun(index: u64) -> GenerationChunk {
    let function = json!({ "name": format!("f{index}"), "arguments": "" });
    called(&json!({
        "index": index, "id": format!("c{index}"), "type": "function", "function": function,
    }))
}

fn more(index: u64, arguments: &str) -> GenerationChunk {
    called(&json!({ "index": index, "function": { "arguments": arguments } }))
}

fn ended(reason: FinishReason, details: Details) -> GenerationChunk {
    GenerationChunk {
        finish_reason: Some(reason),
        details: details.to_json(),
        ..last()
    }
}

/// Two interleaved calls, text between two deltas of one of them, and a third call without
/// arguments.
fn in_turns() -> Script {
    Script::Chunks(vec![
        begun(0),
        begun(1),
        more(0, "{\"a\":"),
        more(1, "{\"b\":"),
        text("I look."),
        more(0, "1}"),
        more(1, "2}"),
        begun(2),
        ended(FinishReason::Stop, Details::default()),
    ])
}

async fn stream(edge: &Edge, path: &str) -> Vec<Value> {
    let body = ask(path, true);
    typed_events(&edge.send(request(Method::POST, path, &body)).await)
}

#[tokio::test]
async fn calls_in_turns_are_blocks_one_after_the_other() {
    let edge = Edge::start().await;
    edge.cluster.script("m", in_turns());
    let events = stream(&edge, "/v1/messages").await;
    let (mut open, mut blocks) = (None, Vec::<(Value, String)>::new());
    for event in &events {
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(
                    (open, index),
                    (None, Some(blocks.len() as u64)),
                    "{events:?}"
                );
                open = index;
                blocks.push((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                assert_eq!(open, index);
                let delta = &event["delta"];
                let more = delta["partial_json"].as_str().or(delta["text"].as_str());
                blocks.last_mut().unwrap().1.push_str(more.unwrap());
            }
            "content_block_stop" => assert_eq!(open.take(), index),
            _ => {}
        }
    }
    let told: Vec<_> = blocks
        .iter()
        .map(|(block, said)| (block["id"].as_str(), said.as_str()))
        .collect();
    let expected = [
        (Some("c0"), "{\"a\":1}"),
        (Some("c1"), "{\"b\":2}"),
        (None, "I look."),
        (Some("c2"), ""),
    ];
    assert_eq!(told, expected);

    let events = stream(&edge, "/v2/chat").await;
    let calls = events.iter().filter(|event| {
        let kind = event["type"].as_str().unwrap();
        kind.starts_with("tool-call") || kind.starts_with("content-")
    });
    let told: Vec<_> = calls
        .map(|event| {
            (
                event["type"].as_str().unwrap(),
                event["index"].as_u64().unwrap(),
            )
        })
        .collect();
    let call = |index| {
        [
            ("tool-call-start", index),
            ("tool-call-delta", index),
            ("tool-call-delta", index),
            ("tool-call-end", index),
        ]
    };
    let mut expected = [call(0), call(1)].concat();
    expected.extend([
        ("content-start", 0),
        ("content-delta", 0),
        ("content-end", 0),
    ]);
    expected.extend([("tool-call-start", 2), ("tool-call-end", 2)]);
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_stop_behind_calls_is_theirs_and_calls_without_arguments_have_an_object() {
    let edge = Edge::start().await;
    edge.cluster.script("m", in_turns());
    let whole = async |path: &str| edge.post(path, &ask(path, false)).await.ok();
    let chat = whole("/v1/chat/completions").await;
    assert_eq!(chat["choices"][0]["finish_reason"], "tool_calls");
    let calls = &chat["choices"][0]["message"]["tool_calls"];
    assert_eq!(calls[2]["function"]["arguments"], "{}");
    let message = whole("/v1/messages").await;
    assert_eq!(message["stop_reason"], "tool_use");
    let kinds = message["content"].as_array().unwrap().iter();
    let kinds: Vec<_> = kinds.map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tool_use", "tool_use", "text", "tool_use"]);
    assert_eq!(message["content"][1]["input"], json!({ "b": 2 }));
    let cohere = whole("/v2/chat").await;
    assert_eq!(cohere["finish_reason"], "TOOL_CALL");
    let response = whole("/v1/responses").await;
    let output = response["output"].as_array().unwrap();
    assert_eq!(output.last().unwrap()["arguments"], "{}");
    let ollama = whole("/api/chat").await;
    assert_eq!(
        ollama["message"]["tool_calls"][2]["function"]["arguments"],
        json!({})
    );
}

fn signed(format: &str) -> Script {
    let details = |details: Details| GenerationChunk {
        details: Details {
            format: Some(format.to_owned()),
            ..details
        }
        .to_json(),
        ..GenerationChunk::default()
    };
    let thought = GenerationChunk {
        thinking: Some("hm".to_owned()),
        ..GenerationChunk::default()
    };
    let usage = json!({ "input_tokens": 20, "output_tokens": 7, "service_tier": "standard" });
    Script::Chunks(vec![
        thought,
        details(Details {
            signature: Some("c2ln".to_owned()),
            ..Details::default()
        }),
        details(Details {
            redacted: Some("eHg=".to_owned()),
            ..Details::default()
        }),
        text("Hi"),
        details(Details {
            blocks: vec![json!({ "type": "server_tool_use", "id": "s", "input": { "q": 1 } })],
            ..Details::default()
        }),
        GenerationChunk {
            usage: Some(Usage {
                prompt_tokens: 125,
                completion_tokens: 7,
                cached_tokens: 100,
                cache_write_tokens: 5,
                reasoning_tokens: 3,
            }),
            ..ended(
                FinishReason::Stop,
                Details {
                    format: Some(format.to_owned()),
                    stop_reason: Some("stop_sequence".to_owned()),
                    stop_sequence: Some("END".to_owned()),
                    usage: Some(usage),
                    ..Details::default()
                },
            )
        },
    ])
}

#[tokio::test]
async fn what_a_provider_signed_comes_through_its_own_dialect_as_it_is() {
    let edge = Edge::start().await;
    edge.cluster.script("m", signed("anthropic"));
    let message = edge
        .post("/v1/messages", &ask("/v1/messages", false))
        .await
        .ok();
    let expected = json!([
        { "type": "thinking", "thinking": "hm", "signature": "c2ln" },
        { "type": "redacted_thinking", "data": "eHg=" },
        { "type": "text", "text": "Hi" },
        { "type": "server_tool_use", "id": "s", "input": { "q": 1 } },
    ]);
    assert_eq!(message["content"], expected);
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
    let usage = &message["usage"];
    assert_eq!(
        usage,
        &json!({
            "input_tokens": 20, "output_tokens": 7, "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 5, "service_tier": "standard",
            "output_tokens_details": { "thinking_tokens": 3 },
        })
    );
    let events = stream(&edge, "/v1/messages").await;
    let of = |kind: &str| {
        events
            .iter()
            .filter(|event| event["type"] == kind)
            .collect::<Vec<_>>()
    };
    let starts: Vec<_> = of("content_block_start");
    assert_eq!(starts[1]["content_block"], expected[1]);
    let mut begun = expected[3].clone();
    begun["input"] = json!({});
    assert_eq!(starts[3]["content_block"], begun);
    let signature = of("content_block_delta");
    let signature = signature
        .iter()
        .find(|event| event["delta"]["type"] == "signature_delta");
    assert_eq!(signature.unwrap()["delta"]["signature"], "c2ln");
    assert_eq!(of("message_delta")[0]["delta"]["stop_sequence"], "END");
    assert_eq!(of("message_delta")[0]["usage"], *usage);

    let chat = edge
        .post("/v1/chat/completions", &ask("/v1/chat/completions", false))
        .await
        .ok();
    assert_eq!(
        chat["usage"],
        json!({
            "prompt_tokens": 125, "completion_tokens": 7, "total_tokens": 132,
            "prompt_tokens_details": { "cached_tokens": 100, "cache_write_tokens": 5 },
            "completion_tokens_details": { "reasoning_tokens": 3 },
        })
    );
    assert_eq!(chat["choices"][0]["message"]["reasoning_content"], "hm");
    let response = edge
        .post("/v1/responses", &ask("/v1/responses", false))
        .await
        .ok();
    assert_eq!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"],
        3
    );
    let sealed = response["output"][0]["encrypted_content"].as_str().unwrap();
    assert!(sealed.starts_with("volley1."), "{sealed}");
}

#[tokio::test]
async fn what_was_not_counted_is_not_told() {
    let edge = Edge::start().await;
    let chunks = vec![text("Hi"), ended(FinishReason::Stop, Details::default())];
    edge.cluster.script("m", Script::Chunks(chunks));
    for path in DIALECTS {
        let told = edge.post(path, &ask(path, false)).await.ok();
        let usage = told.get("usage").cloned().unwrap_or_default();
        let counts = usage.as_object().into_iter().flatten();
        assert!(
            counts.clone().all(|(_, count)| count.is_null()),
            "{path}: {told}"
        );
        assert!(told.get("eval_count").is_none(), "{path}: {told}");
    }
    let body = json!({ "model": "m", "stream": true, "stream_options": { "include_usage": true },
                       "messages": [{ "role": "user", "content": "Hi" }] });
    let path = "/v1/chat/completions";
    let reply = edge
        .send(request(Method::POST, path, &body.to_string()))
        .await;
    let body = reply.text();
    assert!(
        !body.contains("prompt_tokens") && body.ends_with("[DONE]\n\n"),
        "{body}"
    );
}

#[tokio::test]
async fn a_refusal_stays_one() {
    let edge = Edge::start().await;
    let refused = GenerationChunk {
        details: Details {
            refusal: true,
            ..Details::default()
        }
        .to_json(),
        ..text("I cannot.")
    };
    let chunks = vec![refused, ended(FinishReason::Stop, Details::default())];
    edge.cluster.script("m", Script::Chunks(chunks));
    let whole = async |path: &str| edge.post(path, &ask(path, false)).await.ok();
    let chat = whole("/v1/chat/completions").await;
    let message = &chat["choices"][0]["message"];
    assert_eq!(
        (&message["refusal"], &message["content"]),
        (&json!("I cannot."), &Value::Null)
    );
    let response = whole("/v1/responses").await;
    let part = &response["output"][0]["content"][0];
    assert_eq!(part, &json!({ "type": "refusal", "refusal": "I cannot." }));
    let message = whole("/v1/messages").await;
    assert_eq!(message["stop_reason"], "refusal");
    assert_eq!(message["content"][0]["text"], "I cannot.");
    assert_eq!(
        whole("/v2/chat").await["message"]["content"][0]["text"],
        "I cannot."
    );
    assert_eq!(whole("/api/chat").await["message"]["content"], "I cannot.");
    let events = stream(&edge, "/v1/responses").await;
    assert!(
        events
            .iter()
            .any(|event| event["type"] == "response.refusal.delta")
    );
}

#[tokio::test]
async fn callers_that_know_functions_alone_are_answered_with_one() {
    let edge = Edge::start().await;
    let chunks = vec![
        begun(0),
        more(0, "{}"),
        ended(FinishReason::ToolCalls, Details::default()),
    ];
    edge.cluster.script("m", Script::Chunks(chunks));
    let ask = |stream: bool| {
        json!({
            "model": "m", "stream": stream, "functions": [{ "name": "f0", "parameters": {} }],
            "messages": [
                { "role": "user", "content": "Hi" },
                { "role": "assistant", "function_call": { "name": "f0", "arguments": "" } },
                { "role": "function", "name": "f0", "content": "4" },
            ],
        })
        .to_string()
    };
    let path = "/v1/chat/completions";
    let told = edge.post(path, &ask(false)).await.ok();
    let choice = &told["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    let call = json!({ "name": "f0", "arguments": "{}" });
    assert_eq!(choice["message"]["function_call"], call);
    let reply = edge.send(request(Method::POST, path, &ask(true))).await;
    let body = reply.text();
    assert!(
        body.contains("\"function_call\":{")
            && body.contains("\"finish_reason\":\"function_call\"")
    );
    assert!(!body.contains("tool_calls"), "{body}");
}

#[tokio::test]
async fn what_a_server_says_beside_comes_through_its_own_dialect() {
    let edge = Edge::start().await;
    let details = |details: Details| Details {
        format: Some("openai".to_owned()),
        ..details
    };
    let beside = json!({ "choice": { "stop_reason": 7 }, "delta": { "images": [1] } });
    let block = GenerationChunk {
        details: details(Details {
            blocks: vec![beside],
            ..Details::default()
        })
        .to_json(),
        ..text("Hi")
    };
    let custom = json!({ "index": 0, "id": "c", "type": "custom",
                         "custom": { "name": "f", "input": "a" } });
    let more = json!({ "index": 0, "custom": { "input": "b" } });
    let answer = json!({
        "choices": [{ "index": 0, "stop_reason": 7, "message": { "audio": { "id": "a" } } }],
        "citations": ["x"], "id": "theirs",
    });
    let end = ended(
        FinishReason::Stop,
        details(Details {
            fields: Some(json!({ "service_tier": "flex" })),
            answer: Some(answer),
            ..Details::default()
        }),
    );
    let script = vec![block, called(&custom), called(&more), end];
    edge.cluster.script("m", Script::Chunks(script));
    let path = "/v1/chat/completions";
    let whole = edge.post(path, &ask(path, false)).await.ok();
    assert_eq!(
        (&whole["service_tier"], &whole["citations"]),
        (&json!("flex"), &json!(["x"]))
    );
    assert_ne!(whole["id"], "theirs");
    let choice = &whole["choices"][0];
    assert_eq!(choice["stop_reason"], 7);
    assert_eq!(choice["message"]["audio"]["id"], "a");
    assert_eq!(
        choice["message"]["tool_calls"][0]["custom"],
        json!({ "name": "f", "input": "ab" })
    );
    let reply = edge
        .send(request(Method::POST, path, &ask(path, true)))
        .await;
    let body = String::from_utf8_lossy(&reply.body).into_owned();
    for told in [
        "\"stop_reason\":7",
        "\"images\":[1]",
        "\"service_tier\":\"flex\"",
    ] {
        assert!(body.contains(told), "{body}");
    }
    let end = body.lines().find(|line| line.contains("service_tier"));
    assert!(
        end.unwrap().contains("\"finish_reason\":\"stop\""),
        "{body}"
    );
    // Callers of another dialect have no such calls.
    let path = "/v1/messages";
    let message = edge.post(path, &ask(path, false)).await;
    assert_eq!(message.status, 502, "{}", message.text());
    assert!(message.text().contains("'f'"), "{}", message.text());
}

/// A paused answer keeps its name in each dialect with a place for it.
#[tokio::test]
async fn a_pause_has_its_own_name() {
    let edge = Edge::start().await;
    let paused = Details {
        format: Some("anthropic".to_owned()),
        stop_reason: Some("pause_turn".to_owned()),
        ..Details::default()
    };
    let chunks = vec![text("On"), ended(FinishReason::Length, paused)];
    edge.cluster.script("m", Script::Chunks(chunks));
    for (path, place, expected) in [
        ("/v1/chat/completions", "/choices/0/finish_reason", "length"),
        (
            "/v1/chat/completions",
            "/choices/0/native_finish_reason",
            "pause_turn",
        ),
        ("/v1/responses", "/status", "incomplete"),
        ("/v1/responses", "/incomplete_details/reason", "pause_turn"),
        ("/v1/messages", "/stop_reason", "pause_turn"),
    ] {
        let whole = edge.post(path, &ask(path, false)).await.ok();
        assert_eq!(whole.pointer(place), Some(&json!(expected)), "{whole}");
        let streamed = edge.post(path, &ask(path, true)).await;
        assert!(streamed.text().contains("pause_turn"), "{path}");
    }
}
