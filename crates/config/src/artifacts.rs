//! The section `[artifacts]` of a worker's file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::values::{Count, Size, TimeSpan};

/// The section `[artifacts]`: models that are registered by URL.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArtifactsSection {
    /// Directory for fetched models. Workers on one machine may share it. Without it, no URL can be
    /// fetched. `volley up` uses a directory in its data directory.
    pub cache_dir: Option<PathBuf>,
    /// URLs that end in `/`: the only places to fetch from, redirects included. `file:` URLs need
    /// no entry.
    /// Default: every place
    pub allowed_urls: Option<Vec<String>>,
    /// Whether HTTP servers at private and loopback addresses may be called. Link-local addresses,
    /// at which clouds serve machine credentials, are always blocked.
    /// Default: `true`
    pub allow_private: Option<bool>,
    /// Settings of the bucket stores, named like their environment variables in lower case, such as
    /// `aws_endpoint`. They override the environment.
    pub options: BTreeMap<String, String>,
    /// Table from URLs that end in `/` to the bearer tokens for everything below them: `"env:NAME"`
    /// or `"file:/path"`.
    pub tokens: BTreeMap<String, String>,
    /// Largest model. An archive and its contents are counted separately.
    /// Beyond: The fetch of a larger one fails.
    /// Default: `"64GiB"`
    pub max_model_size: Option<Size>,
    /// Size of the cache.
    /// Beyond: When it is full, the least recently used models without a replica are deleted; then
    /// the fetch fails.
    /// Default: `"256GiB"`
    pub cache_size: Option<Size>,
    /// Space that stays free on the cache's file system.
    /// Beyond: As for `cache_size`.
    /// Default: `"1GiB"`
    pub min_free_size: Option<Size>,
    /// Files that are fetched at the same time, over all models.
    /// Beyond: Further ones wait.
    /// Default: `4`
    pub max_concurrent_files: Option<Count>,
    /// Time to connect to a server.
    /// Beyond: After it, the request is retried.
    /// Default: `"10s"`
    pub connect_timeout: Option<TimeSpan>,
    /// How long a server may send nothing.
    /// Beyond: After it, the request is retried.
    /// Default: `"30s"`
    pub stall_timeout: Option<TimeSpan>,
    /// Time for one model to arrive. The next attempt continues where this one stopped.
    /// Beyond: After it, the fetch fails.
    /// Default: `"2h"`
    pub timeout: Option<TimeSpan>,
    /// Retries of one request after a transient error.
    /// Beyond: After them, the fetch fails.
    /// Default: `8`
    pub retries: Option<Count>,
}
