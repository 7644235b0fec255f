//! The coordinator role.

mod listeners;
mod peers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use volley_cluster::{Cluster, ClusterConfig};
use volley_coordinator::{Coordinator, CoordinatorConfig};
use volley_gateway::{ApiConfig, ApiServer, GrpcFlavor, Origins};
use volley_telemetry::Metrics;
use volley_telemetry::otlp::{Exporter, OtlpConfig};
use volley_types::NodeId;

use self::listeners::ListenerContext;
use self::peers::{connect, open_channel};
use super::failures::Failures;
use super::gate::{ask_workers, gate};
use super::{LOOK, bind, export, serve_internal, uploads};
use crate::config::security::SecurityPlan;
use crate::signals;

/// How long streams may continue after Raft has failed.
const FAILURE_GRACE: Duration = Duration::from_secs(2);

/// How a coordinator enters its cluster.
#[derive(Clone, Debug)]
pub(crate) enum Membership {
    /// As one of the first members of a new cluster.
    Bootstrap(BTreeMap<NodeId, String>),
    /// By asking the coordinators at these addresses.
    Join(Vec<String>),
    /// By waiting for an invitation.
    Wait,
}

/// The configuration of a coordinator.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorPlan {
    pub(crate) cluster: ClusterConfig,
    pub(crate) membership: Membership,
    pub(crate) coordinator: CoordinatorConfig,
    pub(crate) api: ApiConfig,
    /// Origins of web pages that may call this node.
    pub(crate) origins: Origins,
    pub(crate) public: String,
    /// Additional addresses of the public listener, for clients that expect another port.
    pub(crate) also: Vec<String>,
    /// Address of the administration API. If `None`, all public listeners serve it.
    pub(crate) admin: Option<String>,
    /// gRPC-only listeners.
    pub(crate) grpc: Vec<(GrpcFlavor, String)>,
    pub(crate) internal: String,
    /// Store for models that are uploaded in requests. If `None`, such requests are rejected.
    pub(crate) uploads: Option<volley_types::registry::ModelUrl>,
    pub(crate) drain_timeout: Duration,
    /// How long requests are accepted after the drain was announced.
    pub(crate) drain_grace: Duration,
    pub(crate) security: SecurityPlan,
    pub(crate) otlp: Option<OtlpConfig>,
}

/// A running coordinator.
pub(crate) struct RunningCoordinator {
    pub(crate) coordinator: Coordinator,
    pub(crate) cluster: Cluster,
    public: JoinSet<()>,
    internal: tokio::task::JoinHandle<anyhow::Result<()>>,
    joining: tokio::task::JoinHandle<()>,
    failures: Failures,
    _renewal: AbortOnDropHandle<()>,
    exporter: Option<Exporter>,
    stop_public: CancellationToken,
    stop_internal: CancellationToken,
    drain_timeout: Duration,
    drain_grace: Duration,
}

/// Runs until a signal, then drains.
pub(crate) async fn run_until_signal(plan: CoordinatorPlan) -> anyhow::Result<()> {
    let shutdown = signals::shutdown()?;
    let public = bind("listen.public, for REST", &plan.public).await?;
    let further = ExtraListeners::bind(&plan).await?;
    let internal = bind("listen.internal, for Flight and Raft", &plan.internal).await?;
    let mut running = start(plan, public, further, internal).await?;
    let failed = running.failed();
    tokio::select! {
        () = shutdown.cancelled() => {}
        ended = &mut running.internal => {
            ended.context("the internal listener")??;
        }
        failed = failed => return running.abandon(&failed).await,
    }
    running.drain().await;
    running.stop().await;
    Ok(())
}

/// Listeners in addition to the public one.
pub(crate) struct ExtraListeners {
    /// Listeners with the same routes as the public one.
    also: Vec<TcpListener>,
    /// The listener with administration; the other listeners then do not serve it.
    admin: Option<TcpListener>,
    /// gRPC-only listeners, by flavor.
    grpc: Vec<(GrpcFlavor, TcpListener)>,
}

impl ExtraListeners {
    /// Opens the listeners of a plan.
    ///
    /// # Errors
    /// As for [`bind`].
    pub(crate) async fn bind(plan: &CoordinatorPlan) -> anyhow::Result<Self> {
        let (mut also, mut grpc) = (Vec::new(), Vec::new());
        for address in &plan.also {
            also.push(bind("listen.additional, for REST", address).await?);
        }
        for (flavor, address) in &plan.grpc {
            let what = match flavor {
                GrpcFlavor::Triton => "grpc.triton",
                GrpcFlavor::MlServer => "grpc.mlserver",
            };
            grpc.push((*flavor, bind(what, address).await?));
        }
        let admin = match &plan.admin {
            Some(address) => Some(bind("listen.admin, for administration", address).await?),
            None => None,
        };
        Ok(Self { also, admin, grpc })
    }
}

/// Starts a coordinator. It serves REST and gRPC on `public`, Flight and Raft on `internal`, and
/// the routes of each additional listener on `further`.
pub(crate) async fn start(
    plan: CoordinatorPlan,
    public: TcpListener,
    further: ExtraListeners,
    internal: TcpListener,
) -> anyhow::Result<RunningCoordinator> {
    let (rest, flight_and_raft) = (public.local_addr()?, internal.local_addr()?);
    let metrics = Metrics::new();
    let instance = plan.cluster.node_id.to_string();
    let (tracer, exporter) = export(plan.otlp.as_ref(), "volley-coordinator", instance)?;
    metrics.trace_with(tracer.clone());
    let (node, data_dir) = (plan.cluster.node_id, plan.cluster.data_dir.clone());
    let cluster = Cluster::start(plan.cluster)
        .await
        .with_context(|| format!("opening the registry in {}", data_dir.display()))?;
    let failures = Failures::open(&data_dir);
    let coordinator = Coordinator::start(
        plan.coordinator,
        cluster.clone(),
        connect(plan.security.dialer(), tracer),
        metrics.clone(),
    );

    coordinator.ask_workers(ask_workers(plan.security.dialer()));
    for address in plan.also.iter().chain([&plan.public]).chain(&plan.admin) {
        plan.security.warn_of_clear_keys(address);
    }
    let gate = gate(&plan.security, &cluster, &data_dir)?;
    let usage = gate.usage();
    let context = ListenerContext::new(&coordinator, &cluster, gate, node, plan.api);
    coordinator.share_usage(usage, open_channel(plan.security.dialer()));
    let (stop_public, stop_internal) = (CancellationToken::new(), CancellationToken::new());
    let internal = tokio::spawn(serve_internal(
        context.internal_router(&plan.security),
        internal,
        plan.security.internal_tls(),
        stop_internal.clone(),
    ));

    let encode = context.encode(metrics, plan.security.clone(), failures.clone());
    let api = context
        .api(plan.api, encode, &plan.security)
        .with_origins(plan.origins)
        .with_models(plan.uploads.map(uploads::store));
    let served = serve_public(api, public, further, &stop_public)?;

    let joining = tokio::spawn(enter(cluster.clone(), plan.membership));
    tracing::info!(%rest, internal = %flight_and_raft, "coordinator started");
    Ok(RunningCoordinator {
        coordinator,
        cluster,
        public: served,
        internal,
        joining,
        failures,
        _renewal: AbortOnDropHandle::new(tokio::spawn(plan.security.keep_fresh())),
        exporter,
        stop_public,
        stop_internal,
        drain_timeout: plan.drain_timeout,
        drain_grace: plan.drain_grace,
    })
}

/// Serves callers on all public listeners.
fn serve_public(
    api: ApiServer,
    public: TcpListener,
    further: ExtraListeners,
    stop: &CancellationToken,
) -> anyhow::Result<JoinSet<()>> {
    let mut served = JoinSet::new();
    let api = match further.admin {
        Some(listener) => {
            tracing::info!(address = %listener.local_addr()?, "admin listener started");
            served.spawn(api.clone().serve_also(listener, stop.clone()));
            api.without_administration()
        }
        None => api,
    };
    for listener in further.also {
        tracing::info!(address = %listener.local_addr()?, "REST listener started");
        served.spawn(api.clone().serve_also(listener, stop.clone()));
    }
    for (flavor, listener) in further.grpc {
        tracing::info!(
            flavor = ?flavor, address = %listener.local_addr()?,
            "gRPC listener started"
        );
        served.spawn(api.clone().serve_grpc(flavor, listener, stop.clone()));
    }
    served.spawn(api.serve(public, stop.clone()));
    Ok(served)
}

async fn enter(cluster: Cluster, membership: Membership) {
    match membership {
        Membership::Bootstrap(members) => {
            if let Err(error) = cluster.bootstrap(members).await {
                // If the failure is permanent, the process ends.
                tracing::error!(error = error.chain(), "cluster bootstrap failed");
            }
        }
        Membership::Join(seeds) => cluster.request_join(&seeds).await,
        Membership::Wait => {}
    }
}

impl RunningCoordinator {
    /// Announces the drain, rejects new requests after the grace period, and waits for streams
    /// until the drain timeout.
    pub(crate) async fn drain(&mut self) {
        let (by, grace) = (Instant::now() + self.drain_timeout, self.drain_grace);
        self.joining.abort();
        self.coordinator.announce_drain();
        // The leader first transfers leadership, because writes wait while there is no leader.
        tokio::join!(self.cluster.retire(), tokio::time::sleep(grace));
        self.stop_public.cancel();
        self.coordinator.begin_drain();
        while let Some(served) = self.public.join_next().await {
            if let Err(error) = served {
                tracing::error!(error = %error, "public listener failed");
            }
        }
        // Requests over Flight are not tracked by the public listener.
        while self.coordinator.active_streams() != 0 && Instant::now() < by {
            tokio::time::sleep(LOOK).await;
        }
        match self.coordinator.active_streams() {
            0 => {}
            streams => tracing::warn!(streams, "drain timeout reached; aborting streams"),
        }
    }

    /// Waits until the Raft node has failed, and returns the reason.
    pub(crate) fn failed(&self) -> impl Future<Output = Arc<str>> + use<> {
        let mut failure = self.cluster.failure();
        async move {
            let failed = failure.wait_for(Option::is_some).await;
            let reason = failed.ok().and_then(|reason| reason.clone());
            reason.unwrap_or_else(|| Arc::from("consensus has ended"))
        }
    }

    /// Stops because the Raft node has failed: rejects new requests immediately, and gives running
    /// streams two seconds to end.
    pub(crate) async fn abandon(mut self, reason: &str) -> anyhow::Result<()> {
        self.failures.note(reason);
        self.joining.abort();
        self.coordinator.announce_drain();
        self.coordinator.begin_drain();
        self.stop_public.cancel();
        let served = async { while self.public.join_next().await.is_some() {} };
        if tokio::time::timeout(FAILURE_GRACE, served).await.is_err() {
            tracing::warn!("coordinator failed; aborting streams");
            self.public.abort_all();
        }
        self.stop().await;
        Err(anyhow::anyhow!("{reason}"))
    }

    /// Stops all services, after [`RunningCoordinator::drain`].
    pub(crate) async fn stop(self) {
        self.coordinator.shutdown().await;
        self.stop_internal.cancel();
        if !self.internal.is_finished() {
            // A failure was logged when it occurred.
            let _ = self.internal.await;
        }
        self.cluster.shutdown().await;
        if let Some(exporter) = self.exporter {
            exporter.shutdown().await;
        }
        tracing::info!("coordinator stopped");
    }
}
