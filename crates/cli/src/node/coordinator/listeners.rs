//! Services of a coordinator's listeners: other nodes call the internal listener, clients all others.

use std::sync::Arc;

use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::Router;
use volley_cluster::Cluster;
use volley_coordinator::Coordinator;
use volley_flight::ingress::Decoder;
use volley_flight::server::{FlightServer, FlightServerConfig};
use volley_flight::transport;
use volley_gateway::{
    ApiConfig, ApiServer, Batches, EncodeMetrics, LocalStreams, Responses, Streams,
};
use volley_security::Authenticator;
use volley_security::nodes::{NodeKind, only};
use volley_telemetry::Metrics;
use volley_types::{ClusterHandle, Intake, NodeId, NodeIdentity};

use super::peers::{peer_streams, peer_tasks};
use crate::config::security::SecurityPlan;
use crate::node::failures::Failures;

/// State that all listeners of a coordinator share.
pub(super) struct ListenerContext {
    coordinator: Coordinator,
    cluster: Cluster,
    gate: Arc<Authenticator>,
    /// The memory for the bodies and the messages of all requests.
    intake: Intake,
    streams: Streams,
    responses: Responses,
    batches: Batches,
}

impl ListenerContext {
    /// A context that holds no streams, responses or batches yet.
    pub(super) fn new(
        coordinator: &Coordinator,
        cluster: &Cluster,
        gate: Arc<Authenticator>,
        node: NodeId,
        config: ApiConfig,
    ) -> Self {
        Self {
            coordinator: coordinator.clone(),
            cluster: cluster.clone(),
            gate,
            intake: Intake::new(config.edge.max_inflight_body_bytes),
            streams: Streams::new(node, config.resume),
            responses: Responses::new(node, config.responses),
            batches: Batches::default(),
        }
    }

    /// Services for other nodes: Raft, membership, held streams, quotas, tasks, and heartbeats of
    /// workers. With certificates, each accepts only its kind of node. Clients may call Flight too.
    pub(super) fn internal_router(&self, security: &SecurityPlan) -> Router {
        let coordinator = &self.coordinator;
        let flight =
            FlightServer::new(Arc::new(coordinator.clone()), FlightServerConfig::default())
                .taking_in(self.intake.clone())
                .guarded(self.gate.clone());
        let (raft, membership) = self.cluster.services();
        let held = coordinator.stream_service(Arc::new(LocalStreams {
            streams: self.streams.clone(),
            responses: self.responses.clone(),
        }));
        let quota = coordinator.quota_service(self.gate.usage());
        let tasks = coordinator.task_service(Arc::new(self.batches.clone()));
        let has_tls = security.nodes.is_some();
        // A coordinator that was removed is let in nowhere; these look themselves at who is a
        // member.
        let removed = self.cluster.clone();
        let not_removed = Arc::new(move |node: &NodeIdentity| !removed.was_removed(node));
        let consensus = only(NodeKind::Coordinator, has_tls, not_removed);
        // The coordinators that are in the cluster now.
        let cluster = self.cluster.clone();
        let is_member = Arc::new(move |node: &NodeIdentity| cluster.is_member(node));
        let coordinators = only(NodeKind::Coordinator, has_tls, is_member);
        // A worker registers by calling, each for itself.
        let workers = only(NodeKind::Worker, has_tls, Arc::new(|_| true));
        transport::server_builder()
            .add_service(InterceptedService::new(raft, consensus.clone()))
            .add_service(InterceptedService::new(membership, consensus))
            .add_service(InterceptedService::new(held, coordinators.clone()))
            .add_service(InterceptedService::new(quota, coordinators.clone()))
            .add_service(InterceptedService::new(
                coordinator.worker_service(),
                workers,
            ))
            .add_service(InterceptedService::new(tasks, coordinators))
            .add_service(flight.into_service())
    }

    /// The metrics of the node, including held streams, certificates and failures.
    pub(super) fn encode(
        &self,
        metrics: Metrics,
        security: SecurityPlan,
        failures: Failures,
    ) -> EncodeMetrics {
        let (streams, cluster) = (self.streams.clone(), self.cluster.clone());
        Arc::new(move || {
            metrics.set_raft_failure(!cluster.healthy(), failures.last_s());
            let held = streams.counts();
            metrics.set_resumable_streams(volley_telemetry::ResumeCounts {
                streams: held.streams,
                bytes: held.bytes,
                taken_up: held.resumed,
                abandoned: held.abandoned,
            });
            metrics.set_certificate_ends(&security.certificate_ends());
            metrics.encode()
        })
    }

    /// The interface for clients, with the node's metrics from `encode`.
    pub(super) fn api(
        self,
        config: ApiConfig,
        encode: EncodeMetrics,
        security: &SecurityPlan,
    ) -> ApiServer {
        let streams = peer_streams(self.coordinator.clone(), security.dialer());
        let tasks = peer_tasks(self.coordinator.clone(), security.dialer());
        let cluster = ClusterHandle::new(Arc::new(self.coordinator));
        ApiServer::new(cluster, encode, config, self.gate)
            .with_streams(self.streams, streams)
            .with_responses(self.responses)
            .with_batches(self.batches, tasks)
            .with_intake(self.intake)
            .with_tls(security.tls.clone())
            .with_backends(volley_backends::list())
            .with_arrow(Arc::new(|| Box::new(Decoder::default())))
    }
}
