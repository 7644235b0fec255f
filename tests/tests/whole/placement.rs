//! Where replicas go, how requests find them, and how a version follows another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use volley_tests::cluster::{Cluster, tell_with};
use volley_tests::http::exchange;
use volley_tests::until;

async fn get(address: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: volley\r\nconnection: close\r\n\r\n");
    exchange(address, &request).await.1
}

async fn model(address: &str, name: &str) -> Value {
    let text = get(address, &format!("/_plugins/_ml/models/{name}")).await;
    serde_json::from_str(&text).unwrap_or_default()
}

/// How many requests for the model each worker has served.
async fn served(cluster: &Cluster, model: &str) -> Vec<u64> {
    let mut counts = Vec::new();
    for worker in &cluster.workers {
        let metrics = get(&worker.http, "/metrics").await;
        let series = format!("volley_requests_total{{model=\"{model}\",code=\"ok\"}} ");
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix(&series)?.parse().ok());
        counts.push(count.unwrap_or(0));
    }
    counts
}

/// How many each has served since `before`, once that is `all` of them: a request is counted when
/// its worker has let go of it, a moment after its reader.
async fn served_since(cluster: &Cluster, model: &str, before: &[u64], all: u64) -> Vec<u64> {
    until("every request is counted", || async {
        let after = served(cluster, model).await;
        let counts: Vec<_> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        (counts.iter().sum::<u64>() == all).then_some(counts)
    })
    .await
}

async fn ask(address: &str, model: &str, session: &str, prompt: &str) {
    let body = json!({ "parameters": { "prompt": prompt, "chunks": 1 } }).to_string();
    let request = format!(
        "POST /_plugins/_ml/models/{model}/_predict/stream HTTP/1.1\r\nhost: volley\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n{session}connection: close\r\n\r\n\
         {body}",
        body.len()
    );
    let (status, answer) = exchange(address, &request).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_prompts_that_begin_alike_find_their_worker_from_every_coordinator() {
    let cluster = Cluster::start(2, 3).await;
    cluster
        .deploy(&json!({ "name": "drill", "function_name": "fake" }), 3)
        .await;
    let long = "You are a patient teacher of geometry. ".repeat(20);
    for (header, prompt) in [("x-volley-session: anna\r\n", "hello"), ("", &*long)] {
        let before = served(&cluster, "drill").await;
        for index in 0..20 {
            let coordinator = &cluster.coordinators[index % 2];
            ask(
                &coordinator.http,
                "drill",
                header,
                &format!("{prompt}{index}"),
            )
            .await;
        }
        let mut counts = served_since(&cluster, "drill", &before, 20).await;
        counts.sort_unstable();
        assert_eq!(counts, [0, 0, 20], "all on one worker");
    }
    let before = served(&cluster, "drill").await;
    for index in 0..40 {
        ask(
            &cluster.coordinators[0].http,
            "drill",
            "",
            &format!("short {index}"),
        )
        .await;
    }
    let counts = served_since(&cluster, "drill", &before, 40).await;
    assert!(
        2 <= counts.iter().filter(|count| 0 < **count).count(),
        "{counts:?}"
    );
    let metrics = get(&cluster.coordinators[0].http, "/metrics").await;
    for reason in ["session", "prefix", "balanced"] {
        let series = format!("volley_routing_decisions_total{{reason=\"{reason}\"}}");
        assert!(metrics.contains(&series), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_go_where_their_labels_are_over_the_zones_and_move_when_a_worker_is_lost() {
    let mut cluster = Cluster::new(1, 4);
    for (index, zone) in ["a", "a", "b", "b"].iter().enumerate() {
        cluster.label_worker(index, &[("zone", zone)]);
    }
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        node.start();
    }
    cluster.wait_for_leader().await;
    cluster
        .wait(0, "all workers", |status| status.workers.len() == 4)
        .await;
    let (client, address) = (cluster.client(0), cluster.coordinators[0].http.clone());
    let place = async |name: &str, body: Value| -> Vec<String> {
        client
            .register(&json!({ "name": name, "function_name": "fake" }))
            .await
            .unwrap();
        client.deploy_with(name, &body).await.unwrap();
        cluster.wait_until_deployed(0, name).await;
        workers_of(&model(&address, name).await)
    };
    let zone = |worker: &String| {
        if worker <= &"worker-2".to_owned() {
            "a"
        } else {
            "b"
        }
    };
    let spread = place("spread", json!({ "replicas": 2, "spread": "zone" })).await;
    assert_ne!(zone(&spread[0]), zone(&spread[1]));
    let here = place("here", json!({ "replicas": 2, "labels": { "zone": "b" } })).await;
    assert_eq!(here, ["worker-3", "worker-4"]);

    let lost = usize::from(here.contains(&spread[0]));
    let lost: usize = spread[lost]
        .strip_prefix("worker-")
        .unwrap()
        .parse()
        .unwrap();
    cluster.workers[lost - 1].kill().await;
    until("the replica has moved within its zone", || async {
        let now = workers_of(&model(&address, "spread").await);
        let zones: Vec<_> = now.iter().map(zone).collect();
        (now.len() == 2 && now != spread && zones.contains(&"a") && zones.contains(&"b"))
            .then_some(())
    })
    .await;
}

fn workers_of(model: &Value) -> Vec<String> {
    let mut workers: Vec<String> =
        serde_json::from_value(model["current_worker_nodes"].clone()).unwrap_or_default();
    workers.sort();
    workers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_follows_another_under_load_and_a_bad_one_stops_and_goes_back() {
    let cluster = Cluster::start(1, 3).await;
    let version = |text: &str| {
        json!({
            "name": "rolling",
            "function_name": "fake",
            "parameters": { "text": text, "chunks": 2, "delay_ms": 5, "load_delay_ms": 800 },
        })
    };
    cluster.deploy(&version("one"), 3).await;
    let (client, address) = (cluster.client(0), cluster.coordinators[0].http.clone());
    let (stop, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (client, stop, asked) = (cluster.client(0), stop.clone(), asked.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let told = tell_with(&client, "rolling", &json!({ "prompt": "x" })).await;
                    let told = told.expect("no request fails");
                    assert!(["oneone", "twotwo"].contains(&&*told), "{told}");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();

    client.register(&version("two")).await.unwrap();
    client.deploy("rolling", 3).await.unwrap();
    client.rollout("rolling", "pause").await.unwrap();
    let paused = model(&address, "rolling").await;
    assert_eq!(paused["deployment"]["rollout"]["paused"], true, "{paused}");
    client.rollout("rolling", "resume").await.unwrap();
    until("the roll is over", || async {
        let now = model(&address, "rolling").await;
        (now["deployment"]["rollout"].is_null() && workers_of(&now).len() == 3).then_some(())
    })
    .await;
    assert_eq!(
        tell_with(&client, "rolling", &json!({ "prompt": "x" }))
            .await
            .unwrap(),
        "twotwo"
    );

    let mut bad = version("three");
    bad["parameters"]["load_error"] = "this file is torn".into();
    client.register(&bad).await.unwrap();
    client.deploy("rolling", 3).await.unwrap();
    let stopped = until("the roll has stopped", || async {
        let now = model(&address, "rolling").await;
        let reason = now["deployment"]["rollout"]["stopped"].as_str()?.to_owned();
        Some(reason)
    })
    .await;
    assert!(stopped.contains("this file is torn"), "{stopped}");
    assert!(client.rollout("rolling", "resume").await.is_err());
    client.rollout("rolling", "rollback").await.unwrap();
    until("it is back", || async {
        let now = model(&address, "rolling").await;
        let over = now["deployment"]["rollout"].is_null() && now["deployed_version"] == 2;
        (over && now["model_state"] == "DEPLOYED").then_some(())
    })
    .await;

    let before = asked.load(Ordering::Relaxed);
    until("the load goes on", || async {
        (before + 50 < asked.load(Ordering::Relaxed)).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.expect("no request failed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_grows_with_its_load_goes_to_nothing_and_comes_back_for_a_request() {
    let cluster = Cluster::start(1, 3).await;
    let (client, address) = (cluster.client(0), cluster.coordinators[0].http.clone());
    let body = json!({
        "name": "elastic",
        "function_name": "fake",
        "parameters": { "capacity": 2, "chunks": 20, "delay_ms": 50, "load_delay_ms": 200 },
    });
    client.register(&body).await.unwrap();
    let scaling = json!({
        "replicas": 1, "min_replicas": 0, "max_replicas": 3, "target_percent": 50, "idle_ms": 4_000,
    });
    client.deploy_with("elastic", &scaling).await.unwrap();
    cluster.wait_until_deployed(0, "elastic").await;
    let replicas = async |wanted: usize| {
        until("the number of replicas", || async {
            let now = workers_of(&model(&address, "elastic").await).len();
            (now == wanted).then_some(())
        })
        .await;
    };
    let enough = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (client, enough) = (cluster.client(0), enough.clone());
            tokio::spawn(async move {
                while !enough.load(Ordering::Relaxed) {
                    let told = tell_with(&client, "elastic", &json!({ "prompt": "x" })).await;
                    told.expect("no request fails while replicas come");
                }
            })
        })
        .collect();
    replicas(3).await;
    enough.store(true, Ordering::Relaxed);
    for task in load {
        task.await.expect("no request failed");
    }
    replicas(0).await;
    let scale: Value = serde_json::from_str(&get(&address, "/_volley/scale").await).unwrap();
    assert_eq!(scale["workers"], 3, "{scale}");
    assert_eq!(scale["unschedulable_replicas"], 0, "{scale}");
    // Some at once: all wait, and one replica comes.
    let short = json!({ "prompt": "x", "chunks": 1 });
    let asked = (0..5).map(|_| tell_with(&client, "elastic", &short));
    for told in futures::future::join_all(asked).await {
        assert_eq!(told.expect("it waits for the model"), "chunk");
    }
}
