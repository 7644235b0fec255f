//! Buckets: the stores' own clients against a server that implements the part of their interfaces
//! that reading needs.

use volley_types::ErrorCode;

use crate::server::{Act, Server};
use crate::setup::{Bench, bytes, files};

fn options(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[tokio::test]
async fn a_prefix_of_an_s3_bucket_is_listed_fetched_and_resumed() {
    let server = Server::start().await;
    let bench = Bench::new(|config| {
        config.options = options(&[
            ("aws_endpoint", &server.url("")),
            ("aws_allow_http", "true"),
            ("aws_access_key_id", "volley"),
            ("aws_secret_access_key", "hush"),
            ("aws_region", "us-east-1"),
        ]);
        // The endpoint of a bucket is the worker's own configuration.
        config.allow_private = false;
    });
    let graph = bytes(200_000);
    server.put("/models/team/m/onnx/model.onnx", graph.clone());
    server.put("/models/team/m/config.json", "{}");
    server.put("/models/team/m/", "");
    server.put("/models/team/mine/else.onnx", "x");
    server.act([Act::Cut(50_000)]);
    let lease = bench.fetch("s3://models/team/m/").await.unwrap();
    let found = files(lease.path());
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        ["config.json", "onnx/model.onnx"]
    );
    assert_eq!(found["onnx/model.onnx"], graph);
    let signed = |seen: &crate::server::RecordedRequest| {
        let key = seen.headers.get("authorization");
        key.is_some_and(|key| key.starts_with("AWS4-HMAC-SHA256 Credential=volley/"))
    };
    assert!(server.seen().iter().all(signed));

    let single = bench
        .fetch("s3://models/team/m/onnx/model.onnx")
        .await
        .unwrap();
    assert_eq!(files(single.path())["model.onnx"], graph);
    let empty = bench.fetch("s3://models/nothing/").await.unwrap_err();
    assert_eq!(empty.code, ErrorCode::NotFound);
}

#[tokio::test]
async fn an_object_of_google_cloud_storage_is_fetched() {
    let server = Server::start().await;
    server.put("/models/model.onnx", "graph");
    let account = serde_json::json!({
        "gcs_base_url": server.url(""),
        "disable_oauth": true,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    });
    let bench = Bench::new(|config| {
        config.options = options(&[("google_service_account_key", &account.to_string())]);
    });
    let lease = bench.fetch("gs://models/model.onnx").await.unwrap();
    assert_eq!(files(lease.path())["model.onnx"], b"graph");
}

#[tokio::test]
async fn a_blob_of_azure_is_fetched() {
    let server = Server::start().await;
    server.put("/account/models/model.onnx", "graph");
    let bench = Bench::new(|config| {
        config.options = options(&[
            ("azure_storage_account_name", "account"),
            ("azure_storage_account_key", "aHVzaA=="),
            ("azure_storage_endpoint", &server.url("/account")),
            ("azure_allow_http", "true"),
        ]);
    });
    let lease = bench.fetch("az://models/model.onnx").await.unwrap();
    assert_eq!(files(lease.path())["model.onnx"], b"graph");
    let signed = |seen: &crate::server::RecordedRequest| seen.headers.contains_key("authorization");
    assert!(server.seen().iter().all(signed));
}
