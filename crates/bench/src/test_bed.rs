//! The processes under test: release builds on loopback.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use volley_client::Client;

use crate::load::{EventDialect, Target};
use crate::process::{Process, cpu_of, free_port, until};
use crate::standin::Script;

const LIMIT: Duration = Duration::from_secs(60);
const PROMPT: &str = "Once upon a time";

/// One coordinator, one worker and the stand-in, each in its own process.
pub(crate) struct TestBed {
    coordinator: Process,
    worker: Process,
    standin: Process,
    bare: Mutex<Option<BareLoop>>,
    standin_address: String,
    rest: String,
    pub(crate) client: Client,
    folder: TempDir,
}

/// The process of the bare loop.
struct BareLoop {
    _child: Child,
    asks: ChildStdin,
    answers: tokio::io::Lines<BufReader<ChildStdout>>,
}

/// The path of another binary in the directory of this one.
fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("this program has no folder")?;
    let path = folder.join(name);
    ensure!(
        path.exists(),
        "{} is not built; run scripts/bench.sh",
        path.display()
    );
    Ok(path)
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn client(rest: &str) -> anyhow::Result<Client> {
    Ok(Client::new(&[format!("http://{rest}")])?)
}

async fn wait_until_deployed(client: &Client, model: &str) -> anyhow::Result<()> {
    until("the model is deployed", LIMIT, || async {
        client
            .model(model)
            .await
            .ok()
            .filter(|model| model.model_state == "DEPLOYED")
            .map(drop)
    })
    .await
}

async fn wait_for_leader(client: &Client) -> anyhow::Result<u64> {
    until("a leader", LIMIT, || async {
        client.status().await.ok()?.node.leader
    })
    .await
}

impl TestBed {
    /// Starts all processes and waits until they are ready.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let [standin_port, rest, internal, flight, http] = [
            free_port()?,
            free_port()?,
            free_port()?,
            free_port()?,
            free_port()?,
        ]
        .map(|port| port);
        let own = std::env::current_exe()?;
        let port = standin_port.to_string();
        let log = |name: &str| folder.path().join(name);
        let standin = Process::start(&own, &["standin", "--port", &port], &log("standin.log"))?;
        let coordinator_config = log("coordinator.toml");
        std::fs::write(
            &coordinator_config,
            coordinator_toml(
                1,
                folder.path(),
                &local(rest),
                &local(internal),
                &[(1, local(internal))],
            ),
        )?;
        let worker_config = log("worker.toml");
        let text = format!(
            "version = 1\n\n[node]\nid = \"worker\"\n\n[listen]\nflight = {:?}\nhttp = {:?}\n\n[cluster]\ncoordinators = [{:?}]\n",
            local(flight),
            local(http),
            local(internal)
        );
        std::fs::write(&worker_config, text)?;
        let volley = binary("volley")?;
        let coordinator = start(
            &volley,
            "coordinator",
            &coordinator_config,
            &log("coordinator.log"),
        )?;
        let worker = start(&volley, "worker", &worker_config, &log("worker.log"))?;
        let rest = local(rest);
        let client = client(&rest)?;
        wait_for_leader(&client).await?;
        until("the worker", LIMIT, || async {
            let status = client.status().await.ok()?;
            status
                .workers
                .iter()
                .any(|worker| worker.liveness == "alive")
                .then_some(())
        })
        .await?;
        Ok(Self {
            coordinator,
            worker,
            standin,
            bare: Mutex::new(None),
            standin_address: local(standin_port),
            rest,
            client,
            folder,
        })
    }

    /// CPU time since the start: coordinator, worker, stand-in, this process.
    pub(crate) fn cpu(&self) -> anyhow::Result<[Duration; 4]> {
        let own = cpu_of(std::process::id())?;
        Ok([
            self.coordinator.cpu()?,
            self.worker.cpu()?,
            self.standin.cpu()?,
            own,
        ])
    }

    /// Resident memory in bytes: coordinator, worker.
    pub(crate) fn rss(&self) -> anyhow::Result<[u64; 2]> {
        Ok([self.coordinator.rss()?, self.worker.rss()?])
    }

    /// The address of the REST listener.
    pub(crate) fn public_address(&self) -> &str {
        &self.rest
    }

    /// The stand-in itself, without Volley.
    pub(crate) fn direct(&self, script: &Script) -> Target {
        Target {
            address: self.standin_address.clone(),
            path: format!("/v1/chat/completions?{}", script.query()),
            body: json!({ "model": "standin", "stream": true, "messages": [{ "role": "user", "content": "go" }] })
                .to_string(),
            dialect: EventDialect::OpenAi,
        }
    }

    /// Registers and deploys a remote model whose upstream is the stand-in with `script`.
    pub(crate) async fn remote_model(&self, name: &str, script: &Script) -> anyhow::Result<Target> {
        let connector = json!({
            "connector_id": name,
            "url": format!("http://{}/v1/chat/completions?{}", self.standin_address, script.query()),
            "model": "standin",
        });
        self.client.create_connector(&connector).await?;
        let model = json!({ "name": name, "function_name": "remote", "connector_id": name });
        self.client.register(&model).await?;
        self.client.deploy(name, 1).await?;
        wait_until_deployed(&self.client, name).await?;
        Ok(Target {
            address: self.rest.clone(),
            path: format!("/_plugins/_ml/models/{name}/_predict/stream"),
            body: json!({ "parameters": { "prompt": "go" } }).to_string(),
            dialect: EventDialect::OpenSearch,
        })
    }

    fn storyteller() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller")
    }

    /// Deploys the demo model and returns its id.
    pub(crate) async fn deploy_storyteller(&self) -> anyhow::Result<String> {
        let path = Self::storyteller()
            .canonicalize()
            .context("the demo model")?;
        let model = json!({ "name": "storyteller", "function_name": "onnx", "path": path });
        self.client.register(&model).await?;
        self.client.deploy("storyteller", 1).await?;
        wait_until_deployed(&self.client, "storyteller").await?;
        Ok("storyteller".to_owned())
    }

    /// Runs the `bare` loop or the `engine` without a cluster. Returns tokens per second over all
    /// rows.
    pub(crate) async fn decode_rate(
        &self,
        kind: &str,
        rows: usize,
        tokens: u32,
    ) -> anyhow::Result<f64> {
        let mut bare = self.bare.lock().await;
        let bare = match bare.as_mut() {
            Some(bare) => bare,
            None => bare.insert(BareLoop::start()?),
        };
        bare.asks
            .write_all(format!("{kind} {rows} {tokens}\n").as_bytes())
            .await?;
        let answer = tokio::time::timeout(LIMIT, bare.answers.next_line()).await??;
        Ok(answer.context("the bare loop ended")?.parse()?)
    }

    /// Waits until no stream runs and memory usage has settled.
    pub(crate) async fn wait_until_idle(&self) -> anyhow::Result<()> {
        until("idle", LIMIT, || async {
            let status = self.client.status().await.ok()?;
            (status.active_streams == 0).then_some(())
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    /// The directory of all files of the test bed.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl BareLoop {
    fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(binary("examples/decode_rate")?)
            .arg(TestBed::storyteller())
            .arg(PROMPT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let asks = child.stdin.take().context("no standard input")?;
        let answers = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        Ok(Self {
            _child: child,
            asks,
            answers,
        })
    }
}

fn start(volley: &Path, role: &str, config: &Path, log: &Path) -> anyhow::Result<Process> {
    Process::start(
        volley,
        &[
            "--log",
            "warn,openraft=error,ort=error",
            role,
            "--config",
            &config.to_string_lossy(),
        ],
        log,
    )
}

fn coordinator_toml(
    id: usize,
    folder: &Path,
    rest: &str,
    internal: &str,
    members: &[(usize, String)],
) -> String {
    let data = folder.join(format!("data-{id}"));
    let mut text = format!(
        "version = 1\n\n[node]\nid = {id}\ndata_dir = {data:?}\n\n[listen]\npublic = {rest:?}\ninternal = {internal:?}\n\n[cluster.bootstrap]\n"
    );
    for (id, address) in members {
        let _ = writeln!(text, "{id} = {address:?}");
    }
    text
}

/// A running `volley up`.
pub(crate) struct SingleProcess {
    _process: Process,
    _folder: TempDir,
    rest: String,
}

impl SingleProcess {
    /// Starts it in a new directory.
    pub(crate) async fn start(_: &TestBed) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = until("four free ports", LIMIT, || async {
            let port = free_port().ok()?;
            let free =
                |offset| std::net::TcpListener::bind(("127.0.0.1", port.checked_add(offset)?)).ok();
            (1..4).all(|offset| free(offset).is_some()).then_some(port)
        })
        .await?;
        let data = folder.path().join("data");
        let arguments = [
            "up",
            "--port",
            &port.to_string(),
            "--data-dir",
            &data.to_string_lossy(),
        ];
        let process = Process::start(
            &binary("volley")?,
            &arguments,
            &folder.path().join("up.log"),
        )?;
        Ok(Self {
            _process: process,
            _folder: folder,
            rest: local(port),
        })
    }

    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        client(&self.rest)
    }
}

/// A cluster of coordinators without workers.
pub(crate) struct CoordinatorCluster {
    nodes: Vec<Option<Process>>,
    rest: Vec<String>,
    _folder: TempDir,
}

impl CoordinatorCluster {
    /// Starts `count` coordinators and waits for a leader.
    pub(crate) async fn start(_: &TestBed, count: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = |_| free_port().map(local);
        let rest = (0..count)
            .map(address)
            .collect::<anyhow::Result<Vec<_>>>()?;
        let internal = (0..count)
            .map(address)
            .collect::<anyhow::Result<Vec<_>>>()?;
        let members: Vec<_> = (1..).zip(internal.iter().cloned()).collect();
        let mut nodes = Vec::new();
        for id in 1..=count {
            let config = folder.path().join(format!("{id}.toml"));
            let text = coordinator_toml(
                id,
                folder.path(),
                &rest[id - 1],
                &internal[id - 1],
                &members,
            );
            std::fs::write(&config, text)?;
            let log = folder.path().join(format!("{id}.log"));
            nodes.push(Some(start(
                &binary("volley")?,
                "coordinator",
                &config,
                &log,
            )?));
        }
        let cluster = Self {
            nodes,
            rest,
            _folder: folder,
        };
        for index in 0..count {
            wait_for_leader(&cluster.client(index)?).await?;
        }
        Ok(cluster)
    }

    /// The index of the leader.
    pub(crate) async fn leader(&self) -> anyhow::Result<usize> {
        let leader = wait_for_leader(&self.client(0)?).await?;
        Ok(usize::try_from(leader)? - 1)
    }

    pub(crate) fn client(&self, index: usize) -> anyhow::Result<Client> {
        client(&self.rest[index])
    }

    /// Sends SIGKILL to a coordinator.
    pub(crate) async fn kill(&mut self, index: usize) -> anyhow::Result<()> {
        self.nodes[index]
            .take()
            .context("it was killed before")?
            .kill()
            .await
    }
}
