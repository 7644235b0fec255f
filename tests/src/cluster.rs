//! Whole clusters.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use futures::TryStreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use volley_client::{Client, ClientError, Status};

use crate::process::{Process, Setting, free_port};
use crate::until;

/// How long a write may wait here for a leader and a slow disk: a machine that runs all stories at
/// once may take longer than the usual two seconds, which no story is about that does not say so.
const PATIENT: &str = "[raft]\nwrite_timeout = \"10s\"\n";

/// One node: its process where it runs, and how to start it.
pub struct Node {
    /// The process.
    pub process: Option<Process>,
    /// Its name; a coordinator's data are in a folder of that name.
    pub name: String,
    role: &'static str,
    /// How its process is other than most, from its next start on.
    pub setting: Setting,
    /// Its configuration file.
    pub config: PathBuf,
    /// The public address of a coordinator, the health address of a worker.
    pub http: String,
    /// The internal address of a coordinator, the Flight address of a worker.
    pub internal: String,
}

/// Coordinators and workers with their files in one temporary folder.
pub struct Cluster {
    /// Coordinators; their ids are their places from 1.
    pub coordinators: Vec<Node>,
    /// Workers, `worker-1` and so on.
    pub workers: Vec<Node>,
    /// The API key that its clients show, where it wants one.
    pub key: Option<String>,
    folder: TempDir,
}

/// A client of the coordinators at these addresses.
///
/// # Panics
/// When one is malformed.
#[must_use]
pub fn client(addresses: &[&str]) -> Client {
    // The second client of a process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let urls: Vec<_> = addresses
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    Client::new(&urls).expect("good URLs")
}

impl Node {
    fn new(name: String, role: &'static str, folder: &Path) -> Self {
        Self {
            process: None,
            config: folder.join(format!("{name}.toml")),
            http: format!("127.0.0.1:{}", free_port()),
            internal: format!("127.0.0.1:{}", free_port()),
            name,
            role,
            setting: Setting::default(),
        }
    }

    /// Starts the node's process.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(&mut self) {
        let config = self.config.to_string_lossy();
        let folder = self.config.parent().expect("a folder");
        let arguments = [self.role, "--config", &config];
        let process = Process::start_as(&self.name, &arguments, folder, &self.setting);
        self.process = Some(process);
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
    }

    /// SIGTERM, and waits for a clean end.
    ///
    /// # Panics
    /// When it does not end cleanly.
    pub async fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate();
            assert!(
                process.ended().await.success(),
                "{} ends cleanly",
                self.name
            );
        }
    }
}

impl Cluster {
    /// Writes the files of a cluster; nothing runs yet.
    ///
    /// # Panics
    /// When a file cannot be written.
    #[must_use]
    pub fn new(coordinators: usize, workers: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let nodes = |count: usize, name: &str, role: &'static str| -> Vec<Node> {
            (1..=count)
                .map(|index| Node::new(format!("{name}-{index}"), role, folder.path()))
                .collect()
        };
        let coordinators = nodes(coordinators, "coordinator", "coordinator");
        let workers = nodes(workers, "worker", "worker");
        let cluster = Self {
            coordinators,
            workers,
            key: None,
            folder,
        };
        let mut bootstrap = "[cluster.bootstrap]\n".to_owned();
        for (index, node) in cluster.coordinators.iter().enumerate() {
            let _ = writeln!(bootstrap, "{} = \"{}\"", index + 1, node.internal);
        }
        for (index, node) in cluster.coordinators.iter().enumerate() {
            cluster.write_coordinator(node, index + 1, &bootstrap);
        }
        for node in &cluster.workers {
            cluster.write_worker(node);
        }
        cluster
    }

    /// A running cluster with a leader.
    pub async fn start(coordinators: usize, workers: usize) -> Self {
        let mut cluster = Self::new(coordinators, workers);
        cluster.run().await;
        cluster
    }

    fn write_coordinator(&self, node: &Node, id: usize, cluster: &str) {
        let data = self.folder.path().join(&node.name);
        let text = format!(
            "version = 1\n\n[node]\nid = {id}\ndata_dir = {data:?}\n\n[listen]\npublic = {:?}\n\
             internal = {:?}\n\n{cluster}\n{PATIENT}\n[requests]\nmax_body_size = \"1MiB\"\n\n\
             [resume]\nwindow = \"60s\"\n\n[shutdown]\ndrain_timeout = \"20s\"\n",
            node.http, node.internal
        );
        std::fs::write(&node.config, text).expect("a configuration");
    }

    fn write_worker(&self, node: &Node) {
        let coordinators: Vec<_> = self
            .coordinators
            .iter()
            .map(|node| &node.internal)
            .collect();
        let text = format!(
            "version = 1\n\n[node]\nid = {:?}\n\n[listen]\nflight = {:?}\nhttp = {:?}\n\n\
             [cluster]\ncoordinators = {coordinators:?}\n\n[shutdown]\ndrain_timeout = \"20s\"\n",
            node.name, node.internal, node.http
        );
        std::fs::write(&node.config, text).expect("a configuration");
    }

    /// Where the nodes keep their files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Gives a worker labels, before it is started.
    ///
    /// # Panics
    /// When its configuration cannot be written.
    pub fn label_worker(&self, worker: usize, labels: &[(&str, &str)]) {
        let file = &self.workers[worker].config;
        let text = std::fs::read_to_string(file).expect("a configuration");
        let pairs = labels
            .iter()
            .map(|(name, value)| format!("{name} = {value:?}"));
        let labels = pairs.collect::<Vec<_>>().join(", ");
        let text = text.replacen("[node]\n", &format!("[node]\nlabels = {{ {labels} }}\n"), 1);
        std::fs::write(file, text).expect("a configuration");
    }

    /// Changes the file of a coordinator that does not run yet.
    ///
    /// # Panics
    /// When it cannot be read or written.
    pub fn configure(&self, coordinator: usize, change: impl FnOnce(String) -> String) {
        let path = &self.coordinators[coordinator].config;
        let text = std::fs::read_to_string(path).expect("a configuration");
        std::fs::write(path, change(text)).expect("a configuration");
    }

    /// Lets writes wait for no longer than they do where nobody says how long; nothing runs yet.
    ///
    /// # Panics
    /// When a file cannot be read or written.
    pub fn with_the_usual_write_timeout(&self) {
        for coordinator in 0..self.coordinators.len() {
            self.configure(coordinator, |text| {
                assert!(text.contains(PATIENT), "{text}");
                text.replacen(PATIENT, "", 1)
            });
        }
    }

    /// Adds `text` to the file of every node; nothing runs yet.
    ///
    /// # Panics
    /// When a file cannot be read or written.
    pub fn append(&self, text: &str) {
        for node in self.coordinators.iter().chain(&self.workers) {
            let before = std::fs::read_to_string(&node.config).expect("a configuration");
            std::fs::write(&node.config, before + text).expect("a configuration");
        }
    }

    /// Starts all its nodes, and waits until there is a leader.
    pub async fn run(&mut self) {
        for node in self.coordinators.iter_mut().chain(&mut self.workers) {
            node.start();
        }
        self.wait_for_leader().await;
    }

    /// Adds a coordinator that will ask to join; gives its place.
    pub fn add_coordinator(&mut self) -> usize {
        let seeds: Vec<_> = self
            .coordinators
            .iter()
            .map(|node| &node.internal)
            .collect();
        let section = format!("[cluster]\njoin = {seeds:?}\n");
        self.add_coordinator_with(|_, _| section)
    }

    /// Adds a coordinator whose `[cluster]` is made of its id and internal address; gives its
    /// place.
    pub fn add_coordinator_with(&mut self, section: impl FnOnce(usize, &str) -> String) -> usize {
        let id = self.coordinators.len() + 1;
        let node = Node::new(
            format!("coordinator-{id}"),
            "coordinator",
            self.folder.path(),
        );
        let section = section(id, &node.internal);
        self.write_coordinator(&node, id, &section);
        self.coordinators.push(node);
        id - 1
    }

    /// A client of one coordinator.
    #[must_use]
    pub fn client(&self, coordinator: usize) -> Client {
        let client = client(&[&self.coordinators[coordinator].http]);
        match &self.key {
            Some(key) => client.with_key(key).expect("a good key"),
            None => client,
        }
    }

    /// Waits until every running coordinator knows a leader; gives its place.
    pub async fn wait_for_leader(&self) -> usize {
        let mut leader = 0;
        for (index, node) in self.coordinators.iter().enumerate() {
            if node.process.is_none() {
                continue;
            }
            let client = self.client(index);
            leader = until("a leader", || async {
                let status = client.status().await.ok()?;
                let leader = usize::try_from(status.node.leader?).ok()? - 1;
                self.coordinators[leader]
                    .process
                    .is_some()
                    .then_some(leader)
            })
            .await;
        }
        leader
    }

    /// Waits until a coordinator sees a status that `met` accepts.
    pub async fn wait(&self, coordinator: usize, what: &str, met: impl Fn(&Status) -> bool) {
        let client = self.client(coordinator);
        until(what, || async {
            client
                .status()
                .await
                .ok()
                .filter(|status| met(status))
                .map(drop)
        })
        .await;
    }

    /// Registers and deploys a model, and waits until every coordinator sees it deployed.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn deploy(&self, body: &Value, replicas: u32) {
        let client = self.client(0);
        let model = client.register(body).await.expect("registered").model_id;
        client.deploy(&model, replicas).await.expect("deploying");
        for index in 0..self.coordinators.len() {
            if self.coordinators[index].process.is_some() {
                self.wait_until_deployed(index, &model).await;
            }
        }
    }

    /// Waits until a coordinator sees a model deployed.
    pub async fn wait_until_deployed(&self, coordinator: usize, model: &str) {
        let deployed = |status: &Status| {
            status
                .models
                .iter()
                .any(|seen| seen.id == model && seen.state == "DEPLOYED")
        };
        self.wait(coordinator, "the model is deployed", deployed)
            .await;
    }
}

/// Streams a prompt's answer to its end.
///
/// # Errors
/// What the client says.
pub async fn tell(client: &Client, model: &str, prompt: &str) -> Result<String, ClientError> {
    tell_with(client, model, &json!({ "prompt": prompt })).await
}

/// Streams an answer to its end.
///
/// # Errors
/// What the client says.
pub async fn tell_with(
    client: &Client,
    model: &str,
    parameters: &Value,
) -> Result<String, ClientError> {
    let texts: Vec<String> = client
        .stream(model, parameters)
        .await?
        .try_collect()
        .await?;
    Ok(texts.concat())
}
