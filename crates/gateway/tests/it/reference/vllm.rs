//! vLLM's server for OpenAI's interface.

use std::sync::atomic::Ordering;

use http::Method;
use serde_json::{Value, json};
use volley_types::{GenerationChunk, Signature};

use super::{embedder, named, ranker, talker};
use crate::openai::events;
use crate::support::{Edge, Script, last, request};

const COMPLETIONS: &str = "/v1/completions";

async fn edge() -> Edge {
    let edge = Edge::start().await;
    edge.cluster.script("Qwen/Qwen3-8B", talker());
    edge
}

fn asked(more: &Value) -> String {
    let mut body = json!({ "model": "Qwen/Qwen3-8B", "prompt": "Hello" });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body.to_string()
}

#[tokio::test]
async fn the_version_and_health_are_told() {
    let edge = edge().await;
    let version = edge.get("/version").await.ok();
    assert_eq!(version, json!({ "version": env!("CARGO_PKG_VERSION") }));
    for path in ["/health", "/ping"] {
        assert_eq!(edge.get(path).await.status, 200);
    }
    assert_eq!(edge.post("/ping", "").await.status, 200);
    edge.cluster.draining.store(true, Ordering::SeqCst);
    assert_eq!(edge.get("/health").await.status, 503);
}

#[tokio::test]
async fn models_tell_how_much_they_read() {
    let edge = edge().await;
    edge.cluster.script("e", embedder());
    let listed = edge.get("/v1/models").await.ok();
    let found = |id: &str| {
        let models = listed["data"].as_array().unwrap();
        models.iter().find(|it| it["id"] == id).unwrap().clone()
    };
    assert_eq!(found("e")["max_model_len"], 512);
    let talker = found("Qwen/Qwen3-8B");
    assert_eq!(
        (&talker["object"], &talker["root"]),
        (&json!("model"), &json!("Qwen/Qwen3-8B"))
    );
}

#[tokio::test]
async fn a_completion_counts_its_tokens() {
    let edge = edge().await;
    let whole = edge
        .post(COMPLETIONS, &asked(&json!({ "max_tokens": 2 })))
        .await
        .ok();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["text"], "Hello there");
    assert_eq!(whole["choices"][0]["logprobs"], Value::Null);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["total_tokens"], 8);
    assert!(whole["system_fingerprint"].is_string());
}

#[tokio::test]
async fn prompts_may_be_tokens() {
    let edge = edge().await;
    for (prompt, rows) in [(json!([0, 0, 0]), 1), (json!([[1, 2], [3]]), 2)] {
        edge.post(COMPLETIONS, &asked(&json!({ "prompt": prompt })))
            .await
            .ok();
        let called = edge.cluster.last_call();
        assert_eq!(
            called.parameters.boolean("token_inputs").unwrap(),
            Some(true)
        );
        assert_eq!(called.rows.num_rows(), rows);
    }
    for bad in [
        json!([]),
        json!([[]]),
        json!([1, "a"]),
        json!({}),
        json!([-1]),
    ] {
        let refused = edge
            .post(COMPLETIONS, &asked(&json!({ "prompt": bad })))
            .await;
        assert!(refused.refused_openai(400).contains("'prompt'"));
    }
}

#[tokio::test]
async fn echo_reaches_the_model_with_its_probabilities() {
    let edge = edge().await;
    let body = json!({ "prompt": [[1, 2, 3]], "echo": true, "logprobs": 1, "max_tokens": 1 });
    edge.post(COMPLETIONS, &asked(&body)).await.ok();
    let called = edge.cluster.last_call().parameters;
    assert_eq!(called.boolean("echo").unwrap(), Some(true));
    assert_eq!(called.boolean("logprobs").unwrap(), Some(true));
    assert_eq!(called.unsigned("top_logprobs").unwrap(), Some(1));
}

#[tokio::test]
async fn an_echoed_prompt_has_its_tokens_in_front_of_the_answers() {
    let edge = Edge::start().await;
    let row = |text: Option<&str>, tokens: Value| GenerationChunk {
        text: text.map(str::to_owned),
        token_logprobs: Some(tokens.to_string()),
        ..GenerationChunk::default()
    };
    let token = |text: &str, logprob: f64| {
        let likeliest = json!([{ "token": "x", "logprob": -0.5 }]);
        json!({ "token": text, "logprob": logprob, "top_logprobs": likeliest })
    };
    let first = json!({ "token": "He", "logprob": null, "top_logprobs": null });
    let script = || {
        Script::Chunks(vec![
            row(Some("Hello "), json!([first, token("llo", -2.0)])),
            row(None, json!([token(" ", -3.0)])),
            row(Some("x"), json!([token("x", -0.5)])),
            last(),
        ])
    };
    edge.cluster.script("Qwen/Qwen3-8B", script());
    let body = json!({ "echo": true, "logprobs": 1, "max_tokens": 1 });
    let whole = edge.post(COMPLETIONS, &asked(&body)).await.ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], "Hello x");
    let told = &choice["logprobs"];
    assert_eq!(told["tokens"], json!(["He", "llo", " ", "x"]));
    assert_eq!(told["token_logprobs"], json!([null, -2.0, -3.0, -0.5]));
    assert_eq!(told["text_offset"], json!([0, 2, 5, 6]));
    assert_eq!(told["top_logprobs"][0], Value::Null);
    assert_eq!(told["top_logprobs"][1], json!({ "x": -0.5, "llo": -2.0 }));
    assert_eq!(
        told["top_logprobs"][3],
        json!({ "x": -0.5 }),
        "the likeliest was chosen"
    );
    let body = json!({ "echo": true, "logprobs": 1, "stream": true });
    let (events, _) = events(&edge.post(COMPLETIONS, &asked(&body)).await);
    let offsets: Vec<_> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .collect();
    assert_eq!(offsets, [0, 2, 5, 6]);
}

#[tokio::test]
async fn usage_comes_in_a_chunk_of_its_own_where_wanted() {
    let edge = edge().await;
    let streamed = |options: Value| asked(&json!({ "stream": true, "stream_options": options }));
    let body = streamed(json!({ "include_usage": true, "continuous_usage_stats": false }));
    let (told, done) = events(&edge.send(request(Method::POST, COMPLETIONS, &body)).await);
    assert_eq!(done, "[DONE]");
    let (last, others) = told.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 2);
    assert!(others.iter().all(|event| event["usage"].is_null()));
    for options in [json!({}), json!({ "include_usage": false })] {
        let body = streamed(options);
        let (told, _) = events(&edge.send(request(Method::POST, COMPLETIONS, &body)).await);
        assert!(told.iter().all(|event| event.get("usage").is_none()));
    }
    for options in [
        json!({ "continuous_usage_stats": true }),
        json!({ "usage": true }),
    ] {
        edge.post(COMPLETIONS, &streamed(options))
            .await
            .refused_openai(400);
    }
    let unstreamed = asked(&json!({ "stream_options": { "include_usage": true } }));
    edge.post(COMPLETIONS, &unstreamed)
        .await
        .refused_openai(400);
}

#[tokio::test]
async fn the_best_of_as_many_as_are_wanted_are_all_of_them() {
    let edge = edge().await;
    edge.post(
        COMPLETIONS,
        &asked(&json!({ "n": 1, "best_of": 1, "suffix": "" })),
    )
    .await
    .ok();
    for (more, name) in [
        (json!({ "best_of": 3 }), "'best_of'"),
        (json!({ "suffix": "end" }), "'suffix'"),
    ] {
        let refused = edge.post(COMPLETIONS, &asked(&more)).await;
        assert!(refused.refused_openai(400).contains(name));
    }
}

#[tokio::test]
async fn a_model_that_is_not_there_is_not_found() {
    let edge = edge().await;
    for name in [
        "nothing",
        "Qwen/other",
        "not a name",
        "gpt-4o:extended",
        "a//b",
    ] {
        let body = json!({ "model": name, "prompt": "x", "input": "x",
                           "messages": [{ "role": "user", "content": "x" }] });
        for path in [
            COMPLETIONS,
            "/v1/chat/completions",
            "/v1/embeddings",
            "/v1/responses",
        ] {
            let reply = edge.post(path, &body.to_string()).await;
            assert_eq!(reply.status, 404, "{path} {name}: {}", reply.text());
            assert_eq!(reply.json()["error"]["code"], "model_not_found");
        }
    }
}

#[tokio::test]
async fn what_is_no_route_or_no_method_is_told_as_json() {
    let edge = edge().await;
    let unknown = edge.get("/v1/nothing").await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"]["code"], "unknown_url");
    let method = edge.get(COMPLETIONS).await;
    assert_eq!(method.status, 405);
    assert_eq!(method.json()["error"]["code"], "method_not_allowed");
}

#[tokio::test]
async fn ranking_and_classification_tell_another_task() {
    let edge = edge().await;
    edge.cluster.script("r", ranker());
    let body = r#"{"model":"r","query":"q","documents":["a","bb"]}"#;
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let whole = edge.post(path, body).await.ok();
        assert_eq!(whole["results"][0]["index"], 1, "{path}");
    }
    let labels = named(Signature::classify(), ["a", "b"], [0.5, 0.5]);
    edge.cluster.script("c", labels);
    let wrong = edge
        .post("/v1/embeddings", r#"{"model":"c","input":"x"}"#)
        .await;
    assert!(wrong.refused_openai(400).contains("classify"));
}
