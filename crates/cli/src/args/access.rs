//! Keys and secrets.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Secret {
    /// Store a secret from standard input. Connectors refer to it as `secret:NAME`.
    Put {
        /// Name of the secret.
        name: String,
    },
    /// List the names of all secrets. Values are never shown.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Delete a secret that no connector uses.
    Delete {
        /// Name of the secret.
        name: String,
    },
    /// Encrypt all secrets with the newest master key.
    Rewrap,
    /// Print a new master key. Needs no cluster.
    MasterKey,
}

/// What a key may use.
#[derive(Debug, Args)]
pub(crate) struct KeyQuota {
    /// Predictions per minute [default: no limit].
    #[arg(long)]
    pub(crate) requests_per_minute: Option<std::num::NonZeroU32>,
    /// Tokens per minute, prompts and completions together [default: no limit].
    #[arg(long)]
    pub(crate) tokens_per_minute: Option<std::num::NonZeroU32>,
    /// Concurrent predictions [default: no limit].
    #[arg(long)]
    pub(crate) max_streams: Option<std::num::NonZeroU32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Create an API key. Its secret is shown once.
    Create {
        /// Descriptive name.
        name: String,
        /// Role of the key.
        #[arg(long, default_value = "predict", value_parser = ["viewer", "predict", "model-admin", "cluster-admin"])]
        role: String,
        /// Model that the key may use: a name, a prefix (`team-a.*`), or `*` for all. Repeatable
        /// [default: names that begin with the tenant and a dot; without a tenant, all].
        #[arg(long = "model")]
        models: Vec<String>,
        /// Tenant of the key.
        #[arg(long)]
        tenant: Option<String>,
        /// Time until the key expires, such as `90d` [default: never].
        #[arg(long, value_parser = humantime::parse_duration)]
        expires_in: Option<std::time::Duration>,
        #[command(flatten)]
        quota: KeyQuota,
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
    /// Give an API key a new secret, which is shown once.
    Rotate {
        /// Id of the key.
        id: String,
        /// How long the old secret stays valid.
        #[arg(long, default_value = "24h", value_parser = humantime::parse_duration)]
        grace: std::time::Duration,
    },
    /// Replace the quota of an API key. Limits that you do not pass are removed.
    SetQuota {
        /// Id of the key.
        id: String,
        #[command(flatten)]
        quota: KeyQuota,
    },
    /// Revoke an API key immediately.
    Revoke {
        /// Id of the key.
        id: String,
    },
    /// Print a new bootstrap key. Needs no cluster.
    Bootstrap,
}
