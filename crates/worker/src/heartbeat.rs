//! The stream to one coordinator: reports out, assignments in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_stream::stream;
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use volley_proto::report_changes::changes_to_wire;
use volley_proto::worker::v1 as wire;
use volley_proto::worker::v1::worker_service_client::WorkerServiceClient;
use volley_proto::worker_report::orders_from_wire;
use volley_security::nodes::NodeKind;
use volley_types::{Assignments, NodeIdentity, Revision, WorkerReport};

use crate::Worker;

/// The first and the longest wait before a coordinator is called again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A stream that lived this long was a good one: the next wait is the first again.
const GOOD: Duration = Duration::from_secs(5);
const MAX_ASSIGNMENTS_BYTES: usize = 64 << 20;

/// More than any cluster has; bounds what a peer can make a worker do.
const MAX_COORDINATORS: usize = 64;

/// The ids of the coordinators that are in the cluster, and where in their log that stands.
pub(crate) type Members = Option<(u64, BTreeSet<u64>)>;

/// The streams that run, and the newest revision that said so.
#[derive(Debug, Default)]
pub(crate) struct RunningStreams {
    revision: Revision,
    tasks: BTreeMap<String, CancellationToken>,
}

/// Whether a node is a coordinator of the cluster; each is while the members are unknown.
fn has_coordinator(members: &Members, node: &NodeIdentity) -> bool {
    let NodeIdentity::Coordinator(id) = node else {
        return false;
    };
    members.as_ref().is_none_or(|(_, ids)| ids.contains(&id.0))
}

impl Worker {
    /// Keeps a heartbeat stream to the coordinator at `address`, for ever.
    async fn run_heartbeat(self, address: String) {
        let mut wait = BACKOFF.0;
        loop {
            let began = Instant::now();
            let reason = match self.converse(&address).await {
                Ok(()) => "closed by the coordinator".to_owned(),
                Err(error) => error.to_string(),
            };
            if GOOD < began.elapsed() {
                wait = BACKOFF.0;
            }
            tracing::debug!(coordinator = address, reason, "heartbeat stream ended");
            tokio::time::sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    /// Keeps a stream to each coordinator that is configured or known to the cluster, and ends
    /// those to coordinators that are neither any more.
    pub(crate) fn report_to(&self, orders: &Assignments) {
        let mut streams = self.0.streams.lock();
        // A coordinator that lags must not take back what a later one said.
        if orders.revision < streams.revision {
            return;
        }
        streams.revision = orders.revision;
        let configured = &self.0.config.coordinators;
        let wanted = |address: &String| {
            configured.contains(address) || orders.coordinators.contains(address)
        };
        streams.tasks.retain(|address, stop| {
            wanted(address) || {
                stop.cancel();
                false
            }
        });
        for address in configured
            .iter()
            .chain(&orders.coordinators)
            .take(MAX_COORDINATORS)
        {
            if streams.tasks.contains_key(address) {
                continue;
            }
            let stop = CancellationToken::new();
            streams.tasks.insert(address.clone(), stop.clone());
            let (worker, address) = (self.clone(), address.clone());
            self.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = worker.run_heartbeat(address) => {}
                }
            });
        }
    }

    /// Takes over who the coordinators are, unless it knows of a later membership.
    fn learn_members(&self, told: &wire::Membership) {
        self.0.members.send_if_modified(|members| {
            let is_later = members
                .as_ref()
                .is_none_or(|(index, _)| *index < told.index);
            if is_later {
                let ids = told.coordinator_ids.iter().take(MAX_COORDINATORS);
                *members = Some((told.index, ids.copied().collect()));
            }
            is_later
        });
    }

    /// Whether a node's certificate is good for calls here: it is a coordinator that is in the
    /// cluster now. Until a coordinator has told which ones are, each is.
    #[must_use]
    pub fn takes_calls_of(&self, node: &NodeIdentity) -> bool {
        has_coordinator(&self.0.members.borrow(), node)
    }

    /// Waits until a node's certificate is not [good for calls](Worker::takes_calls_of) here.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub fn revocation_of(&self, node: NodeIdentity) -> impl Future<Output = ()> + Send + use<> {
        let mut members = self.0.members.subscribe();
        async move {
            let gone = members.wait_for(|members| !has_coordinator(members, &node));
            if gone.await.is_err() {
                // The worker has ended, and its calls end with it.
                std::future::pending().await
            }
        }
    }

    async fn converse(
        &self,
        address: &str,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true);
        let dialer = &self.0.config.dialer;
        let channel = dialer.connect(&endpoint, NodeKind::Coordinator).await?;
        let mut client =
            WorkerServiceClient::new(channel).max_decoding_message_size(MAX_ASSIGNMENTS_BYTES);
        // The transport may keep what it was given to send for longer than this conversation.
        let ended = CancellationToken::new();
        let _ends = ended.clone().drop_guard();
        let takes_partial = Arc::new(AtomicBool::new(false));
        let reports = self.clone().reports(ended, takes_partial.clone());
        let mut answers = client.heartbeat(reports).await?.into_inner();
        tracing::info!(coordinator = address, "heartbeat stream open");
        while let Some(orders) = answers.next().await {
            let orders = orders?;
            takes_partial.store(orders.takes_partial, Ordering::Release);
            if let Some(membership) = &orders.membership {
                self.learn_members(membership);
            }
            let orders = orders_from_wire(orders)?;
            self.report_to(&orders);
            self.assign(orders);
        }
        Ok(())
    }

    /// A report at once, at every interval, and whenever there is news, until `ended`. Only
    /// what changed, once the coordinator has said that it takes that.
    fn reports(
        self,
        ended: CancellationToken,
        takes_partial: Arc<AtomicBool>,
    ) -> impl Stream<Item = wire::WorkerReport> + Send + 'static {
        let mut news = self.0.news.subscribe();
        let mut beat = tokio::time::interval(self.0.config.heartbeat_interval);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        stream! {
            let mut said: Option<WorkerReport> = None;
            loop {
                tokio::select! {
                    () = ended.cancelled() => return,
                    _ = beat.tick() => {}
                    changed = news.changed() => if changed.is_err() { return },
                }
                let report = self.report();
                let partial = takes_partial.load(Ordering::Acquire);
                let wire = changes_to_wire(said.as_ref().filter(|_| partial), &report);
                said = Some(report);
                yield wire;
            }
        }
    }

    fn report(&self) -> WorkerReport {
        let replicas: Vec<_> = self
            .0
            .replicas
            .read()
            .iter()
            .map(|replica| replica.report(|at| self.0.uptime_ms(at)))
            .collect();
        WorkerReport {
            id: self.0.config.id.clone(),
            incarnation: self.0.incarnation,
            address: self.0.config.address.clone(),
            labels: self.0.config.labels.clone(),
            active: replicas.iter().map(|replica| replica.active).sum(),
            queued: replicas.iter().map(|replica| replica.queued).sum(),
            draining: !self.ready(),
            memory_bytes: resident_bytes(),
            memory_budget_bytes: self.0.budget.budget(),
            gpus: self.0.gpus.lock().clone(),
            uptime_ms: self.0.uptime_ms(Instant::now()),
            replicas,
        }
    }
}

/// Resident memory of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
