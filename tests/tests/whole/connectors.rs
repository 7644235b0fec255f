//! Connectors that could not work are refused where they are made: each worker is asked.

use serde_json::json;
use volley_client::Status;
use volley_tests::cluster::Cluster;
use volley_tests::process;
use volley_tests::upstream::{Upstream, head};

const CANARY: &str = "sk-canary";

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_is_checked_on_the_workers_and_tested_on_request() {
    let mut cluster = Cluster::new(1, 2);
    cluster.workers[0].setting.env = vec![("CHECKED_KEY", CANARY.to_owned())];
    cluster.coordinators[0].start();
    cluster.wait_for_leader().await;
    let client = cluster.client(0);
    let url = "http://127.0.0.1:9/v1/chat/completions";
    let connector = |id: &str, url: &str, credential: &str| json!({ "id": id, "url": url, "model": "m", "credential": credential });

    // Nobody is there to be asked.
    let body = connector("early", url, "env:CHECKED_KEY");
    let early = client.new_connector(&body, false).await.unwrap();
    assert!(early.warnings[0].contains("no worker is live"), "{early:?}");

    cluster.workers.iter_mut().for_each(|worker| worker.start());
    let alive = |status: &Status| {
        status
            .workers
            .iter()
            .filter(|it| it.liveness == "alive")
            .count()
    };
    cluster
        .wait(0, "both workers are there", |status| alive(status) == 2)
        .await;
    let missing = connector("c", url, "env:MISSING_KEY");
    let refused = client
        .create_connector(&missing)
        .await
        .unwrap_err()
        .to_string();
    for part in [
        "environment variable",
        "connector 'c'",
        "host 127.0.0.1",
        "worker-1, worker-2",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(
        client.connectors(Some("c")).await.is_err(),
        "it was not made"
    );
    let some = connector("c", url, "env:CHECKED_KEY");
    let made = client.new_connector(&some, false).await.unwrap();
    assert!(made.warnings[0].ends_with("on worker worker-2"), "{made:?}");

    // One that answers, one that does not want the key, and one that is not there.
    let answer = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}"#;
    let good = head("200 OK", "application/json") + answer;
    let good = Upstream::start(good, false).await;
    let says = format!(r#"{{"error":{{"message":"wrong key {CANARY}"}}}}"#);
    let bad = Upstream::start(head("401 Unauthorized", "application/json") + &says, false).await;
    let body = connector("good", &good.url, "env:CHECKED_KEY");
    assert_eq!(
        client
            .new_connector(&body, true)
            .await
            .unwrap()
            .connector_id,
        "good"
    );
    assert_eq!(good.requests.lock().unwrap().len(), 1);
    for (id, url) in [("bad", bad.url.as_str()), ("gone", url)] {
        let body = connector(id, url, "env:CHECKED_KEY");
        let refused = client
            .new_connector(&body, true)
            .await
            .unwrap_err()
            .to_string();
        let named = format!("connector '{id}', host 127.0.0.1");
        assert!(
            refused.contains(&named) && !refused.contains(CANARY),
            "{refused}"
        );
        assert!(
            client.connectors(Some(id)).await.is_err(),
            "it was not made"
        );
    }

    // What was made before the server went fails with both names.
    let address = format!("http://{}", cluster.coordinators[0].http);
    let create = [
        "--url",
        &address,
        "connector",
        "create",
        "--id",
        "cli",
        "--endpoint",
        &bad.url,
        "--model",
        "m",
        "--credential",
        "env:CHECKED_KEY",
    ];
    let (tested, made) = process::run(&[&create[..], &["--test"]].concat()).await;
    assert!(!made && tested.contains("connector 'cli'"), "{tested}");
    let (told, made) = process::run(&create).await;
    assert!(
        made && told.contains("warning:") && told.contains("worker-2"),
        "{told}"
    );
}
