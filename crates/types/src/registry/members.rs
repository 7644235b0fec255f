//! Raft's view of the coordinators.

use crate::ids::NodeId;

/// Raft's view of one coordinator, for status pages and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftStatus {
    /// This node.
    pub id: NodeId,
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub role: &'static str,
    /// The leader; `None` if unknown.
    pub leader: Option<NodeId>,
    /// The current term.
    pub term: u64,
    /// Last index in the log.
    pub last_log_index: Option<u64>,
    /// Last applied log index.
    pub last_applied: Option<u64>,
    /// All members, voters and learners.
    pub members: Vec<CoordinatorMember>,
}

/// One coordinator in the Raft membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorMember {
    /// Its id.
    pub id: NodeId,
    /// Its internal address, `host:port`.
    pub address: String,
    /// Whether the coordinator votes; otherwise it is a learner.
    pub voter: bool,
}
