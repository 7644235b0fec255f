//! Measures how long the registry accepts no writes after its leader was killed.
//!
//! Three coordinators run as separate processes. Each round kills the leader with SIGKILL, writes
//! to the survivors until one of them acknowledges, restarts the killed coordinator and waits until
//! it has caught up. At the end every acknowledged write must exist.
//!
//! `cargo run -p volley-cluster --example failover [-- ROUNDS]`
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use volley_cluster::{Cluster, ClusterConfig};
use volley_proto::raft::v1::WriteRequest;
use volley_proto::raft::v1::membership_service_client::MembershipServiceClient;
use volley_proto::registry_records::{command_to_wire, reply_from_wire};
use volley_types::registry::{BackendName, ModelSource, ModelVersionSpec, RegistryCommand};
use volley_types::{ModelName, ModelVersion, NodeId, Parameters};

type AnyError = Box<dyn Error + Send + Sync>;

const NODES: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["node", id, directory, address] => {
            run_node(id.parse()?, Path::new(directory), address).await
        }
        [] => measure(30).await,
        [rounds] => measure(rounds.parse()?).await,
        _ => Err("usage: failover [ROUNDS]".into()),
    }
}

// === The measurement ===

async fn measure(rounds: usize) -> Result<(), AnyError> {
    let directory = std::env::temp_dir().join(format!("volley-failover-{}", std::process::id()));
    let mut nodes = Vec::new();
    for id in 1..=NODES {
        nodes.push(Node::start(id, directory.join(id.to_string()), "127.0.0.1:0").await?);
    }
    let members: Vec<String> = nodes
        .iter()
        .map(|node| format!("{}={}", node.id, node.address))
        .collect();
    for node in &mut nodes {
        node.say(&members.join(",")).await?;
    }

    let mut pauses = Vec::new();
    let mut failed_tries = 0;
    let mut acknowledged = Vec::new();
    for round in 0..rounds {
        let leader = settled_leader(&mut nodes).await?;
        let address = nodes[leader].address.clone();
        let killed = Instant::now();
        nodes[leader].process.start_kill()?;
        let survivor = (leader + 1 + round % 2) % nodes.len();
        acknowledged.push(write_until_done(&mut nodes[survivor], round, &mut failed_tries).await?);
        let pause = killed.elapsed();
        println!(
            "round {round}: writes resumed after {} ms",
            pause.as_millis()
        );
        pauses.push(pause);

        nodes[leader].process.wait().await?;
        let (id, files) = (nodes[leader].id, nodes[leader].directory.clone());
        nodes[leader] = Node::start(id, files, &address).await?;
    }
    settled_leader(&mut nodes).await?;
    let lost = count_lost(&mut nodes[0], &acknowledged).await?;
    for node in &mut nodes {
        node.process.kill().await?;
    }
    std::fs::remove_dir_all(&directory)?;

    pauses.sort_unstable();
    let at = |percent: usize| {
        let rank = (pauses.len() * percent).div_ceil(100).max(1);
        pauses[rank - 1].as_millis()
    };
    println!(
        "leader killed to write acknowledged, {rounds} rounds: p50 {} ms, p99 {} ms, max {} ms",
        at(50),
        at(99),
        at(100)
    );
    println!("writes that failed before one was acknowledged: {failed_tries}");
    println!("acknowledged writes lost: {lost} of {}", acknowledged.len());
    if lost == 0 {
        Ok(())
    } else {
        Err("acknowledged writes were lost".into())
    }
}

/// Waits until all nodes follow the same leader and have applied the same log.
async fn settled_leader(nodes: &mut [Node]) -> Result<usize, AnyError> {
    let wait = async {
        loop {
            let reports: Vec<Report> = nodes
                .iter()
                .map(|node| node.report.borrow().clone())
                .collect();
            let first = &reports[0];
            let settled = first.leader != 0
                && reports
                    .iter()
                    .all(|report| report.leader == first.leader && report.applied == first.applied);
            if settled && let Some(leader) = nodes.iter().position(|node| node.id == first.leader) {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    Ok(tokio::time::timeout(PATIENCE, wait).await?)
}

/// Registers the model `round-N` repeatedly until the reply confirms it.
async fn write_until_done(
    node: &mut Node,
    round: usize,
    failed_tries: &mut usize,
) -> Result<ModelName, AnyError> {
    let name = ModelName::new(format!("round-{round}"))?;
    let spec = ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    };
    let command = RegistryCommand::RegisterModel(name.clone(), spec);
    let by = Instant::now() + PATIENCE;
    while Instant::now() < by {
        match node.write(&command).await {
            Ok(()) => return Ok(name),
            Err(_) => *failed_tries += 1,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("writes did not resume".into())
}

/// Deletes the acknowledged models. A failed deletion is a lost write.
async fn count_lost(node: &mut Node, acknowledged: &[ModelName]) -> Result<usize, AnyError> {
    let mut lost = 0;
    for name in acknowledged {
        let command = command_to_wire(&RegistryCommand::DeleteModel(name.clone()));
        let request = WriteRequest {
            command: Some(command),
            forwarded: false,
        };
        let reply = node.client.write(request).await?;
        lost += usize::from(reply_from_wire(reply.into_inner()).is_err());
    }
    Ok(lost)
}

// === A node, seen from outside ===

/// State of a node in the lines that it prints, one for each change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Report {
    leader: u64,
    applied: u64,
}

struct Node {
    id: u64,
    address: String,
    directory: PathBuf,
    process: Child,
    stdin: ChildStdin,
    report: watch::Receiver<Report>,
    client: MembershipServiceClient<Channel>,
}

impl Node {
    async fn start(id: u64, directory: PathBuf, address: &str) -> Result<Self, AnyError> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["node", &id.to_string()])
            .arg(&directory)
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = process.stdin.take().ok_or("no stdin")?;
        let stdout = process.stdout.take().ok_or("no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let address = lines.next_line().await?.ok_or("the node ended")?;
        let (send, report) = watch::channel(Report::default());
        tokio::spawn(read_reports(lines, send));
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        Ok(Self {
            id,
            address,
            directory,
            process,
            stdin,
            report,
            client: MembershipServiceClient::new(channel),
        })
    }

    async fn say(&mut self, line: &str) -> Result<(), AnyError> {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    async fn write(&mut self, command: &RegistryCommand) -> Result<(), tonic::Status> {
        let request = WriteRequest {
            command: Some(command_to_wire(command)),
            forwarded: false,
        };
        let reply = self.client.write(request).await?.into_inner();
        reply_from_wire(reply)
            .map(|_| ())
            .map_err(|error| tonic::Status::unknown(error.message))
    }
}

async fn read_reports(mut lines: Lines<BufReader<ChildStdout>>, reports: watch::Sender<Report>) {
    while let Ok(Some(line)) = lines.next_line().await {
        let mut numbers = line.split(' ').filter_map(|number| number.parse().ok());
        if let (Some(leader), Some(applied)) = (numbers.next(), numbers.next()) {
            reports.send_replace(Report { leader, applied });
        }
    }
}

// === The node itself ===

/// Serves the Raft node of one coordinator, and prints its address and then its state. The first
/// line of its input, if any, is the first membership.
async fn run_node(id: u64, directory: &Path, address: &str) -> Result<(), AnyError> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("{address}");
    let config = ClusterConfig::new(NodeId(id), directory, address.to_string());
    let cluster = Cluster::start(config).await?;
    let (raft, membership) = cluster.services();
    let server = tonic::transport::Server::builder()
        .add_service(raft)
        .add_service(membership)
        .serve_with_incoming(
            tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true)),
        );
    let (bootstrapped, mut status) = (cluster.clone(), cluster.raft());
    let bootstrap = async move {
        let line = tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await?;
        if let Some(line) = line {
            bootstrapped.bootstrap(parse_members(&line?)?).await?;
        }
        Ok::<_, AnyError>(())
    };
    let report = async move {
        loop {
            {
                let status = status.borrow_and_update();
                let leader = status.leader.map_or(0, |leader| leader.0);
                println!("{leader} {}", status.last_applied.unwrap_or_default());
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::spawn(report);
    tokio::spawn(async move {
        if let Err(error) = bootstrap.await {
            eprintln!("not bootstrapped: {error}");
        }
    });
    Ok(server.await?)
}

fn parse_members(line: &str) -> Result<BTreeMap<NodeId, String>, AnyError> {
    let members = line.split(',').map(|member| {
        let (id, address) = member.split_once('=').ok_or("a member is ID=ADDRESS")?;
        Ok((NodeId(id.parse()?), address.to_owned()))
    });
    members.collect()
}
