//! The life of a cluster and its models.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use volley_client::{ClientError, WorkerInfo};
use volley_tests::cluster::{Cluster, tell};
use volley_tests::{process, until};

const TEXT: &str = "text";

#[tokio::test(flavor = "multi_thread")]
async fn nodes_start_in_any_order_every_node_answers_and_a_restart_of_all_loses_nothing() {
    let mut cluster = Cluster::new(3, 2);
    // Workers first, then the coordinators one by one: they found the cluster once all are there.
    cluster.workers.iter_mut().for_each(|node| node.start());
    cluster.coordinators[2].start();
    cluster.coordinators[0].start();
    cluster.coordinators[1].start();
    cluster.wait_for_leader().await;
    let body = json!({ "name": TEXT, "function_name": "text", "description": "splits words" });
    cluster.deploy(&body, 2).await;
    for index in 0..3 {
        cluster.wait_until_deployed(index, TEXT).await;
        let told = tell(&cluster.client(index), TEXT, "one two three")
            .await
            .unwrap();
        assert_eq!(told, "one two three", "any coordinator answers");
        // A heartbeat that is late makes a worker suspect for a moment.
        cluster
            .wait(index, "every node is there and well", |status| {
                let alive = |worker: &&WorkerInfo| worker.liveness == "alive";
                status.coordinators.len() == 3
                    && status.workers.iter().filter(alive).count() == 2
                    && status.models[0].ready_replicas == 2
            })
            .await;
    }

    // A second version, registered on another node, and then everything stops.
    let second = cluster.client(1).register(&body).await.unwrap();
    assert_eq!(second.model_version, "2");
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        node.stop().await;
    }
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        node.start();
    }
    for index in 0..3 {
        cluster.wait_until_deployed(index, TEXT).await;
        // The last entry before the end may come to this one a moment after it has begun.
        until(
            "both versions are there, and the first is deployed",
            || async {
                let model = cluster.client(index).model(TEXT).await.ok()?;
                assert_eq!(model.deployed_version, Some(1));
                (model.versions == [1, 2]).then_some(())
            },
        )
        .await;
        assert_eq!(
            tell(&cluster.client(index), TEXT, "still here")
                .await
                .unwrap(),
            "still here"
        );
    }

    // Undeployed and deleted on one node, gone on every node.
    cluster.client(2).undeploy(TEXT).await.unwrap();
    for index in 0..3 {
        let undeployed = |status: &volley_client::Status| status.models[0].state == "UNDEPLOYED";
        cluster.wait(index, "undeployed", undeployed).await;
        let refused = tell(&cluster.client(index), TEXT, "x").await.unwrap_err();
        assert!(
            matches!(refused, ClientError::Refused { status: 400, .. }),
            "{refused:?}"
        );
    }
    cluster.client(0).delete(TEXT).await.unwrap();
    for index in 0..3 {
        cluster
            .wait(index, "deleted", |status| status.models.is_empty())
            .await;
        let refused = tell(&cluster.client(index), TEXT, "x").await.unwrap_err();
        assert!(
            matches!(refused, ClientError::Refused { status: 404, .. }),
            "{refused:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinators_join_and_leave_and_the_command_line_does_it_all() {
    let mut cluster = Cluster::start(1, 1).await;
    let joined = cluster.add_coordinator();
    cluster.coordinators[joined].start();
    let both = |status: &volley_client::Status| {
        status.coordinators.len() == 2 && status.coordinators.iter().all(|node| node.voter)
    };
    cluster.wait(joined, "both are voters", both).await;

    let url = format!("http://{}", cluster.coordinators[joined].http);
    let volley = |arguments: &'static [&'static str]| {
        let url = url.clone();
        async move {
            let arguments: Vec<_> = ["--url", url.as_str()]
                .into_iter()
                .chain(arguments.iter().copied())
                .collect();
            process::run(&arguments).await
        }
    };
    let (text, ok) = volley(&[
        "model",
        "register",
        "words",
        "--text",
        "--description",
        "hi",
    ])
    .await;
    assert!(ok && text.contains("words:1"), "{text}");
    let (text, ok) = volley(&["model", "deploy", "words", "--wait"]).await;
    assert!(ok, "{text}");
    let (text, ok) = volley(&["predict", "words", "to the terminal"]).await;
    assert!(ok && text.trim_end() == "to the terminal", "{text}");
    let (text, ok) = volley(&["status"]).await;
    assert!(
        ok && text.contains("worker-1") && text.contains("DEPLOYED"),
        "{text}"
    );
    let (text, ok) = volley(&["status", "--json"]).await;
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(ok && status["models"][0]["id"] == "words");
    let (text, ok) = volley(&["model", "delete", "words"]).await;
    assert!(!ok && text.contains("undeploy it first"), "{text}");
    let (text, ok) = volley(&["predict", "nobody", "x"]).await;
    assert!(!ok && text.contains("volley model list"), "{text}");

    // The first one leaves; whoever is left leads and takes writes.
    cluster.client(joined).leave(1).await.unwrap();
    cluster.coordinators[0].stop().await;
    let alone = |status: &volley_client::Status| {
        status.coordinators.len() == 1 && status.node.role == "leader"
    };
    cluster
        .wait(joined, "the other one leads alone", alone)
        .await;
    cluster
        .client(joined)
        .register_text_model("after")
        .await
        .unwrap();
    let (text, ok) = process::run(&["--url", "http://127.0.0.1:1", "status"]).await;
    assert!(!ok && text.contains("volley up"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_takes_over_and_no_request_fails() {
    let cluster = Cluster::start(3, 2).await;
    let version = |text: &str| {
        json!({
            "name": "rolled", "function_name": "fake",
            "parameters": { "text": text, "chunks": 2, "delay_ms": 5, "load_delay_ms": 400 },
        })
    };
    cluster.deploy(&version("old"), 2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..6)
        .map(|caller| {
            let (client, stop) = (cluster.client(caller % 3), stop.clone());
            tokio::spawn(async move {
                let mut told = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    told.push(tell(&client, "rolled", "x").await);
                }
                told
            })
        })
        .collect();
    cluster.deploy(&version("new"), 2).await;
    for coordinator in 0..3 {
        let client = cluster.client(coordinator);
        until("the new version answers", || async {
            let told = tell(&client, "rolled", "x").await.ok()?;
            (told == "newnew").then_some(())
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    let (mut old, mut new) = (0, 0);
    for caller in callers {
        for told in caller.await.unwrap() {
            match told.as_deref() {
                Ok("oldold") => old += 1,
                Ok("newnew") => new += 1,
                other => panic!("a request failed, or was answered by both: {other:?}"),
            }
        }
    }
    assert!(0 < old && 0 < new, "{old} old, {new} new");
}
