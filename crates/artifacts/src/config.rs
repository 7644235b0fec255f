//! What a worker may fetch, and what it may cost.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use volley_types::PredictError;
use volley_types::registry::{CredentialRef, ModelUrl, ModelUrlKind};

use crate::options::knows_option;

/// What a worker may fetch, and what it may cost.
#[derive(Clone)]
pub struct ArtifactConfig {
    /// Where fetched models are kept. Workers on one machine may share it. Without one, no URL
    /// can be fetched.
    pub cache_dir: Option<PathBuf>,
    /// The only places that are fetched from, as URLs that end in `/`, where given; redirects
    /// included. `file:` needs no entry.
    pub allow: Option<Vec<ModelUrl>>,
    /// Whether HTTP servers at private and loopback addresses may be called. Link-local ones,
    /// where clouds keep their machines' secrets, never are. The addresses of buckets are the
    /// worker's own settings, and not looked at.
    pub allow_private: bool,
    /// Settings of the stores by their environment names in lower case, for example
    /// `aws_endpoint`; they win over the environment. May hold secrets.
    pub options: BTreeMap<String, String>,
    /// Bearer tokens for HTTP servers, by the prefix of the URLs that they are sent to.
    pub tokens: Vec<(ModelUrl, CredentialRef)>,
    /// The largest model, in bytes, an archive and what is in it counted apart.
    pub max_model_bytes: u64,
    /// How many bytes of models are kept; the least recently used that no replica holds make room.
    pub cache_bytes: u64,
    /// How many bytes stay free on the cache's file system.
    pub min_free_bytes: u64,
    /// How many files are fetched at a time, over all models.
    pub concurrent_files: usize,
    /// For a connection to be made.
    pub connect_timeout: Duration,
    /// How long a server may send nothing.
    pub stall_timeout: Duration,
    /// For one model to be there, waiting included. A later try goes on from where it was.
    pub timeout: Duration,
    /// How often one request is repeated after an error that may pass.
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
    /// Checks what a file can get wrong.
    ///
    /// # Errors
    /// `InvalidInput` that names the key.
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

    /// The token that goes with `url`: the one of the longest prefix.
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
