//! Secrets that the cluster holds sealed: used by workers, changed and rotated under load, and
//! readable nowhere.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::json;
use volley_client::Client;
use volley_tests::cluster::{Cluster, Node, tell};
use volley_tests::judges::deploy;
use volley_tests::process::{self, Process};
use volley_tests::until;
use volley_tests::upstream::{Upstream, chunk, head};

use crate::clients::Up;

const CANARY: &str = "sk-canary";

async fn master_key(file: &Path) {
    let (key, made) = process::run(&["secret", "master-key"]).await;
    assert!(made, "{key}");
    std::fs::write(file, key).unwrap();
}

/// Whether the newest request came with that secret.
fn came_with(upstream: &Upstream, secret: &str) -> bool {
    let requests = upstream.requests.lock().unwrap();
    let wanted = format!("authorization: bearer {secret}");
    requests
        .last()
        .is_some_and(|request| request.to_ascii_lowercase().contains(&wanted))
}

/// Asks the model again and again, until `stop`; gives how often.
async fn ask(client: Client, stop: Arc<AtomicBool>, asked: Arc<AtomicU32>) {
    while !stop.load(Ordering::Relaxed) {
        let told = tell(&client, "remote", "x").await;
        assert_eq!(told.expect("no request fails"), "hello");
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

/// As OpenSearch's clients send it: it is sealed, referred to, and goes with its connector.
async fn a_secret_in_a_body_is_sealed(client: &Client, upstream: &Upstream) {
    let connector = json!({
        "name": "Chat", "version": "1", "protocol": "http", "parameters": { "model": "m" },
        "credential": { "openAI_key": format!("{CANARY}-0") },
        "actions": [{ "action_type": "predict", "method": "POST", "url": upstream.url,
                      "headers": { "Authorization": "Bearer ${credential.openAI_key}" } }],
    });
    let id = client.create_connector(&connector).await.unwrap();
    let model = json!({ "name": "sealed", "function_name": "remote", "connector_id": id });
    deploy(client, &model).await;
    assert_eq!(tell(client, "sealed", "x").await.unwrap(), "hello");
    assert!(came_with(upstream, &format!("{CANARY}-0")));
    let shown = client.connectors(Some(&id)).await.unwrap();
    let name = format!("{id}.credential");
    assert_eq!(shown["credential"], format!("secret:{name}"));
    client.undeploy("sealed").await.unwrap();
    client.delete("sealed").await.unwrap();
    client.delete_connector(&id).await.unwrap();
    let secrets = client.secrets().await.unwrap();
    assert!(!secrets.to_string().contains(&name), "{secrets}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_secret_is_used_changed_and_rotated_under_load_and_readable_nowhere() {
    let mut cluster = Cluster::new(3, 2);
    let (first, second) = (
        cluster.folder().join("a.key"),
        cluster.folder().join("b.key"),
    );
    master_key(&first).await;
    std::fs::copy(&first, &second).unwrap();
    cluster.append(&format!(
        "\n[security]\nmaster_key_files = [{first:?}, {second:?}]\n"
    ));
    cluster.run().await;
    let client = cluster.client(0);

    let stream = [head("200 OK", "text/event-stream"), chunk("hello")].concat();
    let upstream = Upstream::start(stream + "data: [DONE]\n\n", false).await;
    client
        .put_secret("openai", &format!("{CANARY}-1"))
        .await
        .unwrap();
    let connector = json!({
        "id": "openai", "url": upstream.url, "model": "m", "credential": "secret:openai",
    });
    client.create_connector(&connector).await.unwrap();
    let model = json!({ "name": "remote", "function_name": "remote", "connector_id": "openai" });
    cluster.deploy(&model, 2).await;
    assert_eq!(tell(&client, "remote", "x").await.unwrap(), "hello");
    assert!(came_with(&upstream, &format!("{CANARY}-1")));
    a_secret_in_a_body_is_sealed(&client, &upstream).await;
    let refused = client
        .delete_secret("openai")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("is used by connector 'openai'"),
        "{refused}"
    );

    let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
    let load = tokio::spawn(ask(cluster.client(1), stop.clone(), asked.clone()));
    client
        .put_secret("openai", &format!("{CANARY}-2"))
        .await
        .unwrap();
    until("the new secret is used", || async {
        came_with(&upstream, &format!("{CANARY}-2")).then_some(())
    })
    .await;

    // A new master key: first every node can open with it, then it seals.
    let old = std::fs::read(&first).unwrap();
    master_key(&second).await;
    until("every node has it", || async {
        let mut nodes = cluster.coordinators.iter().chain(&cluster.workers);
        let has = |node: &Node| {
            let output = node.process.as_ref().map(Process::output);
            output.is_some_and(|output| output.contains("security files reloaded"))
        };
        nodes.all(has).then_some(())
    })
    .await;
    let new = std::fs::read(&second).unwrap();
    std::fs::write(&first, &new).unwrap();
    std::fs::write(&second, &old).unwrap();
    until("the secret is under the new master key", || async {
        let done = client.rewrap_secrets().await.ok()?;
        (done["rewrapped"] == 1 && done["failed"] == json!([])).then_some(())
    })
    .await;
    let before = asked.load(Ordering::Relaxed);
    until("predictions go on", || async {
        (before + 5 < asked.load(Ordering::Relaxed)).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    load.await.expect("no request failed");

    let mut shown = client.secrets().await.unwrap().to_string();
    shown += &client.connectors(None).await.unwrap().to_string();
    assert!(
        shown.contains("secret:openai") && !shown.contains(CANARY),
        "{shown}"
    );
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        node.stop().await;
    }
    let found = search(cluster.folder(), CANARY);
    assert!(found.is_empty(), "the secret stands in {found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_open_a_secret_is_passed_over() {
    let mut cluster = Cluster::new(1, 2);
    let key = cluster.folder().join("master.key");
    master_key(&key).await;
    let section = format!("\n[security]\nmaster_key_files = [{key:?}]\n");
    // The second worker was forgotten.
    for config in [&cluster.coordinators[0].config, &cluster.workers[0].config] {
        let text = std::fs::read_to_string(config).unwrap();
        std::fs::write(config, text + &section).unwrap();
    }
    cluster.run().await;
    let client = cluster.client(0);
    let stream = [head("200 OK", "text/event-stream"), chunk("hello")].concat();
    let upstream = Upstream::start(stream + "data: [DONE]\n\n", false).await;
    client.put_secret("openai", CANARY).await.unwrap();
    let connector = json!({
        "id": "openai", "url": upstream.url, "model": "m", "credential": "secret:openai",
    });
    client.create_connector(&connector).await.unwrap();
    let model = json!({ "name": "remote", "function_name": "remote", "connector_id": "openai" });
    cluster.deploy(&model, 2).await;
    for _ in 0..20 {
        let told = tell(&client, "remote", "x").await;
        assert_eq!(told.expect("no request fails"), "hello");
    }
    // Where nobody can open it, the answer says what is missing.
    cluster.workers[0].stop().await;
    let why = until("nobody is left who can", || async {
        let refused = tell(&client, "remote", "x").await.err()?.to_string();
        refused.contains("master_key_files").then_some(refused)
    });
    assert!(!why.await.contains(CANARY));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_in_one_process_takes_secrets_with_a_master_key() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("master.key");
    master_key(&key).await;
    let up = Up::with(&["--master-key-file", &key.to_string_lossy()]).await;
    let client = up.client();
    let stream = [head("200 OK", "text/event-stream"), chunk("hello")].concat();
    let upstream = Upstream::start(stream + "data: [DONE]\n\n", false).await;
    client
        .put_secret("openai", &format!("{CANARY}-up"))
        .await
        .unwrap();
    let connector = json!({
        "id": "openai", "url": upstream.url, "model": "m", "credential": "secret:openai",
    });
    client.create_connector(&connector).await.unwrap();
    let model = json!({ "name": "remote", "function_name": "remote", "connector_id": "openai" });
    client.register(&model).await.unwrap();
    client.deploy("remote", 1).await.unwrap();
    until("its own worker opens it", || async {
        tell(&client, "remote", "x").await.ok()
    })
    .await;
    assert!(came_with(&upstream, &format!("{CANARY}-up")));
}

/// The files under `folder` in which `canary` can be read.
pub(crate) fn search(folder: &Path, canary: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(search(&path, canary));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            let mut windows = bytes.windows(canary.len());
            if windows.any(|window| window == canary.as_bytes()) {
                found.push(path);
            }
        }
    }
    found
}
