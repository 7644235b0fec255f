//! Information about the caller in a model's request: the dialect, and whether the response is
//! streamed.

use serde_json::{Value, json};
use volley_types::{Dialect, ErrorCode, PredictError};

use super::support::{Edge, Script, last, text};

/// Routes of generations with their bodies, and whether a body has the field `stream`.
fn routes() -> Vec<(&'static str, Value, Dialect)> {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    vec![
        (
            "/v1/chat/completions",
            json!({ "model": "m", "messages": messages }),
            Dialect::OpenAi,
        ),
        (
            "/v1/completions",
            json!({ "model": "m", "prompt": "Hi" }),
            Dialect::OpenAi,
        ),
        (
            "/v1/responses",
            json!({ "model": "m", "input": "Hi" }),
            Dialect::OpenAiResponses,
        ),
        (
            "/v1/messages",
            json!({ "model": "m", "max_tokens": 9, "messages": messages }),
            Dialect::Anthropic,
        ),
        (
            "/v2/chat",
            json!({ "model": "m", "messages": messages }),
            Dialect::Cohere,
        ),
        (
            "/api/chat",
            json!({ "model": "m", "messages": messages }),
            Dialect::Ollama,
        ),
    ]
}

#[tokio::test]
async fn a_model_is_told_the_dialect_and_whether_the_answer_is_read_as_it_comes() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("Hi"), last()]));
    for (path, body, dialect) in routes() {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let reply = edge.post(path, &body.to_string()).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            let call = edge.cluster.last_call();
            assert_eq!((call.dialect, call.whole), (dialect, !stream), "{path}");
        }
    }
    for (path, body, dialect, whole) in [
        (
            "/v2/models/m/generate",
            json!({ "text_input": "Hi" }),
            Dialect::Own,
            true,
        ),
        (
            "/v2/models/m/generate_stream",
            json!({ "text_input": "Hi" }),
            Dialect::Own,
            false,
        ),
        (
            "/v2/models/m/infer",
            json!({ "inputs": [
                { "name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"] },
            ] }),
            Dialect::Own,
            true,
        ),
        (
            "/tgi/m/generate",
            json!({ "inputs": "Hi" }),
            Dialect::OpenAi,
            true,
        ),
        ("/tgi/m", json!({ "inputs": "Hi" }), Dialect::OpenAi, true),
        (
            "/tgi/m/generate_stream",
            json!({ "inputs": "Hi" }),
            Dialect::OpenAi,
            false,
        ),
        (
            "/_plugins/_ml/models/m/_predict",
            json!({ "parameters": { "prompt": "Hi" } }),
            Dialect::Own,
            true,
        ),
        (
            "/_plugins/_ml/models/m/_predict/stream",
            json!({ "parameters": { "prompt": "Hi" } }),
            Dialect::Own,
            false,
        ),
    ] {
        edge.post(path, &body.to_string()).await;
        let call = edge.cluster.last_call();
        assert_eq!((call.dialect, call.whole), (dialect, whole), "{path}");
    }
}

#[tokio::test]
async fn a_prompt_beyond_the_context_has_each_houses_name() {
    let edge = Edge::start().await;
    let long = PredictError::context_length("9 tokens, and 8 fit");
    assert_eq!(long.code, ErrorCode::InvalidInput);
    edge.cluster.script("m", Script::Fails(long));
    for (path, body, dialect) in routes() {
        let mut body = body;
        body["stream"] = false.into();
        let reply = edge.post(path, &body.to_string()).await;
        assert_eq!(reply.status, 400, "{path}");
        let told = reply.json();
        match dialect {
            Dialect::OpenAi | Dialect::OpenAiResponses => {
                assert_eq!(told["error"]["code"], "context_length_exceeded", "{path}");
            }
            Dialect::Anthropic => {
                assert_eq!(told["error"]["type"], "invalid_request_error");
                let message = told["error"]["message"].as_str().unwrap();
                assert!(message.contains("prompt is too long"), "{message}");
            }
            _ => assert!(reply.text().contains("9 tokens"), "{path}"),
        }
    }
}
