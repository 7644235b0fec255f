//! The arguments of day-two commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// List the coordinators: leader, voters and learners.
    Members {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a running coordinator. It catches up as a learner and then becomes a voter.
    Add {
        /// Id of the coordinator, which no coordinator has used before.
        id: u64,
        /// Internal address of the coordinator, host:port.
        address: String,
    },
    /// Remove a coordinator, running or not. A leader transfers leadership first.
    Remove {
        /// Id of the coordinator.
        id: u64,
    },
    /// Replace a coordinator, which may be dead, by a running one.
    Replace {
        /// Id of the coordinator to remove.
        old: u64,
        /// Id of the new coordinator, which no coordinator has used before.
        id: u64,
        /// Internal address of the coordinator, host:port.
        address: String,
    },
    /// Transfer leadership to another coordinator. Writes pause for about a second.
    TransferLeader {
        /// Id of the new leader [default: the coordinator with the most complete log].
        to: Option<u64>,
    },
}

/// What `drain` and `undrain` name.
#[derive(Debug, Args)]
pub(crate) struct DrainTarget {
    /// Id of a worker or a coordinator.
    pub(crate) node: String,
    /// Kind of the node, if a worker and a coordinator share this id.
    #[arg(long, value_parser = ["worker", "coordinator"])]
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    pub(crate) node: DrainTarget,
    /// Unload replicas even if no other worker can hold them. Their models keep fewer replicas.
    #[arg(long)]
    pub(crate) force: bool,
    /// Wait until the node is idle.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Longest time to wait.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Refresh interval.
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    pub(crate) interval: Duration,
    /// Stop after this number of refreshes [default: run until interrupted].
    #[arg(long)]
    pub(crate) count: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Configuration file to check, with the certificates, ports and disks that it names.
    #[arg(long, short)]
    pub(crate) config: Option<PathBuf>,
    /// Do not call any coordinator.
    #[arg(long)]
    pub(crate) offline: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Destination: a file, `-` for standard output, or a URL (s3://, gs://, az://, https://,
    /// file://).
    pub(crate) target: String,
    /// Overwrite an existing backup.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Backup: a file, `-` for standard input, or a URL.
    pub(crate) source: String,
    /// Configuration of the new cluster's first coordinator. Its data directory must be empty.
    #[arg(long, short, required_unless_present = "check")]
    pub(crate) config: Option<PathBuf>,
    /// Only verify the backup and list its contents.
    #[arg(long, conflicts_with = "config")]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Recover {
    /// Data directory of a stopped coordinator. It is not modified.
    pub(crate) from: PathBuf,
    /// Configuration of the new cluster's first coordinator, with a new id and a new data
    /// directory.
    #[arg(long, short)]
    pub(crate) config: PathBuf,
    /// Confirm that the other coordinators are lost and will never be started again. Without this
    /// flag, the command only reports what it would recover.
    #[arg(long)]
    pub(crate) the_others_are_lost: bool,
}
