//! The knobs of remote models.

use std::time::Duration;

use volley_types::egress::{EgressPolicy, HostPattern};

/// The knobs of remote models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Streams of one replica at a time.
    pub max_streams: usize,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// From the request to the answer's headers, and from there to its first event.
    pub first_byte_timeout: Duration,
    /// Between two pieces of an answer.
    pub stall_timeout: Duration,
    /// How long a call may wait for its turn where its connector limits them, and before it is
    /// made again.
    pub queue_wait: Duration,
    /// Whether servers at private and loopback addresses may be called. Link-local addresses,
    /// where clouds keep their machines' secrets, never are.
    pub allow_private: bool,
    /// The only hosts that may be called, where given.
    pub allowed_hosts: Option<Vec<HostPattern>>,
}

impl RemoteConfig {
    /// Where calls may go.
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
