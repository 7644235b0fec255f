//! The knobs of the HTTP edge.

use std::time::Duration;

/// The knobs of the HTTP edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeConfig {
    /// Connections at a time; further ones are refused at once.
    pub max_connections: usize,
    /// Connections at a time from one address, or from one network of 64 bits over IPv6.
    pub max_connections_per_address: usize,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// What the bodies of all requests, and what is read of them, may take together, in bytes.
    pub max_inflight_body_bytes: usize,
    /// The largest body or message of tensors (the Open Inference Protocol's), in bytes.
    pub max_tensor_bytes: usize,
    /// How long a client may take to send a request's headers.
    pub header_timeout: Duration,
    /// How long a client may take to send a request's body.
    pub body_timeout: Duration,
    /// How long a prediction may take, its stream included, where the caller does not say.
    pub request_timeout: Duration,
    /// The longest that a caller may ask for.
    pub max_request_timeout: Duration,
    /// A comment is sent on a stream that has been silent for this long.
    pub keep_alive: Duration,
    /// A connection that takes no byte for this long is closed.
    pub write_stall: Duration,
    /// A connection on which nothing was asked for this long is closed; over HTTP/1 already when
    /// the next request's headers do not come in `header_timeout`.
    pub idle_timeout: Duration,
    /// On shutdown, how long streams that run may take to end.
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
