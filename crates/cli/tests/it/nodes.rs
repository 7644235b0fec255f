//! Nodes as processes: started in any order, drained by a signal.

use std::path::Path;
use std::time::Duration;

use futures::TryStreamExt;
use serde_json::json;
use volley_client::{Client, ClientError};

use crate::support::{Node, free_ports, text, until, volley};

const FOX: &str = "Tell me a story about a fox.";

/// A coordinator and a worker with text and scripted models, configured by files.
pub(crate) struct Pair {
    coordinator: Node,
    worker: Node,
    pub(crate) client: Client,
    pub(crate) url: String,
    /// The coordinator's internal address.
    pub(crate) internal: String,
}

impl Pair {
    pub(crate) async fn start(folder: &Path) -> Self {
        Self::start_with(folder, "").await
    }

    /// Adds `sections` to the worker's file. The worker starts first and has to wait.
    pub(crate) async fn start_with(folder: &Path, sections: &str) -> Self {
        crypto();
        let [rest, internal, flight, http] = free_ports();
        let coordinator = format!(
            "version = 1\n[node]\nid = 7\ndata_dir = {:?}\n\
             [listen]\npublic = \"127.0.0.1:{rest}\"\ninternal = \"127.0.0.1:{internal}\"\n\
             [cluster.bootstrap]\n7 = \"127.0.0.1:{internal}\"\n",
            folder.join("data")
        );
        let worker = format!(
            "version = 1\n[node]\nid = \"w\"\n\
             [listen]\nflight = \"127.0.0.1:{flight}\"\nhttp = \"127.0.0.1:{http}\"\n\
             [cluster]\ncoordinators = [\"127.0.0.1:{internal}\"]\n{sections}"
        );
        let worker = Self::node(folder, "worker", &worker);
        let coordinator = Self::node(folder, "coordinator", &coordinator);
        let url = format!("http://127.0.0.1:{rest}");
        let client = Client::new(&[&url]).unwrap();
        let alive = async || {
            let status = client.status().await.ok()?;
            let alive = status
                .workers
                .iter()
                .any(|worker| worker.liveness == "alive");
            (alive && status.node.leader == Some(7)).then_some(())
        };
        until("a leader and a worker", alive).await;
        Self {
            coordinator,
            worker,
            client,
            url,
            internal: format!("127.0.0.1:{internal}"),
        }
    }

    pub(crate) fn worker_process(&self) -> String {
        self.worker.child.id().expect("it runs").to_string()
    }

    fn node(folder: &Path, role: &str, file: &str) -> Node {
        let path = folder.join(format!("{role}.toml"));
        std::fs::write(&path, file).unwrap();
        let arguments = [role, "--config", path.to_str().unwrap()];
        Node::start(&arguments, &folder.join(format!("{role}.log")))
    }

    /// Registers and deploys the scripted model.
    async fn deploy_fake(&self) {
        let arguments = ["--url", &self.url, "model", "register", "drill", "--fake"];
        text(&volley(&arguments).await);
        let arguments = ["--url", &self.url, "model", "deploy", "drill", "--wait"];
        text(&volley(&arguments).await);
    }
}

#[tokio::test]
async fn models_are_managed_and_asked_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::start(folder.path()).await;
    let run = async |arguments: &[&str]| volley(&[&["--url", &pair.url], arguments].concat()).await;

    text(
        &run(&[
            "model",
            "register",
            "words",
            "--text",
            "--description",
            "Splits.",
        ])
        .await,
    );
    text(&run(&["model", "deploy", "words", "--wait"]).await);
    let answer = text(&run(&["predict", "words", "one two three"]).await);
    assert_eq!(answer, "one two three\n");
    let answer = text(&run(&["predict", "words", "one two", "--json"]).await);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let response = &answer["inference_results"][0]["output"][0]["dataAsMap"]["response"];
    assert_eq!(response, "one two");

    let list = text(&run(&["model", "list"]).await);
    assert!(
        list.contains("words") && list.contains("DEPLOYED"),
        "{list}"
    );
    let shown = text(&run(&["model", "show", "words", "--json"]).await);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["current_worker_nodes"], json!(["w"]));
    let status = text(&run(&["status"]).await);
    for word in ["leader", "alive", "words", "1/1"] {
        assert!(status.contains(word), "{word}: {status}");
    }

    let refused = run(&["model", "delete", "words"]).await;
    assert_eq!(refused.status.code(), Some(1), "deleted while deployed");
    text(&run(&["model", "undeploy", "words"]).await);
    text(&run(&["model", "delete", "words"]).await);
    let gone = run(&["predict", "words", "one"]).await;
    let complaint = String::from_utf8(gone.stderr).unwrap();
    assert!(complaint.contains("volley model list"), "{complaint}");
}

#[tokio::test]
async fn a_draining_coordinator_ends_its_streams_and_takes_no_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(folder.path()).await;
    pair.deploy_fake().await;
    let slow = json!({ "prompt": "go", "chunks": 20, "delay_ms": 50, "text": "{n} " });
    let mut running = pair.client.stream("drill", &slow).await.unwrap();
    running.try_next().await.unwrap().expect("a first text");

    pair.coordinator.signal("TERM").await;
    until("refusals", async || {
        match pair.client.stream("drill", &slow).await {
            Err(ClientError::Refused { status: 503, .. } | ClientError::Connect(..)) => Some(()),
            _ => None,
        }
    })
    .await;
    let rest: Vec<_> = running.try_collect().await.unwrap();
    assert_eq!(rest.last().map(String::as_str), Some("19 "));
    assert_eq!(
        pair.coordinator.ended().await,
        Some(0),
        "{}",
        pair.coordinator.output()
    );
}

#[tokio::test]
async fn a_draining_worker_ends_its_streams() {
    let folder = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(folder.path()).await;
    pair.deploy_fake().await;
    let slow = json!({ "prompt": "go", "chunks": 20, "delay_ms": 50, "text": "{n} " });
    let mut running = pair.client.stream("drill", &slow).await.unwrap();
    running.try_next().await.unwrap().expect("a first text");

    pair.worker.signal("TERM").await;
    let rest: Vec<_> = running.try_collect().await.unwrap();
    assert_eq!(rest.last().map(String::as_str), Some("19 "));
    assert_eq!(
        pair.worker.ended().await,
        Some(0),
        "{}",
        pair.worker.output()
    );
}

#[tokio::test]
async fn a_second_signal_does_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(folder.path()).await;
    pair.deploy_fake().await;
    let endless = json!({ "prompt": "go", "chunks": 1000, "delay_ms": 100 });
    let mut running = pair.client.stream("drill", &endless).await.unwrap();
    running.try_next().await.unwrap().expect("a first text");

    pair.coordinator.signal("INT").await;
    let draining = async || pair.coordinator.output().contains("draining").then_some(());
    until("draining", draining).await;
    pair.coordinator.signal("INT").await;
    let ended = tokio::time::timeout(Duration::from_secs(15), pair.coordinator.ended()).await;
    assert_eq!(ended.unwrap(), Some(130));
}

/// Needs ONNX Runtime, which `scripts/get-ort.sh` fetches.
#[tokio::test]
async fn up_brings_demo_models_and_finds_them_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for life in ["first", "second"] {
        let arguments = ["up", "--port", "0", "--data-dir", data.to_str().unwrap()];
        let mut up = Node::start(&arguments, &folder.path().join(life));
        let url = until("its greeting", async || {
            let ended = up.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", up.output());
            let output = up.output();
            let url = output
                .split_whitespace()
                .find(|word| word.starts_with("http://"))?;
            output.contains("Ctrl-C").then(|| url.to_owned())
        })
        .await;
        let list = text(&volley(&["--url", &url, "model", "list", "--json"]).await);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let names: Vec<_> = list.as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 2, "{list}");
        for model in names {
            assert_eq!(model["model_state"], "DEPLOYED");
            assert_eq!(
                model["versions"],
                json!([1]),
                "no version is added by a restart"
            );
        }
        let story = text(&volley(&["--url", &url, "predict", "storyteller", FOX]).await);
        assert!(story.starts_with("Once there was"), "{story}");
        up.signal("INT").await;
        assert_eq!(up.ended().await, Some(0), "{}", up.output());
    }
}

/// Installs the crypto provider that the client needs, as the binary does.
fn crypto() {
    // An error only means that another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
