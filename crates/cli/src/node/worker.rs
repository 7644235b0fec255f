//! The worker role.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::Router;
use volley_artifacts::ArtifactConfig;
use volley_backend_python::PythonConfig;
use volley_backend_remote::RemoteConfig;
use volley_backends::{BackendsConfig, OnnxPlan};
use volley_flight::server::{FlightServer, FlightServerConfig};
use volley_flight::transport;
use volley_gateway::EdgeConfig;
use volley_security::nodes::{Callers, NodeKind, only};
use volley_telemetry::Metrics;
use volley_telemetry::otlp::{Exporter, OtlpConfig, SpanKind, TracedPredict};
use volley_types::{Intake, NodeIdentity};
use volley_worker::{Worker, WorkerConfig};

use super::{bind, export, serve_internal};
use crate::config::security::SecurityPlan;
use crate::{printed, signals, traced};

/// The configuration of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) worker: WorkerConfig,
    pub(crate) flight: String,
    pub(crate) http: String,
    pub(crate) exchanges: FlightServerConfig,
    /// Memory for the messages of all calls, in bytes.
    pub(crate) max_body_memory: usize,
    pub(crate) drain_timeout: Duration,
    pub(crate) onnx: OnnxPlan,
    pub(crate) python: PythonConfig,
    pub(crate) remote: RemoteConfig,
    pub(crate) security: SecurityPlan,
    pub(crate) artifacts: ArtifactConfig,
    /// Whether scripted models may be loaded.
    pub(crate) allow_fake: bool,
    /// Whether each request and its response are printed.
    pub(crate) prints: bool,
    pub(crate) otlp: Option<OtlpConfig>,
}

/// Python models without any setting: together they may not take all memory of this machine.
pub(crate) fn python_defaults() -> PythonConfig {
    let system = volley_worker::system_bytes();
    PythonConfig {
        process_memory: system.map(|bytes| bytes / 5 * 4),
        ..PythonConfig::default()
    }
}

/// A running worker.
pub(crate) struct RunningWorker {
    worker: Worker,
    flight: tokio::task::JoinHandle<anyhow::Result<()>>,
    http: tokio::task::JoinHandle<()>,
    _renewal: AbortOnDropHandle<()>,
    exporter: Option<Exporter>,
    stop: CancellationToken,
    drain_timeout: Duration,
}

/// Runs until a signal, then drains.
pub(crate) async fn run_until_signal(plan: WorkerPlan) -> anyhow::Result<()> {
    let shutdown = signals::shutdown()?;
    let flight = bind("listen.flight", &plan.flight).await?;
    let http = bind("listen.http, for health and metrics", &plan.http).await?;
    let mut running = start(plan, flight, http)?;
    tokio::select! {
        () = shutdown.cancelled() => {}
        ended = &mut running.flight => {
            ended.context("the Flight listener")??;
        }
    }
    running.stop().await;
    Ok(())
}

/// Starts a worker that serves Flight on `flight`, health and metrics on `http`.
pub(crate) fn start(
    plan: WorkerPlan,
    flight: TcpListener,
    http: TcpListener,
) -> anyhow::Result<RunningWorker> {
    let addresses = (flight.local_addr()?, http.local_addr()?);
    let metrics = Metrics::new();
    let instance = plan.worker.id.to_string();
    let (tracer, exporter) = export(plan.otlp.as_ref(), "volley-worker", instance)?;
    let backends = BackendsConfig {
        onnx: plan.onnx,
        python: plan.python,
        remote: plan.remote,
        artifacts: plan.artifacts,
        secrets: plan.security.open_secrets(),
        allow_fake: plan.allow_fake,
    };
    let backends = volley_backends::loaders(backends, &metrics)?;
    let mut loaders = traced::loaders(backends.loaders, &tracer);
    if plan.prints {
        loaders = printed::loaders(loaders);
    }
    let worker = Worker::start(plan.worker, loaders, metrics.clone());

    let told = Vec::new();
    let served = Arc::new(worker.clone());
    let served = TracedPredict::around(served, &tracer, "predict", SpanKind::Server, told);
    let server = FlightServer::new(served, plan.exchanges)
        .taking_in(Intake::new(plan.max_body_memory))
        .checking(backends.connectors);
    let router = flight_router(server, &worker, plan.security.nodes.is_some());
    // Coordinators call the models with their certificates. A key only gives access to metrics.
    let tls = plan.security.nodes.clone().map(|tls| (tls, Callers::Nodes));
    let stop = CancellationToken::new();
    let flight = tokio::spawn(serve_internal(router, flight, tls, stop.clone()));

    // A worker has no registry, so only its own key gives access to its metrics.
    let gate = plan.security.authenticator(Arc::new(Arc::default))?;
    let (ready, security) = (worker.clone(), plan.security.clone());
    let http = tokio::spawn(volley_gateway::serve_node(
        http,
        Arc::new(move || {
            metrics.set_certificate_ends(&security.certificate_ends());
            metrics.encode()
        }),
        Arc::new(move || ready.ready()),
        EdgeConfig {
            drain_timeout: Duration::from_secs(1),
            ..EdgeConfig::default()
        },
        Arc::new(gate),
        stop.clone(),
    ));
    tracing::info!(flight = %addresses.0, http = %addresses.1, "worker started");
    Ok(RunningWorker {
        worker,
        flight,
        http,
        _renewal: AbortOnDropHandle::new(tokio::spawn(plan.security.keep_fresh())),
        exporter,
        stop,
        drain_timeout: plan.drain_timeout,
    })
}

/// Serves Flight to coordinators alone, and ends the exchanges of one whose certificate is revoked.
fn flight_router(server: FlightServer, worker: &Worker, has_tls: bool) -> Router {
    let members = worker.clone();
    let server = server.ending_at(Arc::new(move |node| Box::pin(members.revocation_of(node))));
    let members = worker.clone();
    let is_member = Arc::new(move |node: &NodeIdentity| members.takes_calls_of(node));
    transport::server_builder().add_service(InterceptedService::new(
        server.into_service(),
        only(NodeKind::Coordinator, has_tls, is_member),
    ))
}

impl RunningWorker {
    /// Drains: notifies the coordinators, waits for streams, and then leaves.
    pub(crate) async fn stop(self) {
        let left = self.worker.drain(self.drain_timeout).await;
        if left != 0 {
            tracing::warn!(streams = left, "drain timeout reached with streams running");
        }
        self.worker.shutdown().await;
        self.stop.cancel();
        if !self.flight.is_finished() {
            // A failure was logged when it occurred.
            let _ = self.flight.await;
        }
        if let Err(error) = self.http.await {
            tracing::error!(error = %error, "health listener failed");
        }
        if let Some(exporter) = self.exporter {
            exporter.shutdown().await;
        }
        tracing::info!("worker stopped");
    }
}
