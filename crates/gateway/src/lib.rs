//! The HTTP and gRPC edges: they convert bytes to [`volley_types::PredictRequest`]s and chunks to
//! events. They access the cluster only through a [`ClusterHandle`], never workers.

mod compose;
#[cfg(test)]
mod errors_page;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gateway_config;
mod listing;
mod resume;
mod ws;

use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use volley_http_edge::axum::{Extension, Router};
use volley_security::Authenticator;
use volley_security::tls::EdgeTls;
use volley_types::arrow_messages::OpenArrow;
use volley_types::registry::BackendList;
use volley_types::{ClusterHandle, Intake};

use crate::compose::Parts;
use crate::resume::ResumeLayer;
use volley_dialect_oip as oip;
use volley_dialect_oip::state::{Oip, OipNode};
use volley_dialect_opensearch::batch::ClusterBatches;
use volley_http_edge::auth::NoAdministration;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ErrorFormats;
use volley_http_edge::{hosts, precheck, routes, serve};

pub use crate::gateway_config::{ApiConfig, ResumeConfig};
pub use crate::resume::{LocalStreams, ResumeCounts, Streams};
pub use volley_admin_api::admin_state::EncodeMetrics;
pub use volley_dialect_kit::peers::PeerStreams;
pub use volley_dialect_oip::grpc::GrpcFlavor;
pub use volley_dialect_oip::model_files::{ModelFile, ModelStore};
pub use volley_dialect_openai::responses::store::{Responses, ResponsesConfig};
pub use volley_dialect_opensearch::batch::{Batches, PeerTasks};
pub use volley_http_edge::config::EdgeConfig;
pub use volley_http_edge::origins::Origins;

/// The public interface of a coordinator.
#[derive(Clone)]
pub struct ApiServer {
    cluster: ClusterHandle,
    metrics: EncodeMetrics,
    config: ApiConfig,
    gate: Arc<Authenticator>,
    streams: Streams,
    responses: Responses,
    peers: PeerStreams,
    batches: ClusterBatches,
    tls: Option<EdgeTls>,
    arrow: Option<OpenArrow>,
    oip: OipNode,
    origins: Origins,
    backends: BackendList,
    intake: Intake,
    administers: bool,
}

impl ApiServer {
    /// Creates an interface to `cluster` for the callers whom `gate` authenticates. Without further
    /// settings, streams, responses and batches of other nodes are not accessible.
    #[must_use]
    pub fn new(
        cluster: ClusterHandle,
        metrics: EncodeMetrics,
        config: ApiConfig,
        gate: Arc<Authenticator>,
    ) -> Self {
        let node = cluster.view.status().raft.id;
        Self {
            cluster,
            metrics,
            gate,
            config,
            streams: Streams::new(node, config.resume),
            responses: Responses::new(node, config.responses),
            peers: Arc::new(|_| None),
            batches: ClusterBatches::new(Batches::default(), Arc::new(|_| None)),
            tls: None,
            arrow: None,
            oip: OipNode::new(config.shared_memory, config.edge.max_tensor_bytes),
            origins: Origins::default(),
            backends: BackendList::default(),
            intake: Intake::new(config.edge.max_inflight_body_bytes),
            administers: true,
        }
    }

    /// Sets the resumable streams of this node and the access to those of others.
    #[must_use]
    pub fn with_streams(mut self, streams: Streams, peers: PeerStreams) -> Self {
        self.streams = streams;
        self.peers = peers;
        self
    }

    /// Sets the stored responses of this node.
    #[must_use]
    pub fn with_responses(mut self, responses: Responses) -> Self {
        self.responses = responses;
        self
    }

    /// Sets the batches of this node and the access to those of others.
    #[must_use]
    pub fn with_batches(mut self, batches: Batches, peers: PeerTasks) -> Self {
        self.batches = ClusterBatches::new(batches, peers);
        self
    }

    /// Sets a store for the files of models in loads. Without a store, such loads are rejected.
    #[must_use]
    pub fn with_models(mut self, models: Option<Arc<dyn ModelStore>>) -> Self {
        self.oip = self.oip.with_models(models);
        self
    }

    /// Sets the memory for the bodies of requests, which other servers may share.
    #[must_use]
    pub fn with_intake(mut self, intake: Intake) -> Self {
        self.intake = intake;
        self
    }

    /// Serves with TLS if `tls` is given.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<EdgeTls>) -> Self {
        self.tls = tls;
        self
    }

    /// Sets the reader of bodies that are Arrow streams. Without a reader, such bodies are
    /// rejected.
    #[must_use]
    pub fn with_arrow(mut self, open: OpenArrow) -> Self {
        self.arrow = Some(open);
        self
    }

    /// Permits web pages of these origins. Without them, only pages of the server's own origin are
    /// permitted.
    #[must_use]
    pub fn with_origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Sets the backends that models may be registered for. Without them, there are none.
    #[must_use]
    pub fn with_backends(mut self, backends: BackendList) -> Self {
        self.backends = backends;
        self
    }

    /// Removes the routes that administer models or the cluster. They return 403, because another
    /// listener serves them.
    #[must_use]
    pub fn without_administration(mut self) -> Self {
        self.administers = false;
        self
    }

    /// Serves until `shutdown`. Then accepts no new connections, and returns when every request has
    /// ended, or at the drain timeout. Dropping the future aborts all connections, resumable
    /// streams and batches.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let _end = (self.streams.end_guard(), self.batches.end_guard());
        let (config, streams) = (self.config.edge, self.streams.clone());
        let stays = self.stays();
        let router = self.coordinator(&listener);
        let stopping = async {
            shutdown.cancelled().await;
            Instant::now()
        };
        let run = serve::run(router, listener, config, self.tls, shutdown.clone(), stays);
        let ((), since) = tokio::join!(run, stopping);
        // Clients of other coordinators may still read streams of this one.
        let left = config.drain_timeout.saturating_sub(since.elapsed());
        streams.drain(left).await;
    }

    /// Serves the same routes on a further listener. The connection limit applies to each listener
    /// separately. Returns and is dropped like [`ApiServer::serve`], but does not end resumable
    /// streams and batches.
    pub async fn serve_also(self, listener: TcpListener, shutdown: CancellationToken) {
        let stays = self.stays();
        let router = self.coordinator(&listener);
        serve::run(
            router,
            listener,
            self.config.edge,
            self.tls,
            shutdown,
            stays,
        )
        .await;
    }

    /// Serves only gRPC in this flavor. Returns and is dropped like [`ApiServer::serve_also`].
    pub async fn serve_grpc(
        self,
        flavor: GrpcFlavor,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) {
        let parts = self.parts();
        let errors = compose::errors(&compose::dialects(&parts));
        let router = oip::grpc::listener(&Oip::new(&parts.edge, parts.oip), flavor);
        let router = self.closed(router, &errors, &listener);
        let stays = self.stays();
        serve::run(
            router,
            listener,
            self.config.edge,
            self.tls,
            shutdown,
            stays,
        )
        .await;
    }

    /// The routes that may return streams: method, and path with its parameters in braces.
    #[must_use]
    pub fn streaming_routes(&self) -> Vec<(&'static str, String)> {
        let routes = compose::routes(&compose::dialects(&self.parts()));
        let all = routes.listed().iter();
        let methods = |route: &routes::RouteInfo| {
            let path = route.path.clone();
            let all = route.streamed.clone().into_iter();
            all.map(move |method| (method, path.clone()))
        };
        all.flat_map(methods).collect()
    }

    fn coordinator(&self, listener: &TcpListener) -> Router {
        let (router, errors) = compose::coordinator(&self.parts());
        self.closed(router, &errors, listener)
    }

    /// Rejects pages of other origins. On a loopback listener without keys, also rejects pages that
    /// reach it through DNS rebinding.
    fn closed(&self, router: Router, errors: &ErrorFormats, listener: &TcpListener) -> Router {
        let router = match self.administers {
            true => router,
            false => router.layer(Extension(NoAdministration)),
        };
        let router = hosts::closed(router, listener, &self.gate, &self.origins, errors);
        precheck::guarded(router, &self.origins, errors)
    }

    fn stays(&self) -> serve::KeepAlivePolicy {
        let view = self.cluster.view.clone();
        Arc::new(move || view.ready())
    }

    fn parts(&self) -> Parts {
        let keeper = ResumeLayer::new(self.streams.clone(), self.peers.clone());
        let (cluster, gate) = (self.cluster.clone(), self.gate.clone());
        let edge = Edge::new(cluster, gate, self.config.edge)
            .with_origins(self.origins.clone())
            .with_backends(self.backends.clone())
            .with_intake(self.intake.clone())
            .with_keeper(Arc::new(keeper.clone()));
        Parts {
            edge,
            metrics: self.metrics.clone(),
            keeper,
            responses: self.responses.clone(),
            peers: self.peers.clone(),
            batches: self.batches.clone(),
            arrow: self.arrow.clone(),
            oip: self.oip.clone(),
        }
    }
}

/// Serves health and metrics of a node without a REST interface of its own. Returns like
/// [`ApiServer::serve`]. Dropping the future aborts all connections.
pub async fn serve_node(
    listener: TcpListener,
    metrics: EncodeMetrics,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
    config: EdgeConfig,
    gate: Arc<Authenticator>,
    shutdown: CancellationToken,
) {
    let router = compose::node(metrics, ready, gate.clone());
    let (origins, errors) = (Origins::default(), ErrorFormats::default());
    let router = hosts::closed(router, &listener, &gate, &origins, &errors);
    let router = precheck::guarded(router, &origins, &errors);
    let stays: serve::KeepAlivePolicy = Arc::new(|| true);
    serve::run(router, listener, config, None, shutdown, stays).await;
}
