//! Aliases: names that split, stick, mirror and are switched.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use volley_client::ClientError;
use volley_tests::cluster::{Cluster, tell};
use volley_tests::{process, until};

/// Making one takes long in a debug build. It keeps no connection, whose task would end with the
/// story that opened it.
fn http() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        // The second client of a process finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder().pool_max_idle_per_host(0);
        builder.build().unwrap()
    })
}

/// A scripted model that says `text` twice.
pub(crate) fn fake(name: &str, parameters: Value) -> Value {
    let mut all = json!({ "chunks": 2, "text": name });
    let (all_fields, more) = (all.as_object_mut().unwrap(), parameters);
    all_fields.extend(more.as_object().unwrap().clone());
    json!({ "name": name, "function_name": "fake", "parameters": all })
}

pub(crate) fn targets(weights: &[(&str, u32)]) -> Value {
    let target = |(model, weight): &(&str, u32)| json!({ "model": model, "weight": weight });
    json!({ "targets": weights.iter().map(target).collect::<Vec<_>>() })
}

/// Waits until a coordinator has applied a revision.
pub(crate) async fn wait_for(cluster: &Cluster, coordinator: usize, revision: u64) {
    cluster
        .wait(coordinator, "the revision", |status| {
            revision <= status.registry_revision
        })
        .await;
}

pub(crate) async fn put(cluster: &Cluster, name: &str, body: &Value) -> u64 {
    let written = cluster.client(0).put_alias(name, body, None).await;
    let revision = written.unwrap()["revision"].as_u64().unwrap();
    for coordinator in 0..cluster.coordinators.len() {
        wait_for(cluster, coordinator, revision).await;
    }
    revision
}

/// One chat over OpenAI's interface with these headers; its answer.
pub(crate) async fn chat(address: &str, model: &str, headers: &[(&str, &str)]) -> Response {
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] });
    let mut request = http()
        .post(format!("http://{address}/v1/chat/completions"))
        .header("content-type", "application/json")
        .body(body.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

pub(crate) fn answered_by(response: &Response) -> String {
    response.headers()["x-volley-model"]
        .to_str()
        .unwrap()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_is_switched_under_streams_and_no_request_fails() {
    let cluster = Cluster::start(3, 2).await;
    for name in ["one", "two"] {
        cluster
            .deploy(&fake(name, json!({ "delay_ms": 5 })), 2)
            .await;
    }
    let mut revision = put(&cluster, "front", &targets(&[("one", 1)])).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..6)
        .map(|caller| {
            let (client, stop) = (cluster.client(caller % 3), stop.clone());
            tokio::spawn(async move {
                let mut told = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    told.push(tell(&client, "front", "x").await);
                }
                told
            })
        })
        .collect();
    let client = cluster.client(0);
    for round in 0..20 {
        let (name, says) = match round % 2 {
            0 => ("two:1", "twotwo"),
            _ => ("one", "oneone"),
        };
        let body = targets(&[(name, 1)]);
        let written = client.put_alias("front", &body, Some(revision)).await;
        let stale = client.put_alias("front", &body, Some(revision)).await;
        assert!(
            matches!(stale, Err(ClientError::Refused { status: 409, .. })),
            "{stale:?}"
        );
        revision = written.unwrap()["revision"].as_u64().unwrap();
        // Whoever asks the node that took the write meets the new target from now on.
        assert_eq!(tell(&client, "front", "x").await.unwrap(), says);
    }
    stop.store(true, Ordering::Relaxed);
    let mut counts = BTreeMap::new();
    for caller in callers {
        for told in caller.await.unwrap() {
            *counts.entry(told.expect("no request fails")).or_insert(0) += 1;
        }
    }
    let said: Vec<_> = counts.keys().map(String::as_str).collect();
    assert_eq!(said, ["oneone", "twotwo"], "{counts:?}");

    let refused = client.delete("one").await.unwrap_err();
    assert!(refused.to_string().contains("undeploy"), "{refused}");
    client.undeploy("one").await.unwrap();
    let refused = client.delete("one").await.unwrap_err();
    assert!(refused.to_string().contains("alias 'front'"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_split_by_weight_and_stick_by_a_header_at_every_coordinator() {
    let cluster = Cluster::start(3, 1).await;
    for name in ["one", "two"] {
        cluster.deploy(&fake(name, json!({})), 1).await;
    }
    let mut body = targets(&[("one", 3), ("two", 1)]);
    body["sticky_header"] = "x-user".into();
    put(&cluster, "front", &body).await;
    let address = |index: usize| cluster.coordinators[index % 3].http.clone();

    let mut counts = BTreeMap::new();
    for index in 0..400 {
        let id = format!("request-{index}");
        let response = chat(&address(index), "front", &[("x-request-id", &id)]).await;
        *counts.entry(answered_by(&response)).or_insert(0_i32) += 1;
        if index % 20 == 0 {
            let elsewhere = chat(&address(index + 1), "front", &[("x-request-id", &id)]).await;
            assert_eq!(answered_by(&response), answered_by(&elsewhere));
        }
    }
    // Four standard deviations around 300 of 400; the ids are fixed, and so is the split.
    assert!((265..=335).contains(&counts["one:1"]), "{counts:?}");
    assert_eq!(counts["one:1"] + counts["two:1"], 400);

    // Twice as much for the second: some users move to it, nobody moves away from it.
    let users: Vec<_> = (0..60).map(|user| format!("user-{user}")).collect();
    let mut homes = Vec::new();
    for (index, user) in users.iter().enumerate() {
        let first = chat(&address(index), "front", &[("x-user", user)]).await;
        let again = chat(&address(index + 1), "front", &[("x-user", user)]).await;
        assert_eq!(answered_by(&first), answered_by(&again));
        homes.push(answered_by(&first));
    }
    body["targets"][1]["weight"] = 2.into();
    put(&cluster, "front", &body).await;
    let mut moved = 0;
    for (user, home) in users.iter().zip(&homes) {
        let now = answered_by(&chat(&address(0), "front", &[("x-user", user)]).await);
        if now != *home {
            assert_eq!((home.as_str(), now.as_str()), ("one:1", "two:1"));
            moved += 1;
        }
    }
    assert!(0 < moved && moved < 25, "{moved} of 60 moved");

    let models = http().get(format!("http://{}/v1/models", address(1)));
    let models = models.send().await.unwrap().text().await.unwrap();
    assert!(models.contains("\"front\""), "{models}");
    let index = http()
        .post(format!("http://{}/v2/repository/index", address(2)))
        .header("content-type", "application/json")
        .body("{}");
    let index = index.send().await.unwrap().text().await.unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let front = index.as_array().unwrap().iter();
    let front = front.clone().find(|entry| entry["name"] == "front");
    assert_eq!(front.unwrap()["state"], "READY");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_hangs_or_is_gone_harms_nobody() {
    let cluster = Cluster::start(1, 1).await;
    cluster.deploy(&fake("main", json!({})), 1).await;
    let hangs = fake("hangs", json!({ "stall_after": 0, "capacity": 4 }));
    cluster.deploy(&hangs, 1).await;
    let mut body = targets(&[("main", 1)]);
    body["mirror"] = json!({ "model": "hangs" });
    put(&cluster, "front", &body).await;
    let client = cluster.client(0);
    // More than there are places for copies, none of which is ever answered.
    for _ in 0..100 {
        let told = tell(&client, "front", "x");
        let told = tokio::time::timeout(Duration::from_secs(20), told).await;
        assert_eq!(told.expect("nobody waits for a copy").unwrap(), "mainmain");
    }
    until("copies run, no more than may", || async {
        let status = client.status().await.ok()?;
        let mut replicas = status.workers[0].replicas.iter();
        let hanging = replicas.find(|replica| replica.model == "hangs")?;
        assert!(hanging.active + hanging.queued <= 64, "{hanging:?}");
        (0 < hanging.active).then_some(())
    })
    .await;
    client.undeploy("hangs").await.unwrap();
    for _ in 0..20 {
        assert_eq!(tell(&client, "front", "x").await.unwrap(), "mainmain");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_points_names_at_models() {
    let cluster = Cluster::start(1, 1).await;
    cluster.deploy(&fake("one", json!({})), 1).await;
    cluster
        .client(0)
        .register_text_model("words")
        .await
        .unwrap();
    cluster.client(0).deploy("words", 1).await.unwrap();
    cluster.wait_until_deployed(0, "words").await;
    let url = format!("http://{}", cluster.coordinators[0].http);
    let volley = async |arguments: &[&str]| {
        let all: Vec<_> = ["--url", url.as_str()]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        process::run(&all).await
    };
    let set = [
        "alias", "set", "front", "one=3", "words:1", "--sticky", "x-user",
    ];
    let (text, ok) = volley(&set).await;
    assert!(ok && text.contains("at revision"), "{text}");
    let (text, ok) = volley(&["alias", "list"]).await;
    assert!(ok && text.contains("one=3, words:1=1"), "{text}");
    assert!(
        text.contains("DEPLOYED") && text.contains("x-user"),
        "{text}"
    );
    let (text, ok) = volley(&["alias", "set", "front", "nobody"]).await;
    assert!(!ok && text.contains("'nobody' is not registered"), "{text}");
    let (text, ok) = volley(&["alias", "delete", "front", "--revision", "1"]).await;
    assert!(!ok && text.contains("revision"), "{text}");
    let (text, ok) = volley(&["alias", "delete", "front"]).await;
    assert!(ok, "{text}");
    until("it is gone", || async {
        let gone = cluster.client(0).aliases(Some("front")).await;
        gone.is_err().then_some(())
    })
    .await;
}
