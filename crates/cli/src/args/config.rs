//! The arguments of commands for configuration files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Rewrite configuration files in the format of this version. Comments stay.
    Migrate(Migrate),
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Configuration file of a coordinator or a worker. Several files need `--in-place` or
    /// `--check`.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Replace the files. Without this flag, the new text is printed.
    #[arg(long, conflicts_with = "check")]
    pub(crate) in_place: bool,
    /// Change nothing, and fail if a file is not in the format of this version.
    #[arg(long)]
    pub(crate) check: bool,
}
