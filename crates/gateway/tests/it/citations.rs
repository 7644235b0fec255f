//! Citations in every dialect that has a field for them.

use serde_json::{Value, json};
use volley_types::{Citation, CitedSpan, FinishReason, GenerationChunk, SpanUnit};

use super::openai::{CHAT, ask, events, finished};
use super::support::{Edge, Reply, Script, text};

fn web() -> Citation {
    Citation {
        url: Some("https://fox.example/a".to_owned()),
        title: Some("Foxes".to_owned()),
        quote: Some("A fox.".to_owned()),
        token: Some("ZW5j".to_owned()),
        start: Some(7),
        end: Some(14),
        ..Citation::default()
    }
}

fn document() -> Citation {
    Citation {
        title: Some("Fabeln".to_owned()),
        document: Some(1),
        place: Some(CitedSpan {
            unit: SpanUnit::Characters,
            from: 4,
            to: 18,
        }),
        start: Some(7),
        end: Some(14),
        ..Citation::default()
    }
}

fn cited(citations: &[Citation]) -> GenerationChunk {
    GenerationChunk {
        citations: Some(Citation::to_json(citations)),
        ..GenerationChunk::default()
    }
}

/// One passage without citations, one with citations, and another one without.
async fn edge() -> Edge {
    let edge = Edge::start().await;
    let chunks = vec![
        text("Grüße, "),
        cited(&[]),
        text("Fuchs "),
        text("🦊"),
        cited(&[web(), document()]),
        text("!"),
        finished(FinishReason::Stop),
    ];
    edge.cluster.script("m", Script::Chunks(chunks));
    edge
}

fn typed(reply: &Reply, kind: &str) -> Vec<Value> {
    let data = reply
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    events.filter(|event| event["type"] == kind).collect()
}

#[tokio::test]
async fn a_chat_completion_has_annotations_with_addresses() {
    let edge = edge().await;
    let annotations = json!([
        { "type": "url_citation", "url_citation": { "url": "https://fox.example/a",
          "title": "Foxes", "start_index": 7, "end_index": 14 } },
        { "type": "url_citation", "url_citation": { "url": "document:1", "title": "Fabeln",
          "start_index": 7, "end_index": 14 } },
    ]);
    let whole = edge.post(CHAT, &ask(&json!({}))).await.ok();
    assert_eq!(whole["choices"][0]["message"]["annotations"], annotations);
    let reply = edge.post(CHAT, &ask(&json!({ "stream": true }))).await;
    let (events, _) = events(&reply);
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| event.pointer("/choices/0/delta/annotations"))
        .collect();
    assert_eq!(told, [&annotations]);
}

#[tokio::test]
async fn a_response_has_annotations_of_its_text_whole_and_one_by_one() {
    let edge = edge().await;
    let annotations = json!([
        { "type": "url_citation", "url": "https://fox.example/a", "title": "Foxes",
          "start_index": 7, "end_index": 14 },
        { "type": "file_citation", "file_id": "1", "filename": "Fabeln", "index": 1 },
    ]);
    let mut asked = json!({ "model": "m", "input": "Hi" });
    let whole = edge.post("/v1/responses", &asked.to_string()).await.ok();
    assert_eq!(whole["output"][0]["content"][0]["annotations"], annotations);
    asked["stream"] = true.into();
    let reply = edge.post("/v1/responses", &asked.to_string()).await;
    let added = typed(&reply, "response.output_text.annotation.added");
    let told: Vec<_> = added.iter().map(|event| &event["annotation"]).collect();
    assert_eq!(
        told,
        annotations.as_array().unwrap().iter().collect::<Vec<_>>()
    );
    assert_eq!(
        (&added[0]["annotation_index"], &added[1]["annotation_index"]),
        (&json!(0), &json!(1))
    );
    let done = &typed(&reply, "response.completed")[0];
    assert_eq!(
        done["response"]["output"][0]["content"][0]["annotations"],
        annotations
    );
}

#[tokio::test]
async fn a_message_has_a_block_for_each_passage_that_cites() {
    let edge = edge().await;
    let citations = json!([
        { "type": "web_search_result_location", "cited_text": "A fox.",
          "url": "https://fox.example/a", "title": "Foxes", "encrypted_index": "ZW5j" },
        { "type": "char_location", "cited_text": "", "document_index": 1,
          "document_title": "Fabeln", "file_id": null, "start_char_index": 4,
          "end_char_index": 18 },
    ]);
    let mut asked = json!({
        "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "Hi" }],
    });
    let whole = edge.post("/v1/messages", &asked.to_string()).await.ok();
    let expected = json!([
        { "type": "text", "text": "Grüße, " },
        { "type": "text", "text": "Fuchs 🦊", "citations": citations },
        { "type": "text", "text": "!" },
    ]);
    assert_eq!(whole["content"], expected);

    asked["stream"] = true.into();
    let reply = edge.post("/v1/messages", &asked.to_string()).await;
    let mut blocks: Vec<Value> = Vec::new();
    for event in typed(&reply, "content_block_delta") {
        let index = usize::try_from(event["index"].as_u64().unwrap()).unwrap();
        if blocks.len() <= index {
            blocks.push(json!({ "type": "text", "text": "" }));
        }
        let (block, delta) = (&mut blocks[index], &event["delta"]);
        if let Some(text) = delta["text"].as_str() {
            block["text"] = (block["text"].as_str().unwrap().to_owned() + text).into();
        } else {
            let list = block.as_object_mut().unwrap().entry("citations");
            let list = list.or_insert_with(|| json!([])).as_array_mut().unwrap();
            list.push(delta["citation"].clone());
        }
    }
    assert_eq!(
        Value::from(blocks),
        expected,
        "a stream has the blocks of a whole message"
    );
}

#[tokio::test]
async fn opensearch_and_rows_have_them_in_the_one_form() {
    let edge = edge().await;
    let citations: Value = [web(), document()].iter().map(Citation::value).collect();
    let ml = "/_plugins/_ml/models/m/_predict";
    let body = json!({ "parameters": { "prompt": "Hi" } }).to_string();
    let whole = edge.post(ml, &body).await.ok();
    let map = &whole["inference_results"][0]["output"][0]["dataAsMap"];
    assert_eq!(map["citations"], citations);
    let reply = edge.post(&format!("{ml}/stream"), &body).await;
    let data = reply
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let told: Vec<Value> = data
        .map(|data| serde_json::from_str::<Value>(data).unwrap())
        .filter_map(|event| {
            let map = event.pointer("/inference_results/0/output/0/dataAsMap")?;
            map.get("citations").cloned()
        })
        .collect();
    assert_eq!(told, [citations]);
}
