//! Raft nodes of coordinators on loopback.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use volley_cluster::{Cluster, ClusterConfig};
use volley_types::registry::{
    BackendName, ConnectorPolicy, ConnectorSpec, LEVEL, ModelSource, ModelVersionSpec,
    ProviderName, RegistryCommand, RegistryState,
};
use volley_types::{ConnectorId, ErrorCode, ModelName, ModelVersion, NodeId, Parameters};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Write timeout of tests that do not depend on it. It is long, because other tests use the machine
/// too.
const PATIENT: Duration = Duration::from_secs(10);

/// A node with its socket.
pub(crate) struct TestNode {
    pub(crate) cluster: Cluster,
    pub(crate) address: String,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<()>,
}

impl TestNode {
    /// Starts node `id` with `directory`, at `address` or at any free one.
    pub(crate) async fn start(id: u64, directory: &Path, address: Option<&str>) -> Self {
        Self::start_at(id, directory, address, LEVEL).await
    }

    /// Does the same with the feature level `level`.
    pub(crate) async fn start_at(
        id: u64,
        directory: &Path,
        address: Option<&str>,
        level: u32,
    ) -> Self {
        Self::start_as(id, directory, address, level, PATIENT).await
    }

    async fn start_as(
        id: u64,
        directory: &Path,
        address: Option<&str>,
        level: u32,
        write_timeout: Duration,
    ) -> Self {
        let listener = listen(address.unwrap_or("127.0.0.1:0")).await;
        let address = listener.local_addr().unwrap().to_string();
        let mut config = ClusterConfig::new(NodeId(id), directory, address.clone());
        config.snapshot_every = 20;
        config.level = level;
        config.write_timeout = write_timeout;
        let cluster = Cluster::start(config).await.unwrap();
        let (raft, membership) = cluster.services();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let server = tokio::spawn(async move {
            let incoming =
                tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
            let server = tonic::transport::Server::builder()
                .add_service(raft)
                .add_service(membership)
                // Connected peers must notice the end, because the next node uses the same address.
                .serve_with_incoming_shutdown(incoming, stopped.cancelled_owned());
            server.await.unwrap();
        });
        Self {
            cluster,
            address,
            stop,
            server,
        }
    }

    /// Stops the node and keeps its files.
    pub(crate) async fn stop(self) {
        self.cluster.shutdown().await;
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.server).await;
        ended.expect("its connections end").unwrap();
    }

    pub(crate) async fn wait_until(
        &self,
        what: &str,
        met: impl Fn(&RegistryState) -> bool,
    ) -> Arc<RegistryState> {
        let mut registry = self.cluster.registry();
        let waited = tokio::time::timeout(PATIENCE, registry.wait_for(|state| met(state))).await;
        waited
            .unwrap_or_else(|_| panic!("not in time: {what}"))
            .unwrap()
            .clone()
    }

    pub(crate) async fn wait_for_leader(&self) -> NodeId {
        let mut raft = self.cluster.raft();
        let led = tokio::time::timeout(PATIENCE, raft.wait_for(|status| status.leader.is_some()));
        led.await
            .expect("a leader in time")
            .unwrap()
            .leader
            .unwrap()
    }
}

/// Binds a port, which a new connection of another program may occupy for a moment.
async fn listen(address: &str) -> TcpListener {
    let by = tokio::time::Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address).await {
            Err(error)
                if error.kind() == ErrorKind::AddrInUse && tokio::time::Instant::now() < by =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            bound => return bound.unwrap(),
        }
    }
}

/// Three connected nodes.
pub(crate) struct Three {
    pub(crate) nodes: Vec<TestNode>,
    pub(crate) directories: Vec<TempDir>,
    _turn: SemaphorePermit<'static>,
}

/// At most two clusters of three nodes run at a time: elections depend on time, and the machine has
/// few cores.
static TURNS: Semaphore = Semaphore::const_new(2);

impl Three {
    pub(crate) async fn start() -> Self {
        Self::start_at(LEVEL).await
    }

    /// Does the same with the feature level `level`.
    pub(crate) async fn start_at(level: u32) -> Self {
        Self::start_as(level, PATIENT).await
    }

    /// Does the same with the default write timeout.
    pub(crate) async fn with_the_usual_write_timeout() -> Self {
        let usual = ClusterConfig::new(NodeId(1), "", "").write_timeout;
        Self::start_as(LEVEL, usual).await
    }

    async fn start_as(level: u32, write_timeout: Duration) -> Self {
        let turn = TURNS.acquire().await.unwrap();
        let directories: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut nodes = Vec::new();
        for (index, directory) in directories.iter().enumerate() {
            let id = index as u64 + 1;
            let node = TestNode::start_as(id, directory.path(), None, level, write_timeout);
            nodes.push(node.await);
        }
        let members = members(&nodes);
        for node in &nodes {
            node.cluster.bootstrap(members.clone()).await.unwrap();
        }
        for node in &nodes {
            node.wait_for_leader().await;
        }
        Self {
            nodes,
            directories,
            _turn: turn,
        }
    }

    /// Writes through the first node, and repeats the write if there was no leader for a moment.
    pub(crate) async fn write(&self, command: RegistryCommand) {
        let by = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.nodes[0].cluster.write(command.clone()).await {
                Ok(_) => return,
                Err(error) if error.code == ErrorCode::Unavailable => {
                    assert!(tokio::time::Instant::now() < by, "{error:?}");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Returns the index of the leader. On a busy machine there may be none for a moment.
    pub(crate) async fn leader(&self) -> usize {
        let by = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut nodes = self.nodes.iter();
            if let Some(place) = nodes.position(|node| node.cluster.is_leader()) {
                return place;
            }
            assert!(tokio::time::Instant::now() < by, "no leader in time");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) fn members(nodes: &[TestNode]) -> BTreeMap<NodeId, String> {
    let members = nodes.iter().enumerate();
    members
        .map(|(index, node)| (NodeId(index as u64 + 1), node.address.clone()))
        .collect()
}

/// Registers a version of a model that splits words.
pub(crate) fn register(name: &str) -> RegistryCommand {
    let spec = ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    };
    RegistryCommand::RegisterModel(ModelName::new(name).unwrap(), spec)
}

/// Creates a connector.
pub(crate) fn connector(id: &ConnectorId, url: &str) -> RegistryCommand {
    RegistryCommand::CreateConnector(ConnectorSpec {
        id: id.clone(),
        name: String::new(),
        provider: ProviderName::from_static("openai"),
        url: url.to_owned(),
        model: "m".to_owned(),
        credential: None,
        headers: BTreeMap::new(),
        parameters: Parameters::default(),
        request_body: None,
        policy: ConnectorPolicy::default(),
    })
}

pub(crate) fn has(state: &RegistryState, name: &str) -> bool {
    state.models.contains_key(&ModelName::new(name).unwrap())
}
