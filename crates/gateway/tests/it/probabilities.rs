//! Log probabilities in every format of OpenAI's interface, and rejected parameters.

use serde_json::json;
use volley_types::{FinishReason, GenerationChunk};

use super::openai::{CHAT, ask, events, finished};
use super::support::{Edge, Script, last, text};

#[tokio::test]
async fn alternatives_are_told_token_by_token_in_every_form() {
    let edge = Edge::start().await;
    let token = |text: &str, other: &str| {
        json!({ "token": text, "bytes": text.as_bytes(), "logprob": -0.5, "top_logprobs": [
            { "token": other, "bytes": other.as_bytes(), "logprob": -1.5 },
        ] })
    };
    let told = json!([token("é", "x"), token("b", "y")]);
    let row = GenerationChunk {
        logprob: Some(-1.0),
        token_logprobs: Some(told.to_string()),
        ..text("éb")
    };
    let more = GenerationChunk {
        token_logprobs: Some(json!([token("c", "z")]).to_string()),
        ..text("c")
    };
    let chunks = vec![row, more, finished(FinishReason::Stop)];
    edge.cluster.script("m", Script::Chunks(chunks));
    let body = edge.post(CHAT, &ask(&json!({}))).await.ok();
    let content = &body["choices"][0]["logprobs"]["content"];
    assert_eq!((&content[0], &content[1]), (&told[0], &told[1]));
    assert_eq!(content[2]["token"], "c");

    let plain = json!({ "model": "m", "prompt": "Hi", "logprobs": 1 });
    let body = edge.post("/v1/completions", &plain.to_string()).await.ok();
    let expected = json!({
        "tokens": ["é", "b", "c"], "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [
            { "x": -1.5, "é": -0.5 }, { "y": -1.5, "b": -0.5 }, { "z": -1.5, "c": -0.5 },
        ],
        "text_offset": [0, 1, 2],
    });
    assert_eq!(body["choices"][0]["logprobs"], expected);
    let given = edge.cluster.last_call().parameters;
    assert_eq!(given.unsigned("top_logprobs").unwrap(), Some(1));
    assert_eq!(given.boolean("logprobs").unwrap(), Some(true));
    let mut streamed = plain;
    streamed["stream"] = true.into();
    let reply = edge.post("/v1/completions", &streamed.to_string()).await;
    let (events, _) = events(&reply);
    let offset = &events[1]["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(offset, &json!([2]));

    let asked = json!({ "model": "m", "input": "Hi", "top_logprobs": 1 }).to_string();
    let body = edge.post("/v1/responses", &asked).await.ok();
    let part = &body["output"][0]["content"][0];
    assert_eq!(part["logprobs"], *content);
}

#[tokio::test]
async fn what_came_before_tools_is_read_and_sound_is_refused_by_name() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    for (field, value) in [
        ("functions", json!([{ "title": "f" }])),
        ("function_call", json!("auto")),
        ("modalities", json!(["text", "audio"])),
    ] {
        let reply = edge.post(CHAT, &ask(&json!({ field: value }))).await;
        reply.refused_openai(400);
        assert_eq!(reply.json()["error"]["param"], field);
    }
    let plain = json!({ "modalities": ["text"], "audio": null });
    edge.post(CHAT, &ask(&plain)).await.ok();
}
