//! Configuration of model downloads.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use volley_types::PredictError;
use volley_types::registry::{CredentialRef, ModelUrl, ModelUrlKind};

use crate::options::knows_option;

/// Configuration of model downloads.
#[derive(Clone)]
pub struct ArtifactConfig {
    /// Cache directory. Workers on one machine may share it. Without a directory, no URL can be
    /// fetched.
    pub cache_dir: Option<PathBuf>,
    /// If set, the only allowed URL prefixes, including for redirects. Each must end in `/`.
    /// `file:` URLs are always allowed.
    pub allow: Option<Vec<ModelUrl>>,
    /// Whether HTTP servers at private and loopback addresses may be called. Link-local addresses,
    /// which include the metadata services of clouds, are never called. The addresses of buckets
    /// are the worker's own configuration and are not checked.
    pub allow_private: bool,
    /// Settings of the stores by the lower-case names of their environment variables, for example
    /// `aws_endpoint`. They override the environment. May contain secrets.
    pub options: BTreeMap<String, String>,
    /// Bearer tokens for HTTP servers, by URL prefix.
    pub tokens: Vec<(ModelUrl, CredentialRef)>,
    /// Maximum size of a model in bytes. The archive and its contents are checked separately.
    pub max_model_bytes: u64,
    /// Maximum bytes of cached models. The least recently used models without a replica are
    /// evicted.
    pub cache_bytes: u64,
    /// Minimum free bytes on the cache's file system.
    pub min_free_bytes: u64,
    /// Maximum number of concurrent file downloads over all models.
    pub concurrent_files: usize,
    /// Time limit of connecting to a server.
    pub connect_timeout: Duration,
    /// Maximum time without data from a server.
    pub stall_timeout: Duration,
    /// Time limit of fetching one model, including waiting. A later attempt resumes the download.
    pub timeout: Duration,
    /// Maximum number of retries of one request after a transient error.
    pub retries: usize,
}

impl Default for ArtifactConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            allow: None,
            allow_private: true,
            options: BTreeMap::new(),
            tokens: Vec::new(),
            max_model_bytes: 64 << 30,
            cache_bytes: 256 << 30,
            min_free_bytes: 1 << 30,
            concurrent_files: 4,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(2 * 60 * 60),
            retries: 8,
        }
    }
}

impl ArtifactConfig {
    /// Validates the configuration.
    ///
    /// # Errors
    /// `InvalidInput` with the invalid value and its configuration key.
    pub fn check(&self) -> Result<(), PredictError> {
        let prefixes = self.tokens.iter().map(|(prefix, _)| prefix);
        for prefix in self.allow.iter().flatten().chain(prefixes) {
            if prefix.kind() != ModelUrlKind::Directory {
                return Err(PredictError::invalid(format!(
                    "'{prefix}' in 'artifacts.allowed_urls' or 'artifacts.tokens' must end in '/'"
                )));
            }
        }
        for key in self.options.keys() {
            if !knows_option(key) {
                return Err(PredictError::invalid(format!(
                    "'{key}' in 'artifacts.options' is unknown; keys are environment variables \
                     in lower case, as 'aws_endpoint', 'google_service_account' or \
                     'azure_storage_account_name'"
                )));
            }
        }
        Ok(())
    }

    /// The token for `url`: the one with the longest matching prefix.
    pub(crate) fn token(&self, url: &ModelUrl) -> Option<&CredentialRef> {
        let fitting = self
            .tokens
            .iter()
            .filter(|(prefix, _)| url.is_below(prefix));
        let longest = fitting.max_by_key(|(prefix, _)| prefix.as_str().len());
        longest.map(|(_, token)| token)
    }
}

impl fmt::Debug for ArtifactConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArtifactConfig")
            .field("cache_dir", &self.cache_dir)
            .field("allow", &self.allow)
            .field("allow_private", &self.allow_private)
            .field("options", &self.options.keys())
            .field("max_model_bytes", &self.max_model_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("min_free_bytes", &self.min_free_bytes)
            .field("concurrent_files", &self.concurrent_files)
            .field("connect_timeout", &self.connect_timeout)
            .field("stall_timeout", &self.stall_timeout)
            .field("timeout", &self.timeout)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
