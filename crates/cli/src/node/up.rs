//! `volley up`: a complete cluster in one process, with demo models.

mod banner;
mod demo;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use volley_artifacts::ArtifactConfig;
use volley_backend_onnx::OnnxConfig;
use volley_backend_python::PythonConfig;
use volley_backend_remote::RemoteConfig;
use volley_backends::OnnxPlan;
use volley_cluster::ClusterConfig;
use volley_coordinator::{Coordinator, CoordinatorConfig};
use volley_flight::server::FlightServerConfig;
use volley_gateway::{ApiConfig, EdgeConfig, GrpcFlavor, Origins};
use volley_types::{NodeId, WorkerId};
use volley_worker::WorkerConfig;

use super::bind;
use super::coordinator::{self, CoordinatorPlan, ExtraListeners, Membership};
use super::uploads;
use super::worker::{self, WorkerPlan};
use crate::args::Up;
use crate::config::otlp;
use crate::config::{self, security::SecurityPlan};
use crate::signals;
use crate::terminal::Terminal;

const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The listeners of `volley up`.
struct Listeners {
    rest: TcpListener,
    internal: TcpListener,
    flight: TcpListener,
    http: TcpListener,
}

/// The addresses of the listeners.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    rest: SocketAddr,
    internal: SocketAddr,
    flight: SocketAddr,
    http: SocketAddr,
}

/// Runs until a signal, then drains.
pub(crate) async fn run(up: Up) -> anyhow::Result<()> {
    let data_dir = up.data_dir.clone().map_or_else(default_data_dir, Ok)?;
    let serve = async |cluster: &LocalCluster<'_>| {
        demo::deploy(cluster.coordinator, &cluster.data_dir.join("models")).await?;
        let text = banner::greeting(&cluster.addresses, cluster.data_dir, cluster.has_keys);
        Terminal::stdout().raw(text.as_bytes())?;
        cluster.shutdown.cancelled().await;
        anyhow::Ok(())
    };
    run_with(up, &data_dir, false, serve).await
}

/// A running cluster of one process.
pub(crate) struct LocalCluster<'a> {
    pub(crate) coordinator: &'a Coordinator,
    addresses: Addresses,
    data_dir: &'a Path,
    has_keys: bool,
    pub(crate) shutdown: CancellationToken,
}

impl LocalCluster<'_> {
    /// The address of the REST listener.
    pub(crate) fn rest(&self) -> SocketAddr {
        self.addresses.rest
    }
}

/// Runs a cluster with its data in `data_dir` until `serve` returns or a signal comes, then drains.
/// With `prints`, each request of the worker and its response are printed.
pub(crate) async fn run_with(
    up: Up,
    data_dir: &Path,
    prints: bool,
    serve: impl AsyncFnOnce(&LocalCluster<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (key, masters) = (up.bootstrap_key_file.clone(), up.master_key_files.clone());
    let mut hidden: Vec<_> = key.iter().chain(&masters).cloned().collect();
    let security = SecurityPlan::of_key_files(key, masters)?;
    let key = "--bootstrap-key-file (or put it into VOLLEY_BOOTSTRAP_KEY)";
    security.allow_callers(
        "--host",
        &SocketAddr::new(up.host, up.port).to_string(),
        key,
    )?;
    let shutdown = signals::shutdown()?;
    std::fs::create_dir_all(data_dir)
        .with_context(|| format!("making the data directory {}", data_dir.display()))?;
    let data_dir = data_dir.canonicalize()?;
    hidden.push(data_dir.clone());
    let listeners = Listeners::open(up.host, up.port).await?;
    let addresses = listeners.addresses()?;
    let (has_keys, own_worker) = (security.keys, security.for_own_worker());

    let mut plan = coordinator_plan(&data_dir, &addresses, security)?;
    plan.grpc = grpc(&up);
    plan.origins = config::cors_origins(&up.cors_origins)?;
    // Shared memory works only if all clients are on this machine.
    plan.api.shared_memory = up.host.is_loopback();
    config::set_size(&mut plan.api.edge.max_body_bytes, up.max_body_size);
    config::set_size(&mut plan.api.edge.max_tensor_bytes, up.max_tensor_size);
    let at = |port: &u16| SocketAddr::new(up.host, *port).to_string();
    plan.also = up.extra_http_ports.iter().map(at).collect();
    plan.admin = up.admin_port.as_ref().map(at);
    let further = ExtraListeners::bind(&plan).await?;
    let mut coordinator =
        coordinator::start(plan, listeners.rest, further, listeners.internal).await?;
    let worker = worker::start(
        WorkerPlan {
            allow_fake: up.fake.allow_fake_backend,
            prints,
            python: python_config(&up, &data_dir, hidden),
            ..worker_plan(&data_dir, &addresses, own_worker)?
        },
        listeners.flight,
        listeners.http,
    )?;
    let cluster = LocalCluster {
        coordinator: &coordinator.coordinator.clone(),
        addresses,
        data_dir: &data_dir,
        has_keys,
        shutdown: shutdown.clone(),
    };
    let served = tokio::select! {
        served = serve(&cluster) => served,
        () = shutdown.cancelled() => Ok(()),
        failed = coordinator.failed() => {
            worker.stop().await;
            return coordinator.abandon(&failed).await;
        }
    };
    coordinator.drain().await;
    worker.stop().await;
    coordinator.stop().await;
    served
}

/// The settings of Python models, which cannot read the `hidden` paths.
fn python_config(up: &Up, data_dir: &Path, hidden: Vec<PathBuf>) -> PythonConfig {
    PythonConfig {
        enabled: up.allow_python,
        environments: data_dir.join("python"),
        hidden,
        ..worker::python_defaults()
    }
}

impl Listeners {
    /// Opens all listeners before anything starts: REST on `host`, all others on loopback. Port 0
    /// chooses free ports.
    async fn open(host: IpAddr, port: u16) -> anyhow::Result<Self> {
        let at = |host: IpAddr, offset: u16| -> anyhow::Result<String> {
            let next = if port == 0 {
                Some(0)
            } else {
                port.checked_add(offset)
            };
            let port = next.with_context(|| format!("--port {port} is too high"))?;
            Ok(SocketAddr::new(host, port).to_string())
        };
        let open = async || {
            anyhow::Ok(Self {
                rest: bind("REST", &at(host, 0)?).await?,
                internal: bind("Flight and Raft", &at(LOCAL, 1)?).await?,
                flight: bind("the worker", &at(LOCAL, 2)?).await?,
                http: bind("the worker's metrics", &at(LOCAL, 3)?).await?,
            })
        };
        let advice = |error| anyhow::anyhow!("{error:#}; choose another port with --port");
        open().await.map_err(advice)
    }

    fn addresses(&self) -> std::io::Result<Addresses> {
        Ok(Addresses {
            rest: self.rest.local_addr()?,
            internal: self.internal.local_addr()?,
            flight: self.flight.local_addr()?,
            http: self.http.local_addr()?,
        })
    }
}

fn default_data_dir() -> anyhow::Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = match (from("XDG_DATA_HOME"), from("HOME")) {
        (Some(base), _) => PathBuf::from(base),
        (None, Some(home)) => PathBuf::from(home).join(".local/share"),
        (None, None) => anyhow::bail!("HOME is not set; give --data-dir"),
    };
    Ok(base.join("volley/up"))
}

fn coordinator_plan(
    data_dir: &Path,
    addresses: &Addresses,
    security: SecurityPlan,
) -> anyhow::Result<CoordinatorPlan> {
    let (id, internal) = (NodeId(1), addresses.internal.to_string());
    Ok(CoordinatorPlan {
        cluster: ClusterConfig::new(id, data_dir.join("raft"), &internal),
        membership: Membership::Bootstrap(BTreeMap::from([(id, internal.clone())])),
        coordinator: CoordinatorConfig::default(),
        api: ApiConfig::from(EdgeConfig {
            drain_timeout: DRAIN_TIMEOUT,
            ..EdgeConfig::default()
        }),
        origins: Origins::default(),
        public: addresses.rest.to_string(),
        also: Vec::new(),
        admin: None,
        grpc: Vec::new(),
        internal,
        // The worker is on this machine, so it can read a local directory.
        uploads: uploads::url_of(&data_dir.join("uploads")).ok(),
        drain_timeout: DRAIN_TIMEOUT,
        // No other coordinator could take over requests.
        drain_grace: Duration::ZERO,
        security,
        otlp: otlp::plan(None)?,
    })
}

/// The gRPC listeners beside the REST port.
fn grpc(up: &Up) -> Vec<(GrpcFlavor, String)> {
    let flavors = [
        (GrpcFlavor::Triton, up.grpc_triton_port),
        (GrpcFlavor::MlServer, up.grpc_mlserver_port),
    ];
    let wanted = flavors
        .into_iter()
        .filter_map(|(flavor, port)| Some((flavor, port?)));
    let at = |port| SocketAddr::new(up.host, port).to_string();
    wanted.map(|(flavor, port)| (flavor, at(port))).collect()
}

fn worker_plan(
    data_dir: &Path,
    addresses: &Addresses,
    security: SecurityPlan,
) -> anyhow::Result<WorkerPlan> {
    let id = WorkerId::new("local")?;
    let coordinators = vec![addresses.internal.to_string()];
    let mut worker = WorkerConfig::new(id, addresses.flight.to_string(), coordinators);
    // The only coordinator has already drained.
    worker.drain_grace = Duration::ZERO;
    let config = OnnxConfig {
        memory_limit: worker.run_memory(),
        ..OnnxConfig::default()
    };
    Ok(WorkerPlan {
        worker,
        flight: addresses.flight.to_string(),
        http: addresses.http.to_string(),
        exchanges: FlightServerConfig::default(),
        max_body_memory: EdgeConfig::default().max_inflight_body_bytes,
        drain_timeout: DRAIN_TIMEOUT,
        onnx: OnnxPlan {
            config,
            system_memory: volley_worker::system_bytes(),
            bundled: Some(data_dir.join("models")),
            ..OnnxPlan::default()
        },
        python: PythonConfig::default(),
        remote: RemoteConfig::default(),
        allow_fake: false,
        prints: false,
        security,
        otlp: otlp::plan(None)?,
        artifacts: ArtifactConfig {
            cache_dir: Some(data_dir.join("fetched")),
            ..ArtifactConfig::default()
        },
    })
}
