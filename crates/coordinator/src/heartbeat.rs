//! The service for workers: one heartbeat stream per worker, which returns its assignments.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Instant;

use async_stream::try_stream;
use futures::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use volley_proto::report_changes::changes_from_wire;
use volley_proto::worker::v1 as wire;
use volley_proto::worker::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use volley_proto::worker_report::orders_to_wire;
use volley_security::nodes::Peer;
use volley_types::control::Liveness;
use volley_types::{Assignments, NodeIdentity, WorkerId, WorkerReport};

use crate::Coordinator;

/// The largest heartbeat: some 10,000 replicas with their schemas.
const MAX_REPORT_BYTES: usize = 16 << 20;

/// Serves `volley.worker.v1.WorkerService` for one coordinator.
pub struct Heartbeats(Coordinator);

impl Coordinator {
    /// The gRPC service that workers connect to; for the internal listener.
    #[must_use]
    pub fn worker_service(&self) -> WorkerServiceServer<Heartbeats> {
        WorkerServiceServer::new(Heartbeats(self.clone()))
            .max_decoding_message_size(MAX_REPORT_BYTES)
            .max_encoding_message_size(MAX_REPORT_BYTES)
    }

    /// The current assignments of `worker`.
    fn orders(&self, worker: &WorkerId) -> Assignments {
        let state = self.0.cluster.registry().borrow().clone();
        let members = self.0.cluster.raft().borrow().members.clone();
        let mut book = self.0.book.lock();
        // The first stream computes the assignments for all.
        book.turn_to(&state);
        Assignments {
            revision: book.revision(),
            assignments: book.assignments(worker),
            coordinators: members.into_iter().map(|member| member.address).collect(),
            overcommit: book.overcommitted(worker),
        }
    }

    fn membership(&self) -> Option<wire::Membership> {
        let (index, ids) = self.0.cluster.membership()?;
        Some(wire::Membership {
            index,
            coordinator_ids: ids.into_iter().map(|id| id.0).collect(),
        })
    }

    /// Whether `sent` is still up to date for the worker.
    fn knows(&self, worker: &WorkerId, sent: &Assignments) -> bool {
        let state = self.0.cluster.registry().borrow().clone();
        let raft = self.0.cluster.raft();
        let mut book = self.0.book.lock();
        book.turn_to(&state);
        let members = &raft.borrow().members;
        let addresses = members.iter().map(|member| &member.address);
        book.changed(worker) <= sent.revision && addresses.eq(&sent.coordinators)
    }

    fn listen_to(&self, report: &WorkerReport, stream: u64) -> WorkerSession {
        tracing::info!(worker = %report.id, incarnation = %report.incarnation, "worker connected");
        WorkerSession {
            coordinator: self.clone(),
            worker: report.id.clone(),
            stream,
        }
    }

    pub(crate) fn heard(&self, report: WorkerReport, stream: u64) {
        let connect = |address: &str| (self.0.connect)(address);
        let changed = self
            .0
            .live
            .write()
            .heard(report, stream, Instant::now(), connect);
        if changed {
            self.notify_change();
        }
    }
}

/// Session of one worker. When its stream ends for any reason, the worker is marked dead
/// immediately.
struct WorkerSession {
    coordinator: Coordinator,
    worker: WorkerId,
    stream: u64,
}

impl Drop for WorkerSession {
    fn drop(&mut self) {
        let shared = &self.coordinator.0;
        let before = shared.live.write().lost(&self.worker, self.stream);
        match before {
            None => return,
            Some(Liveness::Draining) => tracing::info!(worker = %self.worker, "worker left"),
            Some(_) => tracing::warn!(worker = %self.worker, "worker lost"),
        }
        self.coordinator.notify_change();
    }
}

#[tonic::async_trait]
impl WorkerService for Heartbeats {
    type HeartbeatStream = Pin<Box<dyn Stream<Item = Result<wire::Assignments, Status>> + Send>>;

    async fn heartbeat(
        &self,
        request: Request<Streaming<wire::WorkerReport>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let coordinator = self.0.clone();
        let peer = request.extensions().get::<Peer>();
        let identity = peer.and_then(|peer| peer.identity.clone());
        let reports = request.into_inner();
        Ok(Response::new(Box::pin(converse(
            coordinator,
            reports,
            identity,
        ))))
    }
}

fn is_worker(identity: &NodeIdentity, worker: &WorkerId) -> bool {
    matches!(identity, NodeIdentity::Worker(id) if id == worker)
}

fn converse(
    coordinator: Coordinator,
    mut reports: Streaming<wire::WorkerReport>,
    identity: Option<NodeIdentity>,
) -> impl Stream<Item = Result<wire::Assignments, Status>> + Send {
    let stream = coordinator
        .0
        .next_heartbeat_stream
        .fetch_add(1, Ordering::Relaxed);
    let mut registry = coordinator.0.cluster.registry();
    let mut raft = coordinator.0.cluster.raft();
    let stop = coordinator.0.stop.clone();
    try_stream! {
        let mut speaker: Option<WorkerSession> = None;
        let mut sent: Option<Assignments> = None;
        // The report that changes refer to.
        let mut said: Option<WorkerReport> = None;
        loop {
            let report = tokio::select! {
                report = reports.next() => match report {
                    Some(report) => Some(report),
                    None => break,
                },
                changed = registry.changed() => match changed {
                    Ok(()) => None,
                    Err(_) => break,
                },
                changed = raft.changed() => match changed {
                    Ok(()) => None,
                    Err(_) => break,
                },
                () = stop.cancelled() => break,
            };
            if let Some(report) = report {
                let report = changes_from_wire(said.take(), report?)
                    .map_err(|error| Status::invalid_argument(error.message))?;
                if identity.as_ref().is_some_and(|proved| !is_worker(proved, &report.id)) {
                    Err(Status::permission_denied("the certificate is another worker's"))?;
                }
                let speaker = speaker.get_or_insert_with(|| coordinator.listen_to(&report, stream));
                if speaker.worker != report.id {
                    Err(Status::invalid_argument("a heartbeat stream must be of one worker"))?;
                }
                said = Some(report.clone());
                coordinator.heard(report, stream);
            }
            let Some(speaker) = &speaker else { continue };
            registry.mark_unchanged();
            raft.mark_unchanged();
            if sent.as_ref().is_some_and(|sent| coordinator.knows(&speaker.worker, sent)) {
                continue;
            }
            let orders = coordinator.orders(&speaker.worker);
            let mut told = orders_to_wire(&orders);
            told.membership = coordinator.membership();
            yield told;
            sent = Some(orders);
        }
    }
}
