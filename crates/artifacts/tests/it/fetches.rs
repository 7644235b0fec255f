//! Fetching over HTTP and from disks, with interruptions and changes.

use std::time::Duration;

use volley_backend::LoadProgress;
use volley_types::{ErrorCode, FetchProgress};

use crate::server::{Act, Server};
use crate::setup::{Bench, bytes, files, sha256, tarball, wanted, zip};

const SIZE: usize = 300_000;

#[tokio::test]
async fn an_archive_is_fetched_checked_unpacked_and_kept() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    let graph = bytes(SIZE);
    let model = [("model.onnx", graph.as_slice()), ("tokenizer.json", b"{}")];
    for (path, archive) in [("/m.zip", zip(&model)), ("/m.tar.gz", tarball(&model))] {
        server.put(path, archive.clone());
        let url = server.url(path);
        let lease = bench.fetch_hashed(&url, sha256(&archive)).await.unwrap();
        let found = files(lease.path());
        assert_eq!(found["model.onnx"], graph);
        assert_eq!(found.len(), 2, "and nothing else");
        let all = archive.len() as u64;
        let told = FetchProgress {
            bytes: all,
            total_bytes: all,
        };
        assert_eq!(bench.progress.get(), Some(told));
        // A second fetch, also after a restart, makes no calls.
        let calls = server.seen().len();
        let again = bench.fetch_hashed(&url, sha256(&archive)).await.unwrap();
        assert_eq!(again.path(), lease.path());
        let request = wanted(&url, Some(sha256(&archive)));
        let restarted = bench.restarted();
        restarted
            .fetch(&request, &LoadProgress::default())
            .await
            .unwrap();
        assert_eq!(server.seen().len(), calls);
    }
    let told = bench.metrics.encode();
    assert!(
        told.contains("artifact_fetches_total{code=\"ok\"} 2"),
        "{told}"
    );
    // A folder around the model is not part of the model.
    server.put("/f.zip", zip(&[("m/1/model.onnx", &graph)]));
    let lease = bench.fetch(&server.url("/f.zip")).await.unwrap();
    assert!(lease.path().join("model.onnx").exists() || lease.path().join("1").exists());
}

#[tokio::test]
async fn a_fetch_that_is_cut_goes_on_where_it_was() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    let graph = bytes(SIZE);
    server.put("/model.onnx", graph.clone());
    server.act([Act::Cut(100_000), Act::Cut(50_000), Act::Hang(50_000)]);
    let url = server.url("/model.onnx");
    let lease = bench.fetch_hashed(&url, sha256(&graph)).await.unwrap();
    assert_eq!(files(lease.path())["model.onnx"], graph);
    let ranges = server.ranges("/model.onnx");
    assert_eq!(
        ranges,
        ["", "bytes=100000-", "bytes=150000-", "bytes=200000-"]
    );
}

#[tokio::test]
async fn a_server_that_answers_no_heads_is_asked_for_all() {
    let graph = bytes(SIZE);
    for status in [400, 403, 405, 501] {
        let (server, bench) = (Server::start().await, Bench::new(|_| {}));
        server.put("/model.onnx", graph.clone());
        server.refuse_heads(status);
        let url = server.url("/model.onnx");
        let lease = bench.fetch_hashed(&url, sha256(&graph)).await.unwrap();
        assert_eq!(files(lease.path())["model.onnx"], graph, "{status}");
        let missing = server.url("/other.onnx");
        let refused = bench.fetch_hashed(&missing, sha256(&graph)).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::NotFound, "{status}");
    }
}

#[tokio::test]
async fn a_fetch_that_was_given_up_goes_on_after_a_restart_and_one_that_changed_begins_anew() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    let url = server.url("/model.onnx");
    for (changed, ranges) in [(false, ["", "bytes=100000-"]), (true, ["", ""])] {
        let before = server.ranges("/model.onnx").len();
        let mut graph = bytes(SIZE);
        graph[7] = u8::from(changed);
        server.put("/model.onnx", graph.clone());
        // The second attempt of the same fetch receives nothing, which ends the fetch.
        server.act([Act::Cut(100_000), Act::Status(403)]);
        let mut request = wanted(&url, None);
        request.identity = format!("m:1@{changed}");
        let failed = bench.artifacts.fetch(&request, &bench.progress).await;
        assert_eq!(failed.unwrap_err().code, ErrorCode::PermissionDenied);
        if changed {
            graph[8] = 99;
            server.put("/model.onnx", graph.clone());
        }
        let restarted = bench.restarted();
        let lease = restarted.fetch(&request, &LoadProgress::default()).await;
        assert_eq!(files(lease.unwrap().path())["model.onnx"], graph);
        let mut all = server.ranges("/model.onnx").split_off(before);
        // The rejected request.
        all.remove(1);
        assert_eq!(all, ranges, "changed: {changed}");
    }
}

#[tokio::test]
async fn a_server_without_ranges_is_asked_for_everything_again() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    let graph = bytes(SIZE);
    server.put("/model.onnx", graph.clone());
    server.act([Act::Cut(100_000), Act::NoRange]);
    let lease = bench.fetch(&server.url("/model.onnx")).await.unwrap();
    assert_eq!(files(lease.path())["model.onnx"], graph);
}

#[tokio::test]
async fn what_has_another_hash_is_refused_and_not_kept() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    let (wrong, right) = (bytes(9_000), zip(&[("model.onnx", b"x")]));
    server.put("/m.zip", wrong);
    let url = server.url("/m.zip");
    let refused = bench.fetch_hashed(&url, sha256(&right)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
    assert!(refused.message.contains("SHA-256"), "{}", refused.message);
    assert!(bench.cached(".part").is_empty());
    server.put("/m.zip", right.clone());
    bench.fetch_hashed(&url, sha256(&right)).await.unwrap();
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    server.put("/model.onnx", bytes(SIZE));
    server.act([Act::Hang(0)]);
    let url = server.url("/model.onnx");
    let failed = bench.fetch(&url).await.unwrap_err();
    assert_eq!(failed.code, ErrorCode::UpstreamFailed);
    assert!(
        failed.message.contains("next attempt"),
        "{}",
        failed.message
    );
    // A server that sends slowly but steadily is given up at the total timeout.
    let bench = Bench::new(|config| config.timeout = Duration::from_millis(2_500));
    server.act((0..1_000).map(|_| Act::Hang(1)));
    let failed = bench.fetch(&url).await.unwrap_err();
    assert_eq!(failed.code, ErrorCode::DeadlineExceeded);
    let told = bench.metrics.encode();
    assert!(told.contains("code=\"deadline_exceeded\""), "{told}");
}

#[tokio::test]
async fn a_directory_is_fetched_by_its_manifest() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    let directory = bench.folder().join("m");
    std::fs::create_dir_all(directory.join("onnx")).unwrap();
    std::fs::write(directory.join("config.json"), "{}").unwrap();
    std::fs::write(directory.join("onnx/model.onnx"), bytes(SIZE)).unwrap();
    for (name, content) in files(&directory) {
        server.put(&format!("/m/{name}"), content);
    }
    let url = server.url("/m/");
    let refused = bench.fetch(&url).await.unwrap_err();
    assert!(
        refused.message.contains("volley model manifest"),
        "{}",
        refused.message
    );

    let manifest = volley_artifacts::describe(&directory).unwrap();
    server.put("/m/volley-model.json", manifest.clone());
    let hash = sha256(manifest.as_bytes());
    let lease = bench.fetch_hashed(&url, hash).await.unwrap();
    assert_eq!(files(lease.path()), files(&directory));

    // Each file is verified by the manifest, and the manifest by the registered hash.
    server.put("/m/config.json", "[]");
    let refused = bench.fetch(&url).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
    server.put("/m/volley-model.json", manifest + "\n");
    let other = Bench::new(|_| {});
    let refused = other.fetch_hashed(&url, hash).await.unwrap_err();
    assert!(refused.message.contains("SHA-256"), "{}", refused.message);
}

#[tokio::test]
async fn files_of_this_machine_are_fetched_too() {
    let bench = Bench::new(|_| {});
    let directory = bench.folder().join("m");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("model.onnx"), "graph").unwrap();
    let archive = zip(&[("model.onnx", b"zipped")]);
    std::fs::write(bench.folder().join("m.zip"), &archive).unwrap();
    let at = |name: &str| format!("file://{}/{name}", bench.folder().display());
    let lease = bench.fetch(&at("m/")).await.unwrap();
    assert_eq!(files(lease.path())["model.onnx"], b"graph");
    let lease = bench.fetch(&at("m/model.onnx")).await.unwrap();
    assert_eq!(files(lease.path())["model.onnx"], b"graph");
    let lease = bench
        .fetch_hashed(&at("m.zip"), sha256(&archive))
        .await
        .unwrap();
    assert_eq!(files(lease.path())["model.onnx"], b"zipped");
    let missing = bench.fetch(&at("none.onnx")).await.unwrap_err();
    assert_eq!(missing.code, ErrorCode::NotFound);
    assert!(!missing.message.contains("none"), "{}", missing.message);
}

#[tokio::test]
async fn several_who_want_the_same_model_fetch_it_once() {
    let (server, bench) = (Server::start().await, Bench::new(|_| {}));
    server.put("/model.onnx", bytes(SIZE));
    let url = server.url("/model.onnx");
    let other = bench.restarted();
    let request = wanted(&url, None);
    let progress = LoadProgress::default();
    let (one, two, three) = tokio::join!(
        bench.fetch(&url),
        bench.fetch(&url),
        other.fetch(&request, &progress),
    );
    assert_eq!(one.unwrap().path(), two.unwrap().path());
    assert_eq!(files(three.unwrap().path()).len(), 1);
    assert_eq!(server.ranges("/model.onnx").len(), 1);
}

#[tokio::test]
async fn what_is_held_stays_and_the_least_recently_used_makes_room() {
    let server = Server::start().await;
    let bench = Bench::new(|config| config.cache_bytes = 250_000);
    for name in ["/a.onnx", "/b.onnx", "/c.onnx", "/d.onnx"] {
        server.put(name, bytes(100_000));
    }
    let fetch = async |name: &str| bench.fetch(&server.url(name)).await;
    let a = fetch("/a.onnx").await.unwrap();
    let b = fetch("/b.onnx").await.unwrap();
    let refused = fetch("/c.onnx").await.unwrap_err();
    assert!(refused.message.contains("in use"), "{}", refused.message);
    let gone = b.path().to_path_buf();
    drop(b);
    let c = fetch("/c.onnx").await.unwrap();
    assert!(a.path().exists() && c.path().exists() && !gone.exists());
    let most = Bench::new(|config| config.max_model_bytes = 99_999);
    let refused = most.fetch(&server.url("/a.onnx")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge);
}
