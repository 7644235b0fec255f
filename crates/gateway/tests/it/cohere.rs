//! Cohere's dialect: parsed bodies, complete responses, and the events of a stream.

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field};
use http::Method;
use serde_json::{Value, json};
use volley_types::chat::conversation;
use volley_types::{
    Citation, ErrorCode, FinishReason, GenerationChunk, PredictError, Signature, Usage,
};

use super::support::{Edge, Script, last, request, text, typed_events as events};

const CHAT: &str = "/v2/chat";

fn ask(more: &Value) -> String {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }] });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body.to_string()
}

fn called(delta: &Value) -> GenerationChunk {
    GenerationChunk {
        tool_calls: Some(json!([delta]).to_string()),
        ..GenerationChunk::default()
    }
}

/// Reasons, cites a source, and calls a tool.
fn script() -> Script {
    let thought = GenerationChunk {
        thinking: Some("hm".to_owned()),
        ..GenerationChunk::default()
    };
    let cited = Citation {
        source: Some("doc-1".to_owned()),
        title: Some("Foxes".to_owned()),
        start: Some(4),
        end: Some(7),
        ..Citation::default()
    };
    let cited = GenerationChunk {
        citations: Some(Citation::to_json(&[cited])),
        ..GenerationChunk::default()
    };
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
        thought,
        text("The "),
        text("fox."),
        cited,
        called(&json!({ "index": 0, "id": "a", "function": { "name": "f", "arguments": "{" } })),
        called(&json!({ "index": 0, "function": { "arguments": "}" } })),
        end,
    ])
}

#[tokio::test]
async fn a_chat_comes_whole_with_its_parts_calls_and_sources() {
    let edge = Edge::start().await;
    edge.cluster.script("m", script());
    let body = ask(&json!({ "stop_sequences": ["x"], "k": 3, "max_tokens": 9 }));
    let told = edge.post(CHAT, &body).await.ok();
    let message = &told["message"];
    assert_eq!(
        message["content"],
        json!([{ "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "The fox." }])
    );
    let call = json!({ "id": "a", "type": "function",
                       "function": { "name": "f", "arguments": "{}" } });
    assert_eq!(message["tool_calls"], json!([call]));
    let cited = &message["citations"][0];
    assert_eq!(
        (
            &cited["text"],
            &cited["content_index"],
            &cited["sources"][0]["id"]
        ),
        (&json!("fox"), &json!(1), &json!("doc-1"))
    );
    assert_eq!(told["finish_reason"], "TOOL_CALL");
    let counts = json!({ "tokens": { "input_tokens": 4, "output_tokens": 7 } });
    assert_eq!(told["usage"], counts);
    let call = edge.cluster.last_call();
    let said = conversation(call.rows.column_by_name("messages").unwrap(), 0).unwrap();
    assert_eq!(said.len(), 1);
    assert_eq!(call.parameters.strings("stop").unwrap(), ["x"]);
    assert_eq!(call.parameters.unsigned("top_k").unwrap(), Some(3));
}

#[tokio::test]
async fn a_stream_has_its_parts_one_by_one_and_ends_with_its_figures() {
    let edge = Edge::start().await;
    edge.cluster.script("m", script());
    let body = ask(&json!({ "stream": true }));
    let told = events(&edge.send(request(Method::POST, CHAT, &body)).await);
    let kinds: Vec<_> = told
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), event["index"].as_u64()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("message-start", None),
            ("content-start", Some(0)),
            ("content-delta", Some(0)),
            ("content-end", Some(0)),
            ("content-start", Some(1)),
            ("content-delta", Some(1)),
            ("content-delta", Some(1)),
            ("citation-start", Some(0)),
            ("citation-end", Some(0)),
            ("content-end", Some(1)),
            ("tool-call-start", Some(0)),
            ("tool-call-delta", Some(0)),
            ("tool-call-delta", Some(0)),
            ("tool-call-end", Some(0)),
            ("message-end", None),
        ]
    );
    let part = |event: &Value, path: &str| event.pointer(path).cloned().unwrap_or_default();
    assert_eq!(part(&told[2], "/delta/message/content/thinking"), "hm");
    assert_eq!(part(&told[5], "/delta/message/content/text"), "The ");
    assert_eq!(part(&told[7], "/delta/message/citations/text"), "fox");
    let name = "/delta/message/tool_calls/function/name";
    assert_eq!(part(&told[10], name), "f");
    let arguments = "/delta/message/tool_calls/function/arguments";
    assert_eq!(part(&told[11], arguments), "{");
    let end = told.last().unwrap();
    assert_eq!(end["delta"]["finish_reason"], "TOOL_CALL");
    assert_eq!(end["delta"]["usage"]["tokens"]["output_tokens"], 7);
}

#[tokio::test]
async fn what_fails_is_told_as_cohere_does() {
    let edge = Edge::start().await;
    let lost = edge.post(CHAT, &ask(&json!({ "model": "nobody" }))).await;
    assert_eq!(lost.status, 404);
    assert!(lost.json()["message"].as_str().unwrap().contains("nobody"));
    edge.cluster.script("m", script());
    for wrong in [
        json!({ "messages": [] }),
        json!({ "tool_choice": "auto" }),
        json!({ "stream": 1 }),
    ] {
        let reply = edge.post(CHAT, &ask(&wrong)).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.json()["message"].is_string());
    }
    // After the response has started, the last event reports the error.
    let feed = edge.cluster.feed("cut");
    let piece = volley_types::GenerationChunks::single(&text("a"));
    feed.send(Ok(piece)).await.unwrap();
    let gone = PredictError::new(ErrorCode::UpstreamIncomplete, "gone");
    feed.send(Err(gone)).await.unwrap();
    let body = ask(&json!({ "model": "cut", "stream": true }));
    let told = events(&edge.send(request(Method::POST, CHAT, &body)).await);
    let end = told.last().unwrap();
    assert_eq!(end["type"], "message-end");
    assert_eq!(
        end["delta"],
        json!({ "finish_reason": "ERROR", "error": "gone" })
    );
}

#[tokio::test]
async fn texts_are_embedded_in_both_versions() {
    let edge = Edge::start().await;
    let embeds = Signature::embed(2);
    let output = embeds.output.clone();
    let vectors = move |rows: RecordBatch| {
        let kinds = rows
            .column_by_name("input_type")
            .unwrap()
            .as_string::<i32>();
        assert_eq!(kinds.value(0), "search_query");
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item);
        for _ in 0..rows.num_rows() {
            lists.values().append_slice(&[0.5, 1.0]);
            lists.append(true);
        }
        let tokens = UInt32Array::from(vec![3; rows.num_rows()]);
        let columns: Vec<ArrayRef> = vec![Arc::new(lists.finish()), Arc::new(tokens)];
        Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
    };
    edge.cluster
        .script("e", Script::Tensors(embeds, Box::new(vectors)));
    let body = r#"{"model":"e","texts":["a","b"],"input_type":"search_query"}"#;
    let first = edge.post("/v1/embed", body).await.ok();
    assert_eq!(first["response_type"], "embeddings_floats");
    assert_eq!(first["embeddings"], json!([[0.5, 1.0], [0.5, 1.0]]));
    assert_eq!(first["meta"]["billed_units"]["input_tokens"], 6);
    let second = edge.post("/v2/embed", body).await.ok();
    assert_eq!(second["embeddings"]["float"], first["embeddings"]);
    assert_eq!(second["texts"], json!(["a", "b"]));
    for wrong in [
        r#"{"model":"e","texts":[]}"#,
        r#"{"model":"e","texts":["a"],"embedding_types":["int8"]}"#,
        r#"{"model":"e","texts":["a"],"max_tokens":3}"#,
        r#"{"model":"e","images":["data:image/png;base64,AA"]}"#,
    ] {
        let reply = edge.post("/v2/embed", wrong).await;
        assert_eq!(reply.status, 400, "{wrong}");
        assert!(reply.json()["message"].is_string());
    }
}
