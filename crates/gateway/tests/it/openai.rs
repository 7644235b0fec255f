//! OpenAI's dialect: parsed bodies and responses, byte for byte where clients depend on it.

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use serde_json::{Value, json};
use volley_types::chat::conversation;
use volley_types::{
    ChatMessage, ErrorCode, FinishReason, GenerationChunk, ParamValue, PredictError, Signature,
    Usage,
};

use super::support::{Edge, Reply, Script, last, request, text};

pub(crate) const CHAT: &str = "/v1/chat/completions";

pub(crate) fn finished(reason: FinishReason) -> GenerationChunk {
    GenerationChunk {
        finish_reason: Some(reason),
        usage: Some(Usage {
            prompt_tokens: 2,
            completion_tokens: 3,
            ..Usage::default()
        }),
        ..last()
    }
}

pub(crate) fn ask(more: &Value) -> String {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }] });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// The payloads of a stream's events; all but the last are JSON.
pub(crate) fn events(reply: &Reply) -> (Vec<Value>, String) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let mut lines: Vec<_> = reply
        .text()
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect(event).to_owned())
        .collect();
    let last = lines.pop().unwrap();
    let parsed = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    (parsed.collect(), last)
}

#[tokio::test]
async fn a_chat_completion_comes_whole() {
    let edge = Edge::start().await;
    let chunks = vec![text("Hello"), text("!"), finished(FinishReason::Stop)];
    edge.cluster.script("m", Script::Chunks(chunks));
    let body = edge.post(CHAT, &ask(&json!({}))).await.ok();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(1_700_000_000 < body["created"].as_u64().unwrap());
    assert_eq!(body["model"], "m");
    assert_eq!(
        body["choices"],
        json!([{
            "index": 0,
            "message": { "role": "assistant", "content": "Hello!", "refusal": null },
            "logprobs": null,
            "finish_reason": "stop",
        }])
    );
    let usage = json!({ "prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5 });
    assert_eq!(body["usage"], usage);
}

#[tokio::test]
async fn messages_and_parameters_reach_the_model() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let call = json!([{ "id": "c1", "type": "function",
                        "function": { "name": "f", "arguments": "{}" } }]);
    let body = json!({
        "model": "m:1",
        "messages": [
            { "role": "system", "content": [{ "type": "text", "text": "Be brief." }] },
            { "role": "assistant", "content": null, "tool_calls": call },
            { "role": "tool", "tool_call_id": "c1", "content": "4" },
        ],
        "temperature": 0.5, "max_tokens": 7, "stop": ["x"], "tools": tools, "user": null,
    });
    edge.post(CHAT, &body.to_string()).await.ok();
    let called = edge.cluster.last_call();
    assert_eq!(called.model.to_string(), "m:1");
    let said = conversation(called.rows.column_by_name("messages").unwrap(), 0).unwrap();
    assert_eq!(said[0], ChatMessage::new("system", "Be brief."));
    assert_eq!(said[1].tool_calls, Some(call.to_string()));
    assert_eq!(said[2].tool_call_id.as_deref(), Some("c1"));
    let given: Vec<_> = called.parameters.iter().map(|(name, _)| name).collect();
    assert_eq!(given, ["max_tokens", "stop", "temperature", "tools"]);
    let expected = ParamValue::Json(tools.to_string());
    let found = called.parameters.iter().find(|(name, _)| *name == "tools");
    assert_eq!(found.unwrap().1, &expected);
}

#[tokio::test]
async fn a_stream_begins_with_the_role_and_ends_with_usage_and_done() {
    let edge = Edge::start().await;
    let calls = json!([{ "index": 0, "id": "c", "type": "function",
                         "function": { "name": "f", "arguments": "{}" } }]);
    let chunks = vec![
        text("Once \"upon\""),
        GenerationChunk {
            thinking: Some("hm".to_owned()),
            ..GenerationChunk::default()
        },
        GenerationChunk {
            tool_calls: Some(calls.to_string()),
            ..GenerationChunk::default()
        },
        finished(FinishReason::ToolCalls),
    ];
    edge.cluster.script("m", Script::Chunks(chunks));
    let body = ask(&json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let reply = edge.send(request(Method::POST, CHAT, &body)).await;
    assert!(!reply.text().contains("id: ") && !reply.text().contains("event: "));
    let (events, done) = events(&reply);
    assert_eq!(done, "[DONE]");
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(
            (&event["id"], &event["model"]),
            (&events[0]["id"], &json!("m"))
        );
    }
    let deltas: Vec<_> = events[..5]
        .iter()
        .map(|event| &event["choices"][0]["delta"])
        .collect();
    let expected = [
        json!({ "role": "assistant", "content": "" }),
        json!({ "content": "Once \"upon\"" }),
        json!({ "reasoning_content": "hm" }),
        json!({ "tool_calls": calls }),
        json!({}),
    ];
    assert_eq!(deltas, expected.iter().collect::<Vec<_>>());
    assert_eq!(events[3]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(events[4]["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(events[4]["usage"], Value::Null);
    assert_eq!(
        (&events[5]["choices"], &events[5]["usage"]["total_tokens"]),
        (&json!([]), &json!(5))
    );
    assert_eq!(events.len(), 6);
    // The usage is only sent if requested.
    let reply = edge
        .send(request(
            Method::POST,
            CHAT,
            &ask(&json!({ "stream": true })),
        ))
        .await;
    assert!(!reply.text().contains("usage"));
}

#[tokio::test]
async fn several_choices_are_told_apart_and_probabilities_are_told() {
    let edge = Edge::start().await;
    let row = |choice, text: &str| GenerationChunk {
        choice,
        text: Some(text.to_owned()),
        logprob: Some(-0.5),
        ..GenerationChunk::default()
    };
    let end = GenerationChunk {
        choice: 1,
        finish_reason: Some(FinishReason::Length),
        ..GenerationChunk::default()
    };
    let script = || {
        Script::Chunks(vec![
            row(1, "b"),
            row(0, "a"),
            end.clone(),
            finished(FinishReason::Stop),
        ])
    };
    edge.cluster.script("m", script());
    let body = edge
        .post(CHAT, &ask(&json!({ "n": 2, "logprobs": true })))
        .await
        .ok();
    let texts: Vec<_> = (0..2)
        .map(|index| &body["choices"][index]["message"]["content"])
        .collect();
    assert_eq!(texts, ["a", "b"]);
    assert_eq!(body["choices"][1]["finish_reason"], "length");
    let token = &body["choices"][1]["logprobs"]["content"][0];
    assert_eq!(
        (&token["token"], &token["logprob"], &token["bytes"]),
        (&json!("b"), &json!(-0.5), &json!([98]))
    );
    edge.cluster.script("m", script());
    let reply = edge
        .send(request(
            Method::POST,
            CHAT,
            &ask(&json!({ "n": 2, "stream": true })),
        ))
        .await;
    let (events, _) = events(&reply);
    let indices: Vec<_> = events
        .iter()
        .map(|event| event["choices"][0]["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [1, 1, 0, 0, 1, 0]);
    assert_eq!(
        events[1]["choices"][0]["logprobs"]["content"][0]["token"],
        "b"
    );
}

#[tokio::test]
async fn failures_have_openais_shape_and_a_stream_that_fails_is_not_done() {
    let edge = Edge::start().await;
    let refused = |reply: Reply, status: u16, code: &str| {
        assert_eq!(reply.status, status, "{}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["code"], code, "{error}");
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "{field}");
        }
    };
    refused(
        edge.post(CHAT, &ask(&json!({}))).await,
        404,
        "model_not_found",
    );
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    for body in [
        "{".to_owned(),
        r#"{"messages":[]}"#.to_owned(),
        r#"{"model":"m"}"#.to_owned(),
        r#"{"model":"m","messages":[]}"#.to_owned(),
        r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}"#.to_owned(),
        ask(&json!({ "stream": "yes" })),
        ask(&json!({ "stream_options": {} })),
    ] {
        refused(edge.post(CHAT, &body).await, 400, "invalid_value");
    }
    let plain = request(Method::POST, CHAT, "");
    let (mut parts, _) = plain.into_parts();
    parts
        .headers
        .insert("content-type", "text/plain".parse().unwrap());
    let plain = http::Request::from_parts(parts, http_body_util::Full::new("hello".into()));
    refused(edge.send(plain).await, 415, "invalid_value");
    refused(edge.get("/v1/nothing").await, 404, "unknown_url");
    refused(edge.get(CHAT).await, 405, "method_not_allowed");

    let busy = PredictError::new(ErrorCode::Overloaded, "busy")
        .with_retry_after(std::time::Duration::from_millis(1_200));
    edge.cluster.script("m", Script::Refuses(busy));
    let reply = edge.post(CHAT, &ask(&json!({ "stream": true }))).await;
    assert_eq!(reply.headers["retry-after"], "2");
    refused(reply, 429, "rate_limit_exceeded");
    let bare = PredictError::new(ErrorCode::NotDeployed, "model 'm' is not deployed");
    edge.cluster.script("m", Script::Refuses(bare));
    refused(
        edge.post(CHAT, &ask(&json!({}))).await,
        404,
        "model_not_deployed",
    );

    let feed = edge.cluster.feed("m");
    let asked = edge.open(request(
        Method::POST,
        CHAT,
        &ask(&json!({ "stream": true })),
    ));
    let fed = async {
        let row = volley_types::GenerationChunks::single(&text("On"));
        feed.send(Ok(row)).await.unwrap();
        let cut = PredictError::new(ErrorCode::UpstreamIncomplete, "it was cut");
        feed.send(Err(cut)).await.unwrap();
    };
    let (response, ()) = tokio::join!(asked, fed);
    let body = http_body_util::BodyExt::collect(response.into_body())
        .await
        .unwrap();
    let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    assert!(!body.contains("[DONE]"), "{body}");
    let last = body.trim_end().rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["error"]["code"], "upstream_incomplete");
}

#[tokio::test]
async fn plain_completions_take_several_prompts() {
    let edge = Edge::start().await;
    let row = |item, text: &str| GenerationChunk {
        item,
        text: Some(text.to_owned()),
        ..GenerationChunk::default()
    };
    let end = GenerationChunk {
        item: 1,
        ..finished(FinishReason::Length)
    };
    let script = || Script::Chunks(vec![row(1, "b"), row(0, "a"), end.clone()]);
    edge.cluster.script("m", script());
    let body = r#"{"model":"m","prompt":["x","y"],"max_tokens":1}"#;
    let whole = edge.post("/v1/completions", body).await.ok();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["text"], "a");
    assert_eq!(whole["choices"][1]["finish_reason"], "length");
    let called = edge.cluster.last_call();
    assert_eq!(called.rows.num_rows(), 2);
    let raw = called.parameters.boolean("raw").unwrap();
    assert_eq!(raw, Some(true), "no chat template");
    edge.cluster.script("m", script());
    let body = r#"{"model":"m","prompt":"x","stream":true}"#;
    let reply = edge
        .send(request(Method::POST, "/v1/completions", body))
        .await;
    let (events, done) = events(&reply);
    assert_eq!(done, "[DONE]");
    let told: Vec<_> = events.iter().map(|event| &event["choices"][0]).collect();
    assert_eq!(told[0]["text"], "b");
    assert_eq!(
        (&told[2]["index"], &told[2]["finish_reason"]),
        (&json!(1), &json!("length"))
    );
    for bad in [
        r#"{"model":"m","prompt":[[1,"a"]]}"#,
        r#"{"model":"m","prompt":"x","echo":1}"#,
        r#"{"model":"m","prompt":"x","suffix":"y"}"#,
        r#"{"model":"m"}"#,
    ] {
        edge.post("/v1/completions", bad).await.refused_openai(400);
    }
}

fn embeddings(rows: &RecordBatch) -> Result<RecordBatch, PredictError> {
    let texts = rows.column_by_name("text").unwrap().as_string::<i32>();
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let mut vectors = ListBuilder::new(Float32Builder::new()).with_field(item);
    for text in texts.iter().flatten() {
        vectors.values().append_slice(&[text.len() as f32, 0.5]);
        vectors.append(true);
    }
    let tokens =
        UInt32Array::from_iter_values(texts.iter().flatten().map(|text| text.len() as u32));
    let columns: Vec<ArrayRef> = vec![Arc::new(vectors.finish()), Arc::new(tokens)];
    Ok(RecordBatch::try_new(Signature::embed(2).output, columns).unwrap())
}

#[tokio::test]
async fn texts_are_embedded_as_numbers_or_as_their_bytes() {
    let edge = Edge::start().await;
    let script = || Script::Tensors(Signature::embed(2), Box::new(|rows| embeddings(&rows)));
    edge.cluster.script("e", script());
    let body = r#"{"model":"e","input":["ab","c"],"dimensions":2,"input_type":"query"}"#;
    let whole = edge.post("/v1/embeddings", body).await.ok();
    assert_eq!(whole["data"][0]["embedding"], json!([2.0, 0.5]));
    assert_eq!(
        (&whole["data"][1]["index"], &whole["usage"]["total_tokens"]),
        (&json!(1), &json!(3))
    );
    let called = edge.cluster.last_call();
    let kinds = called
        .rows
        .column_by_name("input_type")
        .unwrap()
        .as_string::<i32>();
    assert_eq!(kinds.value(1), "query");
    edge.cluster.script("e", script());
    let body = r#"{"model":"e","input":"ab","encoding_format":"base64"}"#;
    let whole = edge.post("/v1/embeddings", body).await.ok();
    let bytes = BASE64_STANDARD
        .decode(whole["data"][0]["embedding"].as_str().unwrap())
        .unwrap();
    assert_eq!(
        bytes,
        [2.0_f32.to_le_bytes(), 0.5_f32.to_le_bytes()].concat()
    );
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let wrong = edge
        .post("/v1/embeddings", r#"{"model":"m","input":"x"}"#)
        .await;
    assert!(wrong.refused_openai(400).contains("task 'generate'"));
    for bad in [
        r#"{"model":"e","input":[["a"]]}"#,
        r#"{"model":"e","input":"x","encoding_format":"hex"}"#,
    ] {
        edge.post("/v1/embeddings", bad).await.refused_openai(400);
    }
}

#[tokio::test]
async fn documents_are_ranked_the_best_first() {
    let edge = Edge::start().await;
    let rank = |rows: RecordBatch| {
        assert_eq!(
            rows.column_by_name("query")
                .unwrap()
                .as_string::<i32>()
                .value(1),
            "q"
        );
        let scores: Vec<ArrayRef> = vec![
            Arc::new(Float32Array::from(vec![0.1, 0.9, 0.5])),
            Arc::new(UInt32Array::from(vec![1, 2, 3])),
        ];
        Ok(RecordBatch::try_new(Signature::rerank().output, scores).unwrap())
    };
    edge.cluster
        .script("r", Script::Tensors(Signature::rerank(), Box::new(rank)));
    let body = r#"{"model":"r","query":"q","documents":["a",{"text":"b"},"c"],"top_n":2,"return_documents":true}"#;
    let whole = edge.post("/v1/rerank", body).await.ok();
    let found: Vec<_> = whole["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| {
            (
                result["index"].as_u64().unwrap(),
                result["document"]["text"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(found, [(1, "b"), (2, "c")]);
    assert_eq!(whole["usage"]["total_tokens"], 6);
    let cohere = edge.post("/v2/rerank", body).await.ok();
    assert_eq!(cohere["results"], whole["results"]);
    assert_eq!(cohere["meta"]["tokens"]["input_tokens"], 6);
    let wrong = r#"{"model":"r","query":"q","documents":["a"],"rank_fields":["title"]}"#;
    let refused = edge.post("/v2/rerank", wrong).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.json()["message"]
            .as_str()
            .unwrap()
            .contains("'rank_fields'")
    );
    for bad in [
        r#"{"model":"r","query":"q","documents":[]}"#,
        r#"{"model":"r","query":"q","documents":[1]}"#,
        r#"{"model":"r","documents":["a"]}"#,
    ] {
        edge.post("/v1/rerank", bad).await.refused_openai(400);
    }
}

#[tokio::test]
async fn deployed_models_are_listed() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![]));
    let listed = edge.get("/v1/models").await.ok();
    assert_eq!(listed["object"], "list");
    assert_eq!(
        (&listed["data"][0]["id"], &listed["data"][0]["object"]),
        (&json!("m"), &json!("model"))
    );
    assert_eq!(edge.get("/v1/models/m").await.ok(), listed["data"][0]);
    edge.get("/v1/models/x").await.refused_openai(404);
}
