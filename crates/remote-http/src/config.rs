//! Configuration of remote models.

use std::time::Duration;

use volley_types::egress::{EgressPolicy, HostPattern};

/// Configuration of remote models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Maximum number of concurrent streams of one replica.
    pub max_streams: usize,
    /// Time limit for establishing a connection.
    pub connect_timeout: Duration,
    /// Time limit from the request to the headers of the answer, and from there to its first event.
    pub first_byte_timeout: Duration,
    /// Time limit between two chunks of an answer.
    pub stall_timeout: Duration,
    /// Maximum time that a call waits for the connector's limits, or before a retry.
    pub queue_wait: Duration,
    /// Whether servers at private and loopback addresses are allowed. Link-local addresses, such as
    /// the metadata services of clouds, are never allowed.
    pub allow_private: bool,
    /// If present, the only hosts that are allowed.
    pub allowed_hosts: Option<Vec<HostPattern>>,
}

impl RemoteConfig {
    /// The egress policy.
    pub fn egress(&self) -> EgressPolicy {
        EgressPolicy {
            allow_private: self.allow_private,
            allowed_hosts: self.allowed_hosts.clone(),
        }
    }
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            max_streams: 8_192,
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            queue_wait: Duration::from_secs(5),
            allow_private: true,
            allowed_hosts: None,
        }
    }
}
