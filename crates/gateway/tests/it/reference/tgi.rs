//! Text Generation Inference.

use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

use super::talker;
use crate::support::{Edge, Reply, Script, text};

async fn edge() -> Edge {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    edge
}

/// The events of a stream: `data:` without a space, as its clients read them.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let events = reply.text().split_terminator("\n\n");
    let events = events.map(|event| event.strip_prefix("data:").expect(event));
    events
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[tokio::test]
async fn a_prompt_goes_on_as_it_is() {
    let edge = edge().await;
    let body = r#"{"inputs":"Hi","parameters":{"max_new_tokens":2,"do_sample":true,"seed":7}}"#;
    let whole = edge.post("/generate", body).await.ok();
    assert_eq!(whole, json!({ "generated_text": "Hello there" }));
    let called = edge.cluster.last_call().parameters;
    assert_eq!(called.unsigned("max_tokens").unwrap(), Some(2));
    assert_eq!(called.boolean("raw").unwrap(), Some(true));
    assert_eq!(called.unsigned("seed").unwrap(), Some(7));
    assert!(called.iter().any(|(name, _)| name == "temperature"));
    let body = r#"{"inputs":"Hi","parameters":{"return_full_text":true}}"#;
    let whole = edge.post("/generate", body).await.ok();
    assert_eq!(whole["generated_text"], "HiHello there");
}

#[tokio::test]
async fn details_tell_tokens_and_why_it_ended() {
    let edge = edge().await;
    let body = r#"{"inputs":"Hi","parameters":{"details":true}}"#;
    let details = &edge.post("/generate", body).await.ok()["details"];
    assert_eq!(details["finish_reason"], "length");
    assert_eq!(details["generated_tokens"], 2);
    assert_eq!(details["tokens"].as_array().unwrap().len(), 2);
    for name in ["id", "text", "logprob", "special"] {
        assert!(details["tokens"][0].get(name).is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_stream_has_a_token_each_and_the_text_at_its_end() {
    let edge = edge().await;
    let body = r#"{"inputs":"Hi","parameters":{"details":true}}"#;
    let events = events(&edge.post("/generate_stream", body).await);
    assert_eq!(events.len(), 3);
    assert_eq!(events[0]["token"]["text"], "Hello");
    assert_eq!(events[0]["generated_text"], Value::Null);
    assert_eq!(events[0]["index"], 1);
    assert_eq!(events[2]["generated_text"], "Hello there");
    assert_eq!(events[2]["token"]["special"], true);
    assert_eq!(events[2]["details"]["finish_reason"], "length");
}

#[tokio::test]
async fn the_root_is_whole_or_streamed() {
    let edge = edge().await;
    let whole = edge.post("/", r#"{"inputs":"Hi"}"#).await.ok();
    assert_eq!(whole, json!([{ "generated_text": "Hello there" }]));
    let streamed = edge
        .post("/tgi/m", r#"{"inputs":"Hi","stream":true}"#)
        .await;
    assert_eq!(
        events(&streamed).last().unwrap()["generated_text"],
        "Hello there"
    );
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let edge = edge().await;
    for (parameters, name) in [
        (json!({ "best_of": 3 }), "best_of"),
        (json!({ "watermark": true }), "watermark"),
        (json!({ "truncate": 5 }), "truncate"),
        (json!({ "temprature": 1 }), "temprature"),
        (
            json!({ "decoder_input_details": true }),
            "decoder_input_details",
        ),
    ] {
        let body = json!({ "inputs": "Hi", "parameters": parameters });
        let refused = edge.post("/generate", &body.to_string()).await;
        assert_eq!(refused.status, 422, "{}", refused.text());
        let body = refused.json();
        assert_eq!(body["error_type"], "validation");
        assert!(body["error"].as_str().unwrap().contains(name), "{body}");
    }
    let missing = edge.post("/generate", "{}").await;
    assert_eq!(missing.status, 422);
}

#[tokio::test]
async fn a_stream_that_fails_says_so() {
    let edge = edge().await;
    let feed = edge.cluster.feed("m");
    let sent = volley_types::GenerationChunks::single(&text("a"));
    feed.send(Ok(sent)).await.unwrap();
    let error = PredictError::new(ErrorCode::Internal, "broken");
    feed.send(Err(error)).await.unwrap();
    let reply = edge.post("/generate_stream", r#"{"inputs":"Hi"}"#).await;
    let last = events(&reply).pop().unwrap();
    assert_eq!(last["error_type"], "generation");
    let busy = PredictError::new(ErrorCode::Overloaded, "busy");
    edge.cluster.script("m", Script::Refuses(busy));
    let busy = edge.post("/generate", r#"{"inputs":"Hi"}"#).await;
    assert_eq!(
        (busy.status.as_u16(), &busy.json()["error_type"]),
        (429, &json!("overloaded"))
    );
}

#[tokio::test]
async fn the_server_tells_what_it_serves() {
    let edge = edge().await;
    let info = edge.get("/info").await.ok();
    assert_eq!(info["model_id"], "m");
    assert_eq!(info["model_pipeline_tag"], "text-generation");
    assert_eq!(edge.get("/tgi/m/info").await.ok(), info);
    assert_eq!(edge.get("/ping").await.status, 200);
}
