//! The addresses from which a worker may fetch.

use std::time::Duration;

use volley_types::ErrorCode;
use volley_types::registry::{CredentialRef, ModelUrl};

use crate::server::Server;
use crate::setup::{Bench, files};

fn prefix(url: &str) -> ModelUrl {
    ModelUrl::parse(url).unwrap()
}

#[tokio::test]
async fn addresses_where_machines_keep_secrets_are_never_called() {
    let bench = Bench::new(|config| config.retries = 8);
    let never = async {
        for host in [
            "169.254.169.254",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "0.0.0.0:80",
            "2852039166",
            "0xa9.0xfe.0xa9.0xfe",
        ] {
            let refused = bench.fetch(&format!("http://{host}/m.zip")).await;
            assert_eq!(
                refused.unwrap_err().code,
                ErrorCode::PermissionDenied,
                "{host}"
            );
        }
    };
    // The rejection is immediate: no address is called, and nothing is retried.
    tokio::time::timeout(Duration::from_secs(30), never)
        .await
        .unwrap();
}

#[tokio::test]
async fn private_addresses_are_called_where_they_may_be() {
    let server = Server::start().await;
    server.put("/model.onnx", "graph");
    let public = Bench::new(|config| config.allow_private = false);
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{}/model.onnx", server.port);
        let refused = public.fetch(&url).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::PermissionDenied, "{host}");
        assert!(!refused.message.contains(host), "{}", refused.message);
    }
    assert!(server.seen().is_empty());
    let bench = Bench::new(|_| {});
    bench.fetch(&server.url("/model.onnx")).await.unwrap();
}

#[tokio::test]
async fn redirects_are_followed_to_where_the_worker_may_call_and_tokens_stay() {
    let (server, other) = (Server::start().await, Server::start().await);
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "sesame\n").unwrap();
    let token = CredentialRef::File(token.path().to_string_lossy().into_owned());
    let bench = Bench::new(|config| {
        config.tokens = vec![(prefix(&server.url("/")), token.clone())];
    });
    other.put("/there.onnx", "graph");
    server.redirect("/model.onnx", other.url("/there.onnx"));
    let lease = bench.fetch(&server.url("/model.onnx")).await.unwrap();
    assert_eq!(files(lease.path())["model.onnx"], b"graph");
    let with_token = |seen: &crate::server::RecordedRequest| {
        seen.headers
            .get("authorization")
            .is_some_and(|value| value == "Bearer sesame")
    };
    assert!(server.seen().iter().all(with_token));
    assert!(!other.seen().is_empty());
    assert!(
        other
            .seen()
            .iter()
            .all(|seen| !seen.headers.contains_key("authorization"))
    );

    for to in [
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://[::ffff:a9fe:a9fe]/".to_owned(),
        "http://user:key@127.0.0.1/".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        server.redirect("/away.onnx", to.clone());
        let refused = bench.fetch(&server.url("/away.onnx")).await.unwrap_err();
        assert!(
            matches!(
                refused.code,
                ErrorCode::PermissionDenied | ErrorCode::UpstreamFailed
            ),
            "{to}: {refused:?}"
        );
    }
    server.redirect("/round.onnx", server.url("/round.onnx"));
    let refused = bench.fetch(&server.url("/round.onnx")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::UpstreamFailed);
}

#[tokio::test]
async fn with_a_list_only_what_is_on_it_is_called_redirects_included() {
    let (server, other) = (Server::start().await, Server::start().await);
    server.put("/good/model.onnx", "graph");
    other.put("/model.onnx", "graph");
    server.redirect("/good/away.onnx", other.url("/model.onnx"));
    let bench = Bench::new(|config| config.allow = Some(vec![prefix(&server.url("/good/"))]));
    bench.fetch(&server.url("/good/model.onnx")).await.unwrap();
    for url in [
        server.url("/other/model.onnx"),
        other.url("/model.onnx"),
        server.url("/good/away.onnx"),
        "s3://bucket/model.onnx".to_owned(),
    ] {
        let refused = bench.fetch(&url).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::PermissionDenied, "{url}");
        assert!(
            refused.message.contains("artifacts.allowed_urls"),
            "{}",
            refused.message
        );
    }
    assert!(other.seen().is_empty());
    let wrong = Bench::new(|_| {}).config;
    let wrong = volley_artifacts::ArtifactConfig {
        options: [("aws_endpiont".to_owned(), "x".to_owned())].into(),
        ..wrong
    };
    assert!(wrong.check().unwrap_err().message.contains("aws_endpiont"));
}
