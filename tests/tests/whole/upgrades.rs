//! A cluster whose nodes are restarted one after the other, under load: with the same version, and
//! from one level of commands to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use volley_tests::callers::Callers;
use volley_tests::cluster::Cluster;
use volley_tests::http::{exchange, post};
use volley_tests::judges::root;
use volley_tests::overload::Scale;
use volley_tests::overload::losses::restarts;
use volley_tests::{process, until};

/// What this version speaks.
const LEVEL: u32 = 8;
/// The level of ensembles.
const ENSEMBLES: u32 = 7;
const HELD_BACK: &str = "[cluster]\nfeature_level = 1\n";

async fn volley(cluster: &Cluster, at: usize, arguments: &[&str]) -> (String, bool) {
    let url = format!("http://{}", cluster.coordinators[at].http);
    process::run(&[&["--url", url.as_str()], arguments].concat()).await
}

/// Registers models through every coordinator in turn until told to stop: how many, and what
/// went wrong.
fn write(
    cluster: &Cluster,
    stop: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<(usize, Vec<String>)> {
    let addresses: Vec<_> = cluster
        .coordinators
        .iter()
        .map(|node| node.http.clone())
        .collect();
    let stop = stop.clone();
    tokio::spawn(async move {
        let (mut written, mut failed) = (0, Vec::new());
        for turn in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut own: Vec<_> = addresses.iter().map(String::as_str).collect();
            own.rotate_left(turn % addresses.len());
            let client = volley_tests::cluster::client(&own);
            match client.register_text_model(&format!("w{turn}")).await {
                Ok(_) => written += 1,
                Err(error) => failed.push(format!("w{turn}: {error:?}")),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        (written, failed)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinators_are_upgraded_one_by_one_and_new_commands_wait_for_the_last() {
    let mut cluster = Cluster::new(3, 2);
    for index in 0..3 {
        cluster.configure(index, |text| {
            text.replacen("[cluster.", &format!("{HELD_BACK}[cluster."), 1)
        });
    }
    cluster.run().await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 2).await;
    let callers = Callers::start(&cluster, &["drill"], 6);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..1).map(|_| write(&cluster, &stop)).collect();
    callers.go_on(30).await;
    for turn in 0..3 {
        let (text, ok) = volley(&cluster, (turn + 1) % 3, &["drain", "worker-1"]).await;
        assert!(!ok && text.contains("finish the upgrade first"), "{text}");
        assert!(text.contains("runs at level 1"), "{text}");
        let node = &mut cluster.coordinators[turn];
        node.stop().await;
        let text = std::fs::read_to_string(&node.config).unwrap();
        std::fs::write(&node.config, text.replacen(HELD_BACK, "", 1)).unwrap();
        node.start();
        let id = turn as u64 + 1;
        for index in 0..3 {
            cluster
                .wait(index, "everybody sees it at its new level", |status| {
                    status.node.leader.is_some()
                        && status.coordinators.iter().all(|node| {
                            let level = if node.id <= id { LEVEL } else { 1 };
                            node.level == Some(level)
                        })
                })
                .await;
        }
        let (text, ok) = volley(&cluster, 0, &["status"]).await;
        assert!(ok, "{text}");
        assert_eq!(text.contains("upgrade unfinished"), turn < 2, "{text}");
        callers.go_on(30).await;
    }
    let (text, ok) = volley(&cluster, 2, &["drain", "worker-1"]).await;
    assert!(ok, "{text}");
    for index in 0..3 {
        cluster
            .wait(index, "all have taken it", |status| {
                status.level == Some(2) && !status.drains.is_empty()
            })
            .await;
    }
    stop.store(true, Ordering::Relaxed);
    let (mut written, mut refused) = (0, Vec::new());
    for writer in writers {
        let (count, failed) = writer.await.unwrap();
        written += count;
        refused.extend(failed);
    }
    let tally = callers.stop().await;
    assert_eq!(tally.failures, Vec::<String>::new());
    assert_eq!(refused, Vec::<String>::new());
    eprintln!(
        "three upgrades: {} requests and {written} writes, 0 failed",
        tally.answered
    );

    // Nobody goes back: what the registry holds now is not for the version before.
    let node = &mut cluster.coordinators[0];
    node.stop().await;
    let text = std::fs::read_to_string(&node.config).unwrap();
    let held = text.replacen("[cluster.", &format!("{HELD_BACK}[cluster."), 1);
    std::fs::write(&node.config, held).unwrap();
    node.start();
    until("it says why it takes no part", || async {
        let process = cluster.coordinators[0].process.as_ref()?;
        let said = process.output();
        (said.contains("needs level 2") || said.contains("runs at level 1")).then_some(())
    })
    .await;
    let ready = cluster.client(0).ready().await;
    assert!(!matches!(ready, Ok(true)), "{ready:?}");
    if let Some(process) = cluster.coordinators[0].process.take() {
        process.kill().await;
    }
}

/// What waits for level 7: an ensemble, and a pipeline that takes a tensor of its model's type.
const ENSEMBLE: &str = "platform: 'ensemble'
    max_batch_size: 1024
    input [ { name: 'x' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'y' data_type: TYPE_FP32 dims: [ 2 ] } ]
    ensemble_scheduling { step [
      { model_name: 'plus' model_version: -1
        input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'once' } },
      { model_name: 'plus' model_version: -1
        input_map { key: 'x' value: 'once' } output_map { key: 'y' value: 'y' } } ] }";

fn tensor_pipeline() -> Value {
    json!({ "task": "tensors", "inputs": { "x": "tensor" }, "steps": [
        { "name": "once", "model": "plus", "inputs": { "x": "request.x" } },
    ] })
}

/// What a name gives for one row at a coordinator.
async fn infer(cluster: &Cluster, at: usize, name: &str) -> (u16, Value) {
    let body = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2] },
    ] });
    let path = format!("/v2/models/{name}/infer");
    let address = &cluster.coordinators[at].http;
    let (status, answer) = exchange(address, &post(&path, &body.to_string())).await;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    (status, answer["outputs"][0]["data"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn ensembles_and_inputs_of_tensors_wait_until_every_coordinator_reads_them() {
    let held = "[cluster]\nfeature_level = 6\n";
    let mut cluster = Cluster::new(3, 1);
    for index in 0..3 {
        cluster.configure(index, |text| {
            text.replacen("[cluster.", &format!("{held}[cluster."), 1)
        });
    }
    cluster.run().await;
    let path = root().join("crates/backend-onnx/tests/models/external");
    let body = json!({ "name": "plus", "function_name": "onnx", "path": path });
    cluster.deploy(&body, 1).await;
    let repository = cluster.folder().join("repository");
    std::fs::create_dir_all(repository.join("twice/1")).unwrap();
    std::fs::write(repository.join("twice/config.pbtxt"), ENSEMBLE).unwrap();
    let repository = repository.to_string_lossy().into_owned();
    let register = ["model", "register", "--repository", &repository];
    for turn in 0..3 {
        let at = (turn + 1) % 3;
        let (text, ok) = volley(&cluster, at, &register).await;
        assert!(!ok && text.contains("finish the upgrade first"), "{text}");
        let pipeline = tensor_pipeline();
        let client = cluster.client(at);
        let refused = client.put_pipeline("pass", &pipeline, None);
        let refused = refused.await.unwrap_err().to_string();
        assert!(refused.contains("runs at level 6"), "{refused}");
        // All that was there before goes on, and nothing half registered is left.
        assert_eq!(infer(&cluster, at, "plus").await.0, 200);
        assert_eq!(infer(&cluster, at, "twice").await.0, 404);
        let node = &mut cluster.coordinators[turn];
        node.stop().await;
        let text = std::fs::read_to_string(&node.config).unwrap();
        std::fs::write(&node.config, text.replacen(held, "", 1)).unwrap();
        node.start();
        let id = turn as u64 + 1;
        for index in 0..3 {
            cluster
                .wait(index, "everybody sees it at its new level", |status| {
                    status.node.leader.is_some()
                        && status.coordinators.iter().all(|node| {
                            let level = if node.id <= id { LEVEL } else { 6 };
                            node.level == Some(level)
                        })
                })
                .await;
        }
    }
    let (text, ok) = volley(&cluster, 0, &register).await;
    assert!(
        ok && text.contains("twice is registered as an ensemble"),
        "{text}"
    );
    let pipeline = tensor_pipeline();
    let client = cluster.client(1);
    client.put_pipeline("pass", &pipeline, None).await.unwrap();
    let (_, once) = infer(&cluster, 0, "plus").await;
    for index in 0..3 {
        cluster
            .wait(
                index,
                "the registry is at the level of ensembles",
                |status| status.level == Some(ENSEMBLES),
            )
            .await;
        until("the coordinator has the pipelines", || async {
            let (status, answer) = infer(&cluster, index, "pass").await;
            (status == 200).then(|| assert_eq!(answer, once))
        })
        .await;
        let (status, twice) = infer(&cluster, index, "twice").await;
        assert_eq!(status, 200, "{twice}");
        assert_ne!(twice, once);
    }

    // A coordinator that goes back reads neither, and takes no part.
    let node = &mut cluster.coordinators[0];
    node.stop().await;
    let text = std::fs::read_to_string(&node.config).unwrap();
    let text = text.replacen("[cluster.", &format!("{held}[cluster."), 1);
    std::fs::write(&node.config, text).unwrap();
    node.start();
    until("it says why it takes no part", || async {
        let process = cluster.coordinators[0].process.as_ref()?;
        let said = process.output();
        (said.contains("needs level 7") || said.contains("runs at level 6")).then_some(())
    })
    .await;
    assert_eq!(infer(&cluster, 1, "twice").await.0, 200);
    if let Some(process) = cluster.coordinators[0].process.take() {
        process.kill().await;
    }
}

/// One round is every node, one after the other. `VOLLEY_ROUNDS=10` makes ten.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_is_restarted_in_turn_and_no_request_fails() {
    let rounds = std::env::var("VOLLEY_ROUNDS").ok();
    let rounds: usize = rounds.map_or(1, |rounds| rounds.parse().expect("a number"));
    let scale = Scale {
        restarts: rounds,
        ..Scale::small()
    };
    let figure = restarts(&scale).await;
    assert!(figure.held, "{}", figure.told);
    eprintln!("{}", figure.told);
}
