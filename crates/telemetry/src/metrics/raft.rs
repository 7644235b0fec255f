//! Metrics of a coordinator's Raft node.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use volley_types::registry::RaftStatus;

use super::Metrics;

/// The Raft state as this node sees it.
#[derive(Default)]
pub(super) struct Raft {
    term: Gauge,
    leader: Gauge,
    leader_known: Gauge,
    log_index: Gauge,
    applied_index: Gauge,
    voters: Gauge,
    failed: Gauge,
    last_failure: Gauge,
}

impl Raft {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("raft_term", "Current Raft term", self.term.clone());
        registry.register(
            "raft_is_leader",
            "1 on the leader, else 0",
            self.leader.clone(),
        );
        registry.register(
            "raft_leader_known",
            "1 while this coordinator knows a leader, else 0",
            self.leader_known.clone(),
        );
        registry.register(
            "raft_last_log_index",
            "Last index in the Raft log",
            self.log_index.clone(),
        );
        registry.register(
            "raft_last_applied_index",
            "Last index that was applied",
            self.applied_index.clone(),
        );
        registry.register("raft_voters", "Coordinators that vote", self.voters.clone());
        registry.register(
            "raft_failed",
            "1 after consensus has failed on this node, until the process ends at most 2 s later",
            self.failed.clone(),
        );
        registry.register(
            "raft_last_failure_timestamp_seconds",
            "Time at which consensus last failed on this data directory, since 1970; 0 means never. The value survives restarts",
            self.last_failure.clone(),
        );
    }
}

impl Metrics {
    /// Sets this coordinator's view of Raft.
    pub fn set_raft(&self, status: &RaftStatus) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let raft = &self.0.raft;
        raft.term.set(number(status.term));
        raft.leader.set(i64::from(status.leader == Some(status.id)));
        raft.leader_known.set(i64::from(status.leader.is_some()));
        raft.log_index
            .set(number(status.last_log_index.unwrap_or(0)));
        raft.applied_index
            .set(number(status.last_applied.unwrap_or(0)));
        let voters = status.members.iter().filter(|member| member.voter).count();
        raft.voters.set(number(voters as u64));
    }

    /// Sets whether Raft has failed on this node, and the time of the last failure in seconds since
    /// 1970, 0 for none.
    pub fn set_raft_failure(&self, failed: bool, last_s: u64) {
        self.0.raft.failed.set(i64::from(failed));
        let last = i64::try_from(last_s).unwrap_or(i64::MAX);
        self.0.raft.last_failure.set(last);
    }
}
