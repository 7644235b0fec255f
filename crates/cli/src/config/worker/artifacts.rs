//! The section `[artifacts]` of a worker's file.

use anyhow::bail;
use volley_artifacts::ArtifactConfig;
use volley_config::{ArtifactsSection, Size};
use volley_types::PredictError;
use volley_types::registry::{CredentialRef, ModelUrl};

use crate::config::{set, set_count, set_span};

/// The configuration of fetches, validated.
pub(super) fn config(section: ArtifactsSection) -> anyhow::Result<ArtifactConfig> {
    let mut config = ArtifactConfig {
        cache_dir: section.cache_dir,
        options: section.options,
        ..ArtifactConfig::default()
    };
    let url = |key: &str, text: &str| {
        let url = ModelUrl::parse(text);
        url.map_err(|error| anyhow::anyhow!("'artifacts.{key}' {text}: {}", error.message))
    };
    if let Some(allow) = &section.allowed_urls {
        let allow = allow.iter().map(|prefix| url("allowed_urls", prefix));
        config.allow = Some(allow.collect::<anyhow::Result<_>>()?);
    }
    for (prefix, token) in &section.tokens {
        config.tokens.push((url("tokens", prefix)?, secret(token)?));
    }
    set(&mut config.allow_private, section.allow_private);
    let bytes = |value: Option<Size>| value.map(|bytes| bytes.0);
    set(&mut config.max_model_bytes, bytes(section.max_model_size));
    set(&mut config.cache_bytes, bytes(section.cache_size));
    set(&mut config.min_free_bytes, bytes(section.min_free_size));
    set_count(&mut config.concurrent_files, section.max_concurrent_files);
    set_span(&mut config.connect_timeout, section.connect_timeout);
    set_span(&mut config.stall_timeout, section.stall_timeout);
    set_span(&mut config.timeout, section.timeout);
    set_count(&mut config.retries, section.retries);
    let told = |error: PredictError| anyhow::anyhow!("{}", error.message);
    config.check().map_err(told)?;
    Ok(config)
}

/// A reference to a token, in the format of connectors; never the token itself.
fn secret(text: &str) -> anyhow::Result<CredentialRef> {
    match text.split_once(':') {
        Some(("env", name)) if !name.is_empty() => Ok(CredentialRef::Env(name.to_owned())),
        Some(("file", path)) if path.starts_with('/') => Ok(CredentialRef::File(path.to_owned())),
        _ => bail!("a token in 'artifacts.tokens' must be \"env:NAME\" or \"file:/path\""),
    }
}
