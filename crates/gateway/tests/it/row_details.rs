//! Remote models that embed and rerank, in every dialect: fields reach the server, and what the
//! server said, or did not say, reaches the caller.

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray, UInt32Array};
use serde_json::{Value, json};
use volley_types::params::{ROW_DETAILS, ROW_PARAMETERS};
use volley_types::{Dialect, ParamValue, Parameters, Signature, Task};

use crate::support::{Edge, Script};

/// A remote model whose server counts no tokens, and answers with these details.
fn remote(signature: Signature, details: &Value) -> Script {
    let signature = signature.taking_native(&[ROW_PARAMETERS]);
    let asked: Parameters = [(ROW_DETAILS.to_owned(), ParamValue::Bool(true))]
        .into_iter()
        .collect();
    let schema = signature.answer(&asked);
    let (details, ranks) = (details.to_string(), signature.task == Task::Rerank);
    let item = match schema.field(0).data_type() {
        arrow_schema::DataType::List(item) => Some(item.clone()),
        _ => None,
    };
    let answer = move |rows: RecordBatch| {
        let count = rows.num_rows();
        let values: ArrayRef = if ranks {
            Arc::new(Float32Array::from(vec![0.5; count]))
        } else {
            let mut lists = ListBuilder::new(Float32Builder::new());
            if let Some(item) = &item {
                lists = lists.with_field(item.clone());
            }
            for _ in 0..count {
                lists.values().append_slice(&[0.5, 1.0]);
                lists.append(true);
            }
            Arc::new(lists.finish())
        };
        let mut told = vec![None; count];
        told[0] = Some(details.as_str());
        let columns: Vec<ArrayRef> = vec![
            values,
            Arc::new(UInt32Array::from(vec![None; count])),
            Arc::new(StringArray::from(told)),
        ];
        Ok(RecordBatch::try_new(schema.clone(), columns).unwrap())
    };
    Script::Tensors(signature, Box::new(answer))
}

fn of(format: &str, fields: &Value) -> Value {
    json!({ "format": format, "fields": fields })
}

#[tokio::test]
async fn a_count_that_no_server_gave_is_no_zero_in_any_dialect() {
    let edge = Edge::start().await;
    edge.cluster
        .script("e", remote(Signature::embed(2), &of("", &json!({}))));
    edge.cluster
        .script("r", remote(Signature::rerank(), &of("", &json!({}))));
    let body = r#"{"model":"e","input":["a","b"]}"#;
    let openai = edge.post("/v1/embeddings", body).await.ok();
    assert_eq!(openai["usage"], Value::Null);
    let ollama = edge.post("/api/embed", body).await.ok();
    assert_eq!(ollama.get("prompt_eval_count"), None);
    let cohere = edge
        .post("/v2/embed", r#"{"model":"e","texts":["a"]}"#)
        .await
        .ok();
    assert_eq!(cohere["meta"], json!({ "api_version": { "version": "2" } }));
    let body = r#"{"model":"r","query":"q","documents":["a"]}"#;
    let ranked = edge.post("/v2/rerank", body).await.ok();
    assert_eq!((&ranked["usage"], ranked.get("meta")), (&Value::Null, None));
}

#[tokio::test]
async fn the_fields_of_a_server_of_the_callers_dialect_are_passed_on() {
    let edge = Edge::start().await;
    let meta = json!({ "billed_units": { "search_units": 1 }, "warnings": ["w"] });
    let fields = json!({ "id": "theirs", "meta": meta, "newest": 1 });
    edge.cluster
        .script("r", remote(Signature::rerank(), &of("cohere", &fields)));
    let body = r#"{"model":"r","query":"q","documents":[{"text":"a","title":"t"}],
        "return_documents":true,"max_tokens_per_doc":5,"priority":1}"#;
    let ranked = edge.post("/v2/rerank", body).await.ok();
    assert_eq!((&ranked["meta"], &ranked["newest"]), (&meta, &json!(1)));
    assert_ne!(ranked["id"], "theirs");
    let document = json!({ "text": "a", "title": "t" });
    assert_eq!(ranked["results"][0]["document"], document);
    let called = edge.cluster.last_call();
    assert_eq!(called.dialect, Dialect::Cohere);
    assert_eq!(
        called.parameters.unsigned("max_tokens_per_doc").unwrap(),
        Some(5)
    );
    assert_eq!(called.parameters.unsigned("priority").unwrap(), Some(1));

    let usage = json!({ "prompt_tokens": 5, "total_tokens": 5, "newest": 1 });
    let fields = json!({ "usage": usage, "model": "theirs" });
    edge.cluster
        .script("e", remote(Signature::embed(2), &of("openai", &fields)));
    let body = r#"{"model":"e","input":"a","truncate_prompt_tokens":7}"#;
    let openai = edge.post("/v1/embeddings", body).await.ok();
    assert_eq!((&openai["usage"], &openai["model"]), (&usage, &json!("e")));
    let called = edge.cluster.last_call().parameters;
    assert_eq!(called.unsigned("truncate_prompt_tokens").unwrap(), Some(7));
    let ollama = edge.post("/api/embed", body).await;
    assert_eq!(ollama.status, 400, "no such field there");

    let fields = json!({ "prompt_eval_count": 5, "load_duration": 9 });
    edge.cluster
        .script("o", remote(Signature::embed(2), &of("ollama", &fields)));
    let body = r#"{"model":"o","input":"a","options":{"num_ctx":5},"keep_alive":0}"#;
    let ollama = edge.post("/api/embed", body).await.ok();
    assert_eq!(
        (&ollama["prompt_eval_count"], &ollama["load_duration"]),
        (&json!(5), &json!(9))
    );
    let called = edge.cluster.last_call();
    assert_eq!(called.dialect, Dialect::Ollama);
    assert_eq!(
        called.parameters.text("options").unwrap(),
        r#"{"num_ctx":5}"#
    );
    assert_eq!(called.parameters.unsigned("keep_alive").unwrap(), Some(0));
}
