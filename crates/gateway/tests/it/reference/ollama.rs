//! Ollama's own routes, and its routes of OpenAI's interface.

use http::Method;
use serde_json::json;

use super::{embedder, talker};
use crate::openai::{CHAT, events};
use crate::support::{Edge, request};

#[tokio::test]
async fn usage_is_told_at_the_end_of_a_stream_that_asks_for_it() {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    let body = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},
                   "messages":[{"role":"user","content":"Hello"}]}"#;
    let (told, done) = events(&edge.send(request(Method::POST, CHAT, body)).await);
    assert_eq!(done, "[DONE]");
    assert_eq!(told.last().unwrap()["usage"]["total_tokens"], 8);
    assert!(
        told.iter()
            .all(|event| event["object"] == "chat.completion.chunk")
    );
}

#[tokio::test]
async fn a_missing_model_is_found_missing_under_each_interface() {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    let body = r#"{"model":"hf.co/org/none:Q4_K_M","prompt":"x","messages":[{"role":"user","content":"x"}]}"#;
    let openai = edge.post(CHAT, body).await;
    assert_eq!(
        (openai.status.as_u16(), &openai.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    for path in ["/api/chat", "/api/generate"] {
        let own = edge.post(path, body).await;
        assert_eq!(own.status, 404, "{}", own.text());
        assert!(own.json()["error"].is_string());
    }
}

#[tokio::test]
async fn names_with_a_slash_and_latest_are_models() {
    let edge = Edge::start().await;
    edge.cluster.script("library/m", talker());
    let body = r#"{"model":"library/m:latest","stream":false,"prompt":"x"}"#;
    let whole = edge.post("/api/generate", body).await.ok();
    assert_eq!(whole["response"], "Hello there");
    let tags = edge.get("/api/tags").await.ok();
    assert_eq!(tags["models"][0]["name"], "library/m");
}

#[tokio::test]
async fn one_model_is_told_by_its_name() {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    let model = edge.get("/v1/models/m").await.ok();
    assert_eq!(
        (&model["id"], &model["object"]),
        (&json!("m"), &json!("model"))
    );
    let missing = edge.get("/v1/models/other").await;
    assert_eq!(missing.json()["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn embeddings_say_whether_a_text_may_be_cut() {
    let edge = Edge::start().await;
    edge.cluster.script("e", embedder());
    let embed = |more: &str| format!(r#"{{"model":"e","input":"x"{more}}}"#);
    edge.post("/api/embed", &embed(r#","truncate":false"#))
        .await
        .ok();
    let called = edge.cluster.last_call().parameters;
    assert_eq!(called.boolean("truncate").unwrap(), Some(false));
    edge.post("/api/embed", &embed("")).await.ok();
    let called = edge.cluster.last_call().parameters;
    assert_eq!(called.boolean("truncate").unwrap(), None);
    let wrong = edge.post("/api/embed", &embed(r#","truncate":1"#)).await;
    assert_eq!(wrong.status, 400);
}
