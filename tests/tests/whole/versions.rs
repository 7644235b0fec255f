//! Two versions of one model beside each other, split by an alias: a canary that becomes all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use volley_tests::cluster::{Cluster, tell};
use volley_tests::http::{exchange, post};
use volley_tests::until;

use crate::aliases::{answered_by, chat, fake, put, targets};

/// Registers another version of `chat`, which says `text` twice, and gives its name.
async fn version(cluster: &Cluster, text: &str) -> String {
    let mut body = fake("chat", json!({ "delay_ms": 2, "text": text }));
    body["name"] = "chat".into();
    let client = cluster.client(0);
    let registered = client.register(&body).await.unwrap();
    format!("chat:{}", registered.model_version)
}

/// Waits until a name is answered with `says` by every coordinator.
async fn wait_for(cluster: &Cluster, model: &str, says: &str) {
    for coordinator in 0..cluster.coordinators.len() {
        let client = cluster.client(coordinator);
        until(model, async || {
            let told = tell(&client, model, "x").await.ok()?;
            (told == says).then_some(())
        })
        .await;
    }
}

/// Between two requests of one caller: what is measured here is not the machine.
const PAUSE: Duration = Duration::from_millis(5);

/// Asks for `assistant` at every coordinator again and again, until it is stopped; gives how often
/// each answer came.
struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<BTreeMap<String, usize>>>,
}

impl Load {
    fn on(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let callers = (0..6).map(|caller| {
            let (client, stop) = (cluster.client(caller % 3), stop.clone());
            tokio::spawn(async move {
                let mut counts = BTreeMap::new();
                while !stop.load(Ordering::Relaxed) {
                    let told = tell(&client, "assistant", "x").await;
                    *counts.entry(told.expect("no request fails")).or_insert(0) += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                counts
            })
        });
        Self {
            callers: callers.collect(),
            stop,
        }
    }

    async fn end(self) -> BTreeMap<String, usize> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for caller in self.callers {
            for (told, count) in caller.await.unwrap() {
                *all.entry(told).or_insert(0) += count;
            }
        }
        all
    }
}

async fn model(cluster: &Cluster) -> Value {
    let address = &cluster.coordinators[0].http;
    let got = reqwest::get(format!("http://{address}/_plugins/_ml/models/chat")).await;
    serde_json::from_str(&got.unwrap().text().await.unwrap()).unwrap()
}

async fn deployment(cluster: &Cluster) -> Value {
    model(cluster).await["deployment"].clone()
}

/// How many of 400 fixed ids each version answers.
async fn split(cluster: &Cluster) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for index in 0..400 {
        let address = &cluster.coordinators[index % 3].http;
        let id = format!("request-{index}");
        let response = chat(address, "assistant", &[("x-request-id", &id)]).await;
        *counts.entry(answered_by(&response)).or_insert(0) += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_of_one_model_takes_a_tenth_and_then_all_and_no_request_fails() {
    let cluster = Cluster::start(3, 2).await;
    let client = cluster.client(0);
    let first = version(&cluster, "one").await;
    client.deploy(&first, 2).await.unwrap();
    wait_for(&cluster, "chat", "oneone").await;
    put(&cluster, "assistant", &targets(&[(&first, 1)])).await;
    let load = Load::on(&cluster);

    // The second version stands beside the first, which all that name none still get.
    let second = version(&cluster, "two").await;
    let beside = json!({ "replicas": 1, "keep_previous": 2 });
    client.deploy_with(&second, &beside).await.unwrap();
    wait_for(&cluster, &second, "twotwo").await;
    wait_for(&cluster, "chat", "oneone").await;
    let stands = deployment(&cluster).await;
    let older = &stands["rollout"]["previous_worker_nodes"];
    assert_eq!(older.as_array().map(Vec::len), Some(2), "{stands}");

    put(
        &cluster,
        "assistant",
        &targets(&[(&first, 9), (&second, 1)]),
    )
    .await;
    let counts = split(&cluster).await;
    // Four standard deviations around 40 of 400; the ids are fixed, and so is the split.
    assert!((16..=64).contains(&counts[&second]), "{counts:?}");
    assert_eq!(counts[&first] + counts[&second], 400, "{counts:?}");

    put(&cluster, "assistant", &targets(&[(&second, 1)])).await;
    let counts = split(&cluster).await;
    assert_eq!(counts.get(&second), Some(&400), "{counts:?}");
    // Nothing is asked of the first any more: the second takes its place.
    client.deploy(&second, 2).await.unwrap();
    until("the first version is gone", async || {
        let deployment = deployment(&cluster).await;
        deployment["rollout"].is_null().then_some(())
    })
    .await;
    wait_for(&cluster, "chat", "twotwo").await;

    let told = load.end().await;
    let said: Vec<_> = told.keys().map(String::as_str).collect();
    assert_eq!(said, ["oneone", "twotwo"], "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_that_is_no_good_goes_back_and_no_request_fails() {
    let cluster = Cluster::start(3, 2).await;
    let client = cluster.client(0);
    let first = version(&cluster, "one").await;
    client.deploy(&first, 2).await.unwrap();
    wait_for(&cluster, "chat", "oneone").await;
    put(&cluster, "assistant", &targets(&[(&first, 1)])).await;
    let second = version(&cluster, "two").await;
    let beside = json!({ "replicas": 1, "keep_previous": 2 });
    client.deploy_with(&second, &beside).await.unwrap();
    wait_for(&cluster, &second, "twotwo").await;
    let load = Load::on(&cluster);
    put(
        &cluster,
        "assistant",
        &targets(&[(&first, 9), (&second, 1)]),
    )
    .await;
    put(&cluster, "assistant", &targets(&[(&first, 1)])).await;
    client.rollout("chat", "rollback").await.unwrap();
    until("the second version is gone", async || {
        let deployment = deployment(&cluster).await;
        deployment["rollout"].is_null().then_some(())
    })
    .await;
    wait_for(&cluster, "chat", "oneone").await;
    load.end().await;
    let model = model(&cluster).await;
    assert_eq!(model["deployed_version"], 1, "{model}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_a_model_that_sleeps_wake_it_whoever_asks() {
    let cluster = Cluster::start(1, 1).await;
    let (client, address) = (cluster.client(0), cluster.coordinators[0].http.clone());
    client.register(&fake("sleeper", json!({}))).await.unwrap();
    let scaling = json!({
        "replicas": 1, "min_replicas": 0, "max_replicas": 1, "idle_ms": 3_000,
    });
    client.deploy_with("sleeper", &scaling).await.unwrap();
    cluster.wait_until_deployed(0, "sleeper").await;
    put(&cluster, "nickname", &targets(&[("sleeper", 1)])).await;
    let piped = json!({ "task": "generate", "steps": [
        { "name": "answer", "model": "nickname", "inputs": { "prompt": "request.question" } },
    ] });
    client.put_pipeline("piped", &piped, None).await.unwrap();
    put(&cluster, "front", &targets(&[("piped", 1)])).await;
    let chats = json!([{ "role": "user", "content": "hi" }]);
    for (name, path, more) in [
        (
            "nickname",
            "/v1/chat/completions",
            json!({ "messages": chats }),
        ),
        ("piped", "/v1/completions", json!({ "prompt": "hi" })),
        (
            "front",
            "/api/generate",
            json!({ "prompt": "hi", "stream": false }),
        ),
    ] {
        until("the model sleeps", || async {
            let models = client.models().await.ok()?;
            let sleeper = models
                .into_iter()
                .find(|model| model.model_id == "sleeper")?;
            sleeper.current_worker_nodes.is_empty().then_some(())
        })
        .await;
        let mut body = more;
        body["model"] = name.into();
        let (status, answer) = exchange(&address, &post(path, &body.to_string())).await;
        assert_eq!(status, 200, "{name}: {answer}");
        assert!(answer.contains("sleepersleeper"), "{name}: {answer}");
    }
}
