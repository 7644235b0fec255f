//! The section `[artifacts]` of a worker's file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::bail;
use serde::Deserialize;
use volley_artifacts::ArtifactConfig;
use volley_types::PredictError;
use volley_types::registry::{CredentialRef, ModelUrl};

use crate::config::{Count, Size, Span, set, set_count, set_span};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Section {
    /// Directory for fetched models. Workers on one machine may share it. Without it, no URL can be
    /// fetched. `volley up` uses a directory in its data directory.
    cache_dir: Option<PathBuf>,
    /// URLs that end in `/`: the only places to fetch from, redirects included. `file:` URLs need
    /// no entry.
    /// Default: every place
    allow: Option<Vec<String>>,
    /// Whether HTTP servers at private and loopback addresses may be called. Link-local addresses,
    /// at which clouds serve machine credentials, are always blocked.
    /// Default: `true`
    allow_private: Option<bool>,
    /// Settings of the bucket stores, named like their environment variables in lower case, such as
    /// `aws_endpoint`. They override the environment.
    options: BTreeMap<String, String>,
    /// Table from URLs that end in `/` to the bearer tokens for everything below them: `"env:NAME"`
    /// or `"file:/path"`.
    tokens: BTreeMap<String, String>,
    /// Largest model. An archive and its contents are counted separately.
    /// Default: `"64GiB"`
    max_model_bytes: Option<Size>,
    /// Size of the cache. The least recently used models without a replica are deleted first.
    /// Default: `"256GiB"`
    cache_bytes: Option<Size>,
    /// Space that stays free on the cache's file system.
    /// Default: `"1GiB"`
    min_free_bytes: Option<Size>,
    /// Files that are fetched at the same time, over all models.
    /// Default: `4`
    concurrent_files: Option<Count>,
    /// Time to connect to a server.
    /// Default: `"10s"`
    connect_timeout: Option<Span>,
    /// How long a server may send nothing.
    /// Default: `"30s"`
    stall_timeout: Option<Span>,
    /// Time for one model to arrive. The next attempt continues where this one stopped.
    /// Default: `"2h"`
    timeout: Option<Span>,
    /// Retries of one request after a transient error.
    /// Default: `8`
    retries: Option<Count>,
}

impl Section {
    /// Checks what the file says.
    pub(super) fn config(self) -> anyhow::Result<ArtifactConfig> {
        let mut config = ArtifactConfig {
            cache_dir: self.cache_dir,
            options: self.options,
            ..ArtifactConfig::default()
        };
        let url = |key: &str, text: &str| {
            let url = ModelUrl::parse(text);
            url.map_err(|error| anyhow::anyhow!("'artifacts.{key}' {text}: {}", error.message))
        };
        if let Some(allow) = &self.allow {
            let allow = allow.iter().map(|prefix| url("allow", prefix));
            config.allow = Some(allow.collect::<anyhow::Result<_>>()?);
        }
        for (prefix, token) in &self.tokens {
            config.tokens.push((url("tokens", prefix)?, secret(token)?));
        }
        set(&mut config.allow_private, self.allow_private);
        let bytes = |value: Option<Size>| value.map(|bytes| bytes.0);
        set(&mut config.max_model_bytes, bytes(self.max_model_bytes));
        set(&mut config.cache_bytes, bytes(self.cache_bytes));
        set(&mut config.min_free_bytes, bytes(self.min_free_bytes));
        set_count(&mut config.concurrent_files, self.concurrent_files);
        set_span(&mut config.connect_timeout, self.connect_timeout);
        set_span(&mut config.stall_timeout, self.stall_timeout);
        set_span(&mut config.timeout, self.timeout);
        set_count(&mut config.retries, self.retries);
        let told = |error: PredictError| anyhow::anyhow!("{}", error.message);
        config.check().map_err(told)?;
        Ok(config)
    }
}

/// Where a token is, as in connectors; never the token itself.
fn secret(text: &str) -> anyhow::Result<CredentialRef> {
    match text.split_once(':') {
        Some(("env", name)) if !name.is_empty() => Ok(CredentialRef::Env(name.to_owned())),
        Some(("file", path)) if path.starts_with('/') => Ok(CredentialRef::File(path.to_owned())),
        _ => bail!("a token in 'artifacts.tokens' is neither \"env:NAME\" nor \"file:/path\""),
    }
}
