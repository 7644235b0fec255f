//! Descriptions that coordinators send each other: feature level, identity, known members, and how
//! far their disks have got.

use std::time::Duration;

use tonic::Request;
use volley_proto::raft::v1 as wire;
use volley_types::control::CoordinatorReport;
use volley_types::{NodeId, PredictError};

use crate::Cluster;
use crate::feature_level::silent;
use crate::identity::{Ballot, Identity};
use crate::lines::membership_client;

/// A coordinator's description of itself.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorDescription {
    pub(crate) report: CoordinatorReport,
    /// Its id; `None` from versions that do not report it.
    pub(crate) node: Option<NodeId>,
    /// Incarnation of its data directory; 0 from versions that have none.
    pub(crate) incarnation: u64,
    /// It has voted or has log entries.
    pub(crate) initialised: bool,
    /// The members it knows, with their incarnations.
    pub(crate) members: Vec<(NodeId, u64)>,
    /// Its vote, and the last index it knows to be committed.
    pub(crate) reach: Option<(Ballot, u64)>,
}

impl Cluster {
    pub(crate) fn describe_here(&self) -> CoordinatorReport {
        CoordinatorReport {
            level: self.0.config.level,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            active_streams: self.0.streams.load(std::sync::atomic::Ordering::Relaxed),
            last_applied: self.0.status.borrow().last_applied,
        }
    }

    pub(crate) async fn describe_to_others(&self) -> wire::DescribeReply {
        let report = self.describe_here();
        let (vote, committed) = self.0.log.reach();
        let vote = vote.map(Ballot::of).unwrap_or_default();
        let initialised = self.is_initialised().await;
        let metrics = self.0.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        let voters: Vec<u64> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, node)| wire::Member {
            node_id: *id,
            address: node.addr.clone(),
            voter: voters.contains(id),
            incarnation: node.incarnation,
        });
        wire::DescribeReply {
            level: report.level,
            version: report.version,
            active_streams: report.active_streams,
            last_applied: report.last_applied,
            node_id: self.0.config.node_id.0,
            initialised,
            members: members.collect(),
            reach: Some(wire::Reach {
                term: vote.term,
                leader: vote.leader,
                elected: vote.elected,
                committed,
            }),
        }
    }

    /// Requests the description of the coordinator at `address`. The timeout is the lease. If
    /// `member` is given, the reply must come from that member.
    ///
    /// # Errors
    /// `Unavailable` if no valid reply arrives.
    pub(crate) async fn ask_at(
        &self,
        address: &str,
        member: Option<NodeId>,
    ) -> Result<CoordinatorDescription, PredictError> {
        self.ask_within(self.lease(), address, member).await
    }

    /// Does the same as [`Cluster::ask_at`] with the timeout `patience`.
    ///
    /// # Errors
    /// As [`Cluster::ask_at`].
    pub(crate) async fn ask_within(
        &self,
        patience: Duration,
        address: &str,
        member: Option<NodeId>,
    ) -> Result<CoordinatorDescription, PredictError> {
        let asked = tokio::time::timeout(patience, async {
            let channel = self.peer(address).await?;
            let mut request = Request::new(wire::DescribeRequest {});
            self.0.epoch.mark(request.metadata_mut());
            if let Some(member) = member {
                self.0.identity.address(member.0, request.metadata_mut());
            }
            Some(membership_client(channel).describe(request).await)
        });
        let failed = match asked.await {
            Ok(Some(Ok(reply))) => match self.check_described(member, &reply).await {
                Ok(process) => return Ok(described(reply.into_inner(), process)),
                Err(status) => Some(status),
            },
            // Level 1 has no `Describe` method.
            Ok(Some(Err(status))) if status.code() == tonic::Code::Unimplemented => {
                return Ok(first_version());
            }
            Ok(Some(Err(status))) => {
                self.0.identity.heed(&status);
                Some(status)
            }
            Ok(None) | Err(_) => None,
        };
        // The connection may be broken; the next request opens another one.
        self.0.peers.lock().await.remove(address);
        Err(match failed {
            Some(status) => silent(address).with_source(status),
            None => silent(address),
        })
    }

    async fn check_described(
        &self,
        member: Option<NodeId>,
        reply: &tonic::Response<wire::DescribeReply>,
    ) -> Result<Option<Identity>, tonic::Status> {
        if let Some(member) = member {
            let checked = self.0.identity.check_answer(member.0, reply.metadata());
            checked.await?;
        }
        Ok(Identity::read(reply.metadata()).ok().flatten())
    }
}

fn described(reply: wire::DescribeReply, process: Option<Identity>) -> CoordinatorDescription {
    let members = reply.members.into_iter();
    CoordinatorDescription {
        node: (reply.node_id != 0).then_some(NodeId(reply.node_id)),
        incarnation: process.map_or(0, |process| process.incarnation),
        initialised: reply.initialised || reply.last_applied.is_some(),
        members: members
            .map(|member| (NodeId(member.node_id), member.incarnation))
            .collect(),
        reach: reply.reach.map(|reach| {
            let vote = Ballot {
                term: reach.term,
                leader: reach.leader,
                elected: reach.elected,
            };
            (vote, reach.committed)
        }),
        report: CoordinatorReport {
            level: reply.level,
            version: reply.version,
            active_streams: reply.active_streams,
            last_applied: reply.last_applied,
        },
    }
}

fn first_version() -> CoordinatorDescription {
    CoordinatorDescription {
        report: CoordinatorReport {
            level: 1,
            version: String::new(),
            active_streams: 0,
            last_applied: None,
        },
        node: None,
        incarnation: 0,
        initialised: false,
        members: Vec::new(),
        reach: None,
    }
}
