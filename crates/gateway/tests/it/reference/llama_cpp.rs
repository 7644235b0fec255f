//! llama.cpp's server.

use http::Method;
use serde_json::{Value, json};

use super::{embedder, ranker, talker};
use crate::openai::events;
use crate::support::{Edge, request};

#[tokio::test]
async fn health_is_ok() {
    let edge = Edge::start().await;
    assert_eq!(edge.get("/health").await.ok()["status"], "ok");
}

#[tokio::test]
async fn the_one_model_needs_no_name() {
    let edge = Edge::start().await;
    edge.cluster.script("tiny", talker());
    edge.cluster.script("bge", embedder());
    let chat = r#"{"messages":[{"role":"user","content":"Hey"}],"max_tokens":8}"#;
    let whole = edge.post("/v1/chat/completions", chat).await.ok();
    assert_eq!(whole["model"], "tiny");
    assert!(whole["id"].as_str().unwrap().contains("cmpl"));
    assert!(whole["system_fingerprint"].is_string());
    edge.post("/v1/completions", r#"{"prompt":"x"}"#).await.ok();
    edge.post("/v1/responses", r#"{"input":"x","model":null}"#)
        .await
        .ok();
    let vectors = edge
        .post("/v1/embeddings", r#"{"input":["a","b"]}"#)
        .await
        .ok();
    assert_eq!(vectors["model"], "bge");
    edge.cluster.script("another", talker());
    let refused = edge
        .post("/v1/chat/completions", chat)
        .await
        .refused_openai(400);
    assert!(refused.contains("'another', 'tiny'"), "{refused}");
}

#[tokio::test]
async fn a_stream_says_the_role_once_and_keeps_its_id() {
    let edge = Edge::start().await;
    edge.cluster.script("tiny", talker());
    let chat = r#"{"stream":true,"messages":[{"role":"user","content":"Hey"}]}"#;
    let sent = request(Method::POST, "/v1/chat/completions", chat);
    let (told, _) = events(&edge.send(sent).await);
    assert_eq!(told[0]["choices"][0]["delta"]["role"], "assistant");
    for event in &told {
        assert_eq!(event["id"], told[0]["id"]);
        assert_eq!(event["system_fingerprint"], told[0]["system_fingerprint"]);
        assert!(event["created"].is_u64());
    }
    let again = told[1..]
        .iter()
        .any(|it| it["choices"][0]["delta"].get("role").is_some());
    assert!(!again);
    let reasons = told.iter().map(|it| &it["choices"][0]["finish_reason"]);
    let reasons: Vec<_> = reasons.filter(|reason| !reason.is_null()).collect();
    assert_eq!(reasons, [&json!("length")]);
}

#[tokio::test]
async fn malformed_messages_are_errors_with_a_body() {
    let edge = Edge::start().await;
    edge.cluster.script("tiny", talker());
    for messages in [
        json!(null),
        json!("string"),
        json!([123]),
        json!([{}]),
        json!([{ "role": 123 }]),
        json!([{ "role": "system", "content": 123 }]),
        json!([{ "role": "system", "content": "test" }, {}]),
    ] {
        let body = json!({ "messages": messages });
        let reply = edge.post("/v1/chat/completions", &body.to_string()).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.json()["error"].is_object());
    }
}

#[tokio::test]
async fn embeddings_take_texts_and_tokens_in_lists_of_one_kind() {
    let edge = Edge::start().await;
    edge.cluster.script("bge", embedder());
    for (input, count) in [
        (json!("string"), 1),
        (json!([12, 34, 56]), 1),
        (json!(["string1", "string2"]), 2),
        (json!([[12, 34], [56]]), 2),
    ] {
        let body = json!({ "model": "bge", "input": input });
        let whole = edge.post("/v1/embeddings", &body.to_string()).await.ok();
        assert_eq!(whole["data"].as_array().unwrap().len(), count, "{body}");
        let usage = &whole["usage"];
        assert_eq!(usage["prompt_tokens"], usage["total_tokens"]);
    }
    for input in [
        json!([]),
        json!([12, "string", 56]),
        json!({ "content": "string" }),
    ] {
        let body = json!({ "model": "bge", "input": input });
        let refused = edge.post("/v1/embeddings", &body.to_string()).await;
        assert!(refused.refused_openai(400).contains("'input'"));
    }
}

#[tokio::test]
async fn ranking_has_two_forms() {
    let edge = Edge::start().await;
    edge.cluster.script("jina", ranker());
    let documents = json!(["a", "bbbb", "ccc"]);
    let cohere = json!({ "query": "q", "documents": documents });
    let whole = edge.post("/rerank", &cohere.to_string()).await.ok();
    assert_eq!(whole["results"].as_array().unwrap().len(), 3);
    assert_eq!(
        whole["usage"]["prompt_tokens"],
        whole["usage"]["total_tokens"]
    );
    let tei = json!({ "query": "q", "texts": documents, "top_n": 2 });
    let ranks = edge.post("/rerank", &tei.to_string()).await.ok();
    assert_eq!(ranks.as_array().unwrap().len(), 2);
    assert_eq!(ranks[0]["index"], 1);
    for bad in [json!([]), json!(null), json!(123), json!([1, 2])] {
        let body = json!({ "query": "q", "documents": bad });
        let reply = edge.post("/rerank", &body.to_string()).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.json()["error"].is_object());
    }
    let vectors = edge
        .post("/v1/embeddings", r#"{"model":"jina","input":"a"}"#)
        .await;
    assert!(vectors.refused_openai(400).contains("rerank"));
}

#[tokio::test]
async fn a_response_needs_a_schema_where_it_names_one() {
    let edge = Edge::start().await;
    edge.cluster.script("tiny", talker());
    let asked = |format: Value| json!({ "input": "x", "text": { "format": format } }).to_string();
    for format in [json!({ "type": "text" }), json!({ "type": "json_object" })] {
        let whole = edge.post("/v1/responses", &asked(format)).await.ok();
        assert!(whole["id"].as_str().unwrap().starts_with("resp_"));
        assert!(
            whole["output"][0]["id"]
                .as_str()
                .unwrap()
                .starts_with("msg_")
        );
    }
    let without = asked(json!({ "type": "json_schema", "name": "test" }));
    edge.post("/v1/responses", &without)
        .await
        .refused_openai(400);
}

#[tokio::test]
async fn nothing_to_tokenize_has_no_tokens() {
    let edge = Edge::start().await;
    edge.cluster.script("tiny", talker());
    let none = edge.post("/tokenize", r#"{"content":""}"#).await.ok();
    assert_eq!(none, json!({ "tokens": [] }));
    let none = edge.post("/detokenize", r#"{"tokens":[]}"#).await.ok();
    assert_eq!(none["content"], "");
    for (path, body, name) in [
        ("/tokenize", r#"{}"#, "prompt"),
        (
            "/tokenize",
            r#"{"content":"a","with_piece":true}"#,
            "with_piece",
        ),
        (
            "/tokenize",
            r#"{"content":"a","parse_special":false}"#,
            "parse_special",
        ),
        ("/detokenize", r#"{"tokens":"a"}"#, "tokens"),
        ("/detokenize", r#"{"tokens":[1],"skip":true}"#, "skip"),
    ] {
        let refused = edge.post(path, body).await.refused_openai(400);
        assert!(refused.contains(name), "{path} {body}: {refused}");
    }
}
