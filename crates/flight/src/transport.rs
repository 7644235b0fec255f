//! Connections: windows, keepalive and limits of every gRPC service of a node.
//!
//! With HTTP/2's default windows, a few stalled streams block all other streams of their
//! connection. A small window per stream and a practically unlimited one per connection limit the
//! effect to the slow reader.

use std::io;
use std::time::Duration;

use futures::Stream;
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Server};
use volley_types::{ErrorCode, PredictError};

/// Bytes that one stream may have in flight.
pub const STREAM_WINDOW_BYTES: u32 = 64 << 10;

/// Bytes that all streams of a connection may have in flight: HTTP/2's maximum.
pub const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// Maximum number of streams per connection.
pub const MAX_STREAMS_PER_CONNECTION: u32 = 4096;

pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_HEADER_LIST_BYTES: u32 = 32 << 10;

/// A server for any set of gRPC services, with the windows, keepalive and limits that every
/// node uses. Serve it with [`incoming`].
#[must_use]
pub fn server_builder() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

/// The accepted connections of `listener`, each without Nagle's delay.
pub fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

/// An endpoint at `address` (`host:port`), with the same windows and keepalive as the server.
///
/// # Errors
/// `InvalidInput` when the address is not of the form `host:port`.
pub fn endpoint(address: &str, connect_timeout: Duration) -> Result<Endpoint, PredictError> {
    Ok(tuned(at("http", address)?, connect_timeout))
}

/// The same with TLS, for callers without a certificate. The node's certificate is verified with
/// `authority` (PEM) and the host of `address`.
///
/// # Errors
/// `InvalidInput` when the address is not of the form `host:port`, or `authority` is not PEM.
pub fn tls_endpoint(
    address: &str,
    connect_timeout: Duration,
    authority: &[u8],
) -> Result<Endpoint, PredictError> {
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    let endpoint = at("https", address)?.tls_config(config).map_err(|error| {
        PredictError::invalid("the authority's file has no usable certificates").with_source(error)
    })?;
    Ok(tuned(endpoint, connect_timeout))
}

fn at(scheme: &str, address: &str) -> Result<Endpoint, PredictError> {
    Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|error| {
        PredictError::new(
            ErrorCode::InvalidInput,
            "a node's address must have the form host:port",
        )
        .with_source(error)
    })
}

fn tuned(endpoint: Endpoint, connect_timeout: Duration) -> Endpoint {
    endpoint
        .connect_timeout(connect_timeout)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
}
