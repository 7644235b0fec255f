//! Replicas that go elsewhere although their workers are there: to a worker that joins, and to
//! make room. Callers do not notice.

use serde_json::{Value, json};
use volley_client::{Client, Status};
use volley_tests::callers::Callers;
use volley_tests::cluster::Cluster;
use volley_tests::http::exchange;
use volley_tests::{process, until};

const WORKER: &str = "[models]\nmemory_budget = \"1000MiB\"\n";
/// What a model says that it takes, in hundredths of a worker.
const PART: u64 = 10 << 20;

/// A cluster whose workers have room for a hundred parts each, and that rebalances soon.
fn prepared(coordinators: usize, workers: usize) -> Cluster {
    let cluster = Cluster::new(coordinators, workers);
    for index in 0..coordinators {
        cluster.configure(index, |text| {
            text + "[placement]\nreplacement_delay = \"4s\"\nrebalance_delay = \"2s\"\n"
        });
    }
    for worker in &cluster.workers {
        let text = std::fs::read_to_string(&worker.config).unwrap();
        std::fs::write(&worker.config, text + WORKER).unwrap();
    }
    cluster
}

async fn deploy(client: &Client, name: &str, parts: u64) {
    let body = json!({
        "name": name, "function_name": "fake", "parameters": { "load_delay_ms": 300 },
    });
    client.register(&body).await.unwrap();
    let memory = json!({ "replicas": 1, "memory_bytes": parts * PART });
    client.deploy_with(name, &memory).await.unwrap();
}

async fn set(cluster: &Cluster, name: &str, value: Value) {
    let body = json!({ "persistent": { name: value } }).to_string();
    let request = format!(
        "PUT /_cluster/settings HTTP/1.1\r\nhost: volley\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let (status, answer) = exchange(&cluster.coordinators[0].http, &request).await;
    assert_eq!(status, 200, "{answer}");
}

/// How many replicas each worker has that takes requests, by id.
fn ready(status: &Status) -> Vec<usize> {
    let count = |worker: &volley_client::WorkerInfo| {
        let replicas = worker.replicas.iter();
        replicas.filter(|replica| replica.state == "ready").count()
    };
    status.workers.iter().map(count).collect()
}

/// The moves of that reason that are over, as whoever led them counts them.
async fn moved(cluster: &Cluster, reason: &str) -> u64 {
    let mut all = 0;
    for node in &cluster.coordinators {
        let request = "GET /metrics HTTP/1.1\r\nhost: volley\r\nconnection: close\r\n\r\n";
        let (_, metrics) = exchange(&node.http, request).await;
        let labels = format!("{{reason=\"{reason}\",result=\"done\"}} ");
        let series = format!("volley_replica_migrations_total{labels}");
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok());
        all += count.unwrap_or(0);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fourth_worker_joins_three_that_serve_and_is_filled_and_no_request_fails() {
    let mut cluster = prepared(3, 4);
    for node in cluster.coordinators.iter_mut() {
        node.start();
    }
    for worker in &mut cluster.workers[..3] {
        worker.start();
    }
    cluster.wait_for_leader().await;
    cluster
        .wait(0, "three workers", |status| status.workers.len() == 3)
        .await;
    let client = cluster.client(0);
    for model in 0..12 {
        deploy(&client, &format!("m{model}"), 10).await;
    }
    cluster
        .wait(0, "all serve", |status| ready(status) == [4, 4, 4])
        .await;
    // The first of each worker's are those that will move.
    let callers = Callers::start(&cluster, &["m0", "m1", "m2", "m3"], 1);
    callers.go_on(50).await;

    cluster.workers[3].start();
    for index in 0..3 {
        cluster
            .wait(index, "the new worker has its part", |status| {
                let placement = status.placement.as_ref();
                ready(status) == [3, 3, 3, 3]
                    && placement.is_some_and(|placement| placement.migrating_replicas == 0)
            })
            .await;
    }
    callers.go_on(50).await;
    let tally = callers.stop().await;
    assert_eq!(tally.failures, Vec::<String>::new());
    until("the moves are counted", || async {
        (moved(&cluster, "rebalance").await == 3).then_some(())
    })
    .await;
    let url = format!("http://{}", cluster.coordinators[1].http);
    let (text, ok) = process::run(&["--url", &url, "status"]).await;
    assert!(
        ok && text.contains("spread, rebalanced, 0 migrating replicas"),
        "{text}"
    );
    eprintln!(
        "a fourth worker filled by 3 moves: {} requests, 0 failed",
        tally.answered
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_fits_nowhere_gets_in_when_another_moves_and_no_request_fails() {
    let mut cluster = prepared(1, 2);
    cluster.run().await;
    cluster
        .wait(0, "both workers", |status| status.workers.len() == 2)
        .await;
    set(&cluster, "volley.placement.rebalance", json!(false)).await;
    let client = cluster.client(0);
    for (name, parts) in [("large", 60), ("small", 30), ("other", 30)] {
        deploy(&client, name, parts).await;
        cluster.wait_until_deployed(0, name).await;
    }
    let callers = Callers::start(&cluster, &["large", "small", "other"], 2);
    callers.go_on(50).await;
    deploy(&client, "late", 70).await;
    cluster.wait_until_deployed(0, "late").await;
    cluster
        .wait(0, "nothing moves any more", |status| {
            let placement = status.placement.as_ref();
            placement.is_some_and(|placement| {
                (
                    placement.migrating_replicas,
                    placement.unschedulable_replicas,
                ) == (0, 0)
                    && !placement.rebalance
            })
        })
        .await;
    callers.go_on(50).await;
    let tally = callers.stop().await;
    assert_eq!(tally.failures, Vec::<String>::new());
    assert_eq!(moved(&cluster, "room").await, 1);
    eprintln!("room by one move: {} requests, 0 failed", tally.answered);
}

#[tokio::test(flavor = "multi_thread")]
async fn packed_replicas_share_a_worker_until_it_is_full() {
    let mut cluster = prepared(1, 3);
    cluster.run().await;
    cluster
        .wait(0, "all workers", |status| status.workers.len() == 3)
        .await;
    set(&cluster, "volley.placement.strategy", json!("pack")).await;
    let client = cluster.client(0);
    for model in 0..5 {
        let name = format!("m{model}");
        deploy(&client, &name, 30).await;
        cluster.wait_until_deployed(0, &name).await;
    }
    deploy(&client, "whole", 100).await;
    cluster.wait_until_deployed(0, "whole").await;
    let mut counts = ready(&client.status().await.unwrap());
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 3]);
}
