//! Usage of API keys, shared between coordinators so that a key's quota applies to all of them
//! together: the service that receives reports, and the task that sends them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use volley_proto::quota::v1 as wire;
use volley_proto::quota::v1::quota_service_client::QuotaServiceClient;
use volley_proto::quota::v1::quota_service_server::{QuotaService, QuotaServiceServer};
use volley_security::usage::{KeyUse, MAX_HEARD, MAX_REPORTED, Report, Usage};
use volley_types::{KeyId, NodeId};

use crate::Coordinator;
use crate::streams::OpenChannel;

/// Interval of reports with changes.
const EVERY: Duration = Duration::from_millis(100);
/// Interval of reports without changes, which show that this coordinator runs.
const AT_LEAST: Duration = Duration::from_secs(1);
/// Time limit for a coordinator's response, and delay after a failure.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves `volley.quota.v1.QuotaService`.
pub struct QuotaEndpoint(Usage);

#[tonic::async_trait]
impl QuotaService for QuotaEndpoint {
    async fn report(
        &self,
        request: Request<wire::UsageReport>,
    ) -> Result<Response<wire::UsageReply>, Status> {
        let report = from_wire(request.into_inner())?;
        let known = self.0.hear(report, Instant::now());
        Ok(Response::new(wire::UsageReply { known }))
    }
}

fn from_wire(report: wire::UsageReport) -> Result<Report, Status> {
    if MAX_HEARD < report.keys.len() {
        return Err(Status::invalid_argument("the report has too many keys"));
    }
    let keys = report.keys.into_iter().map(|used| {
        let key = KeyId::new(used.key);
        let key = key.map_err(|error| Status::invalid_argument(error.message))?;
        let used = KeyUse {
            requests: used.requests,
            tokens: used.tokens,
            streams: used.streams,
            requests_per_minute: used.requests_per_minute,
            tokens_per_minute: used.tokens_per_minute,
        };
        Ok((key, used))
    });
    Ok(Report {
        node: NodeId(report.node),
        session: report.session,
        first: report.first,
        keys: keys.collect::<Result<_, Status>>()?,
    })
}

fn to_wire(report: &Report) -> wire::UsageReport {
    let keys = report.keys.iter().map(|(key, used)| wire::KeyUsage {
        key: key.to_string(),
        requests: used.requests,
        tokens: used.tokens,
        streams: used.streams,
        requests_per_minute: used.requests_per_minute,
        tokens_per_minute: used.tokens_per_minute,
    });
    wire::UsageReport {
        node: report.node.0,
        session: report.session,
        first: report.first,
        keys: keys.collect(),
    }
}

impl Coordinator {
    /// The gRPC service through which other coordinators report their usage; for the internal
    /// listener.
    #[must_use]
    pub fn quota_service(&self, usage: Usage) -> QuotaServiceServer<QuotaEndpoint> {
        QuotaServiceServer::new(QuotaEndpoint(usage))
    }

    /// Reports the usage of this coordinator to the others until [`Coordinator::shutdown`].
    pub fn share_usage(&self, usage: Usage, open: OpenChannel) {
        self.spawn(self.clone().report_usage(usage, open));
    }

    async fn report_usage(self, usage: Usage, open: OpenChannel) {
        let mut talks: HashMap<(NodeId, String), AbortOnDropHandle<()>> = HashMap::new();
        let mut rounds = tokio::time::interval(EVERY);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                _ = rounds.tick() => {}
            }
            let raft = self.0.cluster.raft().borrow().clone();
            let members = raft.members;
            usage.set_alone(raft.leader.is_none(), members.len());
            let ids: Vec<_> = members.iter().map(|member| member.id).collect();
            usage.keep_only(&ids);
            let others = members.into_iter().filter(|member| member.id != raft.id);
            let others: Vec<_> = others.map(|member| (member.id, member.address)).collect();
            talks.retain(|other, _| others.contains(other));
            for other in others {
                if talks.contains_key(&other) {
                    continue;
                }
                // Other callers report a malformed address.
                if let Ok(channel) = self.0.peers.channel(&other.1, &open) {
                    let talk = ReportSession::new(raft.id, usage.clone());
                    let task = tokio::spawn(talk.run(channel));
                    talks.insert(other, AbortOnDropHandle::new(task));
                }
            }
        }
    }
}

/// One stream of reports to one coordinator.
struct ReportSession {
    node: NodeId,
    usage: Usage,
    session: u64,
    first: bool,
    reported: HashMap<KeyId, KeyUse>,
}

impl ReportSession {
    fn new(node: NodeId, usage: Usage) -> Self {
        Self {
            node,
            usage,
            session: uuid::Uuid::new_v4().as_u64_pair().0,
            first: true,
            reported: HashMap::new(),
        }
    }

    async fn run(mut self, channel: Channel) {
        let mut client = QuotaServiceClient::new(channel);
        let mut last: Option<Instant> = None;
        loop {
            tokio::time::sleep(EVERY).await;
            let most = if self.first { MAX_HEARD } else { MAX_REPORTED };
            let keys = self.usage.news(&mut self.reported, most);
            let is_due = last.is_none_or(|last| AT_LEAST <= last.elapsed());
            if keys.is_empty() && !is_due {
                continue;
            }
            let report = Report {
                node: self.node,
                session: self.session,
                first: self.first,
                keys,
            };
            let sent = client.report(to_wire(&report));
            match tokio::time::timeout(ANSWER_TIMEOUT, sent).await {
                Ok(Ok(reply)) if reply.get_ref().known => {
                    self.reported.extend(report.keys);
                    self.first = false;
                    last = Some(Instant::now());
                }
                Ok(Ok(_)) => {
                    self.reported.clear();
                    self.first = true;
                }
                // The coordinator is down, or its version has no quotas. New usage is reported
                // again.
                Ok(Err(_)) | Err(_) => tokio::time::sleep(ANSWER_TIMEOUT).await,
            }
        }
    }
}
