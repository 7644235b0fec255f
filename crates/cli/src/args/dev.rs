//! The arguments of `volley dev`.

use std::path::PathBuf;

use clap::Args;

use super::parse_parameter;

#[derive(Debug, Args)]
pub(crate) struct Dev {
    /// Python file of the model, or its directory.
    pub(crate) path: PathBuf,
    /// Name of the model [default: the name of the file, or of the directory].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// REST port. The next three ports are for Flight and Raft, the worker, and the worker's
    /// metrics. 0 selects four free ports.
    #[arg(long, default_value_t = 8420)]
    pub(crate) port: u16,
    /// Parameter of the model, `name=value`. Repeatable.
    #[arg(long = "param", short = 'p', value_parser = parse_parameter)]
    pub(crate) parameters: Vec<(String, serde_json::Value)>,
}
