//! Keys and secrets.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Secrets {
    /// Store a secret, read from standard input; connectors name it as `secret:NAME`.
    Put {
        /// Its name.
        name: String,
    },
    /// List all secrets by name; none is ever shown.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Delete a secret that no connector names.
    Delete {
        /// Its name.
        name: String,
    },
    /// Put all secrets under the newest master key.
    Rewrap,
    /// Print a fresh master key, without a cluster.
    MasterKey,
}

/// What a key may use.
#[derive(Debug, Args)]
pub(crate) struct KeyLimits {
    /// Predictions that may begin in a minute [default: no limit].
    #[arg(long)]
    pub(crate) requests_per_minute: Option<std::num::NonZeroU32>,
    /// Tokens read and written in a minute [default: no limit].
    #[arg(long)]
    pub(crate) tokens_per_minute: Option<std::num::NonZeroU32>,
    /// Predictions that may run at a time [default: no limit].
    #[arg(long)]
    pub(crate) max_streams: Option<std::num::NonZeroU32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Make an API key; it is shown once.
    Create {
        /// A name for people.
        name: String,
        /// What its bearer may do.
        #[arg(long, default_value = "predict", value_parser = ["viewer", "predict", "model-admin", "cluster-admin"])]
        role: String,
        /// A model that it is for, the beginning of several (`team-a.*`), or `*` for all; may be
        /// repeated [default: what begins with the tenant's name and a dot; all without a tenant].
        #[arg(long = "model")]
        models: Vec<String>,
        /// On whose behalf its bearer calls.
        #[arg(long)]
        tenant: Option<String>,
        /// When it ends, for example `90d` [default: never].
        #[arg(long, value_parser = humantime::parse_duration)]
        expires_in: Option<std::time::Duration>,
        #[command(flatten)]
        limits: KeyLimits,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List all API keys.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Give an API key a new secret; it is shown once.
    Rotate {
        /// Its id.
        id: String,
        /// For how long the old one is still taken.
        #[arg(long, default_value = "24h", value_parser = humantime::parse_duration)]
        grace: std::time::Duration,
    },
    /// Set what an API key may use; limits that are not given end.
    Limit {
        /// Its id.
        id: String,
        #[command(flatten)]
        limits: KeyLimits,
    },
    /// End an API key at once.
    Revoke {
        /// Its id.
        id: String,
    },
    /// Print a fresh key to bootstrap a cluster with, without a cluster.
    Bootstrap,
}
