//! Policy of a connector: limits, retries, circuit breaker and endpoints.

use std::collections::BTreeMap;

use super::{CredentialRef, ProviderName};

/// Limits, retries, circuit breaker and endpoints of a connector. Each worker applies the limits
/// independently.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorPolicy {
    /// Maximum number of concurrent calls; `None` means no limit.
    pub max_concurrent: Option<u32>,
    /// Maximum number of calls per minute, including retries; `None` means no limit.
    pub max_per_minute: Option<u32>,
    /// Maximum number of retries of a call that had no effect at the upstream.
    pub max_retries: u32,
    /// Delay before the first retry in milliseconds; it doubles with each retry.
    pub retry_backoff_ms: u32,
    /// Number of recent calls that the circuit breaker considers. It opens if half of them fail; 0
    /// disables it.
    pub breaker_window: u32,
    /// Time for which the circuit breaker stays open, in milliseconds.
    pub breaker_open_ms: u32,
    /// Weight of the connector's own URL among all servers.
    pub weight: u32,
    /// Other servers of the same model.
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

/// Another server of a connector's model.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorEndpoint {
    /// The wire format.
    pub provider: ProviderName,
    /// The full URL to POST to.
    pub url: String,
    /// Name of the model at this server.
    pub model: String,
    /// The credential, if the server needs one.
    pub credential: Option<CredentialRef>,
    /// Headers to add; values must not contain secrets.
    pub headers: BTreeMap<String, String>,
    /// Weight among the primary servers, or among the fallback servers.
    pub weight: u32,
    /// Whether the server is only called after all primary servers have failed.
    pub fallback: bool,
}
