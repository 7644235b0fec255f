//! A coordinator that was away and comes back: callers find no seam.

use serde_json::json;
use volley_client::ClientError;
use volley_tests::cluster::{Cluster, tell_with};
use volley_tests::until;

/// How often each model is asked for while the coordinator comes up.
const ROUNDS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_was_away_answers_from_its_first_moment_even_for_what_it_missed() {
    let mut cluster = Cluster::start(3, 2).await;
    let body = |name: &str| json!({ "name": name, "function_name": "fake" });
    cluster.deploy(&body("before"), 2).await;
    cluster.coordinators[2].kill().await;
    cluster.deploy(&body("meanwhile"), 2).await;

    cluster.coordinators[2].start();
    let client = cluster.client(2);
    let mut listens = false;
    let told = json!({ "prompt": "x", "text": "ok", "chunks": 2 });
    let mut answered = 0;
    while answered < 2 * ROUNDS {
        let name = if answered % 2 == 0 {
            "meanwhile"
        } else {
            "before"
        };
        match tell_with(&client, name, &told).await {
            Ok(text) => {
                listens = true;
                assert_eq!(text, "okok");
                answered += 1;
            }
            // Its process has not come so far.
            Err(ClientError::Connect(..)) if !listens => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{name}, after {answered} answers: {error:?}"),
        }
    }
    let ready = || async { client.ready().await.ok().filter(|ready| *ready) };
    until("it says that it is ready", ready).await;
    // What nobody has is not waited for any more.
    match tell_with(&client, "nothing", &told).await {
        Err(ClientError::Refused { status: 404, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_a_coordinator_that_was_restarted_begins_with_what_it_has() {
    let mut cluster = Cluster::start(3, 1).await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 1).await;
    for node in &mut cluster.coordinators {
        node.kill().await;
    }
    cluster.coordinators[1].start();
    let client = cluster.client(1);
    let ready = || async { client.ready().await.ok().filter(|ready| *ready) };
    until("it is ready without the others", ready).await;
    let told = json!({ "prompt": "x", "text": "ok", "chunks": 2 });
    assert_eq!(tell_with(&client, "drill", &told).await.unwrap(), "okok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_loads_scripted_models_when_it_was_told_that_it_may() {
    let mut cluster = Cluster::new(1, 1);
    let denied = vec![("VOLLEY_ALLOW_FAKE_BACKEND", "false".to_owned())];
    cluster.workers[0].setting.env = denied;
    cluster.run().await;
    let client = cluster.client(0);
    let body = json!({ "name": "drill", "function_name": "fake" });
    let model = client.register(&body).await.unwrap().model_id;
    client.deploy(&model, 1).await.unwrap();
    let reason = until("it has failed to load", || async {
        let status = client.status().await.ok()?;
        let mut replicas = status.workers.iter().flat_map(|worker| &worker.replicas);
        replicas.find_map(|replica| replica.reason.clone())
    });
    let reason = reason.await;
    assert!(reason.contains("--allow-fake-backend"), "{reason}");
    cluster.workers[0].stop().await;
    cluster.workers[0].setting.env = vec![("VOLLEY_ALLOW_FAKE_BACKEND", "1".to_owned())];
    cluster.workers[0].start();
    cluster.wait_until_deployed(0, "drill").await;
}
