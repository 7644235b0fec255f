//! The arguments of day-two commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// List the coordinators: who leads, who votes, who still learns.
    Members {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a coordinator that is running: it catches up as a learner, and votes from then on.
    Add {
        /// Its id, which no coordinator has had before.
        id: u64,
        /// Its internal address, host:port.
        address: String,
    },
    /// Remove a coordinator, running or not. The leader hands over first.
    Remove {
        /// Its id.
        id: u64,
    },
    /// Put a coordinator that is running in the place of one that may be dead.
    Replace {
        /// The id of the one that goes.
        old: u64,
        /// The id of the one that comes, which no coordinator has had before.
        id: u64,
        /// Its internal address, host:port.
        address: String,
    },
    /// Make another coordinator the leader; writes wait for about a second.
    HandOver {
        /// Who shall lead [default: whoever has most of the log].
        to: Option<u64>,
    },
}

/// What `drain` and `undrain` name.
#[derive(Debug, Args)]
pub(crate) struct Drained {
    /// A worker's id, or a coordinator's number.
    pub(crate) node: String,
    /// Which of them, where a worker and a coordinator have this id.
    #[arg(long, value_parser = ["worker", "coordinator"])]
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    pub(crate) node: Drained,
    /// Take a worker's replicas away even where no other worker can hold them: their models lose
    /// them.
    #[arg(long)]
    pub(crate) force: bool,
    /// Wait until it has nothing left to do.
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Between two looks.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    pub(crate) interval: Duration,
    /// End after so many looks [default: when stopped].
    #[arg(long)]
    pub(crate) count: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A node's configuration file to check, with what it names: certificates, ports, disks.
    #[arg(long, short)]
    pub(crate) config: Option<PathBuf>,
    /// Call no coordinator.
    #[arg(long)]
    pub(crate) offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// A file, `-` for standard output, or a URL (s3://, gs://, az://, https://, file://).
    pub(crate) target: String,
    /// Take the place of what is there already.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup: a file, `-` for standard input, or a URL.
    pub(crate) source: String,
    /// The configuration of the new cluster's first coordinator, which must not have any data.
    #[arg(long, short, required_unless_present = "check")]
    pub(crate) config: Option<PathBuf>,
    /// Only tell whether the backup is whole and what is inside.
    #[arg(long, conflicts_with = "config")]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Recover {
    /// The data directory of a coordinator that is not running; it stays as it is.
    pub(crate) from: PathBuf,
    /// The configuration of the new cluster's first coordinator: a new id, a new data directory.
    #[arg(long, short)]
    pub(crate) config: PathBuf,
    /// Say that the other coordinators are lost and will never be started again. Without it,
    /// only tells what would be recovered.
    #[arg(long)]
    pub(crate) the_others_are_lost: bool,
}
