//! Nodes that are taken out of work under load, and put back; and nobody notices.

use futures::StreamExt;
use serde_json::{Value, json};
use volley_client::{Client, ClientError, Status, WorkerInfo};
use volley_tests::callers::Callers;
use volley_tests::cluster::{Cluster, Node, tell};
use volley_tests::{process, until};

async fn volley(node: &Node, arguments: &[&str]) -> (String, bool) {
    let url = format!("http://{}", node.http);
    process::run(&[&["--url", url.as_str()], arguments].concat()).await
}

fn worker<'a>(status: &'a Status, id: &str) -> Option<&'a WorkerInfo> {
    let mut workers = status.workers.iter();
    workers.find(|worker| worker.id == id)
}

fn slow_to_load(name: &str) -> Value {
    json!({
        "name": name, "function_name": "fake", "parameters": { "load_delay_ms": 400 },
    })
}

async fn holder(client: &Client, model: &str) -> String {
    let model = client.model(model).await.unwrap();
    model.current_worker_nodes[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_drained_and_put_back_under_load_and_no_request_fails() {
    let mut cluster = Cluster::start(3, 3).await;
    cluster
        .wait(0, "all workers", |status| status.workers.len() == 3)
        .await;
    cluster.deploy(&slow_to_load("single"), 1).await;
    cluster.deploy(&slow_to_load("double"), 2).await;
    let client = cluster.client(0);
    let drained = holder(&client, "single").await;
    let place: usize = drained.strip_prefix("worker-").unwrap().parse().unwrap();
    let callers = Callers::start(&cluster, &["single", "double"], 3);
    callers.go_on(50).await;
    // It finishes what it has: a stream that is longer than everything else.
    let slow = json!({ "prompt": "x", "text": "a", "chunks": 60, "delay_ms": 50 });
    let mut stream = client.stream("single", &slow).await.unwrap();
    stream.next().await.unwrap().unwrap();

    let (text, ok) = volley(&cluster.coordinators[1], &["drain", &drained, "--wait"]).await;
    assert!(
        ok && text.contains(&format!("{drained} is drained")),
        "{text}"
    );
    let rest = stream.map(|text| text.unwrap()).collect::<Vec<_>>().await;
    assert_eq!(rest.concat().len(), 59, "the stream on it went to its end");
    for index in 0..3 {
        cluster
            .wait(index, "every coordinator knows", |status| {
                worker(status, &drained).is_some_and(|worker| {
                    worker.drain.as_deref() == Some("drained") && worker.replicas.is_empty()
                })
            })
            .await;
        cluster.wait_until_deployed(index, "single").await;
        cluster.wait_until_deployed(index, "double").await;
    }
    let (text, ok) = volley(&cluster.coordinators[2], &["status"]).await;
    assert!(ok && text.contains("drained"), "{text}");
    let (text, ok) = volley(
        &cluster.coordinators[2],
        &["top", "--interval", "100ms", "--count", "1"],
    )
    .await;
    assert!(ok && text.contains("drained"), "{text}");
    callers.go_on(50).await;

    // Another leader, and another life of the worker: it stays drained.
    let leader = cluster.wait_for_leader().await;
    let (text, ok) = volley(
        &cluster.coordinators[leader],
        &["cluster", "transfer-leader"],
    )
    .await;
    assert!(ok, "{text}");
    cluster.workers[place - 1].stop().await;
    cluster.workers[place - 1].start();
    cluster
        .wait(0, "the worker is back, and drained", |status| {
            worker(status, &drained).is_some_and(|worker| {
                worker.liveness == "alive" && worker.drain.as_deref() == Some("drained")
            })
        })
        .await;
    cluster.deploy(&slow_to_load("later"), 2).await;
    let status = client.status().await.unwrap();
    let on_it = worker(&status, &drained).map(|worker| &worker.replicas[..]);
    assert_eq!(on_it, Some(&[][..]), "nothing goes there");
    callers.go_on(50).await;

    let (text, ok) = volley(&cluster.coordinators[0], &["undrain", &drained]).await;
    assert!(ok && text.contains("works again"), "{text}");
    cluster.deploy(&slow_to_load("all"), 3).await;
    let status = client.status().await.unwrap();
    let on_it = worker(&status, &drained).map(|worker| worker.replicas.len());
    assert_eq!(on_it, Some(1));
    assert_eq!(status.drains, []);
    let tally = callers.stop().await;
    assert_eq!(tally.failures, Vec::<String>::new());
    eprintln!(
        "a drain, a leadership transfer and an undrain: {} requests, 0 failed",
        tally.answered
    );

    let (text, ok) = volley(&cluster.coordinators[0], &["drain", "nobody"]).await;
    assert!(!ok && text.contains("the id 'nobody'"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_room_elsewhere_keeps_its_worker_until_somebody_insists() {
    let cluster = Cluster::start(1, 1).await;
    cluster.deploy(&slow_to_load("only"), 1).await;
    let client = cluster.client(0);
    let wait = ["drain", "worker-1", "--wait", "--timeout", "1h"];
    let (text, ok) = volley(&cluster.coordinators[0], &wait).await;
    assert!(!ok && text.contains("holds only yet"), "{text}");
    let reason = "only: the cluster has no other worker";
    assert!(text.contains(reason) && text.contains("--force"), "{text}");
    tell(&client, "only", "it serves on").await.unwrap();
    let force = ["drain", "worker-1", "--wait", "--force"];
    let (text, ok) = volley(&cluster.coordinators[0], &force).await;
    assert!(ok && text.contains("worker-1 is drained"), "{text}");
    let refused = tell(&client, "only", "x").await.unwrap_err();
    assert!(
        matches!(refused, ClientError::Refused { status: 503, .. }),
        "{refused:?}"
    );
    let (text, ok) = volley(&cluster.coordinators[0], &["undrain", "worker-1"]).await;
    assert!(ok, "{text}");
    cluster.wait_until_deployed(0, "only").await;
    let (text, ok) = volley(&cluster.coordinators[0], &["drain", "1"]).await;
    assert!(!ok && text.contains("no other coordinator"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_is_drained_and_put_back_under_load_and_no_request_fails() {
    let cluster = Cluster::start(3, 2).await;
    cluster.deploy(&slow_to_load("double"), 2).await;
    let callers = Callers::start(&cluster, &["double"], 6);
    callers.go_on(50).await;
    let leader = cluster.wait_for_leader().await;
    let other = (leader + 1) % 3;
    let (id, own) = ((leader + 1).to_string(), cluster.client(leader));
    let (text, ok) = volley(&cluster.coordinators[other], &["drain", &id, "--wait"]).await;
    assert!(
        ok && text.contains(&format!("coordinator {id} is drained")),
        "{text}"
    );
    // It was another one that said so first.
    until("load balancers send nothing", || async {
        matches!(own.ready().await, Ok(false)).then_some(())
    })
    .await;
    cluster
        .wait(leader, "it knows itself that it is drained", |status| {
            status.node.leader != Some(leader as u64 + 1)
                && status.coordinators[leader].drain.as_deref() == Some("drained")
        })
        .await;
    until("it refuses what comes nonetheless", || async {
        let refused = tell(&own, "double", "x").await.err()?;
        matches!(refused, ClientError::Refused { status: 503, .. }).then_some(())
    })
    .await;
    callers.go_on(50).await;
    let (text, ok) = volley(
        &cluster.coordinators[leader],
        &["cluster", "transfer-leader", &id],
    )
    .await;
    assert!(!ok && text.contains("undrain it first"), "{text}");

    let (text, ok) = volley(&cluster.coordinators[leader], &["undrain", &id]).await;
    assert!(ok, "{text}");
    until("it is ready again", || async {
        matches!(own.ready().await, Ok(true)).then_some(())
    })
    .await;
    assert_eq!(tell(&own, "double", "x").await.map(drop).ok(), Some(()));
    let tally = callers.stop().await;
    assert_eq!(tally.failures, Vec::<String>::new());
    eprintln!(
        "a coordinator drained: {} requests, 0 failed",
        tally.answered
    );
}
