//! Ollama's interface, line by line.

use serde_json::{Value, json};
use volley_types::{ErrorCode, FinishReason, GenerationChunk, ParamValue, PredictError, Usage};

use crate::support::{Edge, Script, eventually, text};

fn story() -> Vec<GenerationChunk> {
    let thinking = GenerationChunk {
        thinking: Some("Hm.".to_owned()),
        ..GenerationChunk::default()
    };
    let call = |arguments: &str| {
        GenerationChunk {
        tool_calls: Some(
            json!([{ "index": 0, "id": "c", "function": { "name": "find", "arguments": arguments } }])
                .to_string(),
        ),
        ..GenerationChunk::default()
    }
    };
    let more = GenerationChunk {
        tool_calls: Some(json!([{ "index": 0, "function": { "arguments": "1}" } }]).to_string()),
        ..GenerationChunk::default()
    };
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Length),
        usage: Some(Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
            ..Usage::default()
        }),
        last: true,
        ..GenerationChunk::default()
    };
    vec![
        thinking,
        text("Once "),
        text("\"upon\""),
        call("{\"a\":"),
        more,
        end,
    ]
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a_chat_comes_in_lines_and_ends_with_its_figures() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(story()));
    let body = json!({ "model": "m:latest", "messages": [{ "role": "user", "content": "x" }],
                       "options": { "num_predict": 2 }, "think": "low" });
    let reply = edge.post("/api/chat", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.headers["content-type"], "application/x-ndjson");
    let lines = lines(reply.text());
    assert!(lines.iter().all(|line| line["model"] == "m:latest"));
    assert_eq!(lines[0]["message"]["thinking"], "Hm.");
    let told: String = lines
        .iter()
        .filter_map(|line| line["message"]["content"].as_str())
        .collect();
    assert_eq!(told, "Once \"upon\"");
    let calls: Vec<_> = lines
        .iter()
        .filter(|line| !line["message"]["tool_calls"].is_null())
        .collect();
    let call = json!([{ "function": { "name": "find", "arguments": { "a": 1 } } }]);
    assert_eq!(
        (calls.len(), &calls[0]["message"]["tool_calls"]),
        (1, &call)
    );
    let (last, before) = lines.split_last().unwrap();
    assert!(before.iter().all(|line| line["done"] == false));
    assert_eq!(
        (&last["done"], &last["done_reason"]),
        (&json!(true), &json!("length"))
    );
    assert_eq!(
        (&last["prompt_eval_count"], &last["eval_count"]),
        (&json!(3), &json!(2))
    );
    assert!(last["total_duration"].as_u64().unwrap() > 0);
    let asked = edge.cluster.last_call().parameters;
    assert_eq!(asked.get("max_tokens"), Some(&ParamValue::Int(2)));
    assert_eq!(
        asked.get("reasoning_effort"),
        Some(&ParamValue::Text("low".to_owned()))
    );
}

#[tokio::test]
async fn a_generation_comes_whole_where_that_is_asked_for() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(story()));
    let body = json!({ "model": "m", "prompt": "x", "system": "y", "stream": false });
    let whole = edge.post("/api/generate", &body.to_string()).await.ok();
    assert_eq!(
        (&whole["response"], &whole["thinking"]),
        (&json!("Once \"upon\""), &json!("Hm."))
    );
    assert_eq!(whole["done"], true);
    let body =
        json!({ "model": "m", "stream": false, "messages": [{ "role": "user", "content": "x" }] });
    let whole = edge.post("/api/chat", &body.to_string()).await.ok();
    assert_eq!(
        whole["message"]["tool_calls"][0]["function"]["arguments"],
        json!({ "a": 1 })
    );
    // A request without a prompt reports that the model is available.
    let loaded = edge.post("/api/generate", r#"{"model":"m"}"#).await.ok();
    assert_eq!(
        (&loaded["done_reason"], &loaded["response"]),
        (&json!("load"), &json!(""))
    );
}

#[tokio::test]
async fn what_goes_wrong_is_told_as_ollama_does() {
    let edge = Edge::start().await;
    let chat = |model: &str| {
        json!({ "model": model, "messages": [{ "role": "user", "content": "x" }] }).to_string()
    };
    let reply = edge.post("/api/chat", &chat("nobody")).await;
    assert_eq!(reply.status, 404);
    assert!(reply.json()["error"].as_str().unwrap().contains("nobody"));
    let busy = PredictError::new(ErrorCode::Overloaded, "busy");
    edge.cluster.script("busy", Script::Refuses(busy));
    assert_eq!(edge.post("/api/chat", &chat("busy")).await.status, 429);
    for body in ["{}", "[]", "{", r#"{"model":"busy","messages":7}"#] {
        let reply = edge.post("/api/chat", body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.json()["error"].is_string());
    }
    // After the first line, an error is the last line.
    let feed = edge.cluster.feed("cut");
    feed.send(Ok(volley_types::GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    feed.send(Err(PredictError::new(ErrorCode::UpstreamFailed, "gone")))
        .await
        .unwrap();
    let reply = edge.post("/api/chat", &chat("cut")).await;
    let lines = lines(reply.text());
    assert_eq!(lines.last().unwrap(), &json!({ "error": "gone" }));
}

#[tokio::test]
async fn who_leaves_a_chat_ends_it() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    feed.send(Ok(volley_types::GenerationChunks::single(&text("a"))))
        .await
        .unwrap();
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "x" }] });
    let request = crate::support::request(http::Method::POST, "/api/chat", &body.to_string());
    let response = edge.open(request).await;
    assert_eq!(response.status(), 200);
    drop(response);
    let open = edge.cluster.open.clone();
    eventually("the end", || {
        open.load(std::sync::atomic::Ordering::SeqCst) == 0
    })
    .await;
}

#[tokio::test]
async fn what_is_there_is_listed() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(story()));
    let tags = edge.get("/api/tags").await.ok();
    assert_eq!(tags["models"][0]["model"], "m");
    assert_eq!(tags["models"][0]["modified_at"], "1970-01-01T00:00:00.001Z");
    assert_eq!(edge.get("/api/ps").await.ok()["models"][0]["name"], "m");
    let shown = edge.post("/api/show", r#"{"model":"m"}"#).await.ok();
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(edge.post("/api/show", r#"{"model":"x"}"#).await.status, 404);
    assert!(edge.get("/api/version").await.ok()["version"].is_string());
    let pulled = edge.post("/api/pull", r#"{"model":"m"}"#).await;
    assert_eq!(pulled.text(), "{\"status\":\"success\"}\n");
    assert_eq!(edge.post("/api/pull", r#"{"model":"x"}"#).await.status, 404);
    let reply = edge
        .post("/api/embed", r#"{"model":"m","input":"a"}"#)
        .await;
    assert_eq!(reply.status, 400);
}
