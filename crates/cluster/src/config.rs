//! The knobs of a Raft node.

use std::path::PathBuf;
use std::time::Duration;

use volley_security::nodes::Dialer;
use volley_types::NodeId;
use volley_types::registry::LEVEL;

/// Entries in one append: with each at its largest it is still far below the largest message.
const MAX_APPEND_ENTRIES: u64 = 32;
/// How long a write may take where Raft's clocks are the usual ones.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The slowest that Raft's clocks are made: a lost leader costs more than ten seconds then.
pub const MAX_RAFT_MULTIPLIER: u32 = 10;

/// Raft's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTiming {
    /// Between two heartbeats of the leader; also how long one append may take, because the
    /// consensus library has one knob for both. Shorter finds a dead leader sooner and bears
    /// slow disks less.
    pub heartbeat: Duration,
    /// The longest is the leader's lease: once a voter has heard nothing for so long, it asks
    /// the others, and the one with the longest log stands for election. Where too few of them
    /// answer, each stands after the lease and a random wait between the two: (500 ms, 1 s) means
    /// 1 s to 1.3 s of silence, and 1.5 s to 2.4 s then.
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
    /// The usual clocks, each `multiplier` times as long.
    #[must_use]
    pub fn slowed(multiplier: u32) -> Self {
        let usual = Self::default();
        Self {
            heartbeat: usual.heartbeat * multiplier,
            election: (usual.election.0 * multiplier, usual.election.1 * multiplier),
        }
    }

    /// For so long nobody votes against a leader that was heard.
    pub(crate) fn lease(&self) -> Duration {
        self.election.1
    }

    /// How long the others may take to say who can win an election: 200 ms.
    pub(crate) fn pre_vote(&self) -> Duration {
        self.lease() / 5
    }

    /// How long a candidate has before another one may stand: 300 ms.
    pub(crate) fn candidacy(&self) -> Duration {
        self.lease() * 3 / 10
    }

    /// Until the others are asked again, where nobody can be said to win: 150 ms.
    pub(crate) fn recess(&self) -> Duration {
        self.lease() * 3 / 20
    }

    /// How long each part of a change of leaders may take beside the lease: 2 s.
    pub(crate) fn leadership_transfer(&self) -> Duration {
        self.lease() * 2
    }
}

/// The knobs of a Raft node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// This node's id, never used by another node nor used again after a wipe.
    pub node_id: NodeId,
    /// The directory of its store.
    pub data_dir: PathBuf,
    /// Where other coordinators reach it, `host:port`.
    pub advertise: String,
    /// Raft's clocks.
    pub timing: RaftTiming,
    /// A snapshot is taken after this many log entries.
    pub snapshot_every: u64,
    /// How long a write may take before it fails with `Unavailable`.
    pub write_timeout: Duration,
    /// How other coordinators are called.
    pub dialer: Dialer,
    /// The highest level of commands that it takes, at most [`LEVEL`]: less holds back what the
    /// version before could not read.
    pub level: u32,
}

impl ClusterConfig {
    /// The defaults around what has none.
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

    /// The same with Raft's clocks, and the time that a write may take, `multiplier` times as long:
    /// for slow disks and long ways. The same on all coordinators.
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
            // Covers the sending of a whole snapshot.
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
            // Writes wait out an election and a change of leaders.
            assert!(config.timing.lease() * 3 / 2 < config.write_timeout);
        }
    }
}
