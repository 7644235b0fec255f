//! What operators look at: metrics behind the dashboard and the alerts, `top`, `doctor`, signals.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;
use volley_tests::cluster::{Cluster, tell_with};
use volley_tests::{metrics, process, until};

/// Families with labels that have a sample only once something has gone wrong or out, or where there
/// are certificates.
const QUIET: [&str; 5] = [
    "volley_artifact_fetches",
    "volley_certificate_expiry_timestamp_seconds",
    "volley_evictions",
    "volley_reloads",
    "volley_retries",
];

fn file(path: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// The metrics of the node at an address.
async fn scrape(address: &str) -> String {
    let response = reqwest::get(format!("http://{address}/metrics"))
        .await
        .unwrap();
    assert!(response.status().is_success());
    response.text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_nodes_export_what_the_dashboard_and_the_alerts_read() {
    let cluster = Cluster::start(1, 1).await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 1).await;
    let client = cluster.client(0);
    let told = tell_with(&client, "drill", &json!({ "prompt": "x", "text": "ok" })).await;
    assert_eq!(told.unwrap(), "ok".repeat(4));
    let dashboard = serde_json::from_str(&file("deploy/grafana/volley.json")).unwrap();
    let used = metrics::names(&metrics::expressions(&dashboard).join("\n"));
    let alerts = metrics::names(&file("deploy/prometheus/volley.rules.yaml"));
    // A stream is counted when its node has let go of it, a moment after its reader.
    let by = Instant::now() + volley_tests::PATIENCE;
    loop {
        let mut exported = BTreeSet::new();
        for address in [&cluster.coordinators[0].http, &cluster.workers[0].http] {
            exported.extend(metrics::names(&scrape(address).await));
        }
        let missing: Vec<_> = used
            .union(&alerts)
            .filter(|name| !exported.contains(*name))
            .collect();
        if missing == QUIET {
            break;
        }
        assert!(Instant::now() < by, "no node exports {missing:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_shows_what_runs_and_doctor_says_what_is_wrong() {
    let cluster = Cluster::start(1, 1).await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 1).await;
    let url = format!("http://{}", cluster.coordinators[0].http);
    let client = cluster.client(0);
    let calls = async {
        loop {
            let answer = tell_with(&client, "drill", &json!({ "prompt": "x", "text": "ok" })).await;
            answer.unwrap();
        }
    };
    let looks = ["--url", &url, "top", "--interval", "1s", "--count", "2"];
    let (text, ok) = tokio::select! {
        shown = process::run(&looks) => shown,
        () = calls => unreachable!("it never ends"),
    };
    assert!(ok && text.matches("MODEL").count() == 2, "{text}");
    assert!(!text.contains('\u{1b}'), "no escapes in a pipe: {text:?}");
    let line = text
        .lines()
        .rfind(|line| line.starts_with("drill"))
        .unwrap();
    let cells: Vec<_> = line.split_whitespace().collect();
    assert_eq!(cells[1..3], ["DEPLOYED", "1/1"], "{text}");
    assert!(0.0 < cells[3].parse::<f64>().unwrap(), "{text}");
    assert!(
        line.trim_end().ends_with("ms"),
        "times to first chunk: {text}"
    );

    let config = cluster.coordinators[0]
        .config
        .to_string_lossy()
        .into_owned();
    let (text, ok) = process::run(&["--url", &url, "doctor", "--config", &config]).await;
    assert!(ok, "{text}");
    for what in [
        "configuration",
        "disk",
        "room",
        "open files",
        "coordinator",
        "clock",
    ] {
        assert!(text.contains(what), "{what} is missing in\n{text}");
    }
    assert!(
        text.contains("is in use"),
        "the node itself has its ports: {text}"
    );
    let broken = cluster.folder().join("broken.toml");
    std::fs::write(
        &broken,
        "version = 1\n[node]\nid = 1\n[listen]\npublic = \"192.0.2.1:1\"\n",
    )
    .unwrap();
    let broken = broken.to_string_lossy().into_owned();
    let (text, ok) = process::run(&["doctor", "--offline", "--config", &broken]).await;
    assert!(
        !ok && text.contains("BAD") && text.contains("checks failed"),
        "{text}"
    );
    let nobody = ["--url", "http://127.0.0.1:1", "doctor"];
    let (text, ok) = process::run(&nobody).await;
    assert!(!ok && text.contains("start it"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_signal_drains_and_the_second_ends_at_once() {
    let mut cluster = Cluster::start(1, 1).await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 1).await;
    let client = cluster.client(0);
    let slow = json!({ "prompt": "x", "chunks": 1_000, "delay_ms": 50 });
    let mut stream = client.stream("drill", &slow).await.unwrap();
    futures::StreamExt::next(&mut stream)
        .await
        .unwrap()
        .unwrap();
    let mut node = cluster.coordinators[0].process.take().unwrap();
    node.terminate();
    until("it drains", || async {
        node.output().contains("draining").then_some(())
    })
    .await;
    assert!(node.runs(), "a stream runs still");
    let asked = Instant::now();
    node.terminate();
    let status = node.ended().await;
    assert_eq!(status.code(), Some(130));
    // Far below the drain's timeout of 20 s, and the stream's own 50 s.
    assert!(
        asked.elapsed() < Duration::from_secs(10),
        "{:?}",
        asked.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_everybody_asks_for_stands_still_for_nobody() {
    let cluster = Cluster::start(1, 2).await;
    let askers = (0..8).map(|_| {
        let client = cluster.client(0);
        tokio::spawn(async move {
            // Heartbeats and the clock of liveness write in between.
            for _ in 0..400 {
                client.status().await.expect("a status");
            }
        })
    });
    for asker in askers.collect::<Vec<_>>() {
        let asked = tokio::time::timeout(volley_tests::PATIENCE * 3, asker).await;
        asked.expect("all are answered in time").unwrap();
    }
}
