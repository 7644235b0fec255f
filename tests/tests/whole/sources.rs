//! Models that are registered by URL.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use volley_tests::files::Files;
use volley_tests::http::{exchange, post};
use volley_tests::process::run;
use volley_tests::until;

use crate::clients::Up;

const CLOSE: f64 = 1e-5;

fn encoder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/backend-onnx/tests/models/text-embed")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(encoder().join(name)).unwrap()
}

/// As OpenSearch ships its models: a graph and a tokenizer, and nothing that says what for.
fn opensearch_zip() -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, file) in [
        ("MiniLM.onnx", "model.onnx"),
        ("tokenizer.json", "tokenizer.json"),
    ] {
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(name, options).unwrap();
        zip.write_all(&read(file)).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

async fn call(up: &Up, path: &str, body: &Value) -> Value {
    let (status, answer) = exchange(&up.rest, &post(path, &body.to_string())).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

async fn task(up: &Up, id: &str) -> Value {
    let request = format!(
        "GET /_plugins/_ml/tasks/{id} HTTP/1.1\r\nhost: volley\r\nconnection: close\r\n\r\n"
    );
    let (status, answer) = exchange(&up.rest, &request).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

/// Registers and deploys a model; the task of its deployment.
async fn deploy(up: &Up, body: &Value) -> String {
    let registered = call(up, "/_plugins/_ml/models/_register", body).await;
    let model = registered["model_id"].as_str().unwrap();
    let path = format!("/_plugins/_ml/models/{model}/_deploy");
    let deploying = call(up, &path, &json!({})).await;
    deploying["task_id"].as_str().unwrap().to_owned()
}

fn close(found: &Value, wanted: &Value) {
    let (found, wanted) = (found.as_array().unwrap(), wanted.as_array().unwrap());
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        let (found, wanted) = (found.as_f64().unwrap(), wanted.as_f64().unwrap());
        assert!((found - wanted).abs() < CLOSE, "{found} and {wanted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_zip_of_opensearch_is_fetched_checked_and_embeds_as_its_model_config_says() {
    let archive = opensearch_zip();
    let (hash, bytes) = (sha256(&archive), archive.len());
    let graph = read("model.onnx");
    let files = BTreeMap::from([
        ("/minilm.zip".to_owned(), archive),
        ("/graph.onnx".to_owned(), graph),
    ]);
    // Slow enough to be watched, and never more than half of it at once.
    let files = Files::start(files, Duration::from_millis(250), bytes / 2 + 1).await;
    let up = Up::start().await;
    let url = format!("{}/minilm.zip", files.url);
    let config = String::from_utf8(read("config.json")).unwrap();
    let model_config = json!({
        "model_type": "bert", "embedding_dimension": 16, "pooling_mode": "MEAN",
        "framework_type": "huggingface_transformers", "normalize_result": true,
        "query_prefix": "query: ", "passage_prefix": "passage: ", "all_config": config,
    });
    let body = json!({
        "name": "minilm", "version": "1.0.1", "model_format": "ONNX",
        "function_name": "TEXT_EMBEDDING", "model_config": model_config, "url": url,
        "model_content_hash_value": hash,
    });
    let deploying = deploy(&up, &body).await;
    let seen = Mutex::new(Vec::new());
    until("the model is deployed", || async {
        let task = task(&up, &deploying).await;
        assert_ne!(task["state"], "FAILED", "{task}");
        let fetched = &task["progress"][0];
        if let Some(total) = fetched["total_bytes"].as_u64() {
            assert_eq!(total, bytes as u64);
            let at = fetched["bytes"].as_u64().unwrap();
            seen.lock().unwrap().push(at);
        }
        (task["state"] == "COMPLETED").then_some(())
    })
    .await;
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().any(|at| 0 < *at), "{seen:?}");

    let expected: Vec<Value> = serde_json::from_slice(&read("expected.json")).unwrap();
    let texts: Vec<_> = expected.iter().map(|row| row["text"].clone()).collect();
    for (kind, wanted) in [(None, "plain"), (Some("query"), "query")] {
        let mut body = json!({ "model": "minilm", "input": texts, "truncate_prompt_tokens": -1 });
        if let Some(kind) = kind {
            body["input_type"] = kind.into();
        }
        let answer = call(&up, "/v1/embeddings", &body).await;
        for (index, row) in expected.iter().enumerate() {
            close(&answer["data"][index]["embedding"], &row[wanted]);
        }
    }
    let shown = up.client().model("minilm").await.unwrap();
    assert_eq!(shown.url.as_deref(), Some(url.as_str()));
    assert_eq!(
        shown.model_content_hash_value.as_deref(),
        Some(hash.as_str())
    );

    // From the command line, with a hash that it does not have, and then without one.
    let api = format!("http://{}", up.rest);
    let volley = async |arguments: &[&str]| {
        let all = [&["--url", api.as_str()], arguments].concat();
        run(&all).await
    };
    let graph = format!("{}/graph.onnx", files.url);
    let zeros = "0".repeat(64);
    let (text, ok) = volley(&[
        "model", "register", "bare", "--from", &graph, "--sha256", &zeros,
    ])
    .await;
    assert!(ok, "{text}");
    let (text, ok) = volley(&["model", "deploy", "bare", "--wait"]).await;
    assert!(!ok && text.contains("SHA-256"), "{text}");
    let (text, ok) = volley(&["model", "register", "bare", "--from", &graph]).await;
    assert!(ok && text.contains("bare:2"), "{text}");
    let (text, ok) = volley(&["model", "deploy", "bare", "--wait"]).await;
    assert!(ok, "{text}");
    let (text, ok) = volley(&["model", "show", "bare"]).await;
    assert!(ok && text.contains(&graph), "{text}");

    // What is said to be wider than it is does not load, and says why.
    let mut wide = body;
    wide["name"] = "wide".into();
    wide["model_config"]["embedding_dimension"] = 384.into();
    let deploying = deploy(&up, &wide).await;
    until("the wrong width is refused", || async {
        let task = task(&up, &deploying).await;
        let error = task["error"].as_str()?;
        assert!(error.contains("embedding_dimension"), "{error}");
        Some(())
    })
    .await;
}
