//! What happens to streams and writes when processes die.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use serde_json::json;
use volley_client::{ClientError, ReplicaInfo};
use volley_tests::cluster::{Cluster, tell, tell_with};
use volley_tests::until;

/// A scripted model on two workers.
async fn drilled() -> Cluster {
    drilled_on(Cluster::new(3, 2)).await
}

async fn drilled_on(mut cluster: Cluster) -> Cluster {
    cluster.run().await;
    cluster
        .deploy(&json!({ "name": "drill", "function_name": "fake" }), 2)
        .await;
    cluster
}

/// The place of a worker that says that it runs something.
async fn busy_worker(cluster: &Cluster) -> Option<usize> {
    let status = cluster.client(0).status().await.ok()?;
    let runs = |replica: &ReplicaInfo| 0 < replica.active;
    let busy = status
        .workers
        .iter()
        .find(|it| it.replicas.iter().any(runs))?;
    let mut workers = cluster.workers.iter();
    workers.position(|node| node.name == busy.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_ends_its_streams_in_an_error_and_new_ones_go_elsewhere() {
    let mut cluster = drilled().await;
    let client = cluster.client(0);
    let slow = json!({ "prompt": "x", "chunks": 500, "delay_ms": 20 });
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = client.stream("drill", &slow).await.unwrap();
        stream.next().await.unwrap().unwrap();
        streams.push(stream);
    }
    // On a busy machine one worker may look slow, and get none.
    let struck = until("a worker runs some of them", || busy_worker(&cluster)).await;
    cluster.workers[struck].kill().await;
    // At once: what had no chunk yet goes to the other worker, as does all that is new.
    for _ in 0..20 {
        let told = tell_with(&client, "drill", &json!({ "prompt": "x", "text": "ok" })).await;
        assert_eq!(told.unwrap(), "ok".repeat(4));
    }
    // Each is read to its end: whole, or one error. None is silent.
    let ends = streams.into_iter().map(|mut stream| async move {
        let end = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                match stream.next().await {
                    Some(Ok(_)) => {}
                    other => return other,
                }
            }
        });
        end.await.expect("an end, never silence")
    });
    let mut broken = 0;
    for end in futures::future::join_all(ends).await {
        match end {
            Some(Err(ClientError::Refused { code, .. })) => {
                assert_eq!(code, "unavailable");
                broken += 1;
            }
            None => {}
            other => panic!("a stream ended in neither its end nor a typed error: {other:?}"),
        }
    }
    assert!(0 < broken, "none of 8 were on the dead worker");
    cluster.workers[struck].start();
    cluster.wait_until_deployed(0, "drill").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_dies_predictions_go_on_and_writes_resume() {
    let cluster = Cluster::new(3, 2);
    cluster.with_the_usual_write_timeout();
    let mut cluster = drilled_on(cluster).await;
    let leader = cluster.wait_for_leader().await;
    let survivor = (leader + 1) % 3;
    let client = cluster.client(survivor);
    cluster.coordinators[leader].kill().await;
    let killed = Instant::now();
    assert!(
        tell(&client, "drill", "x").await.is_ok(),
        "predictions do not need a leader"
    );
    until("writes resume", || async {
        client.register_text_model("after").await.ok()
    })
    .await;
    // Promised are 3 s, which `promises leader` measures; here others use the machine.
    assert!(
        killed.elapsed() < Duration::from_secs(15),
        "{:?}",
        killed.elapsed()
    );

    // One more dies: no quorum. Writes fail soon, predictions go on.
    let other = (leader + 2) % 3;
    cluster.coordinators[other].kill().await;
    let asked = Instant::now();
    let refused = client.register_text_model("lost").await.unwrap_err();
    assert!(
        matches!(refused, ClientError::Refused { status: 503, .. }),
        "{refused:?}"
    );
    // Promised are 2 s, which `promises quorum` measures. A client would wait for 30.
    assert!(
        asked.elapsed() < Duration::from_secs(8),
        "{:?}",
        asked.elapsed()
    );
    assert!(tell(&client, "drill", "x").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sigterm_a_stream_that_runs_is_finished_and_the_node_ends_cleanly() {
    let mut cluster = drilled().await;
    let slow = json!({ "prompt": "x", "chunks": 60, "delay_ms": 20, "text": "n{n} " });
    let expected: String = (0..60).map(|index| format!("n{index} ")).collect();

    // A worker: the stream on it ends whole, new requests go to the other one.
    let client = cluster.client(0);
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(client.stream("drill", &slow).await.unwrap());
    }
    cluster.workers[0].process.as_ref().unwrap().terminate();
    for _ in 0..10 {
        assert!(
            tell(&client, "drill", "x").await.is_ok(),
            "nothing fails during a drain"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for stream in streams {
        let texts: Vec<String> = stream.try_collect().await.unwrap();
        assert_eq!(texts.concat(), expected);
    }
    assert!(
        cluster.workers[0]
            .process
            .as_mut()
            .unwrap()
            .ended()
            .await
            .success()
    );

    // A coordinator: it is not ready any more, its stream ends whole.
    let stream = client.stream("drill", &slow).await.unwrap();
    cluster.coordinators[0]
        .process
        .as_ref()
        .unwrap()
        .terminate();
    let texts: Vec<String> = stream.try_collect().await.unwrap();
    assert_eq!(texts.concat(), expected);
    assert!(
        cluster.coordinators[0]
            .process
            .as_mut()
            .unwrap()
            .ended()
            .await
            .success()
    );
    assert!(tell(&cluster.client(1), "drill", "x").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_worker_is_silent_goes_to_another_too_where_hedging_is_on() {
    let mut cluster = Cluster::new(1, 2);
    cluster.configure(0, |text| text + "[routing]\nhedge_delay = \"200ms\"\n");
    cluster.run().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let encoder = root.join("crates/backend-onnx/tests/models/text-embed");
    let model = json!({ "name": "text-embed", "function_name": "ONNX", "path": encoder });
    cluster.deploy(&model, 2).await;
    let node = format!("http://{}", cluster.coordinators[0].http);
    let http = reqwest::Client::new();
    let ask = async || {
        let began = Instant::now();
        let body = json!({ "model": "text-embed", "input": "hen" });
        let asked = http.post(format!("{node}/v1/embeddings")).json(&body);
        let answer = asked.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.bytes().await.unwrap();
        began.elapsed()
    };
    for _ in 0..8 {
        ask().await;
    }
    let silent = cluster.workers[1].process.as_ref().unwrap();
    silent.signal("-STOP");
    // Half of them go to it, and it is given up after three seconds.
    for waited in futures::future::join_all((0..8).map(|_| ask())).await {
        assert!(waited < Duration::from_millis(2_500), "{waited:?}");
    }
    let metrics = http.get(format!("{node}/metrics")).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let hedges = metrics.lines().find_map(|line| {
        let value = line.strip_prefix("volley_hedges_total{model=\"text-embed\"} ")?;
        value.parse::<f64>().ok()
    });
    assert!(hedges.is_some_and(|count| 0.0 < count), "{hedges:?}");
}
