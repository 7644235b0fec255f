//! The cluster under test: three coordinators and three workers, each on a host of its own.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use volley_client::Client;

use super::disk::Disk;
use super::net::{HERE, Host, Network};
use super::proxy::Proxy;
use crate::process::faketime;

/// How many coordinators.
pub const COORDINATORS: usize = 3;
/// How many workers; the last one is reached through the proxy.
pub const WORKERS: usize = 3;
/// The disk of a coordinator. Full, it holds no more than this.
const DISK_MB: u64 = 256;
const PUBLIC: u16 = 8420;
const INTERNAL: u16 = 8421;
const PROXY: u16 = 9000;

/// One node.
#[derive(Debug)]
pub struct Node {
    /// `coordinator-1`, `worker-1` and so on.
    pub name: String,
    /// Its host.
    pub host: Host,
    /// Where a coordinator keeps its data: a disk of its own.
    pub disk: Option<Disk>,
    role: &'static str,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

/// The cluster.
#[derive(Debug)]
pub struct TestBed {
    /// Coordinators, then workers.
    pub nodes: Vec<Node>,
    /// The way to the last worker.
    pub proxy: Proxy,
    volley: PathBuf,
    // Goes last: nodes end before their hosts.
    _network: Network,
}

impl TestBed {
    /// Makes the hosts, writes the files into `folder`, and starts the binary `volley` on each.
    ///
    /// # Errors
    /// When this machine does not allow it.
    pub async fn start(volley: PathBuf, folder: &Path) -> Result<Self, String> {
        let hosts = u8::try_from(COORDINATORS + WORKERS).map_err(|error| error.to_string())?;
        let network = Network::make(hosts)?;
        let mut nodes = Vec::new();
        for (index, host) in network.hosts().iter().enumerate() {
            nodes.push(Node::new(index, host.clone(), folder)?);
        }
        let behind = &nodes[COORDINATORS + WORKERS - 1].host;
        let target = SocketAddr::new(IpAddr::V4(behind.address), INTERNAL);
        let listen = SocketAddr::new(IpAddr::V4(HERE), PROXY);
        let proxy = Proxy::start(listen, target);
        let proxy = proxy.await.map_err(|error| format!("the proxy: {error}"))?;
        for node in &nodes {
            let config = node.config_text(&nodes);
            std::fs::write(&node.config, config).map_err(|error| error.to_string())?;
        }
        let mut bed = Self {
            nodes,
            proxy,
            volley,
            _network: network,
        };
        for index in 0..bed.nodes.len() {
            bed.begin(index, None)?;
        }
        Ok(bed)
    }

    /// Starts the process of a node that does not run, with its clock off by `skew`, as
    /// `faketime` has it (`+1h`).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin(&mut self, index: usize, skew: Option<&str>) -> Result<(), String> {
        let volley = self.volley.clone();
        self.nodes[index].begin(&volley, skew)
    }

    /// Starts a second process of a coordinator on its host, over `data` and at other ports. Gives
    /// it, and where it writes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin_second(&self, index: usize, data: &Path) -> Result<(Child, PathBuf), String> {
        let node = &self.nodes[index];
        let said = |error: std::io::Error| error.to_string();
        let own = node.disk.as_ref().ok_or("a node with no disk")?;
        let own = format!("{:?}", own.folder.join("data"));
        let second = format!("{}:{}", node.host.address, INTERNAL + 10);
        let text = std::fs::read_to_string(&node.config).map_err(said)?;
        let text = text
            .replace(&own, &format!("{data:?}"))
            .replace(&node.internal(), &second)
            .replace(&format!(":{PUBLIC}"), &format!(":{}", PUBLIC + 10));
        let (config, log) = (
            node.config.with_extension("second.toml"),
            node.log.with_extension("second.log"),
        );
        std::fs::write(&config, text).map_err(said)?;
        let out = std::fs::File::create(&log).map_err(said)?;
        let child = Command::new("ip")
            .args(["netns", "exec", &node.host.namespace])
            .arg(&self.volley)
            .args([node.role, "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(said)?)
            .stderr(out)
            .spawn();
        Ok((child.map_err(said)?, log))
    }

    /// A client of one coordinator.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn client(&self, coordinator: usize) -> Result<Client, String> {
        let address = self.nodes[coordinator].host.address;
        let url = format!("http://{address}:{PUBLIC}");
        Client::new(&[url]).map_err(|error| error.to_string())
    }

    /// The coordinator that leads, as the most of them see it.
    pub async fn leader(&self) -> Option<usize> {
        let mut votes = [0; COORDINATORS];
        for index in 0..COORDINATORS {
            let client = self.client(index).ok()?;
            let asked = tokio::time::timeout(Duration::from_secs(1), client.status()).await;
            let Ok(Ok(status)) = asked else { continue };
            let leader = status.node.leader.and_then(|id| usize::try_from(id).ok());
            if let Some(count) = leader.and_then(|id| votes.get_mut(id.checked_sub(1)?)) {
                *count += 1;
            }
        }
        let most = votes.iter().max().filter(|count| **count != 0)?;
        votes.iter().position(|count| count == most)
    }

    /// Places of the nodes that run as one process or another.
    #[must_use]
    pub fn workers() -> std::ops::Range<usize> {
        COORDINATORS..COORDINATORS + WORKERS
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(disk) = &node.disk {
                disk.thaw();
            }
            node.kill();
        }
    }
}

impl Node {
    fn new(index: usize, host: Host, folder: &Path) -> Result<Self, String> {
        let (role, number) = match index.checked_sub(COORDINATORS) {
            None => ("coordinator", index + 1),
            Some(worker) => ("worker", worker + 1),
        };
        let name = format!("{role}-{number}");
        let disk = match role {
            "coordinator" => {
                let at = folder.join(format!("{name}-data"));
                Some(Disk::make(at, DISK_MB)?)
            }
            _ => None,
        };
        Ok(Self {
            config: folder.join(format!("{name}.toml")),
            log: folder.join(format!("{name}.log")),
            child: None,
            name,
            host,
            disk,
            role,
        })
    }

    fn internal(&self) -> String {
        format!("{}:{INTERNAL}", self.host.address)
    }

    fn config_text(&self, nodes: &[Self]) -> String {
        let coordinators = || nodes.iter().take(COORDINATORS);
        let mut text = String::from("version = 1\n[security]\ninsecure = true\n");
        let result = match &self.disk {
            Some(disk) => {
                let id = self.name.rsplit('-').next().unwrap_or_default();
                let mut members = String::new();
                for (index, node) in coordinators().enumerate() {
                    let _ = writeln!(members, "{} = {:?}", index + 1, node.internal());
                }
                write!(
                    text,
                    "[node]\nid = {id}\ndata_dir = {:?}\n[listen]\npublic = \"{}:{PUBLIC}\"\n\
                     internal = {:?}\n[cluster.bootstrap]\n{members}",
                    disk.folder.join("data"),
                    self.host.address,
                    self.internal()
                )
            }
            None => {
                let seeds: Vec<_> = coordinators().map(Self::internal).collect();
                let is_last = nodes.last().is_some_and(|last| last.name == self.name);
                let advertise = match is_last {
                    true => format!("{HERE}:{PROXY}"),
                    false => self.internal(),
                };
                write!(
                    text,
                    "[node]\nid = {:?}\n[listen]\nflight = {:?}\nadvertise = {advertise:?}\n\
                     http = \"{}:{PUBLIC}\"\n[cluster]\ncoordinators = {seeds:?}\n",
                    self.name,
                    self.internal(),
                    self.host.address
                )
            }
        };
        result.map_or_else(|_| String::new(), |()| text)
    }

    fn begin(&mut self, volley: &Path, skew: Option<&str>) -> Result<(), String> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.map_err(|error| error.to_string())?;
        let second = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host.namespace]);
        if let Some(skew) = skew {
            // Not its wrapper, which would stay as a process between.
            let library = faketime()?;
            command.env("LD_PRELOAD", library).env("FAKETIME", skew);
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let child = command
            .arg(volley)
            .args([self.role, "--config"])
            .arg(&self.config)
            .env("VOLLEY_LOG", "info,openraft=warn")
            .env("VOLLEY_ALLOW_FAKE_BACKEND", "true")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second)
            .spawn();
        self.child = Some(child.map_err(|error| format!("{}: {error}", self.name))?);
        Ok(())
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A process that has ended already is as dead.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal, by the name that `kill` knows.
    pub fn signal(&self, signal: &str) {
        if let Some(child) = &self.child {
            let _ = Command::new("kill")
                .args([signal, &child.id().to_string()])
                .status();
        }
    }

    /// Whether its process runs, where it should.
    pub fn runs(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// The end of what it has written.
    #[must_use]
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(8).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}
