//! Configuration of the HTTP edge.

use std::time::Duration;

/// Configuration of the HTTP edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeConfig {
    /// Maximum number of open connections; further ones are rejected immediately.
    pub max_connections: usize,
    /// Maximum number of open connections from one IPv4 address or one IPv6 /64 network.
    pub max_connections_per_address: usize,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Memory limit for the bodies of all requests and their parsed values together, in bytes.
    pub max_inflight_body_bytes: usize,
    /// The largest body or message of tensors (the Open Inference Protocol's), in bytes.
    pub max_tensor_bytes: usize,
    /// Time limit for a request's headers.
    pub header_timeout: Duration,
    /// Time limit for a request's body.
    pub body_timeout: Duration,
    /// Default time limit of a prediction, including its stream.
    pub request_timeout: Duration,
    /// Maximum time limit that a caller may set.
    pub max_request_timeout: Duration,
    /// A comment is sent on a stream without events for this time.
    pub keep_alive: Duration,
    /// A connection is closed if its client reads no byte for this time.
    pub write_stall: Duration,
    /// A connection without a request for this time is closed. For HTTP/1, `header_timeout` also
    /// applies to the next request.
    pub idle_timeout: Duration,
    /// Time for running streams to end on shutdown.
    pub drain_timeout: Duration,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            max_connections_per_address: 10_000,
            max_body_bytes: 16 << 20,
            max_inflight_body_bytes: 2 << 30,
            max_tensor_bytes: 64 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(300),
            max_request_timeout: Duration::from_secs(3_600),
            keep_alive: Duration::from_secs(15),
            write_stall: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(30),
        }
    }
}
