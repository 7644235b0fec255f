//! HTTP clients for the servers of remote models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::config::RemoteConfig;
use crate::egress::CheckedResolver;

/// Each client uses one HTTP/2 connection per host, with some hundred streams. Several clients
/// spread the load.
const CLIENTS: usize = 16;
/// Shorter than the idle timeouts of common servers and load balancers.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// Flow control window of a stream, in bytes. The window of the connection is the maximum, so that
/// a slow stream does not block the others.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;

/// A set of HTTP clients, used in turn.
#[derive(Debug)]
pub struct Clients {
    clients: Vec<reqwest::Client>,
    turn: AtomicUsize,
}

impl Clients {
    /// Creates clients that verify servers with the system's CA certificates.
    ///
    /// # Errors
    /// The system has no CA certificates, or a client cannot be created.
    pub fn new(config: &RemoteConfig) -> Result<Self, reqwest::Error> {
        Self::build(config, |builder| builder)
    }

    /// Creates clients for servers without TLS.
    ///
    /// # Errors
    /// A client cannot be created.
    pub fn without_tls(config: &RemoteConfig) -> Result<Self, reqwest::Error> {
        Self::build(config, |builder| builder.tls_certs_only([]))
    }

    fn build(
        config: &RemoteConfig,
        trust: impl Fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self, reqwest::Error> {
        let resolver = Arc::new(CheckedResolver::new(config.allow_private));
        let build = || {
            let builder = reqwest::Client::builder()
                .connect_timeout(config.connect_timeout)
                .pool_idle_timeout(POOL_IDLE)
                .tcp_nodelay(true)
                .http2_initial_stream_window_size(STREAM_WINDOW)
                .http2_initial_connection_window_size(CONNECTION_WINDOW)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("volley/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(resolver.clone());
            trust(builder).build()
        };
        Ok(Self {
            clients: (0..CLIENTS).map(|_| build()).collect::<Result<_, _>>()?,
            turn: AtomicUsize::new(0),
        })
    }

    /// The next client in turn.
    pub fn next(&self) -> &reqwest::Client {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.clients[turn % self.clients.len()]
    }
}
