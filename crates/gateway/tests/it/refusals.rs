//! Refusals of models and of their providers' content filters, in each dialect.

use http::Method;
use serde_json::{Value, json};
use volley_types::{Details, FinishReason, GenerationChunk};

use super::support::{Edge, Reply, Script, last, request, text};

/// An answer that ends for this reason, with the explanation of an Anthropic server.
fn ended(reason: FinishReason, explanation: Option<&str>) -> GenerationChunk {
    let details = Details {
        format: Some("anthropic".to_owned()),
        stop_details: explanation.map(|told| json!({ "explanation": told })),
        ..Details::default()
    };
    GenerationChunk {
        finish_reason: Some(reason),
        details: details.to_json(),
        ..last()
    }
}

fn refused(said: &str) -> GenerationChunk {
    let details = Details {
        refusal: true,
        ..Details::default()
    };
    GenerationChunk {
        details: details.to_json(),
        ..text(said)
    }
}

async fn asked(edge: &Edge, path: &str, stream: bool) -> Reply {
    let body = match path {
        "/v1/completions" => json!({ "model": "m", "prompt": "Hi", "stream": stream }),
        "/v1/responses" => json!({ "model": "m", "input": "Hi", "stream": stream }),
        "/v2/models/m/generate" => json!({ "text_input": "Hi" }),
        "/generate?model=m" | "/generate_stream?model=m" => json!({ "inputs": "Hi" }),
        _ if path.contains("_plugins") => json!({ "parameters": { "prompt": "Hi" } }),
        _ => json!({ "model": "m", "stream": stream,
                     "messages": [{ "role": "user", "content": "Hi" }] }),
    };
    edge.send(request(Method::POST, path, &body.to_string()))
        .await
}

fn lines(reply: &Reply) -> Vec<Value> {
    let lines = reply.text().lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a_blocked_prompt_is_no_empty_answer() {
    let edge = Edge::start().await;
    let chunks = vec![ended(FinishReason::ContentFilter, None)];
    edge.cluster.script("m", Script::Chunks(chunks));
    let chat = asked(&edge, "/api/chat", false).await.ok();
    assert_eq!(chat["done_reason"], "content_filter");
    let said = chat["message"]["content"].as_str().unwrap().to_owned();
    assert!(said.contains("content filter"), "{chat}");
    let streamed = lines(&asked(&edge, "/api/chat", true).await);
    assert_eq!(streamed[0]["message"]["content"], said);
    assert_eq!(streamed[1]["done_reason"], "content_filter");
    let chat = asked(&edge, "/v2/chat", false).await.ok();
    assert_eq!(chat["finish_reason"], "ERROR_TOXIC");
    assert_eq!(chat["message"]["content"][0]["text"], said);
    let chat = asked(&edge, "/v2/chat", true).await;
    assert!(chat.text().contains(&said), "{}", chat.text());
    let plain = asked(&edge, "/v1/completions", false).await.ok();
    assert_eq!(plain["choices"][0]["finish_reason"], "content_filter");
    assert_eq!(plain["choices"][0]["text"], said);
    for path in ["/v2/models/m/generate", "/generate?model=m"] {
        let reply = asked(&edge, path, false).await;
        assert!(reply.status.is_client_error(), "{path}: {}", reply.text());
        assert!(reply.text().contains("content filter"), "{}", reply.text());
    }
    for path in [
        "/generate_stream?model=m",
        "/_plugins/_ml/models/m/_predict/stream",
    ] {
        let reply = asked(&edge, path, true).await;
        let said = reply.text();
        assert!(said.contains("content filter"), "{path}: {said}");
        assert!(!said.contains("\"is_last\":true"), "{said}");
    }
}

#[tokio::test]
async fn the_explanation_of_a_refusal_reaches_every_dialect() {
    let edge = Edge::start().await;
    let chunks = vec![ended(FinishReason::ContentFilter, Some("No malware."))];
    edge.cluster.script("m", Script::Chunks(chunks));
    let response = asked(&edge, "/v1/responses", false).await.ok();
    assert_eq!(response["status"], "incomplete");
    let part = json!({ "type": "refusal", "refusal": "No malware." });
    assert_eq!(response["output"][0]["content"], json!([part]));
    let events = asked(&edge, "/v1/responses", true).await;
    assert!(events.text().contains("response.refusal.done"));
    for path in ["/api/chat", "/v2/chat", "/v1/completions"] {
        for stream in [false, true] {
            let reply = asked(&edge, path, stream).await;
            assert!(reply.text().contains("No malware."), "{}", reply.text());
        }
    }
    let path = "/_plugins/_ml/models/m/_predict";
    assert!(
        asked(&edge, path, false)
            .await
            .text()
            .contains("No malware.")
    );
}

#[tokio::test]
async fn a_refusal_in_words_is_told_apart_from_an_answer() {
    let edge = Edge::start().await;
    let chunks = vec![refused("I cannot."), ended(FinishReason::Stop, None)];
    edge.cluster.script("m", Script::Chunks(chunks));
    for (path, reason) in [
        ("/api/chat", "\"done_reason\":\"content_filter\""),
        ("/v2/chat", "\"finish_reason\":\"ERROR_TOXIC\""),
        ("/v1/completions", "\"finish_reason\":\"content_filter\""),
    ] {
        for stream in [false, true] {
            let reply = asked(&edge, path, stream).await;
            let said = reply.text();
            assert!(
                said.contains(reason) && said.contains("I cannot."),
                "{said}"
            );
        }
    }
    let path = "/_plugins/_ml/models/m/_predict";
    let told = asked(&edge, path, false).await.ok();
    let map = &told["inference_results"][0]["output"][0]["dataAsMap"];
    assert_eq!(map["refusal"], "I cannot.", "{told}");
}
