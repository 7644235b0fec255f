//! Configuration of a Raft node.

use std::path::PathBuf;
use std::time::Duration;

use volley_security::nodes::Dialer;
use volley_types::NodeId;
use volley_types::registry::LEVEL;

/// Maximum number of entries in one append. Entries of the maximum size still fit into a message.
const MAX_APPEND_ENTRIES: u64 = 32;
/// Timeout of a write with the default Raft timing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum factor by which the Raft timing can be slowed down. With it, replacing a lost leader
/// takes more than ten seconds.
pub const MAX_RAFT_MULTIPLIER: u32 = 10;

/// Raft timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTiming {
    /// Interval of the leader's heartbeats. It is also the timeout of one append, because the
    /// consensus library has one setting for both. A shorter interval detects a dead leader sooner,
    /// but tolerates slow disks less.
    pub heartbeat: Duration,
    /// Minimum and maximum election timeout. The maximum is also the leader lease. A voter that has
    /// received nothing for the length of the lease sends pre-votes, and the voter with the longest
    /// log stands for election. If too few voters answer the pre-vote, each of them stands after
    /// the lease plus a random time between the two timeouts. With (500 ms, 1 s), an election
    /// starts after 1 s to 1.3 s of silence, or after 1.5 s to 2.4 s without enough answers.
    pub election: (Duration, Duration),
}

impl Default for RaftTiming {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election: (Duration::from_millis(500), Duration::from_secs(1)),
        }
    }
}

impl RaftTiming {
    /// Returns the default timing, with each duration multiplied by `multiplier`.
    #[must_use]
    pub fn slowed(multiplier: u32) -> Self {
        let usual = Self::default();
        Self {
            heartbeat: usual.heartbeat * multiplier,
            election: (usual.election.0 * multiplier, usual.election.1 * multiplier),
        }
    }

    /// The time for which a voter votes against no leader that it has heard from (Raft, section 6).
    pub(crate) fn lease(&self) -> Duration {
        self.election.1
    }

    /// Timeout of a pre-vote: 200 ms by default.
    pub(crate) fn pre_vote(&self) -> Duration {
        self.lease() / 5
    }

    /// The time that a candidate has before another voter may stand: 300 ms by default.
    pub(crate) fn candidacy(&self) -> Duration {
        self.lease() * 3 / 10
    }

    /// Delay before the next pre-vote after one without a winner: 150 ms by default.
    pub(crate) fn recess(&self) -> Duration {
        self.lease() * 3 / 20
    }

    /// Timeout of each step of a leadership transfer besides the lease: 2 s by default.
    pub(crate) fn leadership_transfer(&self) -> Duration {
        self.lease() * 2
    }
}

/// Configuration of a Raft node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Id of this node. An id is never used by another node, nor again after a wipe.
    pub node_id: NodeId,
    /// Directory of the store.
    pub data_dir: PathBuf,
    /// Address at which other coordinators reach this node, `host:port`.
    pub advertise: String,
    /// Raft timing. It must be the same on all coordinators.
    pub timing: RaftTiming,
    /// Number of log entries after which a snapshot is taken.
    pub snapshot_every: u64,
    /// Timeout of a write. A later write fails with `Unavailable`.
    pub write_timeout: Duration,
    /// Client of the other coordinators.
    pub dialer: Dialer,
    /// Highest feature level that this node supports, at most [`LEVEL`]. A lower level keeps out
    /// the commands that the previous version cannot read.
    pub level: u32,
}

impl ClusterConfig {
    /// Returns a configuration with the default settings.
    #[must_use]
    pub fn new(
        node_id: NodeId,
        data_dir: impl Into<PathBuf>,
        advertise: impl Into<String>,
    ) -> Self {
        Self {
            node_id,
            data_dir: data_dir.into(),
            advertise: advertise.into(),
            timing: RaftTiming::default(),
            snapshot_every: 1_000,
            write_timeout: WRITE_TIMEOUT,
            dialer: Dialer::plain(),
            level: LEVEL,
        }
    }

    /// Multiplies the Raft timing and the write timeout by `multiplier`, for slow disks and long
    /// distances. All coordinators need the same multiplier.
    #[must_use]
    pub fn slowed(mut self, multiplier: u32) -> Self {
        self.timing = RaftTiming::slowed(multiplier);
        self.write_timeout = WRITE_TIMEOUT * multiplier;
        self
    }

    pub(crate) fn raft(&self) -> openraft::Config {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        openraft::Config {
            cluster_name: "volley".to_owned(),
            heartbeat_interval: ms(self.timing.heartbeat),
            election_timeout_min: ms(self.timing.election.0),
            election_timeout_max: ms(self.timing.election.1),
            // The timeout covers the transfer of a whole snapshot.
            install_snapshot_timeout: 60_000,
            snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(self.snapshot_every),
            replication_lag_threshold: self.snapshot_every,
            max_payload_entries: MAX_APPEND_ENTRIES,
            max_in_snapshot_log_to_keep: self.snapshot_every,
            ..openraft::Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_keep_their_ratios_however_slow_they_are() {
        let usual = RaftTiming::default();
        assert_eq!(RaftTiming::slowed(1), usual);
        let ms = |timing: RaftTiming| {
            [
                timing.heartbeat,
                timing.election.0,
                timing.lease(),
                timing.pre_vote(),
                timing.candidacy(),
                timing.recess(),
                timing.leadership_transfer(),
            ]
            .map(|span| span.as_millis())
        };
        assert_eq!(ms(usual), [250, 500, 1_000, 200, 300, 150, 2_000]);
        for multiplier in 1..=MAX_RAFT_MULTIPLIER {
            let slow = ms(RaftTiming::slowed(multiplier));
            assert_eq!(slow, ms(usual).map(|ms| ms * u128::from(multiplier)));
            let config = ClusterConfig::new(NodeId(1), "", "a:1").slowed(multiplier);
            assert!(config.raft().validate().is_ok());
            // A write outlasts an election.
            assert!(config.timing.lease() * 3 / 2 < config.write_timeout);
        }
    }
}
