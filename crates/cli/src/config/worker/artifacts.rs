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
    cache_dir: Option<PathBuf>,
    allow: Option<Vec<String>>,
    allow_private: Option<bool>,
    options: BTreeMap<String, String>,
    tokens: BTreeMap<String, String>,
    max_model_bytes: Option<Size>,
    cache_bytes: Option<Size>,
    min_free_bytes: Option<Size>,
    concurrent_files: Option<Count>,
    connect_timeout: Option<Span>,
    stall_timeout: Option<Span>,
    timeout: Option<Span>,
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
