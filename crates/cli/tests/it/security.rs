//! A cluster of processes with keys, TLS at the edge and certificates between nodes.

use std::path::Path;

use serde_json::{Value, json};
use volley_client::{Client, ClientError};
use volley_security::audit;

use crate::certificates::{Authority, Files};
use crate::support::{Node, complaint, free_ports, text, until, volley};

fn section(files: &Files) -> String {
    format!(
        "[security.nodes]\ncertificate = {:?}\nkey = {:?}\nauthority = {:?}\n",
        files.certificate, files.key, files.authority
    )
}

fn start(folder: &Path, role: &str, name: &str, file: &str) -> Node {
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, file).unwrap();
    let arguments = [role, "--config", path.to_str().unwrap()];
    Node::start(&arguments, &folder.join(format!("{name}.log")))
}

/// Two coordinators and a worker, all on addresses other than 127.0.0.1.
struct Secured {
    folder: tempfile::TempDir,
    nodes: Vec<Node>,
    urls: [String; 2],
    authority: Vec<u8>,
    bootstrap: String,
}

impl Secured {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let authority = Authority::new();
        let bootstrap = text(&volley(&["key", "bootstrap"]).await);
        std::fs::write(at.join("bootstrap.key"), &bootstrap).unwrap();
        let edge = authority.write(at, "edge", None);
        let ports: [u16; 6] = free_ports();
        let [rest_1, internal_1, rest_2, internal_2, flight, http] = ports;
        let mut nodes = Vec::new();
        for (id, rest, internal) in [(1, rest_1, internal_1), (2, rest_2, internal_2)] {
            let uri = format!("volley://coordinator/{id}");
            let files = authority.write(at, &format!("coordinator-{id}"), Some(&uri));
            let file = format!(
                "version = 1\n[node]\nid = {id}\ndata_dir = {:?}\n\
                 [listen]\npublic = \"0.0.0.0:{rest}\"\ninternal = \"0.0.0.0:{internal}\"\n\
                 advertise = \"127.0.0.1:{internal}\"\n\
                 [cluster.bootstrap]\n1 = \"127.0.0.1:{internal_1}\"\n2 = \"127.0.0.1:{internal_2}\"\n\
                 [security]\nbootstrap_key_file = {:?}\n\
                 [security.tls]\ncertificate = {:?}\nkey = {:?}\n{}",
                at.join(format!("data-{id}")),
                at.join("bootstrap.key"),
                edge.certificate,
                edge.key,
                section(&files),
            );
            nodes.push(start(
                at,
                "coordinator",
                &format!("coordinator-{id}"),
                &file,
            ));
        }
        let files = authority.write(at, "worker", Some("volley://worker/w"));
        let file = format!(
            "version = 1\n[node]\nid = \"w\"\n\
             [listen]\nflight = \"0.0.0.0:{flight}\"\nhttp = \"127.0.0.1:{http}\"\n\
             advertise = \"127.0.0.1:{flight}\"\n\
             [cluster]\ncoordinators = [\"127.0.0.1:{internal_1}\", \"127.0.0.1:{internal_2}\"]\n{}",
            section(&files)
        );
        nodes.push(start(at, "worker", "worker", &file));
        Self {
            nodes,
            urls: [rest_1, rest_2].map(|port| format!("https://127.0.0.1:{port}")),
            authority: std::fs::read(edge.authority).unwrap(),
            bootstrap,
            folder,
        }
    }

    fn client(&self, coordinator: usize, key: &str) -> Client {
        let client = Client::new(&[&self.urls[coordinator]]).unwrap();
        let client = client.with_authority(&self.authority).unwrap();
        client.with_key(key).unwrap()
    }

    fn output(&self) -> String {
        self.nodes.iter().map(Node::output).collect()
    }
}

#[tokio::test]
async fn a_secured_cluster_elects_serves_and_lets_nobody_else_in() {
    let cluster = Secured::start().await;
    let admins = [0, 1].map(|index| cluster.client(index, &cluster.bootstrap));
    for admin in &admins {
        until("a leader and a worker at each coordinator", async || {
            let status = admin.status().await.ok()?;
            let alive = status.workers.iter().any(|w| w.liveness == "alive");
            (alive && status.node.leader.is_some()).then_some(())
        })
        .await;
    }

    // Writes at both coordinators: one of them forwards to the other.
    admins[0].register_text_model("team-a.words").await.unwrap();
    admins[1].deploy("team-a.words", 1).await.unwrap();
    let body = json!({ "name": "app", "role": "predict", "models": ["team-a.*"] });
    let made = admins[1].create_key(&body).await.unwrap();
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    let app = cluster.client(0, key);
    let question = json!({ "parameters": { "prompt": "one two" } });
    let answer = until("the model is ready", async || {
        app.predict("team-a.words", &question).await.ok()
    })
    .await;
    assert!(answer.to_string().contains("one two"), "{answer}");

    // Metrics announce the expiry of certificates.
    let told = admins[0].metrics().await.unwrap();
    for what in ["edge", "node", "authority"] {
        let name = format!("volley_certificate_expiry_timestamp_seconds{{use=\"{what}\"}} ");
        let end = told.lines().find_map(|line| line.strip_prefix(&name));
        let end: i64 = end.expect("an end").parse().unwrap();
        // All three expire in the fifth millennium.
        assert!(end > 60_000_000_000, "{what} ends at {end}");
    }

    // An action that the key does not allow, no key, no TLS, and another CA.
    let refused = app.deploy("team-a.words", 2).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 403, .. }));
    let nobody = Client::new(&[&cluster.urls[0]]).unwrap();
    let nobody = nobody.with_authority(&cluster.authority).unwrap();
    let refused = nobody.status().await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 401, .. }));
    until("who has no key sees that it is ready", async || {
        nobody.ready().await.unwrap().then_some(())
    })
    .await;
    let plain = cluster.urls[0].replace("https", "http");
    assert!(Client::new(&[&plain]).unwrap().ready().await.is_err());
    let doubting = Client::new(&[&cluster.urls[0]]).unwrap();
    assert!(
        doubting.ready().await.is_err(),
        "an authority it does not know"
    );

    for (url, advice) in [(&cluster.urls[0], "--ca-file"), (&plain, "https://")] {
        let told = complaint(&volley(&["--url", url, "status"]).await, 1);
        assert!(told.contains(advice), "{told}");
    }

    admins[0].revoke_key(id).await.unwrap();
    until("the revocation is everywhere", async || {
        let refused = app.predict("team-a.words", &question).await.err()?;
        matches!(refused, ClientError::Refused { status: 401, .. }).then_some(())
    })
    .await;

    // No output contains a secret.
    let secret = key.splitn(3, '_').nth(2).unwrap();
    let boot = cluster.bootstrap.trim().splitn(3, '_').nth(2).unwrap();
    let log = cluster.output();
    assert!(!log.contains(secret) && !log.contains(boot));
    for id in [1, 2] {
        let data = cluster.folder.path().join(format!("data-{id}"));
        for entry in std::fs::read_dir(&data).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap_or_default();
            let holds = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
            assert!(!holds(secret) && !holds(boot));
        }
        assert!(audit::verify(&data.join("audit.jsonl")).unwrap().head.seq >= 1);
    }
}

#[tokio::test]
async fn what_others_could_reach_does_not_start_without_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let up = ["up", "--host", "0.0.0.0", "--port", "0", "--data-dir", data];
    let complaint = complaint(&volley(&up).await, 1);
    assert!(complaint.contains("volley key bootstrap"), "{complaint}");
    assert!(complaint.contains("--bootstrap-key-file"), "{complaint}");
}

#[tokio::test]
async fn keys_are_managed_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let [rest, internal] = free_ports();
    let bootstrap = text(&volley(&["key", "bootstrap"]).await);
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, &bootstrap).unwrap();
    let file = format!(
        "version = 1\n[node]\nid = 1\ndata_dir = {:?}\n\
         [listen]\npublic = \"127.0.0.1:{rest}\"\ninternal = \"127.0.0.1:{internal}\"\n\
         [cluster.bootstrap]\n1 = \"127.0.0.1:{internal}\"\n\
         [security]\nbootstrap_key_file = {key_file:?}\n",
        folder.path().join("data")
    );
    let _node = start(folder.path(), "coordinator", "coordinator", &file);
    let url = format!("http://127.0.0.1:{rest}");
    let run = async |key: &str, arguments: &[&str]| {
        volley(&[&["--url", &url, "--api-key", key], arguments].concat()).await
    };
    let create = ["key", "create", "app", "--role", "viewer", "--json"];
    let made = until("the first key", async || {
        let made = run(&bootstrap, &create).await;
        made.status.success().then(|| text(&made))
    })
    .await;
    let made: Value = serde_json::from_str(&made).unwrap();
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    let list = text(&run(&bootstrap, &["key", "list"]).await);
    assert!(list.contains(id) && list.contains("viewer"), "{list}");
    text(&run(key, &["status"]).await);
    let refused = complaint(&run(key, &["key", "list"]).await, 1);
    assert!(refused.contains("cluster-admin"), "{refused}");

    let rotated = text(&run(&bootstrap, &["key", "rotate", id, "--grace", "1h"]).await);
    for key in [key, rotated.trim()] {
        text(&run(key, &["status"]).await);
    }
    text(&run(&bootstrap, &["key", "revoke", id]).await);
    let refused = complaint(&run(rotated.trim(), &["status"]).await, 1);
    assert!(refused.contains("VOLLEY_API_KEY"), "{refused}");
    let trail = folder.path().join("data/audit.jsonl");
    let checked = text(&volley(&["audit", trail.to_str().unwrap()]).await);
    assert!(checked.contains("is valid"), "{checked}");
}

/// The certificate of a removed node is still held by its owner, but its rights end with the
/// membership.
#[tokio::test]
async fn a_coordinator_that_was_removed_opens_nothing_with_its_certificate() {
    let cluster = Secured::start().await;
    let admins = [0, 1].map(|index| cluster.client(index, &cluster.bootstrap));
    for admin in &admins {
        until("a leader and a worker at each coordinator", async || {
            let status = admin.status().await.ok()?;
            let alive = status.workers.iter().any(|w| w.liveness == "alive");
            (alive && status.node.leader.is_some()).then_some(())
        })
        .await;
    }
    admins[0].register_text_model("words").await.unwrap();
    admins[0].deploy("words", 1).await.unwrap();
    let question = json!({ "parameters": { "prompt": "one two" } });
    for admin in &admins {
        until("both coordinators call the worker", async || {
            admin.predict("words", &question).await.ok()
        })
        .await;
    }
    let ca = cluster.folder.path().join("ca.pem");
    std::fs::write(&ca, &cluster.authority).unwrap();
    let key = cluster.folder.path().join("bootstrap.key");
    let key = std::fs::read_to_string(key).unwrap();
    let arguments = ["--url", &cluster.urls[0], "--ca-file", ca.to_str().unwrap()];
    let arguments = [
        &arguments[..],
        &["--api-key", key.trim(), "cluster", "remove", "2"],
    ]
    .concat();
    until("it is removed", async || {
        volley(&arguments).await.status.success().then_some(())
    })
    .await;
    // The existing connection to the worker stays open; calls on it are rejected.
    until("the worker refuses the removed one", async || {
        admins[1].predict("words", &question).await.err()
    })
    .await;
    admins[0].predict("words", &question).await.unwrap();
    // Another coordinator does not accept its writes either.
    let refused = admins[1].register_text_model("late").await.unwrap_err();
    assert!(
        matches!(refused, ClientError::Refused { status: 503, .. }),
        "{refused:?}"
    );
    assert!(admins[0].register_text_model("on").await.is_ok());
}
