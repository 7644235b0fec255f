//! Text Embeddings Inference.

use serde_json::{Value, json};
use volley_types::{ParamValue, Signature};

use super::{embedder, named, ranker};
use crate::support::Edge;

async fn edge() -> Edge {
    let edge = Edge::start().await;
    edge.cluster.script("BAAI/bge-small", embedder());
    edge
}

fn refusal(reply: &crate::support::Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{}", reply.text());
    let body = reply.json();
    assert!(body["error_type"].is_string(), "{body}");
    body["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn texts_become_vectors_of_length_one() {
    let edge = edge().await;
    let one = edge.post("/embed", r#"{"inputs":"a"}"#).await.ok();
    let vector: Vec<f64> = serde_json::from_value(one[0].clone()).unwrap();
    assert!((vector[0] - 0.6).abs() < 1e-6 && (vector[1] - 0.8).abs() < 1e-6);
    let two = edge.post("/embed", r#"{"inputs":["a","bb"]}"#).await.ok();
    assert_eq!(two.as_array().unwrap().len(), 2);
    let raw = r#"{"inputs":"a","normalize":false,"truncate":true,"prompt_name":"query"}"#;
    let raw = edge.post("/embed", raw).await.ok();
    assert_eq!(raw, json!([[3.0, 4.0, 0.0]]));
    let called = edge.cluster.last_call();
    assert_eq!(called.parameters.boolean("normalize").unwrap(), Some(false));
    assert_eq!(called.parameters.boolean("truncate").unwrap(), Some(true));
    assert!(called.rows.column_by_name("input_type").is_some());
}

#[tokio::test]
async fn tokens_are_embedded_in_place_of_texts() {
    let edge = edge().await;
    edge.post("/embed", r#"{"inputs":[[101,7],[102]]}"#)
        .await
        .ok();
    let called = edge.cluster.last_call();
    assert_eq!(
        called.parameters.boolean("token_inputs").unwrap(),
        Some(true)
    );
    assert_eq!(called.rows.num_rows(), 2);
}

#[tokio::test]
async fn the_one_model_is_meant_or_the_one_that_is_named() {
    let edge = edge().await;
    edge.cluster.script("other", embedder());
    let refused = refusal(&edge.post("/embed", r#"{"inputs":"a"}"#).await, 422);
    assert!(refused.contains("'BAAI/bge-small', 'other'"), "{refused}");
    for (path, body) in [
        ("/tei/other/embed", r#"{"inputs":"a"}"#),
        ("/embed?model=other", r#"{"inputs":"a"}"#),
        ("/embed", r#"{"inputs":"a","model":"other"}"#),
        ("/tei/other", r#"{"inputs":"a"}"#),
    ] {
        edge.post(path, body).await.ok();
        assert_eq!(
            edge.cluster.last_call().model.to_string(),
            "other",
            "{path}"
        );
    }
    for path in ["/tei/BAAI/bge-small/embed", "/tei/BAAI%2Fbge-small/embed"] {
        edge.post(path, r#"{"inputs":"a"}"#).await.ok();
        let called = edge.cluster.last_call().model.to_string();
        assert_eq!(called, "BAAI/bge-small");
    }
    let two = edge
        .post("/tei/other/embed?model=x", r#"{"inputs":"a"}"#)
        .await;
    assert!(refusal(&two, 422).contains("different models"));
    refusal(
        &edge.post("/tei/nothing/embed", r#"{"inputs":"a"}"#).await,
        404,
    );
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_name() {
    let edge = edge().await;
    for (body, name) in [
        (r#"{}"#, "inputs"),
        (r#"{"inputs":[]}"#, "inputs"),
        (r#"{"inputs":"a","normalise":true}"#, "normalise"),
        (
            r#"{"inputs":"a","truncation_direction":"Left"}"#,
            "truncation_direction",
        ),
        (r#"{"inputs":"a","normalize":1}"#, "normalize"),
    ] {
        let refused = refusal(&edge.post("/embed", body).await, 422);
        assert!(refused.contains(name), "{body}: {refused}");
    }
    for (body, name) in [
        (r#"{"inputs":"a","normalize":true}"#, "normalize"),
        (r#"{"inputs":"a","dimensions":1}"#, "dimensions"),
    ] {
        let refused = refusal(&edge.post("/embed_all", body).await, 422);
        assert!(refused.contains(name), "{body}: {refused}");
    }
}

#[tokio::test]
async fn texts_are_ranked_and_given_back_where_wanted() {
    let edge = edge().await;
    edge.cluster.script("r", ranker());
    let body = r#"{"query":"q","texts":["a","ccc","bb"],"return_text":true,"raw_scores":true}"#;
    let ranks = edge.post("/rerank", body).await.ok();
    let order: Vec<_> = ranks
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["index"])
        .collect();
    assert_eq!(order, [&json!(1), &json!(2), &json!(0)]);
    assert_eq!(ranks[0]["text"], "ccc");
    let called = edge.cluster.last_call();
    let raw = called
        .parameters
        .iter()
        .find(|(name, _)| *name == "raw_scores");
    assert_eq!(raw.unwrap().1, &ParamValue::Bool(true));
    let bare = edge
        .post("/tei/r/rerank", r#"{"query":"q","texts":["a"]}"#)
        .await
        .ok();
    assert_eq!(bare[0].get("text"), None);
    refusal(
        &edge.post("/rerank", r#"{"query":"q","texts":[]}"#).await,
        422,
    );
}

#[tokio::test]
async fn texts_and_pairs_get_labels() {
    let edge = edge().await;
    let labels = named(Signature::classify(), ["joy", "anger"], [0.75, 0.25]);
    edge.cluster.script("c", labels);
    let expected = json!([{ "score": 0.75, "label": "joy" }, { "score": 0.25, "label": "anger" }]);
    let one = edge.post("/predict", r#"{"inputs":"a"}"#).await.ok();
    assert_eq!(one, expected);
    let pair = edge.post("/predict", r#"{"inputs":["a","b"]}"#).await.ok();
    assert_eq!(pair, expected);
    assert!(
        edge.cluster
            .last_call()
            .rows
            .column_by_name("text_pair")
            .is_some()
    );
    let several = edge
        .post("/predict", r#"{"inputs":[["a"],["b","c"]]}"#)
        .await
        .ok();
    assert_eq!(several, json!([expected, expected]));
    refusal(
        &edge.post("/predict", r#"{"inputs":["a","b","c"]}"#).await,
        422,
    );
}

#[tokio::test]
async fn sparse_vectors_have_the_ids_of_their_terms() {
    let edge = edge().await;
    let terms = named(Signature::encode_sparse(), ["17", "4"], [2.0, 0.5]);
    edge.cluster.script("s", terms);
    let sparse = edge.post("/embed_sparse", r#"{"inputs":"a"}"#).await.ok();
    let expected = json!([[{ "index": 17, "value": 2.0 }, { "index": 4, "value": 0.5 }]]);
    assert_eq!(sparse, expected);
    let called = edge.cluster.last_call();
    assert_eq!(called.parameters.boolean("term_ids").unwrap(), Some(true));
}

#[tokio::test]
async fn sentences_are_compared_with_one() {
    let edge = edge().await;
    let body = json!({ "inputs": { "source_sentence": "a", "sentences": ["b", "a long one"] } });
    let told = edge.post("/similarity", &body.to_string()).await.ok();
    let told: Vec<f64> = serde_json::from_value(told).unwrap();
    assert!((told[0] - 1.0).abs() < 1e-6 && told[1] < 0.9, "{told:?}");
    let bad = json!({ "inputs": { "sentences": ["b"] } });
    refusal(&edge.post("/similarity", &bad.to_string()).await, 422);
}

#[tokio::test]
async fn the_server_tells_what_it_serves() {
    let edge = edge().await;
    let info = edge.get("/info").await.ok();
    assert_eq!(info["model_id"], "BAAI/bge-small");
    assert_eq!(info["max_input_length"], 512);
    assert!(info["model_type"]["embedding"].is_object());
    assert_eq!(info["auto_truncate"], false);
    assert_eq!(edge.get("/health").await.status, 200);
    let none = Edge::start().await;
    refusal(&none.get("/info").await, 404);
}

#[tokio::test]
async fn the_root_does_what_the_model_does() {
    let edge = edge().await;
    let vector = edge
        .post("/", r#"{"inputs":"a","normalize":false}"#)
        .await
        .ok();
    assert_eq!(vector, json!([[3.0, 4.0, 0.0]]));
    edge.cluster.script("r", ranker());
    let ranks = edge
        .post("/?model=r", r#"{"query":"q","texts":["a"]}"#)
        .await
        .ok();
    assert_eq!(ranks[0]["index"], 0);
    assert_eq!(edge.get("/").await.ok()["name"], Value::from("volley"));
}
