//! The knobs of a Raft node.

use std::path::PathBuf;
use std::time::Duration;

use volley_security::nodes::Dialer;
use volley_types::NodeId;
use volley_types::registry::LEVEL;

/// Entries in one append: with each at its largest it is still far below the largest message.
const MAX_APPEND_ENTRIES: u64 = 32;

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
            write_timeout: Duration::from_secs(2),
            dialer: Dialer::plain(),
            level: LEVEL,
        }
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
