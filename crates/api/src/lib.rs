//! The HTTP and gRPC edges: bytes into [`volley_types::PredictRequest`]s, chunks into events. It knows
//! the cluster only as a [`Control`], and nothing of workers. The only crate that names `axum`.
//!
//! Reading order: [`ApiServer`], `routes`, `auth` (who may call them), `app` (what handlers work with), `encoding` (compressed bodies), `context` (what every request carries),
//! `opensearch` (the dialect), `sse` (the stream), `tensors` (JSON ⇄ Arrow), `serve` (sockets).

mod admin;
mod aliases;
mod answer;
mod answering;
mod anthropic;
mod app;
mod auth;
mod body;
mod catalogue;
mod chat;
mod citations;
mod cohere;
mod compact;
mod config;
mod context;
mod crowd;
mod drains;
mod encoding;
mod envelope;
mod error;
mod extract;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod hosts;
mod huggingface;
mod idle;
mod inputs;
mod intake;
mod keys;
mod metrics;
mod models;
mod oip;
mod ollama;
mod openai;
mod openapi;
mod opensearch;
mod ops;
mod origins;
mod parameters;
mod paths;
mod pieces;
mod pipelines;
mod precheck;
mod resume;
mod routes;
mod rows;
mod secrets;
mod serve;
mod sse;
mod stall;
mod supplement;
pub mod tensors;
mod tokens;
mod watch;
mod ws;

use std::sync::Arc;
use std::time::Instant;

use axum::{Extension, Router};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use volley_security::Gatekeeper;
use volley_security::tls::EdgeTls;
use volley_types::arrow_messages::OpenArrow;
use volley_types::{Control, Intake};

use crate::auth::{NoAdministration, Sealed};
use crate::oip::shared_memory::SharedMemory;
use crate::oip::statistics::Statistics;
use crate::opensearch::batch::Everywhere;
use crate::resume::Resume;

pub use crate::config::{ApiConfig, ResumeConfig};
pub use crate::models::{ModelFile, ModelStore};
pub use crate::oip::grpc::GrpcSkin;
pub use crate::openai::responses::store::{Responses, ResponsesConfig};
pub use crate::opensearch::batch::{Batches, PeerTasks};
pub use crate::origins::Origins;
pub use crate::resume::{HeldAll, HeldCounts, PeerStreams, Streams};

/// Encodes the node's metrics in the OpenMetrics text format.
pub type EncodeMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The public interface of a coordinator.
#[derive(Clone)]
pub struct ApiServer {
    control: Arc<dyn Control>,
    metrics: EncodeMetrics,
    config: ApiConfig,
    gate: Arc<Gatekeeper>,
    streams: Streams,
    responses: Responses,
    peers: PeerStreams,
    batches: Everywhere,
    tls: Option<EdgeTls>,
    arrow: Option<OpenArrow>,
    statistics: Arc<Statistics>,
    shared_memory: Arc<SharedMemory>,
    origins: Origins,
    intake: Intake,
    models: Option<Arc<dyn ModelStore>>,
    administers: bool,
}

impl ApiServer {
    /// An interface to `control` for those whom `gate` lets in.
    #[must_use]
    pub fn new(
        control: Arc<dyn Control>,
        metrics: EncodeMetrics,
        config: ApiConfig,
        gate: Arc<Gatekeeper>,
    ) -> Self {
        let node = control.status().raft.id;
        Self {
            control,
            metrics,
            gate,
            config,
            streams: Streams::new(node, config.resume),
            responses: Responses::new(node, config.responses),
            peers: Arc::new(|_| None),
            batches: Everywhere::new(Batches::default(), Arc::new(|_| None)),
            tls: None,
            arrow: None,
            statistics: Arc::default(),
            shared_memory: Arc::new(SharedMemory::new(
                config.shared_memory,
                config.max_tensor_bytes,
            )),
            origins: Origins::default(),
            intake: Intake::new(config.max_inflight_body_bytes),
            models: None,
            administers: true,
        }
    }

    /// The same with `streams` as the streams that this node holds, and a way to those that
    /// others do.
    #[must_use]
    pub fn with_streams(mut self, streams: Streams, peers: PeerStreams) -> Self {
        self.streams = streams;
        self.peers = peers;
        self
    }

    /// The same with `responses` as those that this node holds.
    #[must_use]
    pub fn with_responses(mut self, responses: Responses) -> Self {
        self.responses = responses;
        self
    }

    /// The same with `batches` as those that this node runs, and a way to those that others do.
    #[must_use]
    pub fn with_batches(mut self, batches: Batches, peers: PeerTasks) -> Self {
        self.batches = Everywhere::new(batches, peers);
        self
    }

    /// The same, keeping the files of models there that come with a request. Without, such
    /// requests are refused.
    #[must_use]
    pub fn keeping(mut self, models: Option<Arc<dyn ModelStore>>) -> Self {
        self.models = models;
        self
    }

    /// The same, with this as the memory for the bodies of requests, which others may share.
    #[must_use]
    pub fn taking_in(mut self, intake: Intake) -> Self {
        self.intake = intake;
        self
    }

    /// Serves under TLS where `tls` is given.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<EdgeTls>) -> Self {
        self.tls = tls;
        self
    }

    /// The same, and it takes bodies that are Arrow streams, which `open` reads.
    #[must_use]
    pub fn reading_arrow(mut self, open: OpenArrow) -> Self {
        self.arrow = Some(open);
        self
    }

    /// The same, for web pages of these origins too; without, for none but its own.
    #[must_use]
    pub fn allowing(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// The same without the routes that administer models or the cluster: they answer 403, for
    /// they are served elsewhere.
    #[must_use]
    pub fn without_administration(mut self) -> Self {
        self.administers = false;
        self
    }

    /// Serves until `shutdown`; then takes no new connections, and returns once every request
    /// has ended, or at the drain timeout.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let _end = (self.streams.end_guard(), self.batches.end_guard());
        let (config, streams) = (self.config, self.streams.clone());
        let stays = self.stays();
        let router = self.closed(routes::coordinator(self.sealed()), &listener);
        let stopping = async {
            shutdown.cancelled().await;
            Instant::now()
        };
        let run = serve::run(router, listener, config, self.tls, shutdown.clone(), stays);
        let ((), since) = tokio::join!(run, stopping);
        // Clients of other coordinators may read still.
        let left = config.drain_timeout.saturating_sub(since.elapsed());
        streams.drain(left).await;
    }

    /// Serves the same on a further listener, as [`ApiServer::serve`] does. The connections of
    /// each listener are counted by themselves.
    pub async fn serve_also(self, listener: TcpListener, shutdown: CancellationToken) {
        let stays = self.stays();
        let router = self.closed(routes::coordinator(self.sealed()), &listener);
        serve::run(router, listener, self.config, self.tls, shutdown, stays).await;
    }

    /// Serves nothing but gRPC in this skin, as [`ApiServer::serve`] does.
    pub async fn serve_grpc(
        self,
        skin: GrpcSkin,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) {
        let router = self.closed(oip::grpc::listener(&self.sealed(), skin), &listener);
        let stays = self.stays();
        serve::run(router, listener, self.config, self.tls, shutdown, stays).await;
    }

    /// The routes whose answers may be streams: method, and path with its parameters in braces.
    #[must_use]
    pub fn streaming_routes(&self) -> Vec<(&'static str, String)> {
        let routes = routes::routes(&self.sealed());
        let all = routes.listed().iter();
        let methods = |route: &auth::Listed| {
            let path = route.path.clone();
            let all = route.streamed.clone().into_iter();
            all.map(move |method| (method, path.clone()))
        };
        all.flat_map(methods).collect()
    }

    /// `router`, closed to pages of other origins, and of other machines where no key keeps them
    /// out.
    fn closed(&self, router: Router, listener: &TcpListener) -> Router {
        let router = match self.administers {
            true => router,
            false => router.layer(Extension(NoAdministration)),
        };
        let router = hosts::closed(router, listener, &self.gate, &self.origins);
        precheck::guarded(router, &self.origins)
    }

    fn stays(&self) -> serve::Stays {
        let control = self.control.clone();
        Arc::new(move || control.ready())
    }

    fn sealed(&self) -> Sealed {
        Sealed::new(
            self.control.clone(),
            self.metrics.clone(),
            self.config,
            self.gate.clone(),
            Resume::new(
                self.streams.clone(),
                self.responses.clone(),
                self.peers.clone(),
            ),
            self.batches.clone(),
        )
        .reading_arrow(self.arrow.clone())
        .counting(self.statistics.clone())
        .sharing(self.shared_memory.clone())
        .allowing(self.origins.clone())
        .taking_in(self.intake.clone())
        .keeping(self.models.clone())
    }
}

/// Serves health and metrics of a node without a REST interface of its own, as
/// [`ApiServer::serve`] does.
pub async fn serve_node(
    listener: TcpListener,
    metrics: EncodeMetrics,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
    config: ApiConfig,
    gate: Arc<Gatekeeper>,
    shutdown: CancellationToken,
) {
    let router = routes::node(metrics, ready, gate.clone());
    let router = hosts::closed(router, &listener, &gate, &Origins::default());
    let router = precheck::guarded(router, &Origins::default());
    let stays: serve::Stays = Arc::new(|| true);
    serve::run(router, listener, config, None, shutdown, stays).await;
}
