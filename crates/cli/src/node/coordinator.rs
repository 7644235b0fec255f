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

/// What is left of streams once consensus has failed.
const FAILURE_GRACE: Duration = Duration::from_secs(2);

/// How a coordinator comes to its cluster.
#[derive(Clone, Debug)]
pub(crate) enum Membership {
    /// It is one of a new cluster's first members.
    Bootstrap(BTreeMap<NodeId, String>),
    /// It asks these to let it in.
    Join(Vec<String>),
    /// It waits until somebody lets it in.
    Wait,
}

/// Everything that a coordinator needs to know.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorPlan {
    pub(crate) cluster: ClusterConfig,
    pub(crate) membership: Membership,
    pub(crate) coordinator: CoordinatorConfig,
    pub(crate) api: ApiConfig,
    /// Of web pages that may call this node.
    pub(crate) origins: Origins,
    pub(crate) public: String,
    /// Where the same is served, for clients that know another port.
    pub(crate) also: Vec<String>,
    /// Where alone models and the cluster are administered; on all other listeners where absent.
    pub(crate) admin: Option<String>,
    /// Listeners that speak gRPC alone.
    pub(crate) grpc: Vec<(GrpcFlavor, String)>,
    pub(crate) internal: String,
    /// Where models are kept that come with a request; such requests are refused where absent.
    pub(crate) uploads: Option<volley_types::registry::ModelUrl>,
    pub(crate) drain_timeout: Duration,
    /// How long it goes on taking requests once it has said that it leaves.
    pub(crate) drain_grace: Duration,
    pub(crate) security: SecurityPlan,
    pub(crate) otlp: Option<OtlpConfig>,
}

/// A coordinator that runs.
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

/// Listeners beside the public one.
pub(crate) struct ExtraListeners {
    /// Of the same as the public one.
    also: Vec<TcpListener>,
    /// Of the same, and of administration, which no other has then.
    admin: Option<TcpListener>,
    /// Of gRPC alone, by flavor.
    grpc: Vec<(GrpcFlavor, TcpListener)>,
}

impl ExtraListeners {
    /// Opens those of a plan.
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

/// Starts a coordinator that serves REST and gRPC on `public`, Flight and Raft on `internal`, and
/// on `further` listeners what each is for.
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

/// Serves callers on every listener that is for them.
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
                // Where that was for good, the process ends.
                tracing::error!(error = error.chain(), "cluster bootstrap failed");
            }
        }
        Membership::Join(seeds) => cluster.request_join(&seeds).await,
        Membership::Wait => {}
    }
}

impl RunningCoordinator {
    /// Says that it leaves, takes nothing new after the grace, and lets streams end until the
    /// drain timeout.
    pub(crate) async fn drain(&mut self) {
        let (by, grace) = (Instant::now() + self.drain_timeout, self.drain_grace);
        self.joining.abort();
        self.coordinator.announce_drain();
        // Whoever leads hands over first of all: writes wait as long as nobody leads.
        tokio::join!(self.cluster.retire(), tokio::time::sleep(grace));
        self.stop_public.cancel();
        self.coordinator.begin_drain();
        while let Some(served) = self.public.join_next().await {
            if let Err(error) = served {
                tracing::error!(error = %error, "public listener failed");
            }
        }
        // What came over Flight is not among the public listener's requests.
        while self.coordinator.active_streams() != 0 && Instant::now() < by {
            tokio::time::sleep(LOOK).await;
        }
        match self.coordinator.active_streams() {
            0 => {}
            streams => tracing::warn!(streams, "drain timeout reached; aborting streams"),
        }
    }

    /// Waits until its part in the cluster has failed; gives the reason.
    pub(crate) fn failed(&self) -> impl Future<Output = Arc<str>> + use<> {
        let mut failure = self.cluster.failure();
        async move {
            let failed = failure.wait_for(Option::is_some).await;
            let reason = failed.ok().and_then(|reason| reason.clone());
            reason.unwrap_or_else(|| Arc::from("consensus has ended"))
        }
    }

    /// Ends at once because its part in the cluster has failed: nobody is let in any more, and
    /// streams that run get a moment.
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

    /// Leaves, after [`RunningCoordinator::drain`].
    pub(crate) async fn stop(self) {
        self.coordinator.shutdown().await;
        self.stop_internal.cancel();
        if !self.internal.is_finished() {
            // Its own failure was told when it happened.
            let _ = self.internal.await;
        }
        self.cluster.shutdown().await;
        if let Some(exporter) = self.exporter {
            exporter.shutdown().await;
        }
        tracing::info!("coordinator stopped");
    }
}
