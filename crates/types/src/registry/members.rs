//! Raft's view of the coordinators.

use crate::ids::NodeId;

/// Raft's view of one coordinator, for status pages and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftStatus {
    /// This node.
    pub id: NodeId,
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub role: &'static str,
    /// The leader, where one is known.
    pub leader: Option<NodeId>,
    /// The current term.
    pub term: u64,
    /// The last index in the log.
    pub last_log_index: Option<u64>,
    /// The last index applied.
    pub last_applied: Option<u64>,
    /// Members: id, internal address, whether it votes.
    pub members: Vec<CoordinatorMember>,
}

/// One coordinator in the Raft membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorMember {
    /// Its id.
    pub id: NodeId,
    /// Its internal address, `host:port`.
    pub address: String,
    /// Whether it votes (else it is a learner).
    pub voter: bool,
}
