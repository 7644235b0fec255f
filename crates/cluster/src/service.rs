//! gRPC services of a coordinator: consensus, and forwarded writes and membership changes.

use openraft::error::Fatal;
use openraft::raft::SnapshotResponse;
use tonic::{Request, Response, Status, Streaming};
use volley_proto::raft::v1 as wire;
use volley_proto::raft::v1::membership_service_server::MembershipService;
use volley_proto::raft::v1::raft_service_server::RaftService;
use volley_proto::raft::v1::snapshot_part::Part;
use volley_proto::registry::v1 as registry;
use volley_proto::registry_records::{command_from_wire, reply_to_wire};
use volley_types::registry::CoordinatorMember;
use volley_types::{ErrorCode, NodeId, PredictError, Revision};

use crate::Cluster;
use crate::cluster_epoch::History;
use crate::identity::Identity;
use crate::network::{decode, encode};
use crate::raft_types::{Snapshot, SnapshotMeta, Vote};
use crate::status::{not_proposed, to_status};
use crate::write::Attempt;

/// Maximum size in bytes of a received snapshot: twice the limit of the registry.
const MAX_SNAPSHOT_BYTES: usize = 2 * volley_registry::MAX_REGISTRY_BYTES;

/// Serves `volley.raft.v1.RaftService`.
pub struct RaftEndpoint(pub(crate) Cluster);

/// Serves `volley.raft.v1.MembershipService`.
pub struct MembershipEndpoint(pub(crate) Cluster);

fn malformed(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("malformed consensus message: {error}"))
}

fn unanswered(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("the answer cannot be encoded: {error}"))
}

#[tonic::async_trait]
impl RaftService for RaftEndpoint {
    async fn append(
        &self,
        request: Request<wire::Payload>,
    ) -> Result<Response<wire::Payload>, Status> {
        self.0.0.identity.check_certificate(&request)?;
        self.0.check_call(request.metadata()).await?;
        let rpc = decode(request.get_ref()).map_err(malformed)?;
        let answer = self.0.raft_node().append_entries(rpc).await;
        Ok(self.0.signed(encode(&answer).map_err(unanswered)?))
    }

    async fn vote(
        &self,
        request: Request<wire::Payload>,
    ) -> Result<Response<wire::Payload>, Status> {
        self.0.0.identity.check_certificate(&request)?;
        self.0.check_call(request.metadata()).await?;
        let rpc = decode(request.get_ref()).map_err(malformed)?;
        let answer = self.0.raft_node().vote(rpc).await;
        Ok(self.0.signed(encode(&answer).map_err(unanswered)?))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotPart>>,
    ) -> Result<Response<wire::Payload>, Status> {
        self.0.0.identity.check_certificate(&request)?;
        self.0.check_call(request.metadata()).await?;
        let mut parts = request.into_inner();
        let mut header: Option<(Vote, SnapshotMeta)> = None;
        let mut data = Vec::new();
        while let Some(part) = parts.message().await? {
            match part.part {
                Some(Part::Header(bytes)) => {
                    header = Some(decode(&wire::Payload { data: bytes }).map_err(malformed)?);
                }
                Some(Part::Data(bytes)) if data.len() + bytes.len() <= MAX_SNAPSHOT_BYTES => {
                    data.extend_from_slice(&bytes);
                }
                Some(Part::Data(_)) => {
                    return Err(Status::resource_exhausted("snapshot too large"));
                }
                None => return Err(malformed("an empty snapshot part")),
            }
        }
        let (vote, meta) = header.ok_or_else(|| malformed("a snapshot without its header"))?;
        let snapshot = Snapshot {
            meta,
            snapshot: Box::new(data),
        };
        let answer: Result<SnapshotResponse<u64>, Fatal<u64>> = self
            .0
            .raft_node()
            .install_full_snapshot(vote, snapshot)
            .await;
        Ok(self.0.signed(encode(&answer).map_err(unanswered)?))
    }

    async fn pre_vote(
        &self,
        request: Request<wire::PreVoteRequest>,
    ) -> Result<Response<wire::PreVoteReply>, Status> {
        self.0.0.identity.check_certificate(&request)?;
        self.0.check_call(request.metadata()).await?;
        let candidacy = self.0.candidacy().await;
        let stopped = || Status::unavailable("this coordinator's Raft node has stopped");
        Ok(self.0.signed(candidacy.ok_or_else(stopped)?.to_wire()))
    }
}

impl MembershipEndpoint {
    /// Rejects a membership change on a node that does not lead.
    fn check_leads(&self) -> Result<(), Status> {
        self.0.is_leader().then_some(()).ok_or_else(not_proposed)
    }
}

#[tonic::async_trait]
impl MembershipService for MembershipEndpoint {
    async fn write(
        &self,
        request: Request<wire::WriteRequest>,
    ) -> Result<Response<registry::Reply>, Status> {
        self.0.0.identity.check_member(&request)?;
        let request = request.into_inner();
        let command = request
            .command
            .ok_or_else(|| malformed("a write without a command"))?;
        let command = command_from_wire(command).map_err(|error| to_status(&error))?;
        let reply = if request.forwarded {
            match self.0.write_here(command).await {
                Attempt::Answered(reply) => reply,
                Attempt::NotProposed => return Err(not_proposed()),
            }
        } else {
            self.0.write(command).await
        };
        match reply {
            // A rejection by the registry is a reply. All other errors are failed calls.
            Err(error) if !is_refusal(&error) => Err(to_status(&error)),
            reply => Ok(Response::new(reply_to_wire(&reply))),
        }
    }

    async fn join(
        &self,
        request: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::MembershipReply>, Status> {
        // A new coordinator is not a member yet, so only forwarded requests need a member's
        // certificate.
        if request.get_ref().forwarded {
            self.0.0.identity.check_member(&request)?;
        }
        let request = request.into_inner();
        let node = NodeId(request.node_id);
        let members = if request.forwarded {
            self.check_leads()?;
            self.0.join_here(node, request.address).await
        } else {
            self.0.join(node, request.address).await
        };
        members.map(to_reply).map_err(|error| to_status(&error))
    }

    async fn leave(
        &self,
        request: Request<wire::LeaveRequest>,
    ) -> Result<Response<wire::MembershipReply>, Status> {
        self.0.0.identity.check_member(&request)?;
        let request = request.into_inner();
        let node = NodeId(request.node_id);
        let members = if request.forwarded {
            self.check_leads()?;
            self.0.leave_here(node).await
        } else {
            self.0.leave(node).await
        };
        members.map(to_reply).map_err(|error| to_status(&error))
    }

    async fn replace(
        &self,
        request: Request<wire::ReplaceRequest>,
    ) -> Result<Response<wire::MembershipReply>, Status> {
        self.0.0.identity.check_member(&request)?;
        let request = request.into_inner();
        let (old, node) = (NodeId(request.old_id), NodeId(request.node_id));
        let members = if request.forwarded {
            self.check_leads()?;
            self.0.replace_here(old, node, request.address).await
        } else {
            self.0.replace(old, node, request.address).await
        };
        members.map(to_reply).map_err(|error| to_status(&error))
    }

    async fn transfer_leadership(
        &self,
        request: Request<wire::TransferLeadershipRequest>,
    ) -> Result<Response<wire::TransferLeadershipReply>, Status> {
        self.0.0.identity.check_member(&request)?;
        let request = request.into_inner();
        let to = (request.node_id != 0).then_some(NodeId(request.node_id));
        let leader = if request.forwarded {
            self.check_leads()?;
            self.0.transfer_leadership_here(to).await
        } else {
            self.0.transfer_leadership(to).await
        };
        let reply =
            |leader: NodeId| Response::new(wire::TransferLeadershipReply { node_id: leader.0 });
        leader.map(reply).map_err(|error| to_status(&error))
    }

    async fn timeout_now(
        &self,
        request: Request<wire::TimeoutNowRequest>,
    ) -> Result<Response<wire::TimeoutNowReply>, Status> {
        self.0.0.identity.check_member(&request)?;
        let taken = self.0.lead_now(request.get_ref().term).await;
        let reply = |()| Response::new(wire::TimeoutNowReply {});
        taken.map(reply).map_err(|error| to_status(&error))
    }

    async fn await_revision(
        &self,
        request: Request<wire::AwaitRevisionRequest>,
    ) -> Result<Response<wire::AwaitRevisionReply>, Status> {
        self.0.0.identity.check_member(&request)?;
        let revision = Revision(request.get_ref().revision);
        let applied = self.0.await_revision(revision).await;
        Ok(Response::new(wire::AwaitRevisionReply {
            revision: applied.0,
        }))
    }

    async fn describe(
        &self,
        request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DescribeReply>, Status> {
        // A caller without an identity, or of another epoch, only reads the description.
        let is_named = matches!(Identity::read(request.metadata()), Ok(Some(_)));
        let history = self.0.history_of(request.metadata()).await;
        if is_named && matches!(history, Ok(History::Own)) {
            self.0.0.identity.check_call(request.metadata()).await?;
        }
        Ok(self.0.signed(self.0.describe_to_others().await))
    }
}

impl Cluster {
    /// Adds this node's identity to a reply.
    fn signed<T>(&self, answer: T) -> Response<T> {
        let mut answer = Response::new(answer);
        self.0.identity.sign(answer.metadata_mut());
        answer
    }
}

fn to_reply(members: Vec<CoordinatorMember>) -> Response<wire::MembershipReply> {
    let members = members.into_iter().map(|member| wire::Member {
        node_id: member.id.0,
        address: member.address,
        voter: member.voter,
        incarnation: 0,
    });
    Response::new(wire::MembershipReply {
        members: members.collect(),
    })
}

/// Returns whether the registry itself rejected the command, which therefore changed nothing.
fn is_refusal(error: &PredictError) -> bool {
    matches!(
        error.code,
        ErrorCode::NotFound | ErrorCode::Conflict | ErrorCode::InvalidInput | ErrorCode::TooLarge
    )
}
