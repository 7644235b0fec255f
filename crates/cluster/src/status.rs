//! Errors and members in messages between coordinators.

use prost::Message;
use tonic::Status;
use volley_proto::raft::v1 as wire;
use volley_proto::registry::v1 as registry;
use volley_types::registry::CoordinatorMember;
use volley_types::{ErrorCode, NodeId, PredictError};

use crate::{RETRY_AFTER, no_leader};

/// Reads the members from a peer's reply.
pub(crate) fn from_reply(reply: wire::MembershipReply) -> Vec<CoordinatorMember> {
    let members = reply.members.into_iter().map(|member| CoordinatorMember {
        id: NodeId(member.node_id),
        address: member.address,
        voter: member.voter,
    });
    members.collect()
}

/// The reply to a forwarded write or change that was certainly not proposed, because this node does
/// not lead.
pub(crate) fn not_proposed() -> Status {
    let error = no_leader();
    let details = to_status(&error).details().to_vec();
    Status::with_details(tonic::Code::Unavailable, error.message, details.into())
}

/// Returns whether a peer replied [`not_proposed`]. A failed call has the same code, but no
/// details.
pub(crate) fn was_not_proposed(status: &Status) -> bool {
    status.code() == tonic::Code::Unavailable && !status.details().is_empty()
}

/// Encodes an error as a status for [`from_status`].
pub(crate) fn to_status(error: &PredictError) -> Status {
    let details = registry::Refused {
        code: error.code.as_str().to_owned(),
        message: error.message.clone(),
    };
    let details = details.encode_to_vec().into();
    Status::with_details(
        tonic::Code::FailedPrecondition,
        error.message.clone(),
        details,
    )
}

/// Returns the error in a peer's reply, or `None` if the call itself failed.
pub(crate) fn from_status(status: &Status) -> Option<PredictError> {
    if status.details().is_empty() {
        return None;
    }
    let refused = registry::Refused::decode(status.details()).ok()?;
    let error = PredictError::new(ErrorCode::from_name(&refused.code)?, refused.message);
    Some(match error.code {
        ErrorCode::Unavailable | ErrorCode::Overloaded => error.with_retry_after(RETRY_AFTER),
        _ => error,
    })
}
