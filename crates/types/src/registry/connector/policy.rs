//! How a connector's servers are called, and what is done when they fail.

use std::collections::BTreeMap;

use super::{CredentialRef, ProviderName};

/// How a connector's servers are called, and what is done when they fail. Each worker keeps to
/// it by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorPolicy {
    /// The most calls at a time; any number where none.
    pub max_concurrent: Option<u32>,
    /// The most calls begun in a minute, further tries included; any number where none.
    pub max_per_minute: Option<u32>,
    /// How often a call that did no work may be made again.
    pub max_retries: u32,
    /// The wait before the first of these, in milliseconds; it doubles with each.
    pub retry_backoff_ms: u32,
    /// Of how many calls half must fail for a server to be left alone; 0 for never.
    pub breaker_window: u32,
    /// For how long it is left alone, in milliseconds.
    pub breaker_open_ms: u32,
    /// The share of the connector's own URL, beside those of the other servers.
    pub weight: u32,
    /// Other servers that answer for the same model.
    pub endpoints: Vec<ConnectorEndpoint>,
}

impl Default for ConnectorPolicy {
    fn default() -> Self {
        Self {
            max_concurrent: None,
            max_per_minute: None,
            max_retries: 2,
            retry_backoff_ms: 100,
            breaker_window: 20,
            breaker_open_ms: 5_000,
            weight: 1,
            endpoints: Vec::new(),
        }
    }
}

/// Another server that answers for a connector's model.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorEndpoint {
    /// Whose wire format.
    pub provider: ProviderName,
    /// The full URL to POST to.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// The credential, where one is needed.
    pub credential: Option<CredentialRef>,
    /// Headers to add; values hold no secrets.
    pub headers: BTreeMap<String, String>,
    /// Its share of the calls, among those that are no fallbacks or among those that are.
    pub weight: u32,
    /// Whether it is called only when all that are none have failed.
    pub fallback: bool,
}
