//! Loads with a configuration and files, and ensembles, as they are written to the registry.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};
use volley_gateway::{ModelFile, ModelStore};
use volley_types::registry::{ModelSource, ModelUrl, ReplicaState, Sha256};
use volley_types::{ModelName, PredictError, Registry};

use super::support::{Edge, Reply};

const LOAD: &str = "/v2/repository/models/brought/load";

fn refused(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{}", reply.text());
    reply.json()["error"].as_str().unwrap().to_owned()
}

fn load(parameters: Value) -> String {
    json!({ "parameters": parameters }).to_string()
}

/// Stores all files in memory.
#[derive(Default)]
struct MemoryStore(Mutex<Vec<Vec<ModelFile>>>);

#[async_trait]
impl ModelStore for MemoryStore {
    async fn keep(&self, files: Vec<ModelFile>) -> Result<(ModelUrl, Sha256), PredictError> {
        let mut kept = self.0.lock();
        let place = kept.iter().position(|other| *other == files);
        let place = place.unwrap_or(kept.len());
        kept.push(files);
        let url = ModelUrl::parse(&format!("s3://models/{place}/"))?;
        Ok((url, Sha256([7; 32])))
    }
}

#[tokio::test]
async fn files_of_a_load_are_refused_by_name_where_there_is_no_place_for_them() {
    let edge = Edge::start().await;
    let files = load(json!({ "config": "{}", "file:1/model.onnx": "AAAA" }));
    let message = refused(&edge.post(LOAD, &files).await, 501);
    assert!(message.contains("uploads.store"), "{message}");
    for (parameters, told) in [
        (
            json!({ "file:1/model.onnx": "AAAA" }),
            "'config' is missing",
        ),
        (
            json!({ "config": "{}", "file:../model.onnx": "AAAA" }),
            "file:../model.onnx",
        ),
        (
            json!({ "config": "{}", "file:/model.onnx": "AAAA" }),
            "file:/model.onnx",
        ),
        (json!({ "config": "{}", "file:model.onnx": "?" }), "base64"),
        (
            json!({ "config": "{}", "file:model.onnx": 7 }),
            "file:model.onnx",
        ),
        (json!({ "other": "x" }), "'other'"),
    ] {
        let message = refused(&edge.post(LOAD, &load(parameters)).await, 400);
        assert!(message.contains(told), "{message}");
    }
    let unload = "/v2/repository/models/brought/unload";
    let message = refused(&edge.post(unload, &load(json!({ "all": true }))).await, 400);
    assert!(message.contains("'all'"), "{message}");
}

#[tokio::test]
async fn a_load_with_files_registers_them_once_and_one_without_is_the_repositorys() {
    let kept = Arc::new(MemoryStore::default());
    let edge = Edge::keeping(kept.clone()).await;
    let files = load(json!({ "config": "{\"max_batch_size\":2}", "file:1/model.onnx": "AAEC" }));
    for _ in 0..2 {
        assert_eq!(edge.post(LOAD, &files).await.status, 200);
    }
    let name = ModelName::new("brought").unwrap();
    let registry = edge.cluster.state();
    let entry = &registry.models[&name];
    assert_eq!(entry.versions.len(), 1);
    let spec = entry.versions.values().next().unwrap();
    assert!(
        matches!(
            &spec.source,
            ModelSource::Url {
                sha256: Some(_),
                ..
            }
        ),
        "{spec:?}"
    );
    assert_eq!(kept.0.lock()[0][0].1.as_ref(), [0, 1, 2]);
    let message = refused(&edge.post(LOAD, "{}").await, 404);
    assert!(message.contains("came with a load"), "{message}");

    let path = json!({ "name": "brought", "function_name": "onnx", "path": "/models/brought" });
    let path = path.to_string();
    edge.post("/_plugins/_ml/models/_register", &path)
        .await
        .ok();
    assert_eq!(edge.post(LOAD, &files).await.status, 200);
    let deployed = || {
        let registry = edge.cluster.state();
        registry.models[&name]
            .deployment
            .as_ref()
            .unwrap()
            .version
            .0
    };
    assert_eq!(deployed(), 1);
    assert_eq!(edge.post(LOAD, "{}").await.status, 200);
    assert_eq!(deployed(), 2);
    // A configuration alone applies to the repository's files.
    let config = load(json!({ "config": "{\"max_batch_size\":4}" }));
    assert_eq!(edge.post(LOAD, &config).await.status, 200);
    assert_eq!(deployed(), 3);
    let registry = edge.cluster.state();
    let newest = registry.models[&name]
        .versions
        .values()
        .next_back()
        .unwrap();
    assert_eq!(
        newest.source,
        ModelSource::Path("/models/brought".to_owned())
    );
}

#[tokio::test]
async fn an_ensemble_is_a_pipeline_that_keeps_its_configuration() {
    let edge = Edge::start().await;
    let step =
        json!({ "model_name": "nobody", "input_map": { "x": "x" }, "output_map": { "y": "y" } });
    let config = json!({
        "platform": "ensemble",
        "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": [2] }],
        "output": [{ "name": "y", "data_type": "TYPE_FP32", "dims": [2] }],
        "ensemble_scheduling": { "step": [step] },
    });
    let put = |config: &Value| {
        let body = json!({ "name": "e", "ensemble": config, "description": "two" }).to_string();
        let edge = &edge;
        async move { edge.post("/_volley/pipelines", &body).await }
    };
    let answer = put(&config).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("'nobody'"), "{}", answer.text());
    edge.cluster
        .script("nobody", super::support::Script::Panics);
    let answer = put(&config).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let told = answer.json();
    assert_eq!(told["ensemble"]["platform"], "ensemble");
    assert_eq!(
        (&told["loaded"], &told["inputs"]["x"]),
        (&json!(true), &json!("tensor"))
    );
    // The returned definition can be sent again.
    let again = json!({ "ensemble": told["ensemble"] }).to_string();
    let again = super::support::request(http::Method::PUT, "/_volley/pipelines/e", &again);
    assert_eq!(edge.send(again).await.status, 200);
    let both = json!({ "name": "f", "task": "tensors", "steps": [], "ensemble": config });
    let answer = edge.post("/_volley/pipelines", &both.to_string()).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let unload = "/v2/repository/models/e/unload";
    assert_eq!(edge.post(unload, "{}").await.status, 200);
    let told = edge.get("/_volley/pipelines/e").await.ok();
    assert_eq!(told["loaded"], false);
}

#[tokio::test]
async fn a_load_of_an_ensemble_keeps_what_others_changed_meanwhile() {
    let edge = Edge::start().await;
    edge.cluster.script("inner", super::support::Script::Panics);
    let put = |dims: u64| {
        let step =
            json!({ "model_name": "inner", "input_map": { "x": "x" }, "output_map": { "y": "y" } });
        let config = json!({
            "platform": "ensemble",
            "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": [dims] }],
            "output": [{ "name": "y", "data_type": "TYPE_FP32", "dims": [dims] }],
            "ensemble_scheduling": { "step": [step] },
        });
        let body = json!({ "ensemble": config }).to_string();
        let put = super::support::request(http::Method::PUT, "/_volley/pipelines/e", &body);
        edge.send(put)
    };
    assert!(put(2).await.status.is_success());
    let state = &edge.cluster.replica_state;
    *state.lock() = Some(ReplicaState::Loading);
    let change = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert!(put(3).await.status.is_success());
        *state.lock() = None;
    };
    let (loaded, ()) = tokio::join!(edge.post("/v2/repository/models/e/load", "{}"), change);
    assert!(refused(&loaded, 409).contains("revision"));
    let told = edge.get("/_volley/pipelines/e").await.ok();
    assert_eq!(told["ensemble"]["input"][0]["dims"], json!([3]));
}
